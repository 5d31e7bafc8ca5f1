"""Owns one run: a claimed timer, its processor, and whether it still counts."""

import asyncio
import math
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Literal

from timers.core.model import Timer
from timers.core.outcome import Failed, HandBack
from timers.processor import Processor

if TYPE_CHECKING:
    from opentelemetry.trace import Span

    from timers.core.clock import Cancellable
    from timers.engine.threads import ThreadTimers
    from timers.store.permits import Permit

StopReason = Failed | HandBack | Literal["lost"]
"""Why the engine ends a run early: it timed out, the pod drains, or its lease went to another pod."""


def named(timer: Timer, processor: str) -> dict[str, object]:
    """What every log line about a run contains; `processor` is the prefix of the processor that runs it."""
    pod = timer.lease.pod if timer.lease else None
    return {"timer": timer.key, "attempt": timer.attempt, "pod": pod, "processor": processor}


class Run:
    """A run from claim to settlement. Its times are the pod's monotonic seconds: `known_at` is when this pod learned
    that the timer's queue has due timers, if that is known; `started` is `claimed_at` until the processor is called;
    the lease is certain until `lease_until`. `timeout_ms` is the timer's own timeout, else the processor's. `in_thread`
    is true while a thread is busy with it. `timers` is what a plain function was given, `permit` what the run holds of
    a limited prefix, and `span` traces it."""

    __slots__ = (
        *("claimed_at", "coroutine", "ended", "in_thread", "is_started", "known_at", "lease_until"),
        *("permit", "processor", "shard", "span", "started", "stop", "timeout", "timeout_ms", "timer", "timers"),
    )

    def __init__(
        self,
        shard: int,
        timer: Timer,
        processor: Processor,
        claimed_at: float,
        lease_until: float,
        *,
        known_at: float | None = None,
    ) -> None:
        self.shard, self.timer, self.processor, self.lease_until = shard, timer, processor, lease_until
        self.started, self.claimed_at, self.known_at = claimed_at, claimed_at, known_at
        self.permit: Permit | None = None
        self.coroutine: asyncio.Task[None] | None = None
        self.timeout: Cancellable | None = None
        self.stop: StopReason | None = None
        self.timers: ThreadTimers | None = None
        self.span: Span | None = None
        self.ended = self.in_thread = self.is_started = False
        self.timeout_ms = timer.timeout_ms if "timeout" in timer.spec else processor.timeout_ms

    @property
    def timeout_at(self) -> float:
        """When its timeout is over."""
        return self.started + (math.inf if self.timeout_ms is None else self.timeout_ms / 1000)

    @property
    def named(self) -> dict[str, object]:
        """What every log line about the run contains."""
        return named(self.timer, self.processor.prefix)

    def took(self, now: float) -> str:
        """What its end tells the history: the ms from knowing to the claim (empty if unknown), from there to the call
        of the processor, and of the run."""
        if not self.is_started:
            return "-"
        known = "" if self.known_at is None else int((self.claimed_at - self.known_at) * 1000)
        return f"{known}+{int((self.started - self.claimed_at) * 1000)}+{int((now - self.started) * 1000)}"


class Runs:
    """The runs for which this pod holds leases: those that execute and those whose end is not yet written. Only the
    event loop changes them; other threads may read them. `in_doubt` asks the heartbeat to extend all at once, because a
    lease may have ended while the pod was frozen."""

    def __init__(self) -> None:
        self._held: set[Run] = set()
        self.in_doubt: Callable[[], object] = lambda: None
        self._extended = asyncio.Event()

    def __iter__(self) -> Iterator[Run]:
        return iter(self._held.copy())

    def __len__(self) -> int:
        return len(self._held)

    def add(self, runs: Iterable[Run]) -> None:
        """Hold the leases of these runs."""
        self._held.update(runs)

    def drop(self, runs: Iterable[Run]) -> None:
        """Stop holding leases: they were given up, lost or settled."""
        self._held.difference_update(runs)

    async def certain(self, run: Run, seconds: float) -> None:
        """Wait until the run's lease is certain for that long, which it normally is."""
        while time.monotonic() + seconds >= run.lease_until:
            self.in_doubt()
            await self._extended.wait()

    def extended(self) -> None:
        """All leases were extended except those of runs that were lost."""
        self._extended.set()
        self._extended.clear()
