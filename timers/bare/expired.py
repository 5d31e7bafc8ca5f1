"""Owns expired bare keys: counts the expiries this pod hears and makes the timers due, to be claimed like any other."""

import time
from asyncio import Event
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Final

from timers.bare.keys import BareKeys, Heard
from timers.bare.scanner import Scanner
from timers.logs import get_logger
from timers.store.store import ARM_LIMIT, Identity
from timers.store.turns import set_within

COUNTED_SECONDS: Final = 5.0
"""How long expiries of a key are counted together: as long as its lock counts them (lua/resolve.lua)."""

LATER_SECONDS, AGAIN_SECONDS = 0.05, 0.5
"""When to report an expiry that another pod reports at once (by then it is normally known), and one during a run."""

MEMORY_LIMIT: Final = 500_000
"""Keys whose expiries are counted, and keys waiting to be reported. A server buffers no more for a slow pod."""

LOG_EVERY_SECONDS: Final = 60.0

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
        told: Callable[[str], None] = lambda _what: None,
        limit: int = MEMORY_LIMIT,
        counted_seconds: float = COUNTED_SECONDS,
    ) -> None:
        """`mark` is called for a queue with a due timer, `told` with `refused` for each expiry that may change
        nothing."""
        self._keys, self._scanner, self._mark, self._told = keys, scanner, mark, told
        self._limit, self._counted_seconds = limit, counted_seconds
        # Not a plain dict: to find its first item, a dict walks over all removed ones.
        self.counted = OrderedDict[Identity, tuple[int, float]]()
        self._waiting = {s: deque[tuple[float, Identity, Heard]]() for s in (0.0, LATER_SECONDS, AGAIN_SECONDS)}
        self._something = Event()
        self._dropped = self._refused = 0
        self._log_at = 0.0

    @property
    def waiting(self) -> int:
        """How many expiries wait to be reported."""
        return sum(map(len, self._waiting.values()))

    def heard(self, identity: Identity, until_ms: int, *, mine: bool) -> None:
        """A key expired. This pod has heard everything until `until_ms`, and reports at once what is `mine`."""
        self._scanner.noticed()
        self._add(identity, (self._count(identity), until_ms), 0.0 if mine else LATER_SECONDS)

    def missed(self) -> None:
        """Expiries may have been missed: look for keys that are still there."""
        self._scanner.scan_now()

    async def run(self) -> None:
        """Report expiries batch by batch."""
        while True:
            self._something.clear()
            if batch := self.take():
                await self._announce(batch)
            else:
                await set_within(self._something, LATER_SECONDS if self.waiting else None)

    def _count(self, identity: Identity) -> int:
        now = time.monotonic()
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
        if self.waiting >= self._limit:
            self._dropped += 1
        else:
            self._waiting[seconds].append((time.monotonic() + seconds, identity, heard))
            self._something.set()

    def take(self) -> dict[Identity, Heard]:
        """Take the next batch of what is to be reported now."""
        now, batch = time.monotonic(), dict[Identity, Heard]()
        for queue in self._waiting.values():
            while queue and len(batch) < ARM_LIMIT and queue[0][0] <= now:
                _, identity, heard = queue.popleft()
                batch[identity] = max(heard, batch.get(identity, heard))
        return batch

    async def _announce(self, batch: dict[Identity, Heard]) -> None:
        left, self._dropped = self._dropped, 0
        if left:
            _log.error("too many bare keys expired at once for this pod; other pods report the rest", left=left)
        try:
            codes = await self._keys.announce(batch)
            for identity, code in codes.items():
                if code == "due":
                    self._mark(self._keys.store.shard_of(*identity), identity[0])
                elif code == "running":
                    self._add(identity, batch[identity], AGAIN_SECONDS)
                elif code == "refused":
                    self._refuse(identity)
            # A key that exists again has nothing to report. After a look, the shard can judge the others.
            for identity in await self._scanner.look([i for i, code in codes.items() if code == "look"], heard=True):
                self._add(identity, batch[identity], LATER_SECONDS)
        except BaseException:
            for identity, heard in batch.items():
                self._add(identity, heard, 0.0)
            raise

    def _refuse(self, identity: Identity) -> None:
        self._told("refused")
        self._refused += 1
        if time.monotonic() >= self._log_at:
            _log.warning("announced bare keys changed nothing", timer=":".join(identity), count=self._refused)
            self._refused, self._log_at = 0, time.monotonic() + LOG_EVERY_SECONDS
