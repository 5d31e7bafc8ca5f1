"""Owns extending leases and permits: all runs in batches, over a connection that nothing else uses."""

import math
import time
from itertools import groupby
from typing import Final

from timers.engine.pod import Pod
from timers.engine.runner import Runner
from timers.engine.runs import Run, Runs
from timers.store.turns import set_within

EXTEND_BATCH: Final = 250
BEATS_PER_LEASE: Final = 3
"""Two beats may fail before a lease is lost."""


class Heartbeat:
    """Extends each lease three times within its length, and tells runs that have lost theirs."""

    name = "heartbeat"

    def __init__(self, pod: Pod, runs: Runs, runner: Runner) -> None:
        self._pod, self._runs, self._runner = pod, runs, runner

    async def run(self) -> None:
        """Beat at once (the last beat may have failed), then regularly, and whenever a lease is in doubt."""
        while True:
            self._runs.in_doubt.clear()
            await self._beat()
            self._runs.extended()
            await set_within(self._runs.in_doubt, self._pod.lease_ms / BEATS_PER_LEASE / 1000)

    async def _beat(self) -> None:
        began = time.monotonic()
        by_shard = sorted(self._runs, key=lambda run: run.shard)
        for shard, group in groupby(by_shard, key=lambda run: run.shard):
            runs = list(group)
            for start in range(0, len(runs), EXTEND_BATCH):
                await self._extend(shard, runs[start : start + EXTEND_BATCH])
        # A permit ends no later than the lease, so that the pod that rescues the run finds room.
        keep_ms = self._pod.lease_ms - math.ceil((time.monotonic() - began) * 1000) - 1
        await self._pod.permits.keep((run.permit for run in self._runs if run.permit), max(keep_ms, 1))

    async def _extend(self, shard: int, runs: list[Run]) -> None:
        timers = [run.timer for run in runs]
        lease_until = time.monotonic() + self._pod.lease_ms / 1000
        lost = await self._pod.store.extend(shard, timers, pod=self._pod.name, lease_ms=self._pod.lease_ms)
        tokens = {timer.token for timer in lost}
        for run in runs:
            if run.timer.token not in tokens:
                run.lease_until = lease_until
            elif not run.ended:
                self._runner.lose(run)
