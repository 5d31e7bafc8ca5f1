"""Owns draining the ledger's inbox: pods take rows, carry them out on Redis, write what became of them into the ledger
and delete them, in one transaction. Every worker pod does it, side by side.

A pod may die between Redis and the commit. Then the rows are taken again; their marks in Redis say what was done.
"""

import time
from functools import partial
from typing import Final

from sqlalchemy.ext.asyncio import AsyncConnection

from timers.client import TimerClient
from timers.client.copies import given_back
from timers.client.inbox import carry_out
from timers.engine.pod import Pod
from timers.engine.supervisor import Services, repeat
from timers.errors import InvalidInput, LedgerUnavailable, TimersError
from timers.ledger import effects, inbox
from timers.ledger.bell import listening
from timers.ledger.database import Database
from timers.ledger.inbox import Taken
from timers.ledger.rows import Row, save_in
from timers.logs import get_logger
from timers.store.following import drop_marks, read_marks

POLL_SECONDS: Final = 0.2
"""The longest pause between two looks for rows: a bell that does not ring costs this much."""

STALE_SECONDS: Final = 5.0
"""A pod that was stopped for this long after it took rows gives them up: another may have them."""

FORGET_SECONDS: Final = 60.0
"""How long the mark of a row outlives the row. A pod that was stopped with it is far beyond STALE_SECONDS then."""

_log = get_logger("timers.inbox")


class Inbox:
    """The inbox as one pod sees it."""

    def __init__(self, pod: Pod, database: Database, client: TimerClient) -> None:
        self._pod, self._database, self._client = pod, database, client
        self.refused: int | None = None
        """Rows that a person has to look at, as counted a minute ago at most; None before that."""

    @property
    def services(self) -> Services:
        """By name."""
        return {"inbox": self._run, "inbox_upkeep": partial(repeat, self._keep_up, FORGET_SECONDS)}

    async def _run(self) -> None:
        async with listening(self._database) as bell:
            while True:
                while await self.drain():
                    pass
                await bell.wait(POLL_SECONDS)

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
        taken = await inbox.take(connection, most)
        if not taken:
            return [], []
        if time.monotonic() - asked_at > STALE_SECONDS:
            raise LedgerUnavailable("the ledger took too long to answer")
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
        problems = [(row, str(each)) for row, each in zip(taken, results, strict=True) if isinstance(each, Exception)]
        refused = {row.seq for row, _ in problems}
        done = [row for row in taken if row.seq not in refused]
        await save_in(connection, lives, [each for each in results if isinstance(each, Row)])
        await inbox.refuse(connection, problems)
        return done, problems

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
        for shard, marks in (await read_marks(self._pod.store)).items():
            old = [mark for mark, at_ms in marks.items() if at_ms < before_ms]
            for start in range(0, len(old), inbox.TAKEN):
                some = old[start : start + inbox.TAKEN]
                kept = await self._database.do(partial(inbox.present, marks=some), writes=False)
                if gone := [mark for mark in some if mark not in kept]:
                    await drop_marks(self._pod.store, shard, gone)
