"""Owns what must go on while a processor blocks the pod's event loop, because it computes or waits without `await`:
extending leases and permits, and reporting the blockade. It runs in a thread with an event loop of its own."""

import asyncio
import math
import sys
import threading
import time
import traceback
from collections import defaultdict
from functools import partial
from typing import Final

from timers.engine.pod import AGAIN_SECONDS, Pod
from timers.engine.runner import Runner
from timers.engine.runs import Run, Runs
from timers.errors import Unavailable
from timers.logs import get_logger
from timers.store.cooperative import set_within, side_by_side

EXTEND_BATCH: Final = 250
BEATS_PER_LEASE: Final = 3
"""Two beats may fail before a lease is lost."""

STANDSTILL_SECONDS: Final = 300.0
"""For how long a pod whose event loop stands still keeps the runs that have no timeout."""

PROBE_SECONDS: Final = 0.25
BLOCKED_SECONDS: Final = 0.5
FRAMES_SHOWN: Final = 6

_log = get_logger("timers.loop_watchdog")


class Leases:
    """Extends each lease three times within its length, over a connection that nothing else uses, and tells runs that
    have lost theirs. Create it on the pod's event loop and run its services on another."""

    def __init__(self, pod: Pod, runs: Runs, runner: Runner) -> None:
        self._pod, self._runs, self._runner = pod, runs, runner
        self._pods_loop, self._pods_thread = asyncio.get_running_loop(), threading.get_ident()
        self._beat_seconds = pod.lease_ms / BEATS_PER_LEASE / 1000
        self._connection = pod.store.connections.dial_scripts(self._beat_seconds)
        self._turned_at = time.monotonic()
        self._has_turned = True

    async def extend_all(self) -> None:
        """Beat at once (the last beat may have failed), then regularly, and whenever a lease is in doubt."""
        doubted = asyncio.Event()
        self._runs.in_doubt = partial(asyncio.get_running_loop().call_soon_threadsafe, doubted.set)
        try:
            while True:
                doubted.clear()
                if runs := self._kept():
                    await self._beat(runs)
                self._pods_loop.call_soon_threadsafe(self._runs.extended)
                if self._pod.away.is_partial:
                    await asyncio.sleep(AGAIN_SECONDS)
                await set_within(doubted, self._beat_seconds)
        finally:
            await self._connection.aclose()

    def _kept(self) -> list[Run]:
        """The runs whose leases are extended. The event loop ends runs at their timeouts, but not while it stands
        still: then those past their timeouts are left to other pods."""
        now, still_seconds = time.monotonic(), time.monotonic() - self._turned_at
        if still_seconds < self._beat_seconds:
            return list(self._runs)
        return [
            run
            for run in self._runs
            if (still_seconds < STANDSTILL_SECONDS if run.timeout_ms is None else now < run.timeout_at)
        ]

    async def _beat(self, runs: list[Run]) -> None:
        began = time.monotonic()
        by_shard = defaultdict[int, list[Run]](list)
        for run in runs:
            by_shard[run.shard].append(run)
        away = self._pod.away
        await side_by_side(away.reached(shard, self._extend_all(shard, some)) for shard, some in by_shard.items())
        # A permit ends no later than the lease, so that the pod that rescues the run finds room.
        keep_ms = self._pod.lease_ms - math.ceil((time.monotonic() - began) * 1000) - 1
        permits = (permit for run in runs if not run.ended and (permit := run.permit))
        try:
            await self._pod.permits.keep(permits, max(keep_ms, 1), self._connection)
        except Unavailable:
            if not self._pod.away.is_partial:
                raise

    async def _extend_all(self, shard: int, runs: list[Run]) -> None:
        for start in range(0, len(runs), EXTEND_BATCH):
            await self._extend(shard, runs[start : start + EXTEND_BATCH])

    async def _extend(self, shard: int, runs: list[Run]) -> None:
        timers = [run.timer for run in runs]
        lease_ms = self._pod.lease_ms
        lease_until = time.monotonic() + lease_ms / 1000
        lost = await self._pod.store.extend(shard, timers, pod=self._pod.name, lease_ms=lease_ms, via=self._connection)
        tokens = {timer.token for timer in lost}
        for run in runs:
            if run.timer.token not in tokens:
                run.lease_until = lease_until
            else:
                self._pods_loop.call_soon_threadsafe(self._runner.lose, run)

    async def watch(self) -> None:
        """Ask the pod's loop for a turn again and again, and report each blockade once, while it lasts: the timer and
        the place in the code."""
        asked_at, is_reported = time.monotonic(), False
        while True:
            if self._has_turned:
                asked_at, is_reported, self._has_turned = time.monotonic(), False, False
                self._pods_loop.call_soon_threadsafe(self._turned, asked_at)
            elif time.monotonic() - asked_at > BLOCKED_SECONDS and not is_reported:
                is_reported = True
                self._report()
            await asyncio.sleep(PROBE_SECONDS)

    def _turned(self, asked_at: float) -> None:
        """Runs on the pod's loop."""
        self._turned_at, self._has_turned = time.monotonic(), True
        late_seconds = self._turned_at - asked_at
        self._pod.observer.measure("loop_lag_seconds", late_seconds)
        if late_seconds > BLOCKED_SECONDS:
            _log.error("event loop was blocked", seconds=round(late_seconds, 3))

    def _report(self) -> None:
        current = asyncio.current_task(self._pods_loop)
        timers = [run.timer.key for run in self._runs if run.coroutine is current and current is not None]
        stack = traceback.extract_stack(sys._current_frames().get(self._pods_thread))[-FRAMES_SHOWN:]
        where = [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in stack]
        _log.error("event loop blocked", timer=timers[0] if timers else None, where=where)
