"""Owns writing to the ledger before a caller is answered: new timers before Redis has them, changes right after.

A new timer's row is what Redis will make of it, creation and all, so nothing has to be written again. If Redis already
has a timer of that name, Redis decides, and the row follows it.
"""

from collections.abc import Collection, Sequence
from contextvars import ContextVar
from functools import partial
from typing import Any, Final

from sqlalchemy.ext.asyncio import AsyncConnection

from timers.client.copies import record_of, restored, row_of_timer
from timers.client.facts import give_facts_back
from timers.core.fields import encode
from timers.core.model import RESTORED, Status, Timer
from timers.core.shapes import Durability
from timers.errors import Moving, Unavailable
from timers.ledger import requests, rows
from timers.ledger.database import Database
from timers.ledger.rows import NewRow, Row
from timers.store import codec
from timers.store.callers import Quota, Quotas
from timers.store.codec import JUMP
from timers.store.comparing import Life, life_of
from timers.store.following import founded, stages
from timers.store.restoring import restore
from timers.store.store import FOUNDING_TRIES, Arming, Identity, Reply, Store

FAST: Final[Durability] = "fast"
LEDGER: Final[Durability] = "ledger"


_before: ContextVar[Life] = ContextVar("life of the shard before a change")


class LedgerFirst:
    """The writes of one client. Every method raises LedgerUnavailable."""

    def __init__(self, store: Store, quotas: Quotas, database: Database) -> None:
        self._store, self._quotas, self._database = store, quotas, database

    async def arm(self, armings: Sequence[Arming], quota: Quota | None = None) -> list[Reply]:
        """As `Quotas.arm`; first in the ledger, if that is their durability. While Redis is away new timers are armed
        later, which their `armed` says, and the ledger decides what exists."""
        level = armings[0].durability if armings else FAST
        if level != LEDGER:
            replies = await self._quotas.arm(armings, quota)
            return [reply.with_durability(FAST) for reply in replies] if level == FAST else replies
        answers, lost = dict[int, Reply](), list(range(len(armings)))
        for _ in range(FOUNDING_TRIES):
            # What Redis loses between the two steps is given back in the next round, and then Redis decides.
            answers |= zip(lost, await self._arm_written([armings[place] for place in lost], quota), strict=True)
            lost = [place for place in lost if answers[place].code == "lost"]
            if not lost:
                return [answers[place] for place in range(len(armings))]
        raise Unavailable("Redis keeps losing its data")

    async def _arm_written(self, armings: Sequence[Arming], quota: Quota | None) -> list[Reply]:
        """Write the new ones of these timers to the ledger, then arm all. The code `lost` says that Redis lacks a timer
        that the ledger has, because it has just lost it."""
        sent, written = await self._write(armings)
        try:
            replies = await self._quotas.arm(sent, quota)
        except Moving:  # whether the new place reads this ledger is not known
            wrong = [(a.prefix, a.id, a.created_ms) for a in sent if (a.prefix, a.id) in written]
            await self._database.do(partial(rows.take_back, made=wrong))
            raise
        except Unavailable as away:
            if quota is not None:
                raise
            return await self._unarmed(sent, written, away)
        for place, (arming, reply) in enumerate(zip(sent, replies, strict=True)):
            is_new = reply.code in ("exists", "kept") and (arming.prefix, arming.id) in written
            if is_new and reply.timer is not None and reply.timer.created_ms == arming.created_ms:
                replies[place] = reply._replace(code="created")  # a pod that restores the shard was faster
        await self._correct(sent, replies, written)
        return [reply.with_durability(LEDGER) for reply in replies]

    async def _write(self, armings: Sequence[Arming]) -> tuple[list[Arming], set[Identity]]:
        """Write the rows of new timers. Returns the armings as Redis is to be sent them, and which are new."""
        now_ms = round(self._store.clock.now_ms())
        # `_replace` takes twice as long.
        sent = [Arming(a.prefix, a.id, _absolute(a.due, now_ms), *a[3:7], now_ms, a.durability) for a in armings]
        if not sent:
            return sent, set()
        written = await self._database.do(partial(rows.insert, rows=[self._new_row(a) for a in sent]))
        there = [(a.prefix, a.id) for a in sent if (a.prefix, a.id) not in written]
        await self.give_back(there)
        return [a if (a.prefix, a.id) in written else a._replace(created_ms=0, known=True) for a in sent], written

    async def _correct(
        self, armings: Sequence[Arming], replies: Sequence[Reply], written: Collection[Identity]
    ) -> None:
        """Make the ledger agree with what Redis said: take rows of timers back that Redis did not make, and write those
        that it had or has changed."""
        wrong, found = [], []
        for arming, reply in zip(armings, replies, strict=True):
            timer = reply.timer
            if (arming.prefix, arming.id) in written and (timer is None or timer.created_ms != arming.created_ms):
                wrong.append((arming.prefix, arming.id, arming.created_ms))
            if timer is not None and reply.code != "created":
                found.append(self._row(timer))
        if wrong or found:

            async def correct(connection: AsyncConnection) -> None:
                await rows.take_back(connection, wrong)
                await rows.save(connection, found)

            await self._database.do(correct)

    async def _unarmed(
        self, armings: Sequence[Arming], written: Collection[Identity], away: Unavailable
    ) -> list[Reply]:
        """The replies while Redis is away. Raises `away` if one cannot be decided without it. What replaces a timer
        waits in the inbox."""
        new = {(a.prefix, a.id): a.created_ms for a in armings if (a.prefix, a.id) in written}
        others = [(a.prefix, a.id) for a in armings if (a.prefix, a.id) not in new]

        async def decide(connection: AsyncConnection) -> list[Reply]:
            await rows.await_arming(connection, [(*identity, created_ms) for identity, created_ms in new.items()])
            there = await rows.find(connection, others)
            replies = []
            for arming in armings:
                row = there.get((arming.prefix, arming.id))
                reply = _unarmed(arming, row, is_new=(arming.prefix, arming.id) in new)
                if reply is None:
                    raise away
                if reply.code == "replaced":
                    await requests.arm(connection, arming.prefix, arming.id, **_fields(arming))
                replies.append(reply)
            return replies

        return await self._database.do(decide)

    async def ready(self, identity: Identity) -> None:
        """Before a change of a timer: raises LedgerUnavailable if the ledger is away, so that nothing was changed then.
        Gives the timer back if Redis was lost and is still being restored."""
        await self._database.ping()
        await self.give_back([identity])
        _before.set(await life_of(self._store, self._store.shard_of(*identity)))

    async def keep(self, timer: Timer, *, removed: bool) -> None:
        """Write what a change has made of a timer. Raises Unavailable if Redis has lost data since `ready`, and perhaps
        the change: what the ledger had until now may have been given back in its place."""
        row = self._row(timer)
        if removed:
            row = rows.tombstone(
                row.prefix, row.id, row.shard, version=row.version + 1, created=row.created, at_ms=row.changed
            )
        await self._database.do(partial(rows.save, rows=[row]))
        await self.check_nothing_lost((timer.prefix, timer.id))

    async def check_nothing_lost(self, identity: Identity) -> None:
        """After a change of a timer: raises Unavailable if Redis has lost data since `ready`."""
        if not _before.get().goes_on(await life_of(self._store, self._store.shard_of(*identity))):
            raise Unavailable("Redis has lost data during this change, and perhaps the change: repeat it")

    async def give_back(self, identities: Sequence[Identity]) -> None:
        """Restore these timers at once if their shards were lost and are still being restored; before the first of a
        shard, what else the db needs, so that none of a paused prefix starts."""
        shards = {self._store.shard_of(*identity) for identity in identities}
        if not shards:
            return
        try:
            known = await stages(self._store, sorted(shards))
        except Unavailable:
            return  # what follows finds that out for itself
        lost = {shard: stage for shard, stage in known.items() if not stage.is_whole}
        some = [identity for identity in identities if self._store.shard_of(*identity) in lost]
        if some:
            if not all(stage.place for stage in lost.values()):
                await give_facts_back(self._store, self._database)
            carried, *_ = [await founded(self._store, shard) for shard in lost]
            found = await self._database.do(partial(rows.find, identities=some))
            await restore(self._store, restored(found.values()), cause=RESTORED, jump=JUMP, carried=carried)

    def _new_row(self, arming: Arming) -> NewRow:
        prefix, timer_id, due = arming[:3]
        said = (encode(arming.spec), codec.encode_progress(arming.progress))
        return NewRow(prefix, timer_id, self._store.shard_of(prefix, timer_id), int(due[1:]), arming.created_ms, *said)

    def _row(self, timer: Timer) -> Row:
        return row_of_timer(self._store.shard_of(timer.prefix, timer.id), timer)


