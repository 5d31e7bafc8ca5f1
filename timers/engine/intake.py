"""Owns what is worth claiming: the marked queues of this pod. Events and sweeps only mark; the claimer takes.

A mark costs O(1) however many events there are, so a burst of 100,000 events makes a handful of marks.
"""

import asyncio
import math
import time
from collections import Counter
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Final

from timers.store.store import Identity, Queue

CLAIM_BATCH: Final = 200
"""Timers that one claim may take, from one queue or several, or that one rescue may take: a script of about 2 ms, and
enough to keep 1,000 runs supplied."""

CLAIM_QUEUES: Final = 200
"""Queues in one round of claims: half are those that became due last, half those that have waited longest."""

LIMITED_QUEUES: Final = 25
"""Queues in one round of claims from limited queues. Each has a reservation of its own, and a rate may free a thousand
of them at once: timers of other queues wait while the server works on a round, about 5 ms."""

BACKLOG: Final = 25
"""A claim of this many that comes back full proves a backlog."""

LATER_SECONDS: Final = 0.05
"""When a pod claims after an event that hashes to another pod: by then, normally nothing is left."""

BUSY_SECONDS: Final = 0.1
"""If a dirty queue waits longer than that, the pod has no room for its timers. A claim takes a few milliseconds."""

HOLD_SECONDS: Final = 1.5
"""For how long after Redis was down an expired lease proves nothing. Every service notices the return within half a
second, this pod's sweep may have missed it by another half, and writing ends and extending leases take a moment."""


@dataclass(slots=True)
class DirtyQueue:
    """Take `wanted` timers, or with `drain` everything due, batch after batch. `deep` is set once a full batch has
    proved that there is more: then the mark stays during a claim, so that two claims can run. `touched` numbers the
    marks, so that an answer can tell whether a newer mark was made. `known_at` is the monotonic time at which this pod
    learned that the queue has due timers, and `since` that from which it has not asked for them."""

    wanted: int
    cause: str
    known_at: float
    since: float
    drain: bool = False
    deep: bool = False
    touched: int = 0


@dataclass(frozen=True, slots=True)
class QueueClaim:
    """What one claim asks of one queue: at most `most` timers. `touched` is the number of the newest mark it knew, and
    `known_at` when this pod learned of the due timers; None if they had to wait for room or for the rate."""

    shard: int
    prefix: str
    cause: str
    most: int
    touched: int
    known_at: float | None


@dataclass(slots=True)
class _Lane:
    """Marked queues that wait for one another: `new` ones have just become due, `old` ones wait. `something` is set
    while there is something to take. At most `at_once` of them are taken in one round."""

    at_once: int
    new: dict[Queue, DirtyQueue] = field(default_factory=dict)
    old: dict[Queue, DirtyQueue] = field(default_factory=dict)
    something: asyncio.Event = field(default_factory=asyncio.Event)


