"""Owns that the ledger and Redis agree: what Redis changes is copied to the ledger, and what Redis has lost is given
back.

Notes lie in each shard and are taken away only once the ledger has what they say. So a database that is away for an
hour loses no change, and neither does a pod that dies. A shard says itself how far it has come. One that was lost says
nothing, and begins with what the ledger has of it.
"""

import asyncio
import re
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain
from typing import Final

from sqlalchemy.ext.asyncio import AsyncConnection

from timers.client.copies import (
    DECLARED,
    arm_waiting,
    enter,
    give_back,
    give_facts_back,
    keep_facts,
    row_of,
    share,
)
from timers.client.drift import take_away
from timers.engine.peers import Peers
from timers.engine.pod import Pod
from timers.errors import Full, LedgerUnavailable
from timers.ledger import facts, rows
from timers.ledger.database import Database
from timers.ledger.facts import OLDER_MS, follow_on, hold, last_shards
from timers.ledger.many import execute
from timers.ledger.rows import Identity, Row, save_in
from timers.ledger.schema import PURGED
from timers.logs import get_logger
from timers.store import keys
from timers.store.following import (
    BUCKETS,
    CHECK,
    COPY,
    FIRST_SHARD,
    REBUILD,
    RESTORE,
    WHOLE,
    Note,
    Notes,
    Stage,
    advance,
    founded,
    left,
    notes,
    server_of,
    some_notes,
    stages,
)
from timers.store.restoring import read_records
from timers.store.store import Store

FOLLOW_SECONDS: Final = 0.25
"""The pause between two looks for changes."""

HOLD_SECONDS: Final = 2.0
FACTS_SECONDS: Final = 2.0
"""How often it is said that this db uses the ledger, and how often keys, declarations and pauses are compared."""

CHECKED_MS: Final = 60_000
"""How much longer before that a timer may have been created in the ledger that Redis got afterwards."""

COPIED: Final = 16
"""Buckets that are copied before the shard says so."""

TOGETHER_BYTES: Final = 1 << 20
"""Records that are written in one transaction. Neighbours in the table lie in many buckets, so a small transaction
would write the same pages of it again and again; a large one would keep callers waiting."""

ROW_BYTES: Final = 256
"""What any change counts as, also a removal, which has no record: a million of them are not one transaction."""

REMEMBERED: Final = 10_000
"""Removals of a shard that a pod keeps in mind."""

FRESH_SECONDS: Final = 0.3
"""How long `follow` leaves the note of a run that has just begun."""

HELP_SECONDS: Final = 1.0

SHARE_SECONDS: Final = 5.0
"""How often the ledger counts how much was given back, and how much longer for each second that a count takes."""

CLEAN_SECONDS: Final = 60.0
TOMBSTONES_MS: Final = 3_600_000
"""How long the row of a removed timer stays, so that a copy of it that comes late finds it."""

_GONE: Final = re.compile(rb"(\d{1,15}) (\d{1,15}) gone")
"""The note of a removed timer: its creation and its version."""

_log = get_logger("timers.ledger")