def _unarmed(arming: Arming, row: Row | None, *, is_new: bool) -> Reply | None:
    """The reply to an arming while Redis is away, given its timer's row in the ledger. None if only Redis knows it:
    whether a timer that runs has ended."""
    timer = _timer(arming)._replace(armed=False)
    if is_new:
        return Reply("created", timer)
    if row is None or (arming.if_exists == "replace" and row.status == Status.RUNNING):
        return None
    there = codec.readable(row.prefix, row.id, record_of(row))
    if arming.if_exists == "replace":
        if there is None:  # a later version wrote it
            return None
        return Reply("replaced", timer._replace(created_ms=there.created_ms, version=there.version + 1))
    return Reply("kept" if arming.if_exists == "keep" else "exists", there)


def _fields(arming: Arming) -> dict[str, Any]:
    """What asks the inbox for the same. A ladder that gives the due time gives it there, too."""
    kept = {name: value for name, value in arming.spec.items() if name != "ladder_first"}
    due = {} if "ladder_first" in arming.spec else {"due_at": int(arming.due[1:])}
    return {**kept, **due, "if_exists": arming.if_exists}


def _absolute(due: str, now_ms: int) -> str:
    return due if due.startswith("@") else f"@{now_ms + int(due)}"


def _timer(arming: Arming) -> Timer:
    prefix, timer_id, due, spec, progress = arming[:5]
    return codec.new_record(
        prefix, timer_id, int(due[1:]), arming.created_ms, spec=spec, progress=progress, durability=LEDGER
    )
