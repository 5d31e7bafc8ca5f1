"""Owns writing to the ledger before a caller is answered: new timers before Redis has them, changes right after.

A new timer's row is what Redis will make of it, creation and all, so nothing has to be written again. If Redis already
has a timer of that name, Redis decides, and the row follows it.
"""

import asyncio
from collections.abc import Collection, Sequence
from contextlib import nullcontext, suppress
from functools import partial
from typing import Any, Final

from sqlalchemy.ext.asyncio import AsyncConnection

from timers.client.copies import DECLARED, entered, given_back, restored, row_of_timer
from timers.client.fleet import Declared
from timers.client.group_commit import LEDGER
from timers.core.fields import encode
from timers.core.model import Status, Timer
from timers.errors import Full, LedgerUnavailable, Moving, NoProcessor, Unavailable
from timers.ledger import facts, inbox, requests, rows
from timers.ledger.database import Database
from timers.ledger.facts import Lives
from timers.ledger.many import execute
from timers.ledger.rows import NewRow, Row, save_in
from timers.store import codec
from timers.store.callers import Quota, Quotas
from timers.store.cooperative import Turn
from timers.store.filters import Visible
from timers.store.following import FIRST_SHARD, stages
from timers.store.store import FOUNDING_TRIES, Arming, Identity, Reply, Store

_PAUSES: Final = (0.05, 0.1, 0.2, 0.4)
"""Seconds between looks at the inbox. Pods that live carry a row out within the first two."""

_KEEPS_LOSING: Final = "Redis keeps losing its data"

_THERE: Final = frozenset(("exists", "kept", "replaced"))
"""Codes of replies about a timer that Redis had."""


