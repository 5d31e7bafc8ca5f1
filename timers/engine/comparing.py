"""Owns the standing comparison of the ledger with Redis, for the shards that this pod leads: what differs is found and
repaired, however it came to differ.

Each minute counts are compared, which takes milliseconds. All timers are compared once an hour, in small steps; at once
and faster if the counts differ.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Final

from timers.client.drift import Drift, Suspects, first_looks, is_apart, repair, tell
from timers.engine.peers import Peers
from timers.engine.pod import Pod
from timers.engine.supervisor import unhurried
from timers.errors import LedgerUnavailable
from timers.ledger.database import Database
from timers.logs import get_logger
from timers.store.cooperative import set_within
from timers.store.following import stages

COUNT_SECONDS: Final = 60.0
SECOND_LOOK_SECONDS: Final = 10.0
"""How much later it is looked again at what differs. By then each caller has told the side that it tells second."""

PASS_SECONDS: Final = 3600.0
REST_PER_WORK: Final = 20
"""After each step it rests 20 times as long as the step took; if counts differ as long as that."""

SUSPECTS: Final = 20_000
"""With so many timers in mind it goes no further before it has looked again."""

_log = get_logger("timers.ledger")


class Comparing:
    """The comparison by one pod. Two that do it at once do no harm."""

    def __init__(self, pod: Pod, peers: Peers, database: Database, knows_removals: Callable[[int], bool]) -> None:
        """`knows_removals` tells whether the database has those of a shard that were copied last."""
        self._pod, self._store, self._peers, self._database = pod, pod.store, peers, database
        self._knows_removals = knows_removals
        self.services = {"ledger_counts": self.count_all, "ledger_drift": self.compare_all}
        self._apart: dict[int, tuple[int, int]] = {}
        """By shard: how its counts differed at the last look."""
        self._urgent: set[int] = set()
        self._wake = asyncio.Event()
        self._passed: dict[int, float] = {}
        """By shard: when the last comparison began that came to its end."""
        self._failures, self._anew_at = database.failures, 0.0
        """How often the database had failed at the last look, and when it last had: what was compared before may be
        otherwise by now."""
        self._waits: dict[int, float] = {}
        """By shard where counts differed though all timers were the same: the seconds until counts are believed again.
        Each time doubles them, because what is in flight may make them differ often."""

    async def count_all(self) -> None:
        """The service `ledger_counts`. Counts that differ twice in the same direction ask for a comparison at once."""
        while True:
            await asyncio.sleep(SECOND_LOOK_SECONDS if any(map(any, self._apart.values())) else COUNT_SECONDS)
            if self._failures != self._database.failures:
                self._failures, self._anew_at = self._database.failures, time.monotonic()
                self._wake.set()
            shards = list(self._peers.led(self._pod.shards))
            self._apart = {shard: apart for shard, apart in self._apart.items() if shard in shards}
            for shard in await self._whole(shards):
                before, now = self._apart.get(shard, (0, 0)), await is_apart(self._store, self._database, shard)
                self._apart[shard] = now
                are_believed = time.monotonic() - self._passed.get(shard, 0.0) >= self._waits.get(shard, 0.0)
                if are_believed and any(a * b > 0 for a, b in zip(before, now, strict=True)):
                    self._urgent.add(shard)
                    self._wake.set()

    async def _whole(self, shards: list[int]) -> list[int]:
        """Those that agree with the ledger as far as is known. The others are restored or copied as a whole."""
        return [shard for shard, stage in (await stages(self._store, shards)).items() if stage.is_whole]

    async def compare_all(self) -> None:
        """The service `ledger_drift`."""
        await asyncio.sleep(COUNT_SECONDS)
        while True:
            self._wake.clear()
            shard = await self._next()
            if shard is None:
                await set_within(self._wake, COUNT_SECONDS)
                continue
            began, urgent = time.monotonic(), shard in self._urgent
            drift = await self._compare(shard)
            self._urgent.discard(shard)
            self._passed[shard] = began
            if any(drift):
                self._waits.pop(shard, None)
            elif urgent:
                self._waits[shard] = min(max(2 * self._waits.get(shard, 0.0), COUNT_SECONDS), PASS_SECONDS)

    async def _next(self) -> int | None:
        """The shard to compare now: one whose counts differ, or one whose turn has come."""
        shards = await self._whole(list(self._peers.led(self._pod.shards)))
        self._urgent &= set(shards)
        late = max(time.monotonic() - PASS_SECONDS, self._anew_at)
        waiting = [shard for shard in shards if self._passed.get(shard, late) <= late]
        return min(self._urgent or waiting, key=lambda shard: self._passed.get(shard, late), default=None)

    async def _compare(self, shard: int) -> Drift:
        """Compare all timers of a shard and repair what differs. Returns what was repaired."""
        waiting, drift = deque[tuple[float, Suspects]](), Drift()
        try:
            steps = first_looks(self._store, self._database, shard)
            async for suspects in unhurried(steps, lambda: 1 if self._urgent else REST_PER_WORK):
                if suspects:
                    waiting.append((time.monotonic() + SECOND_LOOK_SECONDS, suspects))
                while waiting and (waiting[0][0] <= time.monotonic() or _count(waiting) > SUSPECTS):
                    drift = drift.plus(await self._look_again(shard, *waiting.popleft()))
            while waiting:
                drift = drift.plus(await self._look_again(shard, *waiting.popleft()))
        finally:
            if any(drift):
                _log.error(
                    "timers differed between the ledger and Redis and were repaired",
                    shard=shard,
                    redis=drift.redis,
                    ledger=drift.ledger,
                )
        await tell(self._store, self._database, shard, drift)
        return drift

    async def _look_again(self, shard: int, at: float, suspects: Suspects) -> Drift:
        await asyncio.sleep(at - time.monotonic())
        if self._database.trouble is not None:  # a standby can be read, and may lack removals
            raise LedgerUnavailable(self._database.trouble)
        if not self._knows_removals(shard):
            return Drift()  # it is compared anew
        drift = await repair(self._store, self._database, shard, suspects)
        for side, number in drift._asdict().items():
            if number:
                self._pod.observer.count("ledger_drift", side, by=number)
        return drift


def _count(waiting: deque[tuple[float, Suspects]]) -> int:
    return sum(len(suspects) for _, suspects in waiting)
