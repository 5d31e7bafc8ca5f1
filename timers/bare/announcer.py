"""Owns expired bare keys: counts what this pod hears and makes their timers due; then they are claimed like any."""

import asyncio
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Collection
from typing import Final

from timers.bare.adopter import Adopter
from timers.bare.keys import BareKeys, Heard
from timers.logs import get_logger
from timers.store.store import Identity

BATCH: Final = 250

COUNTED_SECONDS: Final = 5.0
"""How long expiries of a key are counted together: as long as its lock counts them (lua/announce.lua)."""

LATER_SECONDS: Final = 0.05
"""When to tell of an expiry that another pod tells at once: normally it is known by then."""

AGAIN_SECONDS: Final = 0.5
"""When to tell again of a key that expired while its last run was under way."""

MEMORY_LIMIT: Final = 500_000
"""Keys of which expiries are counted, and that wait to be told of; a server buffers no more for a pod that is slow."""

_log = get_logger("timers.announcer")


class Announcer:
    """Announces bare keys' expiries to the store. Each costs O(1) when it is heard, however many others wait."""

    name = "announcer"

    def __init__(
        self,
        keys: BareKeys,
        adopter: Adopter,
        *,
        mark: Callable[[int, str], None],
        heard_until_ms: Callable[[], int],
        limit: int = MEMORY_LIMIT,
    ) -> None:
        """`mark` is told of a queue with a timer due; `heard_until_ms` until when this pod has heard everything."""
        self._keys, self._adopter, self._mark, self._limit = keys, adopter, mark, limit
        self._heard_until_ms = heard_until_ms
        # A plain dict would pass by all that have left it at its front.
        self._counted: OrderedDict[Identity, tuple[int, float]] = OrderedDict()
        self._pending: dict[Identity, Heard] = {}
        self._queues: dict[float, deque[tuple[float, Identity]]] = {
            seconds: deque() for seconds in (0.0, LATER_SECONDS, AGAIN_SECONDS)
        }
        self._something = asyncio.Event()
        self._full = False

    def heard(self, identity: Identity, *, mine: bool) -> None:
        """A key expired. A pod whose event it is announces at once, the others a little later."""
        self._adopter.noticed()
        times = self._count(identity, time.monotonic())
        self._add(identity, Heard(times, self._heard_until_ms()), 0.0 if mine else LATER_SECONDS)

    async def run(self) -> None:
        """Announce what is pending, batch after batch."""
        while True:
            batch = self._take()
            if not batch:
                await self._wait()
                continue
            try:
                await self._announce(batch)
            except BaseException:
                for identity, heard in batch.items():
                    self._add(identity, heard, 0.0)
                raise

    def _count(self, identity: Identity, now: float) -> int:
        times, last = self._counted.pop(identity, (0, now))
        times = times + 1 if now - last < COUNTED_SECONDS else 1
        self._counted[identity] = (times, now)
        # In the order of the last hearing. Two out for one in, so that old ones do not stay.
        for _ in range(2):
            oldest = next(iter(self._counted))
            if now - self._counted[oldest][1] < COUNTED_SECONDS and len(self._counted) <= self._limit:
                break
            del self._counted[oldest]
        return times

    def _add(self, identity: Identity, heard: Heard, seconds: float) -> None:
        if identity not in self._pending:
            if len(self._pending) >= self._limit:
                self._refuse()
                return
            self._queues[seconds].append((time.monotonic() + seconds, identity))
        self._pending[identity] = max(heard, self._pending.get(identity, heard))
        self._something.set()

    def _refuse(self) -> None:
        if not self._full:
            _log.error(
                "more bare keys expired than this pod can remember; some are left to other pods", most=self._limit
            )
        self._full = True

    def _take(self) -> dict[Identity, Heard]:
        """What is to be told now."""
        now, batch = time.monotonic(), dict[Identity, Heard]()
        for queue in self._queues.values():
            while queue and queue[0][0] <= now and len(batch) < BATCH:
                identity = queue.popleft()[1]
                batch[identity] = self._pending.pop(identity)
        self._full = self._full and bool(self._pending)
        return batch

    async def _wait(self) -> None:
        """Until something is to be told."""
        self._something.clear()
        first = min((queue[0][0] for queue in self._queues.values() if queue), default=None)
        try:
            async with asyncio.timeout(None if first is None else max(first - time.monotonic(), 0)):
                await self._something.wait()
        except TimeoutError:
            return

    async def _announce(self, batch: dict[Identity, Heard]) -> None:
        unclear: list[Identity] = []
        for shard, some in self._keys.by_shard(batch).items():
            for identity, code in zip(some, await self._keys.announce(shard, some), strict=True):
                if code == "due":
                    self._mark(shard, identity[0])
                elif code == "running":
                    self._add(identity, batch[identity], AGAIN_SECONDS)
                elif code == "look":
                    unclear.append(identity)
        await self._look(unclear, batch)

    async def _look(self, unclear: Collection[Identity], batch: dict[Identity, Heard]) -> None:
        """Of keys that the shard knows: a key that is there again has nothing to tell of. What the look has found of
        the others is written; now the shard can say."""
        for identity in await self._adopter.expired(unclear) if unclear else ():
            self._add(identity, batch[identity], LATER_SECONDS)
