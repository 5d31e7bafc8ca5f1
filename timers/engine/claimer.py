"""Owns claiming: one loop that takes from the intake what this pod has room for. Its bound is the backpressure."""

import asyncio
import time

from timers.engine.intake import CLAIM_BATCH, Intake, Wanted
from timers.engine.runner import Runner
from timers.logs import get_logger
from timers.store.store import Store

_log = get_logger("timers.claimer")


class Claimer:
    """Claims and rescues for one pod."""

    name = "claimer"

    def __init__(self, store: Store, intake: Intake, runner: Runner, *, pod: str, lease_ms: int) -> None:
        self._store, self._intake, self._runner = store, intake, runner
        self._pod, self._lease_ms = pod, lease_ms
        self._round: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Claim while there is something and room for it. A round under way is not cancelled with this service: what
        it has claimed on the server must not be left leased to nobody."""
        while True:
            await self._intake.wait()
            await self._runner.room_free()
            self._round = asyncio.create_task(self._claim_all())
            await asyncio.shield(self._round)

    async def finish(self) -> None:
        """Wait for the round that was under way when the service was stopped."""
        if self._round is not None:
            await asyncio.gather(self._round, return_exceptions=True)

    async def _claim_all(self) -> None:
        await self._rescue()
        for wanted in self._intake.take(self._runner.room):
            await self._claim(wanted)

    async def _claim(self, wanted: Wanted) -> None:
        asked_at = time.monotonic()
        claimed = await self._store.claim(
            wanted.shard, wanted.queues, pod=self._pod, lease_ms=self._lease_ms, cause=wanted.cause
        )
        for member, reason in claimed.quarantined.items():
            _log.error("timer quarantined", timer=member, reason=reason)
        for prefix, asked in wanted.queues:
            self._follow_up(wanted, prefix, asked, has_more=prefix in claimed.more)
        self._runner.start(wanted.shard, claimed.timers, asked_at)

    def _follow_up(self, wanted: Wanted, prefix: str, asked: int, *, has_more: bool) -> None:
        """A full batch, or one that a sweep asked for, leaves the queue dirty; a short one has emptied it."""
        if not has_more:
            self._intake.emptied(wanted.shard, prefix)
        elif asked >= CLAIM_BATCH or wanted.cause != "event":
            self._intake.mark_all(wanted.shard, prefix, wanted.cause)

    async def _rescue(self) -> None:
        for shard, orphans in self._intake.take_orphans(self._runner.room).items():
            asked_at = time.monotonic()
            rescued = await self._store.rescue(shard, orphans, pod=self._pod, lease_ms=self._lease_ms)
            for timer in rescued:
                _log.warning("run rescued from an expired lease", timer=timer.key, attempt=timer.attempt)
            self._runner.start(shard, rescued, asked_at)