class LedgerFirst:
    """The writes of one client. Every method raises LedgerUnavailable."""

    def __init__(self, store: Store, quotas: Quotas, database: Database) -> None:
        self._store, self._quotas, self._database = store, quotas, database

    async def arm(self, armings: Sequence[Arming], quota: Quota | None = None, turn: Turn | None = None) -> list[Reply]:
        """As `Quotas.arm`; first in the ledger, if that is their durability. While Redis is away new timers are armed
        later, which their `armed` says, and the ledger decides what exists."""
        is_written = bool(armings) and armings[0].durability == LEDGER
        replies = await (self._arm_written if is_written else self._arm_known)(armings, quota, turn)
        for _ in range(FOUNDING_TRIES):
            # What Redis loses between the two steps is given back in the next round, and then Redis decides.
            lost = [place for place, reply in enumerate(replies) if reply.code == "lost"]
            if not lost:
                return replies
            again = [armings[place] for place in lost]
            came = await (self._arm_written if is_written else self._arm_given_back)(again, quota)
            for place, reply in zip(lost, came, strict=True):
                replies[place] = reply
        raise Unavailable(_KEEPS_LOSING)

    async def _arm_known(self, armings: Sequence[Arming], quota: Quota | None, turn: Turn | None = None) -> list[Reply]:
        """As `Quotas.arm`, but `lost` where Redis has just lost what the ledger may have of that name."""
        return await self._quotas.arm([arming._replace(known=True) for arming in armings], quota, turn)

    async def _arm_given_back(self, armings: Sequence[Arming], quota: Quota | None) -> list[Reply]:
        """As `Quotas.arm`, once Redis has again what the ledger has of these names, unless the ledger is away."""
        lives: Lives = {}
        with suppress(LedgerUnavailable):
            lives = await given_back(self._store, self._database, [arming[:2] for arming in armings])
        again = [a._replace(life=lives.get(self._store.shard_of(*a[:2]), "")) for a in armings]
        return await self._quotas.arm(again, quota)

    async def _arm_written(
        self, armings: Sequence[Arming], quota: Quota | None, turn: Turn | None = None
    ) -> list[Reply]:
        """Write the new ones of these timers to the ledger, then arm all. The code `lost` says that Redis lacks a timer
        that the ledger has, because it has just lost it."""
        now_ms = round(self._store.clock.now_ms())
        sent = [_as_written(arming, now_ms) for arming in armings]
        written = await self._database.do(partial(rows.insert, rows=[self._new_row(a) for a in sent]))
        try:
            sent, before = await self._placed(sent, written)
            replies = await self._quotas.arm(sent, quota, turn)
        except Unavailable as away:
            # Nothing waits for room, or without being counted; whether the new place reads this ledger is not known.
            if quota is not None or isinstance(away, Full | Moving):
                wrong = [(*a[:2], a.created_ms) for a in sent if a[:2] in written]
                await self._database.do(partial(execute, statement=rows.TAKE_BACK, rows=wrong))
                raise
            away.nothing_done = away.nothing_done and not written
            return await self._unarmed(sent, written, away)
        pairs = zip(sent, replies, strict=True)
        if all(reply.code == "created" and _is_made(arming, reply) for arming, reply in pairs):  # as it mostly is
            return replies
        try:
            said = [*replies]
            met = await self._recognize(sent, replies, written)
            await self._correct(sent, replies, written, {**met, **before})
            # One that was removed since is not written, but it was there.
            replies = [told if reply.timer is None else reply for told, reply in zip(said, replies, strict=True)]
        except Unavailable:  # something else may have been given back in its place
            replies = [
                reply if arming[:2] in written and _is_made(arming, reply) else reply._replace(code="lost")
                for arming, reply in zip(sent, replies, strict=True)
            ]
        return [reply.with_durability(LEDGER) for reply in replies]

    async def _recognize(self, armings: Sequence[Arming], replies: list[Reply], written: Collection[Identity]) -> Lives:
        """Say of new timers that Redis had already whether they are these: a pod that restores the shard was faster. An
        older copy of the data may have another one of that name, which was removed since; that is given this one.
        Returns the lives in which this was seen."""
        there = {
            place: arming[:2]
            for place, (arming, reply) in enumerate(zip(armings, replies, strict=True))
            if reply.code in _THERE and arming[:2] in written
        }
        other = {place: identity for place, identity in there.items() if not _is_made(armings[place], replies[place])}
        shards = {self._store.shard_of(*identity) for identity in other.values()}
        reached = await entered(self._store, self._database, shards) if other else {}
        older = [identity for identity in other.values() if reached[self._store.shard_of(*identity)].is_older]
        await given_back(self._store, self._database, older)
        for place, timer in zip(other, await self._store.get(list(other.values())), strict=True):
            replies[place] = replies[place]._replace(timer=timer)
        for place in there:
            if _is_made(armings[place], replies[place]) and (place in other or replies[place].code != "replaced"):
                replies[place] = replies[place]._replace(code="created")
        return {shard: stage.life for shard, stage in reached.items()}

    async def _placed(self, armings: Sequence[Arming], written: Collection[Identity]) -> tuple[list[Arming], Lives]:
        """The armings as Redis is to be sent them, and in which lives those that are not new are to be armed. Raises
        Unavailable."""
        there = [a[:2] for a in armings if a[:2] not in written]
        before = await given_back(self._store, self._database, there)
        await self._in_order(there)
        return [
            a if a[:2] in written else a._replace(created_ms=0, known=True, life=before[self._store.shard_of(*a[:2])])
            for a in armings
        ], before

    async def _correct(
        self,
        armings: Sequence[Arming],
        replies: Sequence[Reply],
        written: Collection[Identity],
        before: Lives,
    ) -> None:
        """Make the ledger agree with what Redis said: take rows of timers back that Redis did not make, and write those
        that it had or has changed, or has made in the place of one whose removal the ledger does not know yet. Raises
        Unavailable, without the latter, if it has lost data since `before`."""
        wrong, found = [], []
        for arming, reply in zip(armings, replies, strict=True):
            timer = reply.timer
            if arming[:2] in written and not _is_made(arming, reply):
                wrong.append((*arming[:2], arming.created_ms))
            if timer is not None and (reply.code != "created" or arming[:2] not in written):
                found.append(row_of_timer(self._store, timer))
        if wrong:
            await self._database.do(partial(execute, statement=rows.TAKE_BACK, rows=wrong))
        if found:
            await self._database.do(partial(save_in, lives=before, changed=found))

    async def _unarmed(
        self, armings: Sequence[Arming], written: Collection[Identity], away: Unavailable
    ) -> list[Reply]:
        """The replies while Redis is away. Raises `away` if one cannot be decided without it. What replaces a timer
        waits in the inbox. A timer that nobody has changed is armed later too, unless Redis has it: the caller who made
        it may not have heard that it was written, and then nobody has armed it."""
        names = [a[:2] for a in armings]

        async def decide(connection: AsyncConnection) -> list[Reply]:
            there, waiting = await rows.find(connection, names), await rows.waiting(connection, names)
            # Another one may have come in its place meanwhile, which a pod has copied from Redis.
            new = {
                a[:2] for a in armings if a[:2] in written and (row := there.get(a[:2])) and row.created == a.created_ms
            }
            unchanged = [(*identity, row.created) for identity, row in there.items() if row.version == 1]
            await execute(connection, rows.AWAIT_ARMING, sorted(unchanged))
            replies = []
            for arming in armings:
                row = there.get(arming[:2])
                reply = _unarmed(arming, row, is_new=arming[:2] in new)
                if reply is None:
                    raise away
                if reply.timer is not None and arming[:2] in waiting:
                    reply = reply._replace(timer=reply.timer._replace(armed=False, durability=LEDGER))
                if reply.code == "replaced":
                    await requests.arm(connection, arming.prefix, arming.id, **_fields(arming))
                replies.append(reply)
            return replies

        return await self._database.do(decide)

    async def ready(self, identity: Identity) -> str:
        """Before a change of a timer: the life of its shard in which it is to be changed. Gives the timer back if Redis
        was lost and is still being restored. Raises LedgerUnavailable if the ledger is away, and Unavailable; nothing
        was changed then."""
        (life,) = (await given_back(self._store, self._database, [identity])).values()
        await self._in_order([identity])
        return life

    async def _in_order(self, identities: Sequence[Identity]) -> None:
        """Wait until the inbox has nothing for these timers, such as a replacement that was accepted while Redis was
        away: done after what comes now, it would undo it. Raises Unavailable."""
        if not identities:
            return
        waited = partial(inbox.waits_for, identities=identities)
        for pause in (*_PAUSES, None):
            if not await self._database.do(waited, writes=False):
                return
            if pause is not None:
                await asyncio.sleep(pause)
        raise Unavailable("the inbox has something for this timer that no pod has carried out yet", nothing_done=True)

    async def keep(self, timer: Timer, life: str, *, removed: bool) -> None:
        """Write what a change has made of a timer in a life of its shard. Raises Unavailable if what the ledger had
        until now may have been given back in its place."""
        row = row_of_timer(self._store, timer)
        if removed:
            row = rows.tombstone(*row[:3], version=row.version + 1, created=row.created, at_ms=row.changed)
        await self._database.do(partial(save_in, lives={row.shard: life}, changed=[row]))

    async def refusals(
        self, declared: Declared, prefixes: Collection[str], visible: Visible | None
    ) -> dict[str, NoProcessor]:
        """As those of `declared`. The ledger's word counts too while Redis is away, or lacks what it has lost."""
        try:
            refused = await declared.refusals(prefixes, visible)
        except Unavailable:
            return declared.refusals_without_redis(prefixes, await self._declared(), visible)
        if refused and not (await stages(self._store, [FIRST_SHARD]))[FIRST_SHARD].is_whole:
            with suppress(LedgerUnavailable):
                if known := await self._declared():
                    return declared.refusals_without_redis(prefixes, known, visible)
        return refused

    async def _declared(self) -> list[str]:
        """The prefixes that the ledger knows."""
        found = await self._database.do(facts.read, writes=False)
        return [name for kind, name in found if kind == DECLARED]

    async def give_back(self, identity: Identity) -> None:
        """Give a timer that Redis lacks back at once, if the ledger has it. If all is restored, one that waits to be
        armed may be all that is missing, and a ledger that is away makes nobody wait for that."""
        shard = self._store.shard_of(*identity)
        is_whole = (await stages(self._store, [shard]))[shard].is_whole
        with suppress(LedgerUnavailable) if is_whole else nullcontext():
            await given_back(self._store, self._database, [identity])

    def _new_row(self, arming: Arming) -> NewRow:
        prefix, timer_id, due = arming[:3]
        spec, _, progress = arming.body.partition("\n")
        shard = self._store.shard_of(prefix, timer_id)
        return NewRow(prefix, timer_id, shard, int(due[1:]), arming.created_ms, spec, progress)