class Intake:
    """The marked queues. Those with limits over the fleet, as `limited` tells, have a lane of their own. A test passes
    `later` to control time; it defaults to the loop's own `call_later`."""

    def __init__(
        self,
        later: Callable[[float, Callable[[], None]], object] | None = None,
        *,
        limited: Callable[[str], bool] = lambda _prefix: False,
    ) -> None:
        self._call_later, self._is_limited = later, limited
        self._free, self._limited = self._lanes = _Lane(CLAIM_QUEUES), _Lane(LIMITED_QUEUES)
        self._orphans: dict[Identity, int] = {}
        self._holds = Counter[int]()
        self._waiting: dict[tuple[int, str, str], float] = {}
        """When the next look of each shard, prefix and cause is to be."""
        self._touches = 0
        self.gaps = 0
        """How often Redis was out of reach, or events may have been missed."""

    def mark(self, shard: int, prefix: str, number: int = 1) -> None:
        """This pod's own events: take so many more timers from the queue now."""
        self._touch(shard, prefix, "event").wanted += number

    def mark_all(
        self, shard: int, prefix: str, cause: str, *, deep: bool = False, known_at: float | None = None
    ) -> None:
        """Take everything the queue has due, now. Set `deep` if a full batch has come from it, and `known_at` if this
        pod knew of the due timers before."""
        dirty = self._touch(shard, prefix, cause, known_at)
        if not dirty.drain:
            # Also for a mark that an event made: a claim that drains a queue is followed up, one for an event is not.
            is_old = time.monotonic() - dirty.known_at > BUSY_SECONDS
            dirty.cause = "sweep-busy" if is_old and cause == "sweep" else cause
        dirty.drain, dirty.deep = True, dirty.deep or deep
        lane = self._lane(prefix)
        if lane.new.pop((shard, prefix), None):
            lane.old[shard, prefix] = dirty

    def mark_after(self, shard: int, prefix: str, seconds: float, cause: str = "rate") -> None:
        """Take everything that the queue has due after this many seconds, unless it is to be taken for this cause
        before: when its rate allows the next start, or a little after events that hash to other pods."""
        waiting, now = (shard, prefix, cause), time.monotonic()
        if (at := now + seconds) < self._waiting.get(waiting, math.inf):
            self._waiting[waiting] = at
            self._later(seconds, partial(self._waited, *waiting, now, at))

    def mark_orphan(self, shard: int, identity: Identity) -> None:
        """The lease of a run has expired: rescue the run."""
        self._orphans[identity] = shard
        if shard not in self._holds:
            self._free.something.set()

    def hold_orphans(self, shards: Sequence[int]) -> None:
        """Redis was down, or the node of these shards. In an outage longer than the lease, all leases expire. Live
        pods must write their ends and extend their leases before anybody takes their runs over; otherwise each run
        would start twice."""
        self._holds.update(shards)
        self._update_flag()
        self._later(HOLD_SECONDS, partial(self._release_orphans, shards))

    @property
    def is_empty(self) -> bool:
        return not any(lane.something.is_set() for lane in self._lanes)

    def waiting(self) -> tuple[int, float]:
        """How many queues this pod has not yet asked for their due timers, and for how many seconds the first of them
        has waited."""
        since = [dirty.since for lane in self._lanes for dirty in (*lane.new.values(), *lane.old.values())]
        return len(since), time.monotonic() - min(since) if since else 0.0

    @property
    def held(self) -> Set[int]:
        """The shards that were away a moment ago: expired leases and permits on their servers prove nothing then."""
        return self._holds.keys()

    async def wait(self, *, limited: bool = False) -> None:
        """Wait until there is something to take from the lane of the limited queues, or of the others."""
        await self._lanes[limited].something.wait()

    def take(self, room: int, *, limited: bool = False) -> list[list[QueueClaim]]:
        """Return what to ask for, at most `room` timers in all, together for each shard and cause. The queues of a
        claim share its batch. What is asked for leaves the marks; the rest goes to the back, so that on a full pod
        every queue gets its turn."""
        lane = self._lanes[limited]
        claims: dict[tuple[int, str], list[Queue]] = {}
        for queue, dirty in _next_queues(lane):
            claims.setdefault((queue[0], dirty.cause), []).append(queue)
        wanted: list[list[QueueClaim]] = []
        for queues in claims.values():
            share = max(CLAIM_BATCH // len(queues), 1)
            asks: list[QueueClaim] = []
            for queue in queues:
                if room <= 0:
                    break
                asks.append(_ask(lane, queue, min(share, room)))
                room -= asks[-1].most
            wanted += [asks] if asks else []
        self._update_flag()
        return wanted

    def take_orphans(self, room: int) -> dict[int, list[Identity]]:
        """Orphans to rescue by shard, at most `room`."""
        chosen: dict[int, list[Identity]] = {}
        free = [identity for identity, shard in self._orphans.items() if shard not in self._holds]
        for identity in free[: max(room, 0)]:
            chosen.setdefault(self._orphans.pop(identity), []).append(identity)
        self._update_flag()
        return chosen

    def emptied(self, ask: QueueClaim) -> None:
        """A claim found less than it asked for, so whatever was marked before it was sent has been taken, here or
        elsewhere. Newer marks stay: their timers may have become due after the script ran."""
        lane = self._lane(ask.prefix)
        for marks in (lane.new, lane.old):
            dirty = marks.get((ask.shard, ask.prefix))
            if dirty is not None and dirty.touched == ask.touched:
                del marks[ask.shard, ask.prefix]
                self._update_flag()

    def _touch(self, shard: int, prefix: str, cause: str, known_at: float | None = None) -> DirtyQueue:
        queue, lane = (shard, prefix), self._lane(prefix)
        dirty = lane.new.get(queue) or lane.old.get(queue)
        if dirty is None:
            now = time.monotonic()
            dirty = lane.new[queue] = DirtyQueue(0, cause, now if known_at is None else known_at, now)
        self._touches += 1
        dirty.touched = self._touches
        lane.something.set()
        return dirty

    def _lane(self, prefix: str) -> _Lane:
        return self._limited if self._is_limited(prefix) else self._free

    def _waited(self, shard: int, prefix: str, cause: str, known_at: float, at: float) -> None:
        if self._waiting.get((shard, prefix, cause)) == at:  # else an earlier look took its place
            del self._waiting[shard, prefix, cause]
            self.mark_all(shard, prefix, cause, known_at=known_at)

    def _release_orphans(self, shards: Sequence[int]) -> None:
        self._holds -= Counter(shards)
        if self._has_orphans():
            self._free.something.set()

    def _has_orphans(self) -> bool:
        """Whether there are any that may be rescued now."""
        return any(shard not in self._holds for shard in self._orphans.values())

    def _later(self, seconds: float, call: Callable[[], None]) -> None:
        later = self._call_later or asyncio.get_running_loop().call_later
        later(seconds, call)

    def _update_flag(self) -> None:
        for lane in self._lanes:
            if not (lane.new or lane.old or (lane is self._free and self._has_orphans())):
                lane.something.clear()


def _next_queues(lane: _Lane) -> list[tuple[Queue, DirtyQueue]]:
    """From queues that have just become due, take the newest, which can still be on time; from waiting queues, the
    oldest. A new queue that is not taken for a while is found by a sweep and then waits with the others."""
    most_new = max(lane.at_once // 2, lane.at_once - len(lane.old))
    new = list(islice(reversed(lane.new.items()), most_new))
    return [*reversed(new), *islice(lane.old.items(), lane.at_once - len(new))]


def _ask(lane: _Lane, queue: Queue, most: int) -> QueueClaim:
    """Take a mark off, or the part of it that is asked for; the rest stays."""
    dirty = lane.new.pop(queue, None) or lane.old.pop(queue)
    most = most if dirty.drain else min(most, dirty.wanted)
    dirty.wanted = max(dirty.wanted - most, 0)
    dirty.since = time.monotonic()
    if dirty.deep or (not dirty.drain and dirty.wanted > 0):
        lane.old[queue] = dirty
    known_at = None if dirty.cause in ("room", "rate") else dirty.known_at
    return QueueClaim(*queue, dirty.cause, most, dirty.touched, known_at)