class Following:
    """What a pod does for the ledger, for the shards where it has rank 0. Two pods that do it at once do no harm."""

    def __init__(self, pod: Pod, peers: Peers, database: Database) -> None:
        self._pod, self._store, self._peers, self._database = pod, pod.store, peers, database
        self._saved: dict[int, Sequence[Note]] = {}
        """By shard: notes of the last page, which the next look takes away."""
        self._left: dict[int, int] = {}
        self._followed: dict[int, float] = {}
        """By shard: when the last look after which the ledger had all changes began."""
        self._lives: dict[int, str] = {}
        """By shard: the life in which this pod copies it."""
        self._removed = dict[int, dict[Identity, Row]]()
        """By shard: what this pod has written of the last removals."""
        self._told = dict[int, int]()
        """By shard: how often the database had failed when it was last told of the last removals."""
        self._unlike: set[int] = set()
        """Shards that do not agree with the ledger yet."""
        self._helped = set[int]()
        """Shards of other pods that this one has begun to copy."""
        self._fails = False
        """Whether the ledger was away at the last look."""
        self._agreed_ms = 0
        """What the ledger has said and Redis is to be told."""
        self._servers: set[str] = set()
        """The Redis servers that this pod has met at its URL, one after the other."""
        self._seen: dict[int, dict[bytes, bytes]] = {}
        """By shard: some notes of shards of other pods at the last look."""
        self._shares: dict[int, float] = {}
        """By shard: how much of it was restored and copied; none for one that was not lost."""
        self._count_at = 0.0

    @property
    def waiting(self) -> int:
        """Changes that the ledger did not have at the last look, in the shards that this pod leads."""
        return sum(self._left.values())

    @property
    def lag_seconds(self) -> float:
        """How old the oldest change that the ledger may not have is at most. While the ledger is away, a shard that was
        not looked at may have some too."""
        if not (self.waiting or self._unlike or self._fails or self._database.trouble):
            return 0.0
        now = time.monotonic()
        return now - min(self._followed.values(), default=now)

    @property
    def share(self) -> float:
        """How much of the shards that this pod leads was restored and copied, 0 to 1: 1 unless they were lost, also if
        it leads none."""
        shares = [self._shares.get(shard, 1.0) for shard in self._peers.led(self._pod.shards)]
        return sum(shares) / len(shares) if shares else 1.0

    async def _reached(self, shard: int, stage: Stage) -> None:
        """A shard has reached a stage. Counts in the database now and then only; a count that fails, such as one that
        takes too long, ends no restore, and one that takes longer is rarer."""
        if stage.what not in (RESTORE.what, REBUILD) or time.monotonic() >= self._count_at:
            began = time.monotonic()
            with suppress(LedgerUnavailable):
                self._shares[shard] = await share(self._database, shard, stage)
            took = time.monotonic() - began  # it reads all rows, and SQLite has one connection
            self._count_at = time.monotonic() + SHARE_SECONDS * (1 + took)

    async def recall(self) -> None:
        """Before the pod's first sign of life, which reads the declarations: give them back if the db was just lost.
        Without them the pod would run timers of longer prefixes than its own, once these are restored. The ledger gets
        those of this pod, because it accepts timers and rows of the inbox only of prefixes that it knows."""
        with suppress(LedgerUnavailable):  # it gets them later, with other facts
            declared = {(DECLARED, prefix) for prefix in self._pod.registry.declared}
            if unknown := declared - (await self._database.do(facts.read, writes=False)).keys():
                said = f"{self._now_ms()} {self._pod.name}"
                await self._database.do(partial(facts.write, changed=dict.fromkeys(sorted(unknown), said), gone=()))
        looks = (self._pod.away.reached(shard, stages(self._store, [shard])) for shard in self._pod.shards)
        found = chain.from_iterable(await asyncio.gather(*looks))
        if not all(stage.is_whole for some in found for stage in some.values()):
            await give_facts_back(self._store, self._database, (DECLARED,))

    async def run(self) -> None:
        """The service `ledger`."""
        try:
            await self._follow_all()
        except LedgerUnavailable:
            self._fails = True
            await self._count()
            raise

    async def _count(self) -> None:
        """Only count the changes that wait."""
        led = list(self._peers.led(self._pod.shards))
        self._left = await left(self._store, led)
        for shard in led:
            self._followed.setdefault(shard, time.monotonic())

    async def _follow_all(self) -> None:
        clean_at = hold_at = help_at = facts_at = 0.0
        while True:
            if time.monotonic() >= hold_at:
                self._agreed_ms = await claim_ledger(self._store, self._database, self._servers)
                hold_at = time.monotonic() + HOLD_SECONDS
            led = list(self._peers.led(self._pod.shards))
            for by_shard in (self._saved, self._left, self._followed, self._removed):
                for shard in by_shard.keys() - set(led):
                    by_shard.pop(shard)
            self._unlike &= set(led)
            await self._arm_pending(led)  # first, or they would look like timers that were lost
            more = {shard: await self._pod.away.reached(shard, self._follow(shard)) for shard in led}
            if time.monotonic() >= help_at:
                help_at = time.monotonic() + HELP_SECONDS
                await self._help([shard for shard in self._pod.shards if shard not in led])
            if self._peers.rank(FIRST_SHARD) == 0 and time.monotonic() >= facts_at:
                await keep_facts(self._store, self._database)  # what else a restore needs
                facts_at = time.monotonic() + FACTS_SECONDS
            # One that is away, or is not checked yet, may come back with timers that were removed.
            agreed = [shard for shard in led if more[shard] == [False]]
            if agreed and time.monotonic() >= clean_at:
                clean_at = time.monotonic() + CLEAN_SECONDS
                await rows.clean(self._database, agreed, self._now_ms() - TOMBSTONES_MS)
            self._fails = False
            await asyncio.sleep(0 if any(map(any, more.values())) else FOLLOW_SECONDS)

    async def _help(self, others: Sequence[int]) -> None:
        """Restore shards that other pods lead, if they were lost, and copy what the pods before this one leave alone:
        they may be dead, which is known only seconds later. A server loses all shards at once, so one tells."""
        self._helped.update(await self._left_alone([each for each in others if self._peers.rank(each) == 1]))
        for shard in sorted(self._helped):
            await self._follow(shard)
            await self._follow(shard)  # takes away what was copied; checks the shard if the server is another by now
            self._helped.remove(shard)
        if not others or (await stages(self._store, others[:1]))[others[0]].is_whole:
            return
        for shard, stage in (await stages(self._store, others)).items():
            if not stage.is_whole:
                await self._follow(shard)

    async def _left_alone(self, shards: Sequence[int]) -> list[int]:
        """Those of the shards that have a note from the last look, a second ago: a pod that copies takes each away
        within 0.8 s."""
        before, self._seen = self._seen, await some_notes(self._store, shards)
        return [shard for shard in shards if self._seen[shard].items() & before.get(shard, {}).items()]

    async def _arm_pending(self, led: Sequence[int]) -> None:
        """Arm timers that callers armed while Redis was away."""
        for shard in sorted({shard for shard, _ in await self._pending(led)} if led else ()):
            with suppress(Full):  # they wait for room, and what changes meanwhile is copied
                await self._pod.away.reached(shard, self._arm_pending_of(shard))

    async def _arm_pending_of(self, shard: int) -> None:
        stage = await founded(self._store, shard)
        if stage.is_new:
            return  # it lacks more than timers, such as pauses, and gets these with the rest
        while some := await self._pending([shard]):
            there = await arm_waiting(self._store, self._database, [name for _, name in some], stage.life)
            await self._database.do(partial(execute, statement=rows.ARMED, rows=there))
            if not there:
                return

    async def _pending(self, shards: Sequence[int]) -> list[tuple[int, Identity]]:
        """Some timers to arm. Those that the Redis user may not arm hold up no others."""
        return await rows.pending(self._database, shards, without=self._store.refusals.waiting)

    async def _follow(self, shard: int) -> bool:
        """Copy what has changed by now. Returns whether there may be more at once: the shard did not agree with the
        ledger until now, or large records were left for the next time."""
        began, fresh, large, size = time.monotonic(), 0, 0, 0
        self._followed.setdefault(shard, began)
        found = await self._read(shard, 0)
        stage = found.stage
        if not stage.is_whole and stage.what != CHECK:
            self._unlike.add(shard)
            await self._agree(shard)
            return True
        self._unlike.discard(shard)
        self._shares.pop(shard, None)  # another pod may have gone the rest of the way
        if stage.life != self._lives.get(shard):
            self._lives[shard] = (await enter(self._store, self._database, shard, follows=True)).life
        failures = self._database.failures
        gathered, changed = list[Note](), [] if self.is_told(shard) else list(self._removed.get(shard, {}).values())
        while found.stage.life == self._lives[shard]:
            gathered += found.notes
            changed += (row for note in found.notes if (row := self._row(shard, note)) is not None)
            size += sum(max(len(note.record or b""), ROW_BYTES) for note in found.notes)
            fresh, large = fresh + found.fresh, large + found.large
            if not found.cursor or size >= TOGETHER_BYTES:
                await self._save(shard, changed)
                self._told[shard] = failures
                self._saved[shard], gathered, changed, size = gathered, [], [], 0
            if not found.cursor:
                break
            found = await self._read(shard, found.cursor)
        else:
            return True  # data was lost meanwhile
        self._left[shard] = max(0, self._left[shard] - len(self._saved[shard]))
        if large:
            return True
        if stage.what == CHECK:  # after all notes, which know better what was removed
            await self._agree(shard)
        self._followed[shard] = began - (FRESH_SECONDS if fresh else 0)
        return False

    async def _read(self, shard: int, cursor: int) -> Notes:
        saved = self._saved.pop(shard, ())
        found = await notes(self._store, shard, cursor, saved, self._agreed_ms)
        self._left[shard] = found.left
        return found

    def _row(self, shard: int, note: Note) -> Row | None:
        """What is to be kept of a change. A record that is missing without a word, or that cannot be read, changes
        nothing."""
        prefix, timer_id = keys.identity_of(note.member)
        if note.record is not None:
            return row_of(shard, prefix, timer_id, note.record)
        gone = _GONE.fullmatch(note.noted)
        if gone is None:
            return None
        created_ms, version = gone.groups()
        # One newer than the state before: the removal itself has no version.
        return rows.tombstone(
            prefix, timer_id, shard, version=int(version) + 1, created=int(created_ms), at_ms=self._now_ms()
        )

    async def _save(self, shard: int, changed: Iterable[Row]) -> None:
        if some := list(changed):
            await self._database.do(partial(save_in, lives={shard: self._lives[shard]}, changed=some))
            self._remember(shard, [row for row in some if row.status == PURGED])

    def _remember(self, shard: int, removed: Iterable[Row]) -> None:
        there = self._removed.setdefault(shard, {})
        for row in removed:
            there.pop(row[:2], None)
            there[row[:2]] = row
        while there and (
            (oldest := next(iter(there.values()))).changed < self._now_ms() - OLDER_MS or len(there) > REMEMBERED
        ):
            del there[oldest[:2]]

    def is_told(self, shard: int) -> bool:
        """Whether the database was told of the last removals since an access has failed: a standby that was promoted
        meanwhile may lack them, and give the timers back."""
        return self._told.get(shard) == self._database.failures

    async def _agree(self, shard: int) -> None:
        """Give the shard what the ledger has and it lacks, then copy what the ledger lacks. Goes on where another pod
        was. If the shard is lost meanwhile, the next look begins anew."""
        stage, began, count = await enter(self._store, self._database, shard, follows=True), time.monotonic(), 0
        self._lives[shard] = stage.life
        await self._reached(shard, stage)
        if stage.is_whole:
            return  # another pod was faster
        async for reached, some in self._steps(shard, stage):
            if not await advance(self._store, shard, stage, reached):
                return
            stage, count = reached._replace(life=stage.life), count + some
            await self._reached(shard, stage)
        _log.info("the ledger has all timers", shard=shard, restored=count, seconds=round(time.monotonic() - began, 1))

    async def _steps(self, shard: int, stage: Stage) -> AsyncIterator[tuple[Stage, int]]:
        """Each stage that was reached, and how many timers the shard lacked or had older, until it is whole."""
        if stage.is_new:
            await give_facts_back(self._store, self._database)
        if stage.what == CHECK:
            count = await self._check(shard, stage.agreed_ms)
            if stage.agreed_ms:
                yield WHOLE, count
                return
            stage = COPY
            yield stage, count
        if stage.what != COPY.what:
            pages = give_back(self._store, self._database, shard, keys.identity_of(stage.place))
            async for last, codes in pages:
                yield Stage(stage.what, ":".join(last)), codes.count("restored")
            if stage.what == REBUILD:
                yield WHOLE, 0
                return
            stage = COPY
            yield stage, 0
        for first in range(int(stage.place), BUCKETS, COPIED):
            await self._copy(shard, first)
            yield (WHOLE if first + COPIED == BUCKETS else Stage(COPY.what, str(first + COPIED))), 0

    async def _check(self, shard: int, agreed_ms: int) -> int:
        """Give back what has changed since the shard last agreed, on a server that may not have it, and take away what
        was removed. Returns how many timers were lost or older."""
        count, since_ms = 0, agreed_ms - CHECKED_MS
        async for _, codes in give_back(self._store, self._database, shard, since_ms=since_ms):
            count += codes.count("restored")
        return count + await take_away(self._store, self._database, shard, since_ms)

    async def _copy(self, shard: int, first: int) -> None:
        """Copy some buckets to the ledger."""
        gathered: dict[str, bytes] = {}
        async for found in read_records(self._store, shards=[shard], buckets=range(first, first + COPIED)):
            gathered.update(found)
            if sum(map(len, gathered.values())) >= TOGETHER_BYTES:
                await self._save(shard, _rows(shard, gathered))
                gathered = {}
        await self._save(shard, _rows(shard, gathered))

    def _now_ms(self) -> int:
        return round(self._store.clock.now_ms())


