"""Owns checking whether a service is healthy: its server, its data, and its pods."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Final

from timers.client.fleet import NAMES_SHOWN, Fleet, shortened
from timers.core.fields import OWN_PREFIXES
from timers.core.model import Status
from timers.doctor.checks import Check, Level, judged
from timers.doctor.failover import check_failover, durability_check
from timers.doctor.proofs import DELIVERY_SECONDS, Refusal, check_server, unfinished
from timers.errors import ConfigurationError, Unavailable
from timers.store import queries
from timers.store.filters import Filter
from timers.store.following import left
from timers.store.listing import read_page
from timers.store.membership import Member, Membership, Roster
from timers.store.store import Queue, Store
from timers.store.upkeep import STEP, audit, compare, uncounted

if TYPE_CHECKING:
    from timers.ledger.database import Database

_HANGS_UP: Final = "read its log; a port with TLS wants rediss://, and perhaps a valid ssl_certfile and ssl_keyfile"

UNREACHABLE: Final[Mapping[str, str]] = {
    "certificate": "renew it, or correct ssl_ca_certs, ssl_certfile and ssl_keyfile in TIMERS_REDIS_URL",
    "reset by peer": _HANGS_UP,
    "closed by server": _HANGS_UP,
    "connection lost": _HANGS_UP,
    "busy": "`redis-cli SCRIPT KILL`; find out whose script it is",
    "db index": "correct the number of the db at the end of TIMERS_REDIS_URL, or raise databases of the server",
    "which is no sentinel": "put that form into TIMERS_REDIS_URL, or the address of a Sentinel",
    "knows no service": "correct the name of the service after the addresses in TIMERS_REDIS_URL",
    "loading": "wait until the server has read its data; `redis-cli INFO persistence` tells how far it is",
    "number of clients": "end programs that keep connections which they do not need, or raise maxclients of the server",
    "password": "correct the user and the password in TIMERS_REDIS_URL",
    "authentica": "put the user and the password into TIMERS_REDIS_URL",
}
"""What repairs a server that cannot be used, by a part of its error in lower case."""

Progress = Callable[[str, int], AbstractContextManager[Callable[[int], object]]]
"""Shows, while it is entered, how many of about a number are done."""

STUCK_MS: Final = 60_000
"""A timer that has been due this long, while pods could run it, is not just waiting its turn in a burst."""


MANY_KEPT: Final = 10_000
"""Failed and unhandled timers from which the doctor warns: some 15 MiB."""

KEPT_BYTES: Final = 1500
"""What a failed timer takes with its error and three tries (`python -m tests.bench.memory`)."""


async def examine(
    store: Store,
    *,
    fix: bool = False,
    acknowledge: bool = False,
    wait_seconds: float = DELIVERY_SECONDS,
    progress: Progress = lambda _label, _number: nullcontext(lambda _done: None),
    ledger: "Database | None" = None,
) -> list[Check]:
    """Run every check, in order. `fix` turns missing notification flags on and repairs indexes and counts; `progress`
    shows how far it is. `acknowledge` ends the warnings of lost data; `wait_seconds` is how long an event may take.
    Raises Unavailable if the server does not answer at all. The `ledger` is checked too, if there is one."""
    roster = await _roster(store)
    checks = await check_server(store, fix=fix, wait_seconds=wait_seconds, prefixes=roster.declared)
    try:
        checks.append(await durability_check(store, roster.members, has_ledger=ledger is not None))
        checks.append(await _data(store, acknowledge=acknowledge))
        if store.identity.moving is None or not store.identity.moving.is_over:  # what was left behind waits for nobody
            checks += await _work(store, roster, fix=fix, progress=progress)
        if ledger is not None:
            from timers.doctor.ledger import check_ledger  # noqa: PLC0415 (what it needs is an extra)

            checks.append(await check_ledger(store, ledger))
        elif roster.members and not any(member.has_ledger for member in roster.members):
            checks += await _left_ledger(store)
    except (ConfigurationError, Unavailable, Refusal) as error:
        repair = "see the findings above; if the db belongs to another service, correct TIMERS_REDIS_URL"
        said, means = f"the db cannot be used: {error}", "pods and callers are refused"
        checks.append(unfinished("data", said, means, repair, error))
    return checks


async def _left_ledger(store: Store) -> list[Check]:
    """A finding if changes are noted for a ledger that no pod has."""
    waiting = sum((await left(store, range(store.shards))).values())
    said = f"changes are noted in Redis for a ledger that no pod has: {waiting}"
    means = "nobody takes the notes away; they take memory, one for each timer that ever changes"
    repair = "`timers db detach`, or give the pods their TIMERS_LEDGER_URL again"
    return [Check("ledger", "warn", said, means, repair)] if waiting else []


async def unreachable(store: Store, error: Unavailable) -> list[Check]:
    """What is found where the server does not answer: that, and whether another one can take its place."""
    repair = next(
        (repair for part, repair in UNREACHABLE.items() if part in str(error).lower()),
        "start it, or correct TIMERS_REDIS_URL",
    )
    failover = [check async for check in check_failover(store, None, fix=False)]
    return [Check("server", "fail", str(error), "nothing is armed or run", repair), *failover]


def unacknowledged(store: Store) -> list[str]:
    """A sentence for each loss of data, and a foreign number of shards, that this process knows of and nobody has
    acknowledged."""
    known = [*map(str, store.identity.losses.values()), *filter(None, [store.identity.foreign])]
    return [f"{what}; acknowledge it with `timers doctor --acknowledge`" for what in known]


async def _roster(store: Store) -> Roster:
    """Empty if it cannot be read; the checks of the server say why."""
    try:
        return await Membership(store).read()
    except (Unavailable, Refusal):
        return Roster()


async def _data(store: Store, *, acknowledge: bool) -> Check:
    known = await store.identity.acknowledge() if acknowledge else ()
    await store.identity.refresh()
    if known:
        return Check("data", "warn", f"acknowledged: {'; '.join(map(str, known))}")
    losses, foreign = [str(loss) for loss in store.identity.losses.values()], store.identity.foreign
    means = "timers armed earlier are gone, or are in an earlier state"
    repair = "restore them or arm them anew, then `timers doctor --acknowledge`"
    read = "whoever wrote it may write anything; clients that read it meanwhile looked for timers in other shards"
    moving, moves = store.identity.moving, store.identity.moving is not None
    says = "" if moving is None else str(moving.error)
    where = "give pods and callers its new URL" if moving is not None and moving.is_over else "wait until it is done"
    find = "find out who writes there and take the right away, then `timers doctor --acknowledge`"
    return judged(
        "data",
        "no unacknowledged loss of data is known",
        (bool(losses), "fail", "; ".join(losses), means, repair),
        (moves, "fail", says, "nothing is armed or started here", f"{where}; docs/runbook.md"),
        (bool(foreign), "warn", foreign, read, find),
    )


async def _work(store: Store, roster: Roster, *, fix: bool, progress: Progress) -> list[Check]:
    due, now_ms = await queries.due(store)
    fleet, paused = Fleet(roster, due, store.shards, now_ms), set(await queries.paused(store))
    counted = [each async for each in queries.counted(store)]
    scheduled = [(shard, prefix) for shard, prefix, status, _ in counted if status is Status.SCHEDULED]
    kept = Counter[str]()
    for _, prefix, status, n in counted:
        if status in (Status.FAILED, Status.UNHANDLED) and not prefix.startswith(OWN_PREFIXES):
            kept[prefix] += n
    return [
        *_waiting(fleet, scheduled, paused),
        _retrying(await queries.long_failing(store)),
        _kept(kept),
        *_pods(store, roster.members),
        await _hooks(store),
        await _indexes(store, progress if fix else None),
        _quarantine(*await queries.quarantined(store)),
    ]


def _waiting(fleet: Fleet, scheduled: Iterable[Queue], paused: Set[str]) -> Iterator[Check]:
    """What waits for a pod, or because it is paused."""
    due, workers = {(shard, prefix) for shard, prefix, *_ in fleet.due}, fleet.roster.workers
    unserved, means = fleet.unserved_of({*scheduled, *due}), "timers wait in them until a pod takes them"
    level: Level = "fail" if unserved.prefixes else "warn"
    said = f"shards without a live pod: {shortened(unserved.shards)}"
    repair = "start pods whose TIMERS_SHARD_SUBSET has them"
    yield judged(
        "shards",
        "every shard has a live worker",
        (not workers, level, "no worker is alive, so nothing runs", means, "start one: `timers serve`"),
        (bool(unserved.shards), "fail", said, means, repair),
    )
    said = f"timers wait, but no live pod serves these prefixes: {shortened(unserved.prefixes)}"
    means = "they become unhandled a minute after they are due"
    repair = "start pods with their processors, or withdraw a declaration: `timers prefixes forget PREFIX`"
    yield judged(
        "prefixes", "every waiting timer has a live pod", (bool(unserved.prefixes), "fail", said, means, repair)
    )
    since_ms = fleet.now_ms - STUCK_MS
    late = {each.prefix for each in fleet.due if each.kind != "blocked" and each.since_ms <= since_ms}
    stuck = sorted(late - paused - {*unserved.prefixes}) if workers else []
    room = sum(max(0, worker.concurrency - worker.running) for worker in workers)
    said = f"timers have been due for more than a minute: {shortened(stuck)}; the pods have room for {room} more runs"
    means = "these timers and those behind them run late"
    repair = "see what runs with `timers ls --status running`, and /readyz of each pod; add pods"
    back = fleet.held_back(paused)
    behind = f"a limit holds back timers that have been due for more than five minutes: {shortened(back)}"
    others = "they start only as other runs of their prefix end, or as its rate allows"
    look = ", ".join(f"`timers ls --prefix {prefix} --status running`" for prefix in back[:NAMES_SHOWN])
    yield judged(
        "queues",
        "no timer that may run has been due for a minute",
        (bool(stuck), "fail", said, means, repair),
        (bool(back), "warn", behind, others, f"{look} shows whether a run does not end; else raise the limit"),
    )
    held = sorted(paused & {prefix for _, prefix in due})
    said, means = f"timers of paused prefixes are due: {shortened(held)}", "they wait until somebody resumes them"
    repair = ", ".join(f"`timers resume {prefix}`" for prefix in held[:NAMES_SHOWN])
    yield judged("paused", "no paused prefix has due timers", (bool(held), "warn", said, means, repair))


def _kept(kept: Counter[str]) -> Check:
    said = f"{kept.total()} failed and unhandled timers are kept"
    most = kept.most_common(1)[0][0] if kept else ""
    named = f"{said}, most of them of {most!r}"
    means = f"they wait for a person, and take about {kept.total() * KEPT_BYTES / 2**20:.0f} MiB of Redis's memory"
    repair = (
        f"find out why, then `timers retry --prefix {most} --status failed,unhandled --yes`; "
        "or purge them, or set TIMERS_RETENTION_FAILED"
    )
    return judged("failed", said, (kept.total() > MANY_KEPT, "warn", named, means, repair))


def _retrying(failing: Mapping[str, str]) -> Check:
    means = "they have not done their work, and will have failed for good when their attempts are used up"
    named = list(failing)[:NAMES_SHOWN]
    repair = "repair what they call, then " + ", ".join(
        f"`timers reschedule --prefix {prefix} --status retrying --in 0s --yes`" for prefix in named
    )
    said = f"timers keep failing and are tried again: {'; '.join(failing.values())}"
    return judged(
        "retrying", "no timer has kept failing for five minutes", (bool(failing), "warn", said, means, repair)
    )


def _pods(store: Store, members: Sequence[Member]) -> Iterator[Check]:
    """What the pods tell of themselves."""
    lacks = [f"{pod.pod}: {said}" for pod in members for said in pod.lacks.values()]
    troubles = [f"{pod.pod}: {pod.trouble}" for pod in members if pod.trouble]
    troubles += [f"{m.pod}: notifications are {m.delivery}" for m in members if m.works and m.delivery != "ok"]
    grant = "give the user of these pods the rights in the section Rights of PROTOCOL.md, with `redis-cli ACL SETUSER`"
    means, repair = "such a pod finds timers only by the sweep, or takes none", "check /readyz and the log of the pod"
    yield judged(
        "pods",
        f"all live pods receive notifications ({len(members)})",
        (bool(lacks), "fail", shortened(lacks), "timers of these prefixes are not armed or run", grant),
        (bool(troubles), "warn", shortened(troubles), means, repair),
    )
    yield _format(store, members)
    by_value: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for pod in members:
        for name, value in pod.settings.items():  # what a pod does not report counts as equal
            by_value[name][value].append(pod.pod)
    differ = [
        f"{name}: {' and '.join(f'{value} on {shortened(sorted(pods))}' for value, pods in sorted(values.items()))}"
        for name, values in sorted(by_value.items())
        if len(values) > 1
    ]
    means = "what happens to a timer depends on the pod that takes it"
    repair = "give all pods the same settings and limits, or wait until a rolling deploy has ended"
    yield judged(
        "settings", "all pods have the same settings", (bool(differ), "warn", "; ".join(differ), means, repair)
    )
    senders = [pod for pod in members if pod.works and "TIMERS_OUTBOX" in pod.settings]
    folders = [f"{pod.pod} to {pod.settings['TIMERS_OUTBOX']}" for pod in senders]
    said = f"pods without a gateway write messages to a folder: {shortened(folders)}"
    means = "nobody receives them; their history says `not sent`"
    repair = "set TIMERS_SMTP_URL and TIMERS_SMS_URL, or unset TIMERS_OUTBOX: then such messages fail"
    yield judged("messages", "no pod writes messages to a folder", (bool(folders), "warn", said, means, repair))


def _format(store: Store, members: Sequence[Member]) -> Check:
    """Which format records are written in, and who keeps it from being newer."""
    written = f"records are written in format {store.identity.writes}"
    newest = max((pod.format for pod in members), default=store.identity.form)
    older = [f"{pod.pod} (version {pod.version or 'unknown'}, {pod.format})" for pod in members if pod.format < newest]
    met = sorted({f"{timer} ({form})" for pod in members for timer, form in pod.newer.items()})
    unread = f"timers are in a format that pods cannot read: {shortened(met)}"
    waits = f"{written}, because not all pods read {newest}: {shortened(older)}"
    alone, later = "only pods of the version that wrote them run and change them", "a newer format waits for these pods"
    return judged(
        "format",
        f"{written}; the live pods read up to {newest}" if members else written,
        (bool(met), "fail", unread, alone, "upgrade the other pods"),
        (bool(older), "warn", waits, later, "upgrade them, or take TIMERS_FORMAT from them"),
    )


async def _hooks(store: Store) -> Check:
    waiting, oldest_ms, _ = await queries.aside(store)
    calls = Filter.parse({"prefix": f"{OWN_PREFIXES}*", "status": "scheduled,failed,unhandled"})
    wrong = calls.where(lambda timer: timer.last_error is not None or timer.status is Status.UNHANDLED)
    page = await read_page(store, wrong, limit=1)
    failing = [f"{timer.key}: {(timer.last_error or {}).get('reason', timer.history[0].note)}" for timer in page.items]
    said = f"{waiting} changes wait, the oldest for {oldest_ms // 1000} s"
    means = "hooks and alarms do not hear of them; a full outbox takes no more"
    start = "start a worker, or see `hooks` under services in /readyz of the workers"
    fail = f"calls of hooks or messages of alarms fail, such as {shortened(failing)}"
    repair = (
        f"repair the receiver, then `timers retry --prefix '{OWN_PREFIXES}*' --status failed,unhandled --yes`; "
        f"if it has been taken from the settings: `timers purge --prefix '{OWN_PREFIXES}*' --status unhandled --yes`"
    )
    return judged(
        "hooks",
        f"{waiting} changes wait for a pod",
        (oldest_ms > STUCK_MS, "fail", said, means, start),
        (bool(failing), "warn", fail, "their receivers learn late what happened, or never", repair),
    )


async def _indexes(store: Store, progress: Progress | None) -> Check:
    """With `progress` repair: a step looks at up to STEP records, and later at as many entries of indexes. Else look
    quickly at heads and counts, which reveals a lost index."""
    total: Counter[str] = Counter()
    if progress is None:
        for shard in range(store.shards):
            async for found in compare(store, shard):
                total.update(found)
        unlisted = total.pop("prefixes", 0)
        for shard in () if total else range(store.shards):
            total.update(await uncounted(store, shard))
        said = f"indexes do not match the timers ({_numbers(total)})"
        means = "timers missing from an index do not run until it is repaired, which the pods do slowly"
        only = f"{unlisted} prefixes are not in their index, or wrongly are, as after pods of an earlier version"
        quotas = "quotas of API keys for several prefixes miscount them until it is repaired, which the pods do slowly"
        return judged(
            "indexes",
            "indexes and counts agree",
            (bool(total), "fail", said, means, "`timers doctor --fix`"),
            (bool(unlisted), "warn", only, quotas, "`timers doctor --fix`"),
        )
    counts = await queries.counts(store)
    number, done = 2 * sum(n for of in counts.values() for status, n in of.items() if status is not Status.RETRYING), 0
    with progress("repairing", number) as show:
        for shard in range(store.shards):
            async for found in audit(store, shard):
                total.update(found)
                show(done := min(done + STEP, number))
        show(number)
    fine = "records, indexes and counts agree"
    return judged("indexes", fine, (bool(total), "warn", f"repaired ({_numbers(total)})", "", ""))


def _numbers(total: Mapping[str, int]) -> str:
    return ", ".join(f"{what}: {number}" for what, number in sorted(total.items()))


def _quarantine(number: int, some: Mapping[str, str]) -> Check:
    shown = ", ".join(f"{member!r} ({reason})" for member, reason in some.items())
    said = f"{number} records could not be read and are in quarantine, such as {shown}"
    repair = "arm these timers again, then for each shard N: redis-cli HDEL 'timers:{N}:quarantine' PREFIX:ID"
    fine = "no unreadable record was found"
    return judged("quarantine", fine, (bool(number), "warn", said, "these timers do not run", repair))
