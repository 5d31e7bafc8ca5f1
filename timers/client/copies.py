"""Owns what is kept twice, in Redis and in the ledger: the two forms of a timer, what a db needs besides its timers, in
which life a shard is; giving Redis back what the ledger has, and how far that is.

The functions raise Unavailable and LedgerUnavailable.
"""

import asyncio
from collections.abc import AsyncIterator, Collection, Container, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Final

from timers.core.fields import encode
from timers.core.model import RESTORED, Status, Timer
from timers.errors import Unavailable
from timers.ledger import facts, rows
from timers.ledger.database import Database, Transacting, do
from timers.ledger.facts import KEY, Lives
from timers.ledger.many import SAVED
from timers.ledger.rows import Identity, Row, save_in, share_until
from timers.store import codec, keys
from timers.store.callers import Callers
from timers.store.codec import JUMP, LETTERS, STATUSES, RecordParts, taken_apart
from timers.store.following import (
    BUCKETS,
    COPY,
    FIRST_SHARD,
    REBUILD,
    RESTORE,
    Age,
    Stage,
    advance,
    founded,
    is_still,
    stages,
)
from timers.store.membership import Declaration
from timers.store.restoring import (
    PAGE_BYTES,
    Restored,
    cancelled,
    put_declaration,
    put_key,
    put_pause,
    read_declarations,
    read_pauses,
    restore,
    restore_and_read,
)
from timers.store.store import FOUNDING_TRIES, KEEPS_CHANGING, Store

_COLUMN_LIMIT: Final = 2**63

_FIRST_PAGE: Final = 64
"""Rows of the first page that is given back. The next ones are larger, until they have a thousand rows or come near
PAGE_BYTES: several are in memory, each in several forms, and a pod may have half a GiB."""

_ARMED_TOGETHER: Final = 64
"""Timers that are armed in one step: each has up to 64 KiB, and is in memory in several forms."""

_Given = tuple[str, bytes | None]
"""What became of a copy, and the record that Redis holds then."""

DECLARED: Final = "declared"
PAUSED: Final = "paused"
KINDS: Final = (KEY, DECLARED, PAUSED)
"""Of facts: what a db needs besides its timers to go on as before. (Hooks are said again by the pods that ask for
them.)"""

_THERE: Final = frozenset(("restored", "kept"))
"""Codes of records that Redis has by now."""

COUNT_SECONDS: Final = 5.0
"""How long the counts for a person who asks may take: of hundreds of millions of rows they take minutes."""

_UNCOUNTED: Final = "the count took too long"


def row_of(shard: int, prefix: str, timer_id: str, record: bytes) -> Row | None:
    """The row of a record; None if it cannot be read, or holds what no column can: one such record, which only another
    program writes, must not stop the copying of all others."""
    try:
        parts = taken_apart(record)
        history, newest = b"\n".join(parts.history), parts.history[-1] if parts.history else b""
        changed_ms = int(newest.partition(b" ")[0] or parts.created_ms)
        if max(*parts[1:8], changed_ms) >= _COLUMN_LIMIT or b"\0" in parts.spec + parts.progress + history:
            return None
        counts = (parts.version, parts.token, parts.attempt, parts.failures, parts.occurrence)
        times = (parts.due_ms, parts.created_ms, changed_ms)
        texts = (parts.spec.decode(), parts.progress.decode(), history.decode())
        return Row(prefix, timer_id, shard, STATUSES[parts.status].value, *counts, *times, *texts)
    except ValueError:
        return None


def restored(found: Iterable[Row]) -> list[Restored]:
    """What gives these rows back to Redis. If somebody has written into a row what no record can hold, that is empty,
    and `restore` calls it unreadable."""
    return [*map(_restored, found)]