def _is_made(arming: Arming, reply: Reply) -> bool:
    """Whether the timer of a reply is the new one of this arming. Another one may have been created in the same
    millisecond."""
    timer = reply.timer
    if timer is None or timer.created_ms != arming.created_ms:
        return False
    return timer.version > 1 or (timer.due_ms == int(arming.due[1:]) and timer.spec == arming.spec)


def _unarmed(arming: Arming, row: Row | None, *, is_new: bool) -> Reply | None:
    """The reply to an arming while Redis is away, given its timer's row in the ledger. None if only Redis knows it:
    whether a timer that runs has ended."""
    if is_new:
        prefix, timer_id, due, spec, progress = arming[:5]
        made = codec.new_record(prefix, timer_id, int(due[1:]), arming.created_ms, spec=spec, progress=progress)
        return Reply("created", made._replace(armed=False, durability=LEDGER))
    if row is None or (arming.if_exists == "replace" and row.status == Status.RUNNING):
        return None
    (given,) = restored([row])
    there = codec.readable(row.prefix, row.id, given.record)
    if arming.if_exists == "replace":
        return None if there is None else Reply("replaced", _renewed(there, arming))  # None: a later version wrote it
    if there is not None:
        there = there._replace(status=Status(row.status))  # what runs would be given back as scheduled
    return Reply("kept" if arming.if_exists == "keep" else "exists", there)


