"""Owns running a lab's timers: it uses the service's own claimer, runner and settler, and the lab tells it what is
due."""

from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Final

from timers.client import TimerClient
from timers.core.clock import Later
from timers.engine.claimer import Claimer
from timers.engine.intake import Intake
from timers.engine.lifespans import Lifespans
from timers.engine.observer import Observer
from timers.engine.pod import Pod
from timers.engine.runner import Runner
from timers.engine.runs import Run, Runs
from timers.engine.settler import Settler
from timers.engine.supervisor import Supervisor
from timers.processor import Processor, Registry
from timers.store.store import Store

CONCURRENCY: Final = 1000
FOR_EVER_MS: Final = 365 * 24 * 3600 * 1000
"""How long a lab's leases, which nothing extends, and its retention last."""


class Engine:
    """The part of a pod that claims and runs timers, over one shard."""

    def __init__(self, store: Store, timers: TimerClient, processors: Iterable[Processor], later: Later) -> None:
        pod = Pod("lab", store, Registry(processors), (0,), FOR_EVER_MS, Observer())
        runs = Runs()
        self._registry = pod.registry
        self._lifespans = Lifespans(pod.registry.processors)
        self._is_open = False
        self._settler = Settler(pod, runs, retention_ms=FOR_EVER_MS, written=self._written)
        self._runner = Runner(pod, self._settler, runs, timers, self._lifespans, concurrency=CONCURRENCY, later=later)
        self._intake = Intake(later)
        self._claimer = Claimer(pod, self._intake, self._runner)
        self._services = Supervisor([self._claimer, self._settler])

    @asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        """Claim and run for as long as the block lasts. What processors hold open stays open after it."""
        if not self._is_open:
            await self._lifespans.open()
            self._is_open = True
        self._services.start()
        try:
            yield
        finally:
            await self._services.stop()
            await self._claimer.finish()

    async def close(self) -> None:
        """Close what processors hold open."""
        await self._lifespans.close()

    @property
    def executing(self) -> int:
        """The number of runs under way."""
        return self._runner.executing

    @property
    def is_busy(self) -> bool:
        """Whether it is claiming or writing anything."""
        return not self._intake.is_empty or not self._claimer.is_idle or self._settler.waiting > 0

    def serves(self, prefix: str) -> bool:
        """Whether it runs timers of this prefix."""
        return self._registry.match(prefix) is not None

    def claim(self, prefixes: Iterable[str]) -> None:
        """Claim whatever is due in these queues."""
        for prefix in prefixes:
            self._intake.mark_all(0, prefix, "sweep")

    def _written(self, runs: Sequence[Run]) -> None:
        self._runner.room_changed()
        self.claim({run.timer.prefix for run in runs if run.processor.limits.bounds_concurrency})
