"""Owns reporting this pod's starts to the fleet: adds them to the rings that the dashboard shows."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from timers.engine.observer import Observer
from timers.errors import Unavailable

REPORT_SECONDS: Final = 5.0
"""One call reports all starts of this time. What a pod starts after its last call is not counted."""


class Reporter:
    """Reports at intervals. While Redis is down it keeps counting."""

    name = "reporter"

    def __init__(self, add: Callable[[Mapping[int, int]], Awaitable[None]], observer: Observer) -> None:
        """`add` adds starts, by lateness bucket, to those of the fleet."""
        self._add, self._observer = add, observer

    async def run(self) -> None:
        """Report every few seconds."""
        while True:
            await asyncio.sleep(REPORT_SECONDS)
            await self.report()

    async def report(self) -> None:
        """Report all starts since the last time, if there were any. Raises Unavailable and then loses nothing."""
        counts, self._observer.unreported = self._observer.unreported, Counter()
        if not counts:
            return
        try:
            await self._add(counts)
        except Unavailable:
            self._observer.unreported.update(counts)
            raise