def _renewed(timer: Timer, arming: Arming) -> Timer:
    """The timer as `arm` will make it anew. Its history does not have that yet."""
    return timer._replace(
        status=Status.SCHEDULED,
        due_ms=int(arming.due[1:]),
        version=timer.version + 1,
        attempt=0,
        failures=0,
        occurrence=timer.occurrence + (timer.attempt != 0),
        spec=arming.spec,
        progress=arming.progress,
        armed=False,
        durability=LEDGER,
    )


def _fields(arming: Arming) -> dict[str, Any]:
    """What asks the inbox for the same. A ladder that gives the due time gives it there, too."""
    kept = {name: value for name, value in arming.spec.items() if name not in ("ladder_first", codec.ARMED_BY)}
    due = {} if "ladder_first" in arming.spec else {"due_at": int(arming.due[1:])}
    return {**kept, **due, "if_exists": arming.if_exists}


def _as_written(arming: Arming, now_ms: int) -> Arming:
    """The arming with an absolute due time and what its record will be, created now."""
    prefix, timer_id, due = arming[:3]
    due = due if due.startswith("@") else f"@{now_ms + int(due)}"
    body = f"{encode(arming.spec)}\n{codec.encode_progress(arming.progress)}"
    # `_replace` takes twice as long.
    return Arming(prefix, timer_id, due, *arming[3:7], now_ms, arming.durability, body=body)