async def claim_ledger(store: Store, database: Database, known: set[str] | None = None) -> int:
    """Say that this db uses the ledger. `known` Redis servers were this db's before, and the present one is added.
    Returns what to tell Redis, so that it is noticed if the database is set back. Raises LedgerUnavailable if it was,
    or if another db uses it, and Moving if the service has left this one. If the service has another
    number of shards than before, its rows are given their new ones first."""
    if store.identity.moving is not None and store.identity.moving.is_over:
        raise store.identity.moving.error  # where the service is now has the ledger
    known = set() if known is None else known
    (server, told_ms), identity, number = await server_of(store), store.identity, store.connections.db
    now_ms = round(store.clock.now_ms())

    async def say(shards: int) -> int:
        async def claim(connection: AsyncConnection) -> str | int:
            epoch = f"{identity.epoch}/{number}"
            other = await hold(connection, epoch=epoch, server=server, shards=shards, known=known)
            return other or await follow_on(connection, now_ms)

        said = await database.do_unless_older(told_ms, claim)
        if isinstance(said, str):
            raise LedgerUnavailable(f"the ledger is not available: {said}")
        return said

    before = None if server in known else await database.do(last_shards, writes=False, looks=True)
    if before is not None and before != identity.shards:
        await say(before)
        changed = await rows.reshard(database, store.shard_of)
        _log.info("the ledger's rows have the new number of shards", shards=identity.shards, rows=changed)
    said_ms = await say(identity.shards)
    known.add(server)
    return said_ms


def _rows(shard: int, found: Mapping[str, bytes]) -> Iterator[Row]:
    """The rows of records, by member, that can be read."""
    for member, record in found.items():
        if (row := row_of(shard, *keys.identity_of(member), record)) is not None:
            yield row
