"""Owns finding timers that the ledger and Redis have differently although nothing says that one of them was lost, such
as a bucket that somebody deleted, and repairing that: the newer side wins.

A timer counts only if two looks, some seconds apart, find the same difference, and no change of it is on its way to the
ledger. A timer that one side lacks is given to it; none is removed because the other lacks it.

The functions raise Unavailable and LedgerUnavailable.
"""

from collections.abc import AsyncIterator, Iterable, Mapping
from functools import partial
from typing import NamedTuple

from timers.client.copies import give, remove, row_of
from timers.ledger import facts, rows
from timers.ledger.database import Database
from timers.ledger.many import SAVED
from timers.ledger.rows import RowAge
from timers.store import following as in_redis
from timers.store import keys
from timers.store.following import Age, founded
from timers.store.restoring import Record, read_records
from timers.store.store import Identity, Store

Suspects = Mapping[Identity, tuple[RowAge | None, Age | None]]
"""By timer: what the ledger has of it, and what Redis has."""

_FACT = "drift"


class Drift(NamedTuple):
    """How many timers Redis lacked or had older, and how many the ledger."""

    redis: int = 0
    ledger: int = 0

    def plus(self, other: "Drift") -> "Drift":
        """Both together."""
        return Drift(self.redis + other.redis, self.ledger + other.ledger)


class Compared(NamedTuple):
    """When a shard was last compared to the end, when a difference was last found (0: never), and what that was."""

    at_ms: int
    found_ms: int
    drift: Drift


async def first_looks(store: Store, database: Database, shard: int) -> AsyncIterator[Suspects]:
    """Go through all that the ledger has of a shard and then through all that Redis has, step by step; what differs at
    each step."""
    last: Identity = ("", "")
    while page := await rows.page_of_ages(database, shard, *last):
        last = list(page)[-1]
        yield await _differing(store, shard, page)
    async for found in read_records(store, shards=[shard]):
        yield await _newer(database, shard, found)


async def repair(store: Store, database: Database, shard: int, suspects: Suspects) -> Drift:
    """Look again, and give each side what only the other has, or has newer."""
    life = (await founded(store, shard)).life
    found = await database.do(partial(rows.ages, identities=suspects.keys()), writes=False)
    again = await _differing(store, shard, {identity: found.get(identity) for identity in suspects})
    sure = {identity: pair for identity, pair in again.items() if pair == suspects[identity]}
    older = {i: age for i, (row, age) in sure.items() if age is not None and (row is None or row.age < age)}
    lacking = {i: row for i, (row, _) in sure.items() if row is not None and i not in older}
    kept = [i for i, row in lacking.items() if not row.gone]
    given = await give(store, database, kept, life)
    taken = await remove(store, {i: row.age for i, row in lacking.items() if row.gone})
    await in_redis.note(store, shard, older)
    return Drift(given + taken, len(older))


async def take_away(store: Store, database: Database, shard: int, since_ms: int) -> int:
    """Remove timers that Redis has again though they were removed since a time: it lost its newest data. Returns how
    many."""
    last, count = (since_ms, "", ""), 0
    while page := await rows.page_of_gone(database, shard, *last):
        last, gone = max(page), {(prefix, timer_id): age for (_, prefix, timer_id), age in page.items()}
        there = await in_redis.ages(store, shard, gone.keys(), noted=True)
        older = {i: gone[i] for i, age in there.items() if age is not None and age < gone[i]}
        count += await remove(store, older)
        if len(page) < SAVED:
            break  # what is removed meanwhile comes last, so there might be more without end
    return count


async def is_apart(store: Store, database: Database, shard: int) -> tuple[int, int]:
    """How many records the shard has more than it counts, and how many unfinished timers more than the ledger, as far
    as changes on their way to the ledger do not explain it. (0, 0) if all seems well."""
    before = await in_redis.totals(store, shard)
    kept = await rows.count_live(database, shard)
    after = await in_redis.totals(store, shard)
    slack = before.noted + after.noted
    lacking, more = before.records - before.counted, min(before.live - kept, after.live - kept, key=abs)
    return _beyond(lacking, slack), _beyond(more, slack)


async def tell(store: Store, database: Database, shard: int, drift: Drift) -> None:
    """Keep for the doctor that a shard was compared, and what differed."""
    known = (await compared(database)).get(shard, Compared(0, 0, Drift()))
    now_ms = round(store.clock.now_ms())
    found_ms, last = (now_ms, drift) if any(drift) else (known.found_ms, known.drift)
    said = {(_FACT, str(shard)): f"{now_ms} {found_ms} {last.redis} {last.ledger}"}
    await database.do(partial(facts.write, changed=said, gone=()))


async def compared(database: Database) -> dict[int, Compared]:
    """By shard, what its last comparison found; without those never compared."""
    found = {}
    for (kind, name), said in (await database.do(facts.read, writes=False)).items():
        if kind == _FACT:
            at_ms, found_ms, *counts = map(int, said.split())
            found[int(name)] = Compared(at_ms, found_ms, Drift(*counts))
    return found


def _beyond(number: int, slack: int) -> int:
    return 0 if abs(number) <= slack else number


async def _differing(store: Store, shard: int, kept: Mapping[Identity, RowAge | None]) -> Suspects:
    """Which of these timers Redis has differently. One that was removed may be missing there."""
    there = await in_redis.ages(store, shard, kept.keys())
    pairs = {identity: (kept[identity], age) for identity, age in there.items()}
    return {identity: pair for identity, pair in pairs.items() if _differ(*pair)}


def _differ(row: RowAge | None, age: Age | None) -> bool:
    if row is None or age is None:
        return age is not None or (row is not None and not row.gone)
    return row.age != age


async def _newer(database: Database, shard: int, found: Iterable[Record]) -> Suspects:
    """Which of these records the ledger lacks or has older, without those that it cannot keep."""
    there = {
        (row.prefix, row.id): (row.created, row.version)
        for member, record in found
        if (row := row_of(shard, *keys.identity_of(member), record)) is not None
    }
    kept = await database.do(partial(rows.ages, identities=there.keys()), writes=False)
    pairs = {identity: (kept.get(identity), age) for identity, age in there.items()}
    return {identity: (row, age) for identity, (row, age) in pairs.items() if row is None or row.age < age}
