"""Owns reporting this pod's starts to the fleet: adds them to the rings that the dashboard shows."""

import asyncio
from collections import Counter
from typing import Final

from timers.engine.observer import Observer
from timers.errors import Unavailable
from timers.store.starts import FiredRing

REPORT_SECONDS: Final = 5.0
"""One call reports all starts of this time. What a pod starts after its last call is not counted."""


class Reporter:
    """Reports at intervals. While Redis is down it keeps counting."""

    name = "reporter"

    def __init__(self, ring: FiredRing, observer: Observer, *, every_seconds: float = REPORT_SECONDS) -> None:
        self._ring, self._observer, self._every_seconds = ring, observer, every_seconds

    async def run(self) -> None:
        """Report every few seconds."""
        while True:
            await asyncio.sleep(self._every_seconds)
            await self.report()

    async def report(self) -> None:
        """Report all starts since the last time, if there were any. Raises Unavailable and then loses nothing."""
        counts, self._observer.unreported = self._observer.unreported, Counter()
        if not counts:
            return
        try:
            await self._ring.add(counts)
        except Unavailable:
            self._observer.unreported.update(counts)
            raise
