"""Owns arming timers of several callers together: while one call to a shard is in progress, the next gathers.

A lone caller's timer goes at once, for 75 µs of CPU; with 16 callers, sharing calls takes 25 µs a timer. Databases
call this group commit (D. DeWitt et al., "Implementation Techniques for Main Memory Database Systems", 1984).
"""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Final, TypeVar

from timers.core.shapes import Durability
from timers.errors import Unavailable
from timers.store.callers import Quota
from timers.store.cooperative import Turn
from timers.store.store import Arming, Identity, Reply, Store

T = TypeVar("T")
R = TypeVar("R")

_Waiting = tuple[Arming, asyncio.Future[Reply]]

ArmAll = Callable[[Sequence[Arming], Quota | None, Turn | None], Awaitable[list[Reply]]]

_Group = tuple[int | Quota, str]
"""What is armed together: the timers of a shard, or those that count against a quota, that ask for the same durability,
so that those that wait only for Redis wait for nothing else."""

LEDGER: Final[Durability] = "ledger"


class GroupCommit:
    """The arms of one client."""

    def __init__(self, store: Store, arm_all: ArmAll, together: int) -> None:
        """`arm_all` arms timers of one durability in their turn, best so many `together`."""
        self._store, self.arm_all, self._together = store, arm_all, together
        self._waiting: defaultdict[_Group, list[_Waiting]] = defaultdict(list)
        self._busy: dict[_Group, asyncio.Task[None] | None] = {}

    async def arm(self, arming: Arming, quota: Quota | None = None) -> Reply:
        """As `Store.arm` or `Quotas.arm`, for one timer. A caller that is cancelled before its timer was sent arms
        nothing."""
        whose = self._store.shard_of(arming.prefix, arming.id) if quota is None else quota
        group = (whose, arming.durability)
        if group in self._busy:
            answer: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
            self._waiting[group].append((arming, answer))
            return await answer
        self._busy[group] = None
        try:
            return (await self.arm_all([arming], quota, None))[0]
        finally:
            if group in self._waiting:
                self._busy[group] = asyncio.create_task(self._work(group))
            else:
                del self._busy[group]

    async def arm_each(self, armings: Sequence[Arming], quota: Quota | None, turn: Turn) -> list[Reply]:
        """As `arm_all`, for timers of any durability, of which some may have the same identity: these are armed in
        order. Once some are armed, an error of the others is theirs alone: `refused` of their replies."""
        steps = _steps(armings)
        if len(steps) < 2:
            return await self.arm_all(armings, quota, turn)
        replies: dict[int, Reply] = {}
        for places in steps:
            try:
                some = await self.arm_all([armings[place] for place in places], quota, turn)
            except Unavailable as error:
                if not replies:
                    raise
                some = [Reply("away", None, error)] * len(places)
            replies.update(zip(places, some, strict=True))
        return [replies[place] for place in range(len(armings))]

    async def in_parts(
        self, items: Sequence[T], arm: Callable[[Sequence[T], Turn], Coroutine[Any, Any, list[R]]], *, together: bool
    ) -> list[R]:
        """The results of arming the items of a batch: in parts, each planned while the server works on those before and
        sent in its turn, or all `together`. Raises what a part raises; other parts may be armed then."""
        # Parts that meet a shard that nobody has founded found it and repeat themselves, in any order.
        size = self._together if self._store.identity.armed and not together else max(1, len(items))
        parts: list[asyncio.Task[list[R]]] = []
        turn: Turn | None = None
        try:
            async with asyncio.TaskGroup() as group:
                for start in range(0, len(items), size):
                    turn = Turn(turn)
                    parts.append(group.create_task(arm(items[start : start + size], turn)))
                    parts[-1].add_done_callback(turn.end)
                    await asyncio.sleep(0)  # the server works on these while the next are planned
        except ExceptionGroup as failed:
            error = failed.exceptions[0]
            if isinstance(error, Unavailable) and len(parts) > 1:
                error.nothing_done = False
            raise error from None
        return [result for part in parts for result in part.result()]

    async def _work(self, group: _Group) -> None:
        """Arm until nobody waits."""
        try:
            while some := self._take(group):
                await self._arm(some, group)
                await asyncio.sleep(0)  # lets the callers that were answered join the next group
        finally:
            del self._busy[group]

    def _take(self, group: _Group) -> list[_Waiting]:
        """Who comes next; the others wait on."""
        waiting = [one for one in self._waiting.pop(group, ()) if not one[1].done()]
        next_places = set(_steps([arming for arming, _ in waiting])[0][: self._together])
        if later := [one for place, one in enumerate(waiting) if place not in next_places]:
            self._waiting[group] = later
        return [one for place, one in enumerate(waiting) if place in next_places]

    async def _arm(self, some: list[_Waiting], group: _Group) -> None:
        armings = [arming for arming, _ in some]
        try:
            answers = await self.arm_all(armings, group[0] if isinstance(group[0], Quota) else None, None)
        except Exception as error:  # noqa: BLE001 (each caller gets it)
            for _, waiting in some:
                if not waiting.done():
                    waiting.set_exception(error)
            return
        for (_, waiting), answer in zip(some, answers, strict=True):
            if not waiting.done():
                waiting.set_result(answer)


def _steps(armings: Sequence[Arming]) -> list[list[int]]:
    """The places of what can be armed together, step by step: of one durability, and if the ledger is asked which of
    them are new, each timer once. It is asked first, so that nothing is armed if it is away."""
    levels = {arming.durability for arming in armings}
    if len(levels) < 2 and (LEDGER not in levels or len({arming[:2] for arming in armings}) == len(armings)):
        return [list(range(len(armings)))]
    times, steps = Counter[Identity](), defaultdict[tuple[int, bool, str], list[int]](list)
    for place, arming in enumerate(armings):
        identity = arming[:2]
        steps[times[identity], arming.durability != LEDGER, arming.durability].append(place)
        times[identity] += 1
    return [steps[step] for step in sorted(steps)]