def _restored(row: Row) -> Restored:
    """A run is lost with the db, so its timer is scheduled, for the same occurrence."""
    counts = (row.version, row.attempt, row.failures, row.occurrence, row.token, row.created, row.due)
    try:
        history = row.history.encode().split(b"\n") if row.history else []
        status = Status(row.status)
        letter = LETTERS[Status.SCHEDULED if status is Status.RUNNING else status]
        parts = RecordParts(letter, *counts, row.spec.encode(), row.progress.encode(), history)
        return Restored.of(row.prefix, row.id, parts)
    except ValueError:
        return Restored(row.prefix, row.id, b"")


def row_of_timer(store: Store, timer: Timer) -> Row:
    """The row of a timer that was read or armed."""
    shard, stored = store.shard_of(timer.prefix, timer.id), timer.history
    history = stored.latest(0).decode().removeprefix("\n") if isinstance(stored, codec.StoredHistory) else ""
    counts = (timer.version, timer.token, timer.attempt, timer.failures, timer.occurrence)
    times = (timer.due_ms, timer.created_ms, timer.updated_ms)
    texts = (encode(codec.spec_of(timer)), codec.encode_progress(timer.progress), history)
    return Row(timer.prefix, timer.id, shard, timer.status.value, *counts, *times, *texts)


