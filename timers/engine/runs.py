"""Owns one run: a claimed timer, its processor, and whether it still counts."""

import asyncio
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

from timers.core.model import Timer
from timers.core.outcome import Failed, HandBack
from timers.processor import Processor
from timers.store.permits import Permit

if TYPE_CHECKING:
    from opentelemetry.trace import Span

    from timers.core.clock import Cancellable
    from timers.engine.blocking import ThreadTimers

StopReason = Failed | HandBack | Literal["lost"]
"""Why the engine ends a run early: it timed out, the pod drains, or its lease went to another pod."""


def named(timer: Timer, processor: str) -> dict[str, object]:
    """What every line of the log about a run says of it; `processor` is the prefix of the one that runs it."""
    pod = timer.lease.pod if timer.lease else None
    return {"timer": timer.key, "attempt": timer.attempt, "pod": pod, "processor": processor}


class Run:
    """A run from claim to settlement. `lease_until` is the pod's monotonic time until which the lease is certain,
    `started` that of its claim and then of its start; `in_thread` is true as long as a thread is busy with it;
    `timers` is what a plain function was given; `permit` is what it holds of a limited prefix; `span` traces it."""

    __slots__ = (
        *("coroutine", "ended", "in_thread", "lease_until", "processor"),
        *("permit", "shard", "span", "started", "stop", "timeout", "timer", "timers"),
    )

    def __init__(
        self, shard: int, timer: Timer, processor: Processor, lease_until: float, permit: Permit | None = None
    ) -> None:
        self.shard, self.timer, self.processor, self.lease_until = shard, timer, processor, lease_until
        self.permit = permit
        self.coroutine: asyncio.Task[None] | None = None
        self.timeout: Cancellable | None = None
        self.stop: StopReason | None = None
        self.timers: ThreadTimers | None = None
        self.span: Span | None = None
        self.started = time.monotonic()
        self.ended = self.in_thread = False

    @property
    def named(self) -> dict[str, object]:
        """What every line of the log about it says."""
        return named(self.timer, self.processor.prefix)


class Runs:
    """The runs this pod holds leases for: those that execute, and those whose end is not written yet. `in_doubt` asks
    the heartbeat to extend all at once: a lease may be over because the event loop stood still."""

    def __init__(self) -> None:
        self._held: dict[tuple[int, int], Run] = {}
        self.in_doubt = asyncio.Event()
        self._extended = asyncio.Event()

    def __iter__(self) -> Iterator[Run]:
        return iter(list(self._held.values()))

    def __len__(self) -> int:
        return len(self._held)

    def add(self, run: Run) -> None:
        """Hold the run's lease. A token is unique in its shard, so an old run of the same timer is another entry."""
        self._held[(run.shard, run.timer.token)] = run

    def drop(self, run: Run) -> None:
        """The lease is given up, lost or settled."""
        self._held.pop((run.shard, run.timer.token), None)

    async def certain(self, run: Run) -> None:
        """Until the run's lease is certain, which it normally is."""
        while time.monotonic() >= run.lease_until:
            self.in_doubt.set()
            await self._extended.wait()

    def extended(self) -> None:
        """The leases of all runs were extended, but for those that are lost."""
        self._extended.set()
        self._extended.clear()
