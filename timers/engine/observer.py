"""Owns what can be observed of a pod: the events that the engine reports, the lateness of the last minutes, and the
starts that the dashboard shows of the whole fleet."""

import asyncio
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Final

from timers.core.fields import is_own
from timers.core.lateness import bucket_of
from timers.errors import Unavailable

UNDECLARED: Final = "-"
"""The label of metrics for prefixes that no processor serves. No prefix can have this name."""

WINDOW_SECONDS: Final = 300
SLICE_SECONDS: Final = 30


class LatenessWindow:
    """How late the runs of the last five minutes started, as counts by bucket. Adding is O(1), memory bounded."""

    def __init__(self) -> None:
        self._slices: deque[tuple[float, Counter[int]]] = deque()

    def add(self, bucket: int) -> None:
        """Count one start in its lateness bucket."""
        now = time.monotonic()
        if not self._slices or now - self._slices[-1][0] >= SLICE_SECONDS:
            self._slices.append((now, Counter()))
            self._forget(now)
        self._slices[-1][1][bucket] += 1

    def counts(self) -> dict[int, int]:
        """Starts by bucket."""
        self._forget(time.monotonic())
        total: Counter[int] = Counter()
        for _, counted in self._slices:
            total.update(counted)
        return dict(total)

    def _forget(self, now: float) -> None:
        while self._slices and now - self._slices[0][0] >= WINDOW_SECONDS:
            self._slices.popleft()


class Observer:
    """Receives the engine's events and keeps the recent lateness, which pods tell each other; metrics count the rest.
    Prefixes are those of the processors, because callers could make up prefixes without end."""

    def __init__(self) -> None:
        self.lateness = LatenessWindow()
        self.unreported: Counter[int] = Counter()
        """Starts by lateness bucket that the reporter has yet to report."""

    def serves(self, prefixes: Iterable[str]) -> None:
        """The pod has processors of these prefixes."""

    def started(self, prefix: str, lateness_ms: int) -> None:
        """A run started this late."""
        if is_own(prefix):
            return
        bucket = bucket_of(lateness_ms)
        self.lateness.add(bucket)
        self.unreported[bucket] += 1

    def ended(self, prefix: str, outcome: str, seconds: float) -> None:
        """A run ended after this many seconds; `outcome` is how."""

    def retried(self, prefix: str) -> None:
        """A run failed, and another try follows."""

    def refused(self, prefix: str) -> None:
        """A late result was refused by its token."""

    def rescued(self, prefix: str) -> None:
        """A run was taken over from an expired lease."""

    def removed(self, prefix: str, status: str, count: int) -> None:
        """Their retention removed this many timers that had failed or were unhandled."""

    def claimed(self, cause: str, count: int) -> None:
        """A claim or a rescue brought this many timers; `cause` is what made this pod ask."""

    def unposted(self, count: int) -> None:
        """This many changes were left out: an outbox was full, or too many calls wait for a hook's target."""

    def bare_key(self, what: str) -> None:
        """A bare key was adopted, an adopted key met its end, or an announced one was refused."""

    def loop_late(self, seconds: float) -> None:
        """The event loop's beat came this late."""

    def called(self, script: str, seconds: float) -> None:
        """A call of a script was answered."""

    def resubscribed(self, gap_seconds: float) -> None:
        """A subscription was confirmed; for so long this pod had none that brought events (0: the first)."""


REPORT_SECONDS: Final = 5.0
"""One call reports all starts of this time. What a pod starts after its last call is not counted."""


class Reporter:
    """Adds this pod's starts to those of the fleet, at intervals. While Redis is down it keeps counting."""

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