async def give_back(
    store: Store,
    database: Database,
    shard: int,
    after: Identity = ("", ""),
    *,
    since_ms: int | None = None,
    dry_run: bool = False,
) -> AsyncIterator[tuple[Identity, list[str]]]:
    """Make Redis hold the timers that the ledger has of a shard, changed since a time, and the ledger what Redis holds
    then, a page at a time: yields the last timer of each page, and what became of each, as `restore`. Raises
    Unavailable if the shard loses its data meanwhile."""
    life = "" if dry_run else (await enter(store, database, shard)).life
    before: Sequence[Row] = []
    done: list[_Given] = []
    most = _FIRST_PAGE
    page, given = await _page(database, shard, after, since_ms, most)
    while page or before:
        last = (page or before)[-1]
        # In the order of change, what changes meanwhile comes last: there might be more without end.
        ends = since_ms is not None and len(page) < most
        since_ms = None if since_ms is None else last.changed
        has_room = sum(len(each.record) for each in given) < PAGE_BYTES / 2
        most = min(2 * most, SAVED) if has_room else max(most // 2, 1)
        try:
            async with asyncio.TaskGroup() as group:
                # While Redis takes a page, the ledger keeps what became of the last one, and the next is made ready.
                giving = group.create_task(_give(store, given, life))
                group.create_task(_keep(database, shard, life, before, done))
                reading = group.create_task(_page(database, shard, last[:2], since_ms, 0 if ends else most))
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from None
        if before:
            yield (before[-1].prefix, before[-1].id), [code for code, _ in done]
        before, done, (page, given) = page, giving.result(), reading.result()


async def given_back(store: Store, database: Transacting, identities: Sequence[Identity]) -> Lives:
    """The lives of the shards of these timers. Gives the timers back at once where shards were lost and are still being
    restored; before the first of a shard, what else the db needs, so that none of a paused prefix starts. Those that
    were accepted while Redis was away it arms."""
    if not identities:
        return {}
    reached = await entered(store, database, {store.shard_of(*identity) for identity in identities})
    waiting = await do(database, partial(rows.waiting, identities=identities), writes=False)
    if any(stage.is_new for stage in reached.values()):
        await give_facts_back(store, database)
    for life in {stage.life for stage in reached.values()}:
        there = [(each, at) for each in identities if (at := reached[store.shard_of(*each)]).life == life]
        unarmed = [each for each, stage in there if each in waiting and not stage.is_new]
        lost = [each for each, stage in there if not stage.is_whole and (stage.is_new or each not in waiting)]
        await arm_waiting(store, database, unarmed, life)
        await give(store, database, lost, life)
    return {shard: stage.life for shard, stage in reached.items()}


async def arm_waiting(
    store: Store, database: Transacting, identities: Sequence[Identity], life: str
) -> list[tuple[str, str, int]]:
    """Arm timers that were accepted while Redis was away, as the ledger has them, in this life of their shards. Returns
    prefix, id and creation of those that Redis has now."""
    there = list[tuple[str, str, int]]()
    for start in range(0, len(identities), _ARMED_TOGETHER):
        some = identities[start : start + _ARMED_TOGETHER]
        found = await do(database, partial(rows.find, identities=some), writes=False)
        became = await restore(store, restored(found.values()), life=life)
        ages = await do(database, partial(rows.ages, identities=some), writes=False)
        if gone := {identity: row.age for identity, row in ages.items() if row.gone}:
            await remove(store, gone)  # removed since it was read here: another pod may have armed it meanwhile
        pairs = zip(found.values(), became, strict=True)
        there += [(row.prefix, row.id, row.created) for row, code in pairs if code in _THERE]
    return there


async def give(store: Store, database: Transacting, identities: Collection[Identity], life: str) -> int:
    """Make Redis hold what the ledger has of these timers, in this life of their shards. Returns how many it lacked or
    had older."""
    if not identities:
        return 0
    found = await do(database, partial(rows.find, identities=identities), writes=False)
    codes = await restore(store, restored(found.values()), cause=RESTORED, jump=JUMP, life=life)
    return codes.count("restored")


async def remove(store: Store, gone: Mapping[Identity, Age]) -> int:
    """Remove timers that are older than their removal, whose age this is; also one that runs. It is written over first,
    as cancelled, so that nobody is told of an end that was told before, and a later timer of that name stays."""
    over = [Restored.of(*identity, cancelled(*age)) for identity, age in gone.items()]
    codes = await restore(store, over, cause=RESTORED, jump=JUMP)
    removed = [place for place, code in zip(gone.items(), codes, strict=True) if code == "restored"]
    for identity, (_, version) in removed:
        await store.cancel(*identity, version=version + JUMP + 1, purge=True)  # one more for its history
    return len(removed)


async def _page(
    database: Database, shard: int, after: Identity, since_ms: int | None, most: int
) -> tuple[Sequence[Row], Sequence[Restored]]:
    """The next rows of a shard, and what gives them back."""
    page = await rows.page(database, shard, *after, since_ms=since_ms, most=most)
    return page, restored(page)


async def _give(store: Store, page: Sequence[Restored], life: str) -> list[_Given]:
    """What became of each. Rows that were read before Redis lost its data are too old: a cancel may have come since."""
    if not life:
        return [(code, None) for code in await restore(store, page, cause=RESTORED, jump=JUMP, dry_run=True)]
    return await restore_and_read(store, page, cause=RESTORED, jump=JUMP, life=life)


async def _keep(database: Database, shard: int, life: str, page: Sequence[Row], done: Sequence[_Given]) -> None:
    there = [
        row
        for before, (_, record) in zip(page, done, strict=True)
        if record is not None and (row := row_of(shard, before.prefix, before.id, record)) is not None
    ]
    if there:
        await database.do(partial(save_in, lives={shard: life}, changed=there))


async def enter(store: Store, database: Transacting, shard: int, *, follows: bool = False) -> Stage:
    """The stage of a shard in a life that the ledger knows. What it knew is read first: if somebody says another life
    after that, this one may be over. A ledger that knows none was never followed: what the shard has reached, it has
    reached with another one. Then a pod that `follows` it has everything copied, and only such a pod says a life."""
    for _ in range(FOUNDING_TRIES):
        before = (await do(database, partial(facts.lives_of, shards=[shard]), writes=False)).get(shard)
        stage = await founded(store, shard)
        is_strange = before is None and stage.what not in (RESTORE.what, REBUILD)
        if before == stage.life or (is_strange and not follows):
            return stage
        if is_strange and stage.name != COPY.name:
            await advance(store, shard, stage, COPY)
        elif await do(database, partial(facts.begin_life, shard=shard, before=before, life=stage.life)):
            return stage
    raise Unavailable(KEEPS_CHANGING)


async def entered(store: Store, database: Transacting, shards: Collection[int]) -> dict[int, Stage]:
    """As `enter`, of several shards."""
    there = await stages(store, sorted(shards))
    known = await do(database, partial(facts.lives_of, shards=sorted(shards)), writes=False)
    return {
        shard: stage if known.get(shard) == stage.life else await enter(store, database, shard)
        for shard, stage in there.items()
    }


async def keep_facts(store: Store, database: Database) -> None:
    """Make the ledger's facts those of Redis. One that Redis does not have is deleted only if the shard that this pod
    follows was restored in full, and with it the facts."""
    epoch, now = store.identity.epoch, await _facts(store)
    is_whole = (await stages(store, [FIRST_SHARD]))[FIRST_SHARD].is_whole
    if not await is_still(store, epoch):
        return
    kept = await database.do(facts.read, writes=False)
    changed = {fact: value for fact, value in now.items() if kept.get(fact) != value}
    gone = [fact for fact in kept if fact[0] in KINDS and fact not in now] if is_whole else []
    if changed or gone:
        await database.do(partial(facts.write, changed=changed, gone=gone))


async def give_facts_back(store: Store, database: Transacting, kinds: Container[str] = KINDS) -> None:
    """Put back what the ledger has of these kinds and Redis has not."""
    for (kind, name), value in (await do(database, facts.read, writes=False)).items():
        match kind if kind in kinds else None:
            case "key":
                await put_key(store, name, value, if_exists="newer", dry_run=False)
            case "declared":
                at, _, pod = value.partition(" ")
                await put_declaration(store, name, Declaration(int(at), pod), dry_run=False)
            case "paused":
                since_ms = int(value) if value else None
                await put_pause(store, name, since_ms, if_exists="newer", dry_run=False)
            case _:
                pass  # not asked for, or of a later version


async def _facts(store: Store) -> dict[tuple[str, str], str]:
    """By kind and name: an API `key`'s entry, who `declared` a prefix (`<ms> <pod>`), since when one is `paused` (ms,
    or nothing)."""
    declared, pauses = await read_declarations(store), await read_pauses(store)
    return {
        **{(KEY, key_id): entry for key_id, entry in (await Callers(store).entries()).items()},
        **{(DECLARED, prefix): f"{said.at_ms} {said.pod}" for prefix, said in declared.items()},
        **{(PAUSED, prefix): "" if since_ms is None else str(since_ms) for prefix, since_ms in pauses.items()},
    }


async def share(database: Database, shard: int, stage: Stage) -> float:
    """How much of its way to agreement a shard has gone, 0 to 1: first the ledger's timers are given back, then its own
    are copied. Raises LedgerUnavailable."""
    if stage.is_whole:
        return 1.0
    if stage.what == COPY.what:
        return (1 + int(stage.place) / BUCKETS) / 2
    if stage.what in (RESTORE.what, REBUILD) and stage.place:
        given = await share_until(database, shard, *keys.identity_of(stage.place))
        return given if stage.what == REBUILD else given / 2
    return 0.0


async def told(database: Database, stages: Mapping[int, Stage]) -> list[str]:
    """Shards that are not whole, each with what is under way and how far it is, unless that takes too long to count:
    `0 (restore, 43 %)`. Raises LedgerUnavailable."""
    behind = {shard: stage for shard, stage in stages.items() if not stage.is_whole}
    shares = dict[int, str]()
    with suppress(TimeoutError):
        async with asyncio.timeout(COUNT_SECONDS):
            for shard, stage in behind.items():
                shares[shard] = f"{await share(database, shard, stage):.0%}".replace("%", " %")
    return [f"{shard} ({stage.what}, {shares.get(shard, _UNCOUNTED)})" for shard, stage in behind.items()]
