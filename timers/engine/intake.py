"""Owns what is worth claiming: the dirty queues of this pod. Events and sweeps only mark; the claimer takes.

A mark costs O(1) however many events there are, so a burst of 100,000 events is a handful of marks.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from timers.store.store import Identity

CLAIM_BATCH: Final = 200
"""Timers one claim may take from a queue: a script of about 2 ms, and enough to keep 1,000 runs supplied."""

LATER_SECONDS: Final = 0.05
"""When a pod looks at an event that hashes to another: long enough that normally nothing is left."""

Queue = tuple[int, str]
"""(shard, prefix)."""


@dataclass(slots=True)
class _Mark:
    """`wanted` timers to take; with `drain` everything due, batch after batch."""

    wanted: int
    drain: bool
    cause: str


@dataclass(frozen=True, slots=True)
class Wanted:
    """One claim to make: of one shard, some queues with the most to take of each, and why."""

    shard: int
    queues: list[tuple[str, int]]
    cause: str


class Intake:
    """The marks. `later` is how a test makes time pass; it defaults to the loop's own `call_later`."""

    def __init__(self, later: Callable[[float, Callable[[], None]], object] | None = None) -> None:
        self._call_later = later
        self._marks: dict[Queue, _Mark] = {}
        self._others: set[Queue] = set()
        self._aging: set[Queue] = set()
        self._orphans: dict[Identity, int] = {}
        self._something = asyncio.Event()
        self._timer_set = False

    def mark(self, shard: int, prefix: str) -> None:
        """An event of this pod's own: one more timer to take from the queue, now."""
        mark = self._marks.get((shard, prefix))
        if mark is None:
            self._marks[(shard, prefix)] = _Mark(1, drain=False, cause="event")
        else:
            mark.wanted += 1
        self._something.set()

    def mark_all(self, shard: int, prefix: str, cause: str) -> None:
        """Take whatever the queue has due, now."""
        mark = self._marks.get((shard, prefix))
        if mark is None:
            self._marks[(shard, prefix)] = _Mark(CLAIM_BATCH, drain=True, cause=cause)
        else:
            mark.drain = True
        self._something.set()

    def mark_later(self, shard: int, prefix: str) -> None:
        """An event that hashes to another pod: look in a while, once for all of them."""
        self._others.add((shard, prefix))
        if not self._timer_set:
            self._set_timer()

    def mark_orphan(self, shard: int, identity: Identity) -> None:
        """A run whose lease has expired: to be rescued."""
        self._orphans[identity] = shard
        self._something.set()

    async def wait(self) -> None:
        """Until there is something to take."""
        await self._something.wait()

    def take(self, room: int) -> list[Wanted]:
        """Claims for at most `room` timers in all. What is asked for is off the marks; the rest stays."""
        chosen: dict[tuple[int, str], list[tuple[str, int]]] = {}
        for (shard, prefix), mark in list(self._marks.items()):
            if room <= 0:
                break
            ask = min(room, CLAIM_BATCH, CLAIM_BATCH if mark.drain else mark.wanted)
            chosen.setdefault((shard, mark.cause), []).append((prefix, ask))
            room -= ask
            mark.wanted -= ask
            if mark.drain or mark.wanted <= 0:
                del self._marks[(shard, prefix)]
        self._settle_flag()
        return [Wanted(shard, queues, cause) for (shard, cause), queues in chosen.items()]

    def take_orphans(self, room: int) -> dict[int, list[Identity]]:
        """Orphans to rescue by shard, at most `room`."""
        chosen: dict[int, list[Identity]] = {}
        for identity in list(self._orphans)[: max(room, 0)]:
            chosen.setdefault(self._orphans.pop(identity), []).append(identity)
        self._settle_flag()
        return chosen

    def emptied(self, shard: int, prefix: str) -> None:
        """A claim found less than it asked for: events counted for this queue have been served by others."""
        mark = self._marks.get((shard, prefix))
        if mark is not None and not mark.drain:
            del self._marks[(shard, prefix)]
            self._settle_flag()

    def _settle_flag(self) -> None:
        if not self._marks and not self._orphans:
            self._something.clear()

    def _set_timer(self) -> None:
        later = self._call_later or asyncio.get_running_loop().call_later
        self._timer_set = True
        later(LATER_SECONDS / 2, self._age)

    def _age(self) -> None:
        """Runs every half of the wait while there is something to wait for: what came in two ticks ago is due."""
        for shard, prefix in self._aging:
            self.mark_all(shard, prefix, "late look")
        self._aging, self._others = self._others, set()
        self._timer_set = False
        if self._aging:
            self._set_timer()
