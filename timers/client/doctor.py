"""Owns the question whether a service is healthy: the server's checks, and whether pods cover what there is to do."""

from collections import Counter
from collections.abc import Mapping, Sequence

from timers.client.coverage import few, uncovered
from timers.store.audit import audit, compare
from timers.store.checkup import Check, check_server
from timers.store.membership import Member, Membership
from timers.store.queries import Queries
from timers.store.scripts import FULL
from timers.store.server import is_full
from timers.store.store import Store


async def examine(store: Store, *, fix: bool = False, acknowledge: bool = False) -> list[Check]:
    """Every check in order. `fix` turns missing notification flags on, and mends indexes and counts; `acknowledge` ends
    the warnings of lost data. Raises Unavailable."""
    data = await _data(store, acknowledge=acknowledge)
    roster = await Membership(store).read()
    queries = Queries(store)
    queues = {*await queries.waiting_queues(), *await queries.due_queues()}
    missing = uncovered(roster, queues, store.shards)
    found = await check_server(store, fix=fix, served=lambda prefix: bool(roster.serving(prefix)))
    covered = (_shards(missing.shards, roster.workers, store.shards), _prefixes(missing.prefixes, roster.workers))
    books = await _books(store, fix=fix)
    return [*found, data, *covered, books, _quarantine(*await queries.quarantined())]


def unacknowledged(store: Store) -> list[str]:
    """A sentence for each loss of data that this process knows of and nobody has acknowledged."""
    return [f"{loss}; acknowledge it with `timers doctor --acknowledge`" for loss in store.identity.losses.values()]


async def full(store: Store) -> list[str]:
    """A sentence where the server has reached its memory limit. Raises Unavailable."""
    return [FULL] if await is_full(store.connections.commands) else []


async def _data(store: Store, *, acknowledge: bool) -> Check:
    if acknowledge and (known := await store.identity.acknowledge()):
        return Check("data", "warn", f"acknowledged: {'; '.join(map(str, known))}")
    await store.identity.look()
    if lost := unacknowledged(store):
        return Check("data", "fail", "; ".join(lost))
    return Check("data", "ok", "no loss of data is known that nobody has acknowledged")


async def _books(store: Store, *, fix: bool) -> Check:
    """Without `fix` a quick look at heads and counts, from which a lost index shows."""
    total: Counter[str] = Counter()
    for shard in range(store.shards):
        async for found in audit(store, shard) if fix else compare(store, shard):
            total.update(found)
    said = ", ".join(f"{number} {what}" for what, number in sorted(total.items()))
    if not total:
        return Check("books", "ok", "records, indexes and counts agree" if fix else "heads and counts agree")
    if fix:
        return Check("books", "warn", f"mended: {said}")
    return Check("books", "fail", f"indexes and counts disagree: {said}; --fix mends them, and the pods do so slowly")


def _shards(missing: Sequence[int], workers: Sequence[Member], shards: int) -> Check:
    if not workers:
        return Check("shards", "warn", "no worker is alive: nothing runs")
    if missing:
        return Check("shards", "fail", f"no live pod takes the shards {few(missing)}")
    return Check("shards", "ok", f"{len(workers)} live workers cover all {shards}")


def _prefixes(missing: Sequence[str], workers: Sequence[Member]) -> Check:
    if not missing:
        return Check("prefixes", "ok", "every waiting timer has a pod that takes it")
    said = f"timers wait that no live pod takes, of the prefixes {few(missing)}"
    return Check("prefixes", "fail" if workers else "warn", said)


def _quarantine(number: int, some: Mapping[str, str]) -> Check:
    if not number:
        return Check("quarantine", "ok", "every record that was met could be read")
    shown = ", ".join(f"{member!r} ({reason})" for member, reason in some.items())
    said = f"{number} timers could not be read and are kept aside, as {shown}; arm them anew, then remove them there"
    return Check("quarantine", "warn", said)
