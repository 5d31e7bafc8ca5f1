"""Owns expired bare keys: counts the expiries this pod hears and makes the timers due, to be claimed like any other."""

import time
from asyncio import Event
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from timers.bare.keys import BareKeys, Heard
from timers.bare.scanner import Scanner
from timers.logs import get_logger
from timers.store.store import Identity
from timers.store.turns import set_within

BATCH: Final = 250

COUNTED_SECONDS: Final = 5.0
"""How long expiries of a key are counted together: as long as its lock counts them (lua/announce.lua)."""

LATER_SECONDS: Final = 0.05
"""When to report an expiry that another pod reports at once: by then it is normally known."""

AGAIN_SECONDS: Final = 0.5
"""When to report a key again that expired during its last run."""

MEMORY_LIMIT: Final = 500_000
"""Keys whose expiries are counted, and keys waiting to be reported. A server buffers no more for a slow pod."""

_log = get_logger("timers.bare-expired")


class ExpiredKeys:
    """Reports expiries of bare keys to the shards. Hearing one costs O(1), however many others wait."""

    name = "bare-expired"

    def __init__(
        self,
        keys: BareKeys,
        scanner: Scanner,
        *,
        mark: Callable[[int, str], None],
        heard_until_ms: Callable[[], int],
        limit: int = MEMORY_LIMIT,
        counted_seconds: float = COUNTED_SECONDS,
    ) -> None:
        """`mark` is called for a queue with a due timer; `heard_until_ms` returns the time until which this pod has
        heard everything."""
        self._keys, self._scanner, self._mark, self._heard_until_ms = keys, scanner, mark, heard_until_ms
        self._limit, self._counted_seconds = limit, counted_seconds
        # Not plain dicts: to find its first item, a dict walks over all removed ones.
        self.counted = OrderedDict[Identity, tuple[int, float]]()
        self._waiting = {
            seconds: OrderedDict[Identity, tuple[float, Heard]]() for seconds in (0.0, LATER_SECONDS, AGAIN_SECONDS)
        }
        self._something = Event()
        self._dropped = 0

    @property
    def waiting(self) -> int:
        """How many expiries wait to be reported."""
        return sum(map(len, self._waiting.values()))

    def heard(self, identity: Identity, *, mine: bool) -> None:
        """A key expired. The pod that the event hashes to reports it at once, the others a little later."""
        self._scanner.noticed()
        times = self._count(identity, time.monotonic())
        self._add(identity, Heard(times, self._heard_until_ms()), 0.0 if mine else LATER_SECONDS)

    async def run(self) -> None:
        """Report expiries batch by batch."""
        while True:
            self._something.clear()
            if batch := self.take():
                await self._announce(batch)
            else:
                first = min((next(iter(queue.values()))[0] for queue in self._waiting.values() if queue), default=None)
                await set_within(self._something, None if first is None else max(first - time.monotonic(), 0))

    def _count(self, identity: Identity, now: float) -> int:
        times, last = self.counted.pop(identity, (0, now))
        times = times + 1 if now - last < self._counted_seconds else 1
        self.counted[identity] = (times, now)
        # Ordered by the last hearing. Two leave for each one that comes, so that old ones do not stay.
        for _ in range(2):
            oldest, (_, last) = next(iter(self.counted.items()))
            if now - last < self._counted_seconds and len(self.counted) <= self._limit:
                break
            del self.counted[oldest]
        return times

    def _add(self, identity: Identity, heard: Heard, seconds: float) -> None:
        queue = self._waiting[seconds]
        if identity not in queue and self.waiting >= self._limit:
            self._dropped += 1
            return
        due, before = queue.get(identity, (time.monotonic() + seconds, heard))
        queue[identity] = due, max(before, heard)
        self._something.set()

    def take(self) -> dict[Identity, Heard]:
        """Take the next batch of what is to be reported now."""
        now, batch = time.monotonic(), dict[Identity, Heard]()
        for queue in self._waiting.values():
            while queue and len(batch) < BATCH and next(iter(queue.values()))[0] <= now:
                identity, (_, heard) = queue.popitem(last=False)
                batch[identity] = max(heard, batch.get(identity, heard))
        return batch

    async def _announce(self, batch: dict[Identity, Heard]) -> None:
        if self._dropped:
            _log.error("more bare keys expired than this pod remembers; other pods report them", left=self._dropped)
            self._dropped = 0
        try:
            unclear = []
            for identity, code in (await self._keys.announce(batch)).items():
                if code == "due":
                    self._mark(self._keys.store.shard_of(*identity), identity[0])
                elif code == "running":
                    self._add(identity, batch[identity], AGAIN_SECONDS)
                elif code == "look":
                    unclear.append(identity)
            # A key that exists again has nothing to report. After a look, the shard can judge the others.
            for identity in await self._scanner.look(unclear, heard=True):
                self._add(identity, batch[identity], LATER_SECONDS)
        except BaseException:
            for identity, heard in batch.items():
                self._add(identity, heard, 0.0)
            raise
