"""Owns checking whether a service is healthy: its server, its data, and its pods."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Final

from timers.client.coverage import few, uncovered
from timers.errors import ConfigurationError, Unavailable
from timers.store.audit import audit, compare
from timers.store.checkup import Check
from timers.store.membership import Member, Membership, Roster
from timers.store.proofs import DELIVERY_SECONDS, Refusal, check_server
from timers.store.queries import Queries
from timers.store.scripts import FULL
from timers.store.server import is_full
from timers.store.store import Store

STUCK_MS: Final = 60_000
"""A timer that has been due this long, while pods could run it, is not just waiting its turn in a burst."""


async def examine(
    store: Store, *, fix: bool = False, acknowledge: bool = False, wait_seconds: float = DELIVERY_SECONDS
) -> list[Check]:
    """Run every check, in order. `fix` turns missing notification flags on and mends indexes and counts; `acknowledge`
    ends the warnings of lost data; `wait_seconds` is how long an event may take. Raises Unavailable if the server does
    not answer at all."""
    roster = await _roster(store)
    found = await check_server(
        store,
        fix=fix,
        wait_seconds=wait_seconds,
        prefixes=roster.declared,
        served=lambda prefix: bool(roster.serving(prefix)),
    )
    try:
        return [*found, await _data(store, acknowledge=acknowledge), *await _work(store, roster, fix=fix)]
    except (ConfigurationError, Unavailable, Refusal) as error:
        mend = "see the findings above; if it is another's db or another service's, correct TIMERS_REDIS_URL"
        return [*found, Check("data", "fail", f"it cannot be used: {error}", "pods and callers are refused", mend)]


def unacknowledged(store: Store) -> list[str]:
    """A sentence for each loss of data that this process knows of and nobody has acknowledged."""
    return [f"{loss}; acknowledge it with `timers doctor --acknowledge`" for loss in store.identity.losses.values()]


async def full(store: Store) -> list[str]:
    """A sentence if the server has reached its memory limit. Raises Unavailable."""
    return [FULL] if await is_full(store.connections.commands) else []


async def _roster(store: Store) -> Roster:
    """Empty if it cannot be read; the checks of the server say why."""
    try:
        return await Membership(store).read()
    except (Unavailable, Refusal):
        return Roster()


async def _data(store: Store, *, acknowledge: bool) -> Check:
    if acknowledge and (known := await store.identity.acknowledge()):
        return Check("data", "warn", f"acknowledged: {'; '.join(map(str, known))}")
    await store.identity.look()
    if losses := [str(loss) for loss in store.identity.losses.values()]:
        means = "timers armed before are gone, or are as they were earlier"
        mend = "restore them or arm them anew, then: timers doctor --acknowledge"
        return Check("data", "fail", "; ".join(losses), means, mend)
    return Check("data", "ok", "no loss of data is known that nobody has acknowledged")


async def _work(store: Store, roster: Roster, *, fix: bool) -> list[Check]:
    queries, workers = Queries(store), roster.workers
    due = await queries.due_queues()
    missing = uncovered(roster, {*await queries.waiting_queues(), *due}, store.shards)
    stuck = {prefix for _, prefix in await queries.due_queues(for_ms=STUCK_MS, held=False)}
    paused = set(await queries.paused())
    return [
        _shards(missing.shards, workers, store.shards),
        _prefixes(missing.prefixes, workers),
        _queues(sorted(stuck - paused - {*missing.prefixes}) if workers else [], workers),
        _paused(sorted(paused & {prefix for _, prefix in due})),
        _pods(roster.members),
        _settings(roster.members),
        await _books(store, fix=fix),
        _quarantine(*await queries.quarantined()),
    ]


def _shards(missing: Sequence[int], workers: Sequence[Member], shards: int) -> Check:
    means = "timers wait there until a pod takes them"
    if not workers:
        return Check("shards", "warn", "no worker is alive: nothing runs", means, "start one: timers serve")
    if missing:
        mend = "start pods whose TIMERS_SHARD_SUBSET has them"
        return Check("shards", "fail", f"no live pod takes the shards {few(missing)}", means, mend)
    return Check("shards", "ok", f"{len(workers)} live workers cover all {shards}")


def _prefixes(missing: Sequence[str], workers: Sequence[Member]) -> Check:
    if not missing:
        return Check("prefixes", "ok", "every waiting timer has a pod that takes it")
    said = f"timers wait that no live pod takes, of the prefixes {few(missing)}"
    means = "they become unhandled a minute after they are due"
    mend = "start pods with their processors, or take a declaration back: timers prefixes forget PREFIX"
    return Check("prefixes", "fail" if workers else "warn", said, means, mend)


def _queues(stuck: Sequence[str], workers: Sequence[Member]) -> Check:
    if not stuck:
        return Check("queues", "ok", "nothing that may run has been due for a minute")
    room = sum(max(0, worker.concurrency - worker.running) for worker in workers)
    said = f"timers have been due for more than a minute of the prefixes {few(stuck)}; the pods have room for {room}"
    mend = "see what they run with `timers ls --status running`, and /readyz of each; add pods"
    return Check("queues", "fail", said, "they run late, and those behind them too", mend)


def _paused(prefixes: Sequence[str]) -> Check:
    if not prefixes:
        return Check("paused", "ok", "no paused prefix has timers due")
    said = f"timers are due of the paused prefixes {few(prefixes)}"
    return Check("paused", "warn", said, "they wait until somebody resumes them", f"timers resume {prefixes[0]}")


def _pods(members: Sequence[Member]) -> Check:
    troubles = [f"{pod.pod}: {pod.trouble}" for pod in members if pod.trouble]
    troubles += [f"{pod.pod}: notifications are {pod.hearing}" for pod in members if pod.works and pod.hearing != "ok"]
    if not troubles:
        return Check("pods", "ok", f"{len(members)} pods are alive and hear")
    means = "such a pod finds timers by the sweep, or is not counted on"
    return Check("pods", "warn", few(troubles), means, "see /readyz and the log of the pod")


def _settings(members: Sequence[Member]) -> Check:
    """A setting that a pod does not report counts as equal."""
    told: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for pod in members:
        for name, value in pod.settings.items():
            told[name][value].append(pod.pod)
    differ = [
        f"{name}: {' and '.join(f'{value} on {few(sorted(pods))}' for value, pods in sorted(values.items()))}"
        for name, values in sorted(told.items())
        if len(values) > 1
    ]
    if not differ:
        return Check("settings", "ok", "the pods agree")
    means = "a timer is treated one way or the other, depending on its pod"
    return Check("settings", "warn", "; ".join(differ), means, "give all pods the same, and let a rolling deploy end")


async def _books(store: Store, *, fix: bool) -> Check:
    """Without `fix`, a quick look at heads and counts, which reveals a lost index."""
    total: Counter[str] = Counter()
    for shard in range(store.shards):
        async for found in audit(store, shard) if fix else compare(store, shard):
            total.update(found)
    said = ", ".join(f"{number} {what}" for what, number in sorted(total.items()))
    if not total:
        return Check("books", "ok", "records, indexes and counts agree" if fix else "heads and counts agree")
    if fix:
        return Check("books", "warn", f"mended: {said}")
    means = "timers that an index lacks stand still until it is mended; the pods do so slowly"
    return Check("books", "fail", f"indexes and counts disagree: {said}", means, "timers doctor --fix")


def _quarantine(number: int, some: Mapping[str, str]) -> Check:
    if not number:
        return Check("quarantine", "ok", "every record that was met could be read")
    shown = ", ".join(f"{member!r} ({reason})" for member, reason in some.items())
    said = f"{number} timers could not be read and are kept aside, as {shown}"
    mend = "arm them anew, then for each shard N: redis-cli HDEL 'timers:{N}:quarantine' PREFIX:ID"
    return Check("quarantine", "warn", said, "they do not run", mend)
