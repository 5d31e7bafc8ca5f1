"""Owns the upkeep of a shard, step by step: repairing indexes, heads, leases and counts by the records, and removing
finished timers whose retention is over."""

from collections.abc import AsyncIterator, Mapping, Sequence
from itertools import chain
from typing import Final, NamedTuple

from timers.core.model import Status
from timers.store import codec, keys
from timers.store.scripts import Argument, batched, grouped
from timers.store.store import Store

STEP: Final = 100
"""Records or entries in one step: one to two milliseconds of the server's time."""

INDEXED: Final = 500
"""Prefixes in one step that only checks whether they are indexed."""

QUEUES: Final = 25
"""Prefixes in one step."""

Found = Mapping[str, int]
"""What disagreed, and how often: `due`, `bare`, `retrying`, `leases`, `finished` (missing from the index), `left over`
(in the wrong index), `heads`, `counts`, `prefixes` (that have counts), `uncounted records`; what was quarantined:
`unreadable`, `no record`; and what was `put back` from there."""


async def audit(store: Store, shard: int) -> AsyncIterator[Found]:
    """Repair a shard and yield what each step found. Changes that happen meanwhile are not taken for damage."""
    async for found, _ in _steps(store, shard, "quarantine"):
        yield found
    prefixes = await _prefixes(store, shard)
    async for found, seen in _steps(store, shard, "records"):
        prefixes |= seen
        yield found
    kinds = ("due", "retrying", *(f"finished:{letter}" for letter in "cfux"))
    indexes = ["leases", *(f"{kind}:{prefix}" for prefix in sorted(prefixes) for kind in kinds)]
    for some in batched(indexes, STEP):
        async for found, _ in _steps(store, shard, "entries", *some):
            yield found
    async for found in compare(store, shard, prefixes, repair=True):
        yield found


async def compare(
    store: Store, shard: int, prefixes: set[str] | None = None, *, repair: bool = False
) -> AsyncIterator[Found]:
    """Compare only heads and counts with the indexes: quick, however many timers there are."""
    names = sorted(await _prefixes(store, shard) if prefixes is None else prefixes)
    for some in batched(names, QUEUES):
        yield (await _step(store, shard, ["queues", "repair" if repair else "look", *some]))[0]


async def uncounted(store: Store, shard: int) -> Found:
    """How many records the counts do not include. `compare` asks for prefixes with a count or a head, so it cannot see
    those that lost all of them."""
    return (await _step(store, shard, ["totals", "look"]))[0]


async def index_prefixes(store: Store, shard: int) -> None:
    """Fill the index of prefixes of a shard that is of an older version, or has lost it. Only one read of all counts at
    once misses no timer that starts meanwhile."""
    names = [*sorted(await _prefixes(store, shard)), keys.WHOLE]
    for some in batched(names, INDEXED):
        await _step(store, shard, ["prefixes", "repair", *some])


async def _prefixes(store: Store, shard: int) -> set[str]:
    """The prefixes that are indexed, or have a count, a head or retrying timers."""
    indexes = ("heads", "held", "retrying", "prefixes")
    ((counted, *named),) = await store.of_shards(
        lambda asked, root: [asked.hkeys(f"{root}counts"), *(asked.zrange(root + name, 0, -1) for name in indexes)],
        [],
        shards=[shard],
    )
    found = {keys.text(name).partition(" ")[2] for name in counted} | {keys.text(name) for name in chain(*named)}
    return found - {keys.WHOLE}


async def _steps(store: Store, shard: int, part: str, *names: str) -> AsyncIterator[tuple[Found, set[str]]]:
    """Go through a part, repairing. What each step found, and the prefixes that it has met."""
    place, cursor = 0, "0"
    while place >= 0:
        found, place, cursor, seen = await _step(store, shard, [part, "repair", place, cursor, STEP, *names])
        yield found, seen


async def _step(store: Store, shard: int, part: Sequence[Argument]) -> tuple[Found, int, str, set[str]]:
    told, place, cursor, seen = await store.run("audit", shard, part)
    found = {what.decode(): int(number) for what, number in grouped(told, 2)}
    return found, int(place), cursor.decode(), {name.decode() for name in seen}


COUNTS: Final = 500
"""Counts (each of a prefix and a status) that one call reads: about a millisecond of the server's time."""


class Pruned(NamedTuple):
    """How many records were removed; where to go on (`0`: from the beginning); which of them had failed or were
    unhandled: prefix, status, how many, the id of the oldest; and whether none is left behind the given cursor."""

    number: int
    cursor: str
    failed: Sequence[tuple[str, Status, int, str]]
    is_last: bool


async def prune(
    store: Store,
    shard: int,
    *,
    retention_ms: int,
    retention_failed_ms: int | None,
    most: int,
    cursor: str = "0",
) -> Pruned:
    """Remove at most `most` finished records whose retention is over, fewer if they are large, reading about COUNTS
    counts from `cursor` on. `retention_failed_ms` is for failed and unhandled timers; None keeps them. Raises
    Unavailable."""
    failed_ms = "" if retention_failed_ms is None else retention_failed_ms
    number, reached, failed, cut = await store.run("prune", shard, [retention_ms, failed_ms, most, COUNTS, cursor])
    removed = [
        (keys.text(prefix), codec.STATUSES[letter.decode()], int(n), keys.text(oldest))
        for letter, prefix, n, oldest in grouped(failed, 4)
    ]
    return Pruned(int(number), keys.text(reached), removed, reached == b"0" and int(number) < most and not cut)
