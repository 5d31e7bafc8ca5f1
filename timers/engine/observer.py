"""Owns what can be observed of a pod: the events that the engine reports, the lateness of the last minutes, and the
starts that the dashboard shows of the whole fleet."""

import asyncio
import time
from collections import Counter, defaultdict, deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Final

from timers.core.fields import is_own
from timers.core.lateness import bucket_of

UNDECLARED: Final = "-"
"""The label of metrics for prefixes that no processor serves. No prefix can have this name."""

WINDOW_SECONDS: Final = 300
SLICE_SECONDS: Final = 30


class LatenessWindow:
    """How late the runs of the last five minutes started, as counts by bucket: all that was counted, less what was
    counted by then. It looks when it is asked, which is at each sign of life. Memory is bounded."""

    def __init__(self, starts: Mapping[int, int]) -> None:
        self._starts = starts
        self._before = deque([(time.monotonic(), Counter[int]())])

    def counts(self) -> dict[int, int]:
        """Starts by bucket."""
        now = time.monotonic()
        if now - self._before[-1][0] >= SLICE_SECONDS:
            self._before.append((now, Counter(self._starts)))
        while len(self._before) > 1 and now - self._before[0][0] >= WINDOW_SECONDS:
            self._before.popleft()
        return dict(Counter(self._starts) - self._before[0][1])


class Observer:
    """Receives the engine's events and keeps the recent lateness, which pods tell each other; metrics count the rest.
    Prefixes are those of the processors, because callers could make up prefixes without end."""

    def __init__(self) -> None:
        self.starts = defaultdict[int, int](int)  # a Counter takes twice as long to count
        """All starts of this pod by lateness bucket."""
        self.lateness = LatenessWindow(self.starts)

    def serves(self, prefixes: Iterable[str]) -> None:
        """The pod has processors of these prefixes."""

    def started(self, prefix: str, lateness_ms: int) -> None:
        """A run started this late."""
        if not is_own(prefix):
            self.starts[bucket_of(lateness_ms)] += 1

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
        self._reported: Counter[int] = Counter()

    async def run(self) -> None:
        """Report every few seconds."""
        while True:
            await asyncio.sleep(REPORT_SECONDS)
            await self.report()

    async def report(self) -> None:
        """Report all starts since the last time, if there were any. Raises Unavailable and then loses nothing."""
        starts = Counter(self._observer.starts)
        if counts := starts - self._reported:
            await self._add(counts)
            self._reported = starts
