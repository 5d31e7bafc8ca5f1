"""Owns extending leases and permits: all runs in batches, over a connection that nothing else uses, and in a thread, so
that a processor that blocks the pod's event loop does not cost the pod its leases."""

import asyncio
import math
import time
from functools import partial
from itertools import groupby
from typing import Final

from timers.engine.loop_watchdog import LoopWatchdog
from timers.engine.pod import Pod
from timers.engine.runner import Runner
from timers.engine.runs import Run, Runs
from timers.store.connect import Line
from timers.store.turns import set_within

EXTEND_BATCH: Final = 250
BEATS_PER_LEASE: Final = 3
"""Two beats may fail before a lease is lost."""

STANDSTILL_SECONDS: Final = 300.0
"""For how long a pod whose event loop stands still keeps the runs that have no timeout."""


class Heartbeat:
    """Extends each lease three times within its length, and tells runs that have lost theirs. Create it on the pod's
    event loop and run it on another."""

    name = "heartbeat"

    def __init__(self, pod: Pod, runs: Runs, runner: Runner, watchdog: LoopWatchdog) -> None:
        self._pod, self._runs, self._runner, self._watchdog = pod, runs, runner, watchdog
        self._pods_loop = asyncio.get_running_loop()
        self._beat_seconds = pod.lease_ms / BEATS_PER_LEASE / 1000
        self._line = Line(pod.store.connections.dial(), answer_s=self._beat_seconds)

    async def run(self) -> None:
        """Beat at once (the last beat may have failed), then regularly, and whenever a lease is in doubt."""
        doubted = asyncio.Event()
        self._runs.in_doubt = partial(asyncio.get_running_loop().call_soon_threadsafe, doubted.set)
        try:
            while True:
                doubted.clear()
                await self._beat(self._kept())
                self._pods_loop.call_soon_threadsafe(self._runs.extended)
                await set_within(doubted, self._beat_seconds)
        finally:
            await self._line.close()

    def _kept(self) -> list[Run]:
        """The runs whose leases are extended. The event loop ends runs at their timeouts, but not while it stands
        still: then those past their timeouts are left to other pods."""
        now, still_seconds = time.monotonic(), self._watchdog.still_seconds
        if still_seconds < self._beat_seconds:
            return list(self._runs)
        return [
            run
            for run in self._runs
            if (still_seconds < STANDSTILL_SECONDS if run.timeout_ms is None else now < run.timeout_at)
        ]

    async def _beat(self, runs: list[Run]) -> None:
        began = time.monotonic()
        by_shard = sorted(runs, key=lambda run: run.shard)
        for shard, group in groupby(by_shard, key=lambda run: run.shard):
            of_shard = list(group)
            for start in range(0, len(of_shard), EXTEND_BATCH):
                await self._extend(shard, of_shard[start : start + EXTEND_BATCH])
        # A permit ends no later than the lease, so that the pod that rescues the run finds room.
        keep_ms = self._pod.lease_ms - math.ceil((time.monotonic() - began) * 1000) - 1
        permits = (permit for run in runs if not run.ended and (permit := run.permit))
        await self._pod.permits.keep(permits, max(keep_ms, 1), self._line)

    async def _extend(self, shard: int, runs: list[Run]) -> None:
        timers = [run.timer for run in runs]
        lease_ms = self._pod.lease_ms
        lease_until = time.monotonic() + lease_ms / 1000
        lost = await self._pod.store.extend(shard, timers, pod=self._pod.name, lease_ms=lease_ms, line=self._line)
        tokens = {timer.token for timer in lost}
        for run in runs:
            if run.timer.token not in tokens:
                run.lease_until = lease_until
            else:
                self._pods_loop.call_soon_threadsafe(self._runner.lose, run)
