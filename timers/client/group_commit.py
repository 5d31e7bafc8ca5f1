"""Owns arming together what many callers arm at the same time: while one call of a shard is under way the next gathers.

A call alone goes at once; under load a call to Redis, which costs more than all else of a create, is shared. Known from
databases as group commit (D. DeWitt et al., "Implementation Techniques for Main Memory Database Systems", 1984).
"""

import asyncio
from collections import defaultdict
from typing import Final

from timers.store.line import Line
from timers.store.store import ARM_LIMIT, Answer, Arming, Store

LINES: Final = 8
"""Connections of its own, at most: one for each shard that is armed in at the same time; the others share the pool."""

_Waiting = tuple[Arming, asyncio.Future[Answer]]


class GroupCommit:
    """The single arms of one client."""

    def __init__(self, store: Store, *, edit_lock_ms: int) -> None:
        self._store, self._edit_lock_ms = store, edit_lock_ms
        self._waiting: defaultdict[int, list[_Waiting]] = defaultdict(list)
        self._busy: dict[int, asyncio.Task[None]] = {}
        self._idle: list[Line] = []
        self._lines = 0

    async def arm(self, arming: Arming) -> Answer:
        """As `Store.arm` of one. A caller that is cancelled before its timer was sent arms nothing."""
        shard = self._store.shard_of(arming.prefix, arming.id)
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting[shard].append((arming, answer))
        if shard not in self._busy:
            self._busy[shard] = asyncio.create_task(self._work(shard))
        return await answer

    async def _work(self, shard: int) -> None:
        """Arm until nobody waits."""
        line = self._idle.pop() if self._idle else self._another_line()
        try:
            while some := self._take(shard):
                await self._arm(some, line)
        finally:
            del self._busy[shard]
            if line is not None:
                self._idle.append(line)

    def _another_line(self) -> Line | None:
        if self._lines == LINES:
            return None
        self._lines += 1
        return self._store.connections.line()

    def _take(self, shard: int) -> list[_Waiting]:
        wanted = [one for one in self._waiting.pop(shard, ()) if not one[1].done()]
        if len(wanted) > ARM_LIMIT:
            self._waiting[shard] = wanted[ARM_LIMIT:]
        return wanted[:ARM_LIMIT]

    async def _arm(self, some: list[_Waiting], line: Line | None) -> None:
        armings = [arming for arming, _ in some]
        try:
            answers = await self._store.arm(armings, edit_lock_ms=self._edit_lock_ms, line=line)
        except Exception as error:  # noqa: BLE001 (each caller gets it)
            for _, waiting in some:
                if not waiting.done():
                    waiting.set_exception(error)
            return
        for (_, waiting), answer in zip(some, answers, strict=True):
            if not waiting.done():
                waiting.set_result(answer)
