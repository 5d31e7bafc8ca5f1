"""Owns the two forms of a timer that is kept twice, its record in Redis and its row in the ledger, and giving Redis
back what the ledger has."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from functools import partial
from typing import Final

from timers.client.facts import give_facts_back
from timers.client.lives import enter, entered
from timers.core.fields import encode
from timers.core.model import RESTORED, Status, Timer
from timers.ledger import rows
from timers.ledger.database import Database, Transacting
from timers.ledger.lives import Lives, save
from timers.ledger.rows import Identity, Row
from timers.store import codec
from timers.store.codec import JUMP, LETTERS, STATUSES
from timers.store.restoring import RecordParts, Restored, put_together, restore, restore_and_read, taken_apart
from timers.store.store import Store

_COLUMN_LIMIT: Final = 2**63

_Given = tuple[str, bytes | None]
"""What became of a copy, and the record that Redis holds then."""


def row_of(shard: int, prefix: str, timer_id: str, record: bytes) -> Row | None:
    """The row of a record; None if it cannot be read, or holds what no column can: one such record, which only another
    program writes, must not stop the copying of all others."""
    try:
        parts = taken_apart(record)
        history, newest = b"\n".join(parts.history), parts.history[-1] if parts.history else b""
        if max(parts[1:8]) >= _COLUMN_LIMIT or b"\0" in parts.spec + parts.progress + history:
            return None
        return Row(
            prefix,
            timer_id,
            shard,
            STATUSES[parts.status].value,
            parts.version,
            parts.token,
            parts.attempt,
            parts.failures,
            parts.occurrence,
            parts.due_ms,
            parts.created_ms,
            int(newest.partition(b" ")[0] or parts.created_ms),
            parts.spec.decode(),
            parts.progress.decode(),
            history.decode(),
        )
    except ValueError:
        return None


def record_of(row: Row) -> bytes:
    """The record of a row; empty, which `restore` calls unreadable, if somebody has written into the row what a record
    cannot hold. A run is lost with the db, so its timer is scheduled, for the same occurrence."""
    try:
        return _record_of(row)
    except ValueError:
        return b""


def _record_of(row: Row) -> bytes:
    status = Status(row.status)
    letter = LETTERS[Status.SCHEDULED if status is Status.RUNNING else status]
    counts = (row.version, row.attempt, row.failures, row.occurrence, row.token, row.created, row.due)
    history = row.history.encode().split(b"\n") if row.history else []
    return put_together(RecordParts(letter, *counts, row.spec.encode(), row.progress.encode(), history))


def restored(found: Iterable[Row]) -> list[Restored]:
    """What gives these rows back to Redis."""
    return [Restored(row.prefix, row.id, record_of(row)) for row in found]


def row_of_timer(shard: int, timer: Timer) -> Row:
    """The row of a timer that was read or armed."""
    stored = timer.history
    return Row(
        timer.prefix,
        timer.id,
        shard,
        timer.status.value,
        timer.version,
        timer.token,
        timer.attempt,
        timer.failures,
        timer.occurrence,
        timer.due_ms,
        timer.created_ms,
        timer.updated_ms,
        encode(timer.spec),
        codec.encode_progress(timer.progress),
        stored.latest(0).decode().removeprefix("\n") if isinstance(stored, codec.StoredHistory) else "",
    )


async def give_back(
    store: Store,
    database: Database,
    shard: int,
    after: Identity = ("", ""),
    *,
    since_ms: int = 0,
    dry_run: bool = False,
) -> AsyncIterator[tuple[Identity, list[str]]]:
    """Make Redis hold the timers that the ledger has of a shard, changed since a time, and the ledger what Redis holds
    then, a page at a time: yields the last timer of each page, and what became of each, as `restore`. Raises
    Unavailable if the shard loses its data meanwhile."""
    life = "" if dry_run else (await enter(store, database, shard)).life
    before: Sequence[Row] = []
    done: list[_Given] = []
    page = await rows.page(database, shard, *after, since_ms=since_ms)
    while page or before:
        last = (page or before)[-1]
        try:
            async with asyncio.TaskGroup() as group:
                # While Redis takes a page, the ledger keeps what became of the one before, and reads the one after.
                giving = group.create_task(_give(store, page, life))
                group.create_task(_keep(database, shard, life, before, done))
                reading = group.create_task(rows.page(database, shard, last.prefix, last.id, since_ms=since_ms))
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from None
        if before:
            yield (before[-1].prefix, before[-1].id), [code for code, _ in done]
        before, done, page = page, giving.result(), reading.result()


async def given_back(store: Store, database: Transacting, identities: Sequence[Identity]) -> Lives:
    """The lives of the shards of these timers. Gives the timers back at once where shards were lost and are still being
    restored; before the first of a shard, what else the db needs, so that none of a paused prefix starts."""
    shards = {store.shard_of(*identity) for identity in identities}
    reached = await entered(store, database, shards) if shards else {}
    lost = {shard: stage for shard, stage in reached.items() if not stage.is_whole}
    if any(stage.is_new for stage in lost.values()):
        await give_facts_back(store, database)
    for life in {stage.life for stage in lost.values()}:
        some = [each for each in identities if (at := lost.get(store.shard_of(*each))) and at.life == life]
        found = await database.do(partial(rows.find, identities=some), writes=False)
        await restore(store, restored(found.values()), cause=RESTORED, jump=JUMP, life=life)
    return {shard: stage.life for shard, stage in reached.items()}


async def _give(store: Store, page: Sequence[Row], life: str) -> list[_Given]:
    """What became of each. Rows that were read before Redis lost its data are too old: a cancel may have come since."""
    if not life:
        return [(code, None) for code in await restore(store, restored(page), cause=RESTORED, jump=JUMP, dry_run=True)]
    return await restore_and_read(store, restored(page), cause=RESTORED, jump=JUMP, life=life)


async def _keep(database: Database, shard: int, life: str, page: Sequence[Row], done: Sequence[_Given]) -> None:
    there = [
        row
        for before, (_, record) in zip(page, done, strict=True)
        if record is not None and (row := row_of(shard, before.prefix, before.id, record)) is not None
    ]
    if there:
        await database.do(partial(save, lives={shard: life}, changed=there))
