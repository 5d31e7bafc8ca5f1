"""Owns draining the ledger's inbox: pods take rows, carry them out on Redis, write what became of them into the ledger
and delete them, in one transaction. Every worker pod does it, side by side.

A pod may die between Redis and the commit. Then the rows are taken again; their marks in Redis say what was done.
"""

import asyncio
import time
from collections.abc import Sequence
from functools import partial
from typing import Final

from sqlalchemy.ext.asyncio import AsyncConnection

from timers.client import TimerClient
from timers.client.copies import DECLARED, given_back
from timers.client.inbox import carry_out
from timers.core.fields import owner
from timers.engine.pod import Pod
from timers.engine.supervisor import Services, repeat
from timers.errors import Full, InvalidInput, LedgerUnavailable, NoProcessor, Running, TimersError
from timers.ledger import effects, facts, inbox
from timers.ledger.bell import listen
from timers.ledger.database import Database
from timers.ledger.inbox import Taken
from timers.ledger.rows import Row, save_in
from timers.logs import get_logger
from timers.store.cooperative import cancelled, set_within
from timers.store.following import drop_marks, read_marks

POLL_SECONDS: Final = 0.2
"""The longest pause between two looks for rows: a bell that does not ring costs this much."""

STALE_SECONDS: Final = 5.0
"""A pod that was stopped for this long after it took rows gives them up: another may have them."""

ASIDE_SECONDS: Final = 0.5
"""For how long a row is left alone that replaces a running timer, whose shard is out of reach, that finds Redis full,
or whose prefix Redis has just lost. Once the run has ended, the shard is back, there is room, or pods have said their
prefixes again, it is carried out that soon."""

CATCH_UP_SECONDS: Final = 0.7
"""How long timers wait, after a gap, for what the inbox has: what became due meanwhile must start within a second."""

LOOK_SECONDS: Final = 0.02
"""The pause between two looks whether other pods have carried out what they have taken."""

FORGET_SECONDS: Final = 60.0
"""How long the mark of a row outlives the row. A pod that was stopped with it is far beyond STALE_SECONDS then."""

_log = get_logger("timers.inbox")


