"""Owns reading a whole db for a copy, page by page while it changes, and putting back what is not a timer: API keys,
declarations and pauses. `restoring.py` puts the timers back."""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from itertools import chain
from typing import Any, Final

from timers.store import keys
from timers.store.callers import REVOKED, Callers
from timers.store.membership import Declaration, Membership
from timers.store.queries import paused
from timers.store.scripts import read
from timers.store.store import Store

BUCKETS: Final = 16
"""How many buckets of records are read at a time."""

PAGE: Final = 32
"""About how many records of each at most: a round trip brings some 500, fewer if they are large."""

PAGE_BYTES: Final = 4 * 2**20
"""About the most that a round trip brings."""

Record = tuple[str, bytes]
"""A member, and its record."""


async def read_records(store: Store, pattern: str = "*") -> AsyncIterator[Sequence[Record]]:
    """The records of all shards whose members match a glob pattern, in pages. A timer that is there from the beginning
    to the end comes once, as it is in one moment of its life. Remembers the names of 16 of the 256 buckets of a shard,
    because a server may show an entry twice while a bucket grows. Writes nothing."""
    names = [f"{keys.root(shard)}rec:{bucket:02x}" for shard in range(store.shards) for bucket in range(256)]
    most = 1
    for start in range(0, len(names), BUCKETS):
        cursors, known = dict.fromkeys(names[start : start + BUCKETS], 0), set[bytes]()
        while cursors:
            scanned = await read(store.connections.commands, _scan(cursors, pattern, most), (0, {}))
            cursors = {name: cursor for name, (cursor, _) in zip(cursors, scanned, strict=True) if cursor}
            found = dict(chain.from_iterable(page.items() for _, page in scanned))
            yield [(keys.text(member), record) for member, record in found.items() if member not in known]
            known.update(found)
            has_room = sum(map(len, found.values())) < PAGE_BYTES / 2
            most = min(2 * most, PAGE) if has_room else max(most // 2, 1)


def _scan(cursors: Mapping[str, int], pattern: str, most: int) -> Callable[[Any], object]:
    match = None if pattern == "*" else pattern
    return lambda asked: [asked.hscan(name, cursor, match, most) for name, cursor in cursors.items()]


async def read_declarations(store: Store) -> Mapping[str, Declaration]:
    """Who declared each prefix last."""
    return (await Membership(store).read()).declared


async def read_pauses(store: Store) -> Mapping[str, int | None]:
    """The paused prefixes, with since when (epoch ms, if that is known)."""
    pauses = await _last_pauses(store)
    return {prefix: pauses.get(prefix, (None,))[0] for prefix in await paused(store)}


async def _last_pauses(store: Store) -> Mapping[str, tuple[int, ...]]:
    """When prefixes were last paused and, unless they still are, resumed: the newest of what the shards know."""
    found = await store.of_shards(lambda asked, root: asked.hgetall(f"{root}pauses"), {})
    last: dict[str, tuple[int, ...]] = {}
    for prefix, text in chain.from_iterable(pauses.items() for (pauses,) in found):
        times = tuple(int(ms) for ms in text.split() if ms.isdigit())
        last[keys.text(prefix)] = max(last.get(keys.text(prefix), ()), times)
    return {prefix: times for prefix, times in last.items() if times}


async def put_declaration(store: Store, prefix: str, said: Declaration, *, dry_run: bool) -> bool:
    """Declare a prefix that is not declared. False if it is."""
    if dry_run:
        return prefix not in await read_declarations(store)
    return await Membership(store).declare(prefix, said)


async def put_pause(store: Store, prefix: str, since_ms: int | None, *, if_exists: str, dry_run: bool) -> bool:
    """Pause a prefix. False if it is paused, or if it was resumed here once that pause had begun and `if_exists` does
    not say to replace that."""
    if prefix in await paused(store):
        return False
    known = (await _last_pauses(store)).get(prefix, ())
    if known and if_exists != "replace" and (if_exists == "keep" or since_ms is None or known[-1] >= since_ms):
        return False
    return dry_run or await store.pause(prefix, paused=True)


async def put_key(store: Store, key_id: str, entry: str, *, if_exists: str, dry_run: bool) -> bool:
    """Keep an API key, or that it was revoked. False if what is there stays; a revoked key stays revoked."""
    callers = Callers(store)
    there = (await callers.entries()).get(key_id)
    if there in (entry, REVOKED) or (there is not None and entry != REVOKED and if_exists != "replace"):
        return False
    if not dry_run:
        await (callers.revoke(key_id) if entry == REVOKED else callers.keep(key_id, entry))
    return True