class Inbox:
    """The inbox as one pod sees it."""

    def __init__(self, pod: Pod, database: Database, client: TimerClient) -> None:
        self._pod, self._database, self._client = pod, database, client
        self.refused: int | None = None
        """Rows that a person has to look at, as counted a minute ago at most; None before that."""
        self._aside: dict[int, float] = {}
        """Rows that cannot be carried out yet, by number, and until when this pod leaves them alone."""
        self._asked, self._caught_up, self._rung = asyncio.Event(), asyncio.Event(), asyncio.Event()

    @property
    def services(self) -> Services:
        """By name."""
        return {"inbox": self._run, "inbox_upkeep": partial(repeat, self._keep_up, FORGET_SECONDS)}

    async def _run(self) -> None:
        hearing = asyncio.create_task(listen(self._database, self._rung.set))
        try:
            while True:
                asked = self._asked.is_set()
                while await self.drain() or (asked and self._asked.is_set() and await self._others_carry_out()):
                    pass
                if asked:
                    self._asked.clear()
                    self._caught_up.set()
                await set_within(self._rung, POLL_SECONDS)
                self._rung.clear()
                if hearing.done():
                    await hearing
        finally:
            await cancelled([hearing])

    async def catch_up(self) -> None:
        """Wait until all pods together have carried out what waits, before timers start that it may replace. Gives up
        after a moment: then a replacement follows the run."""
        self._caught_up.clear()
        self._asked.set()
        self._rung.set()
        await set_within(self._caught_up, CATCH_UP_SECONDS)
        self._asked.clear()

    async def _others_carry_out(self) -> bool:
        if await self._database.do(partial(inbox.has_others, without=self._left_alone()), writes=False):
            await asyncio.sleep(LOOK_SECONDS)
            return True
        return False

    def _left_alone(self) -> list[int]:
        now = time.monotonic()
        self._aside = {seq: until for seq, until in self._aside.items() if until > now}
        return list(self._aside)

    async def drain(self, most: int = inbox.TAKEN) -> int:
        """Carry out some rows; returns how many. Raises Unavailable and LedgerUnavailable; nothing is lost then."""
        if self._database.dialect == "sqlite" and not await self._ready():
            return 0
        try:
            done, problems = await self._database.do(partial(self._drain, most))
        except TimersError:
            raise
        except Exception as error:
            # One row must not hold up all others: the next are taken one by one, until it is alone and refused.
            if most == 1:
                raise
            _log.error("rows of the inbox failed together", exc_info=error)
            return await self.drain(1)
        self._tell(done, problems)
        return len(done) + len(problems)

    async def _drain(self, most: int, connection: AsyncConnection) -> tuple[list[Taken], list[tuple[Taken, str]]]:
        asked_at = time.monotonic()
        taken = await inbox.take(connection, most, without=self._left_alone())
        if not taken:
            return [], []
        if time.monotonic() - asked_at > STALE_SECONDS:
            raise LedgerUnavailable("the ledger took too long to answer")
        lost = [row for row in taken if self._pod.store.shard_of(row.prefix, row.id) in self._pod.away.shards]
        if lost:
            await self._set_aside(connection, lost)
            taken = [row for row in taken if row not in lost]
        named = [(row.prefix, row.id) for row in taken]
        lives = await given_back(self._pod.store, connection, named)
        try:
            results = await carry_out(self._client, taken, lives)
        except TimersError:
            raise
        except Exception as error:
            if most > 1:
                raise
            _log.error("row of the inbox failed", seq=taken[0].seq, exc_info=error)
            results = [InvalidInput.of("body", taken[0].body, f"what does not fail with {type(error).__name__}")]
        aside, problems, done = list[Taken](), list[tuple[Taken, str]](), list[Taken]()
        is_unknown = any(isinstance(each, NoProcessor) for each in results)
        known = [name for kind, name in await facts.read(connection) if kind == DECLARED] if is_unknown else []
        for row, each in zip(taken, results, strict=True):
            is_lost = isinstance(each, NoProcessor) and owner(row.prefix, known) is not None
            if is_lost or isinstance(each, Full) or (isinstance(each, Running) and row.action == "create"):
                aside.append(row)
            elif isinstance(each, Exception):
                problems.append((row, str(each)))
            else:
                done.append(row)
        await save_in(connection, lives, [each for each in results if isinstance(each, Row)])
        await inbox.refuse(connection, problems)
        await self._set_aside(connection, aside)  # nobody could tell those who wrote them to try again
        return done, problems

    async def _set_aside(self, connection: AsyncConnection, taken: Sequence[Taken]) -> None:
        """Put rows back and leave them alone for a while, so that they hold up no others."""
        await inbox.put_back(connection, taken)
        self._aside |= dict.fromkeys((row.seq for row in taken), time.monotonic() + ASIDE_SECONDS)

    async def _ready(self) -> bool:
        """Whether there are rows, and Redis can take them: nobody else may write while this pod has the database."""
        found = await self._database.do(inbox.waited_ms, writes=False) is not None
        if found:
            await self._pod.store.now_ms()
        return found

    def _tell(self, done: list[Taken], problems: list[tuple[Taken, str]]) -> None:
        count = self._pod.observer.count
        if done:
            count("inbox", "done", by=len(done))
        if problems:
            count("inbox", "refused", by=len(problems))
        for row, problem in problems:
            named = f"{row.prefix}:{row.id}"
            _log.warning("row of the inbox refused", seq=row.seq, timer=named, action=row.action, problem=problem)

    async def _keep_up(self) -> None:
        await self.forget()
        await effects.clean(self._database)
        self.refused = await self._database.do(inbox.count_refused, writes=False)

    async def forget(self) -> None:
        """Forget the marks of rows that are deleted for good."""
        before_ms = await self._pod.store.now_ms() - FORGET_SECONDS * 1000
        async for shard, marks in read_marks(self._pod.store):
            old = [mark for mark, at_ms in marks.items() if at_ms < before_ms]
            for start in range(0, len(old), inbox.TAKEN):
                some = old[start : start + inbox.TAKEN]
                kept = await self._database.do(partial(inbox.present, marks=some), writes=False)
                if gone := [mark for mark in some if mark not in kept]:
                    await drop_marks(self._pod.store, shard, gone)
