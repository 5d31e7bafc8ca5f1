"""Owns the runs for which a pod holds leases: claimed timers, whether they still count, and writing their ends."""

import asyncio
import math
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Final, Literal

from timers.core.model import Status, Timer
from timers.core.outcome import Failed, HandBack
from timers.engine.pod import AGAIN_SECONDS, Pod
from timers.errors import Unavailable
from timers.logs import get_logger
from timers.processor import Processor
from timers.store.cooperative import set_within
from timers.store.store import Settlement

if TYPE_CHECKING:
    from opentelemetry.trace import Span

    from timers.engine.threads import ThreadTimers
    from timers.store.permits import Permit

SETTLE_BATCH: Final = 500
"""Ends that one script writes: a few milliseconds of the server's time."""

StopReason = Failed | HandBack | Literal["lost"]
"""Why the engine ends a run early: it timed out, the pod drains, or its lease went to another pod."""

_log = get_logger("timers.settler")


def named(timer: Timer, processor: str) -> dict[str, object]:
    """What every log line about a run contains; `processor` is the prefix of the processor that runs it."""
    pod = timer.lease.pod if timer.lease else None
    return {"timer": timer.key, "attempt": timer.attempt, "pod": pod, "processor": processor}


@dataclass(slots=True, eq=False)
class Run:
    """A run from claim to settlement. Its times are the pod's monotonic seconds: `known_at` is when this pod learned
    that the timer's queue has due timers, if that is known; `started` is `claimed_at` until the processor is called;
    the lease is certain until `lease_until`. `timeout_ms` is the timer's own timeout, else the processor's. `in_thread`
    is true while a thread is busy with it. `timers` is what a plain function was given, `permit` what the run holds of
    a limited prefix, and `span` traces it."""

    shard: int
    timer: Timer
    processor: Processor
    claimed_at: float
    lease_until: float
    known_at: float | None = None
    started: float = field(init=False)
    timeout_ms: int | None = field(init=False)
    permit: "Permit | None" = None
    coroutine: asyncio.Task[None] | None = None
    timeout: asyncio.Handle | None = None
    stop: StopReason | None = None
    timers: "ThreadTimers | None" = None
    span: "Span | None" = None
    ended: bool = False
    in_thread: bool = False
    is_started: bool = False

    def __post_init__(self) -> None:
        self.started = self.claimed_at
        self.timeout_ms = self.timer.timeout_ms if "timeout" in self.timer.spec else self.processor.timeout_ms

    @property
    def timeout_at(self) -> float:
        return self.started + (math.inf if self.timeout_ms is None else self.timeout_ms / 1000)

    @property
    def named(self) -> dict[str, object]:
        """What every log line about the run contains."""
        return named(self.timer, self.processor.prefix)

    def timings(self, now: float) -> str:
        """What its end tells the history: the ms from knowing to the claim (empty if unknown), from there to the call
        of the processor, and of the run."""
        if not self.is_started:
            return "-"
        known = "" if self.known_at is None else int((self.claimed_at - self.known_at) * 1000)
        return f"{known}+{int((self.started - self.claimed_at) * 1000)}+{int((now - self.started) * 1000)}"


class Runs:
    """The runs for which this pod holds leases: those that execute and those whose end is not yet written. Only the
    event loop changes them; other threads may read them. `in_doubt` asks the heartbeat to extend all at once, because a
    lease may have ended while the pod was frozen.

    While Redis is down, ends wait. Leases may expire meanwhile; then the token decides."""

    def __init__(self, pod: Pod, written: Callable[[Sequence[Run]], None]) -> None:
        """`written` is told of runs whose ends are written, and of those that were lost."""
        self._pod, self._written = pod, written
        self._keeps_failed = pod.options.retention_failed_ms != 0
        self._held: dict[Run, None] = {}
        """In the order of their claims."""
        self.in_doubt: Callable[[], object] = lambda: None
        self._extended = asyncio.Event()
        self._queues = defaultdict[int, deque[tuple[Run, Settlement]]](deque)
        self._again_at: dict[int, float] = {}
        self._lost: list[Run] = []
        self._something, self._empty = asyncio.Event(), asyncio.Event()
        self._empty.set()
        self.waiting = 0
        """How many ends are not yet written."""

    def __iter__(self) -> Iterator[Run]:
        return iter(self._held.copy())

    def __len__(self) -> int:
        return len(self._held)

    def add(self, runs: Iterable[Run]) -> None:
        """Hold the leases of these runs."""
        self._held.update(dict.fromkeys(runs))

    def drop(self, runs: Iterable[Run]) -> None:
        """Stop holding leases: they were given up, lost or settled."""
        for run in runs:
            self._held.pop(run, None)

    def lose(self, run: Run) -> None:
        """Stop holding a lease that another pod has. The run's permit is given back soon."""
        self.drop((run,))
        self._lost.append(run)
        self._empty.clear()
        self._something.set()

    async def wait_for_lease(self, run: Run, seconds: float) -> None:
        """Wait until the run's lease is certain for that long, which it normally is."""
        while time.monotonic() + seconds >= run.lease_until:
            self.in_doubt()
            await self._extended.wait()

    def extended(self) -> None:
        """All leases were extended except those of runs that were lost."""
        self._extended.set()
        self._extended.clear()

    def put(self, run: Run, settlement: Settlement) -> None:
        """Queue one end. The run keeps its lease until the end is written."""
        self._queues[run.shard].append((run, settlement))
        self._something.set()
        self._empty.clear()
        self.waiting += 1

    async def emptied(self) -> None:
        """Wait until every end is written or refused, and what lost runs held is given back."""
        await self._empty.wait()

    async def settle(self) -> None:
        """Write ends as they come, and give back what lost runs held. A batch leaves the queue only after its answer,
        so a restart repeats it, and the script answers `already` for what it has."""
        while True:
            await self._something.wait()
            wrote = [await self._wrote(shard, queue) for shard, queue in list(self._queues.items()) if queue]
            if self._lost:
                await self._release_lost()
            if self.waiting == 0 and not self._lost:
                self._something.clear()
                self._empty.set()
            elif not any(wrote):
                self._something.clear()
                await set_within(self._something, AGAIN_SECONDS)
                self._something.set()

    async def _wrote(self, shard: int, queue: deque[tuple[Run, Settlement]]) -> bool:
        """Write some ends of a shard. False if its node is away; then it has its next turn a little later."""
        if time.monotonic() < self._again_at.get(shard, 0.0):
            return False
        if not (wrote := bool(await self._pod.away.reached(shard, self._write(shard, queue)))):
            self._again_at[shard] = time.monotonic() + AGAIN_SECONDS
        return wrote

    async def _write(self, shard: int, queue: deque[tuple[Run, Settlement]]) -> None:
        batch = list(islice(queue, SETTLE_BATCH))
        runs = [run for run, _ in batch]
        codes = await self._write_ends(shard, [settlement for _, settlement in batch])
        await self._release_permits(runs)
        for _ in batch:
            queue.popleft()
        self.waiting -= len(batch)
        self.drop(runs)
        for (run, settlement), code in zip(batch, codes, strict=True):
            if code in ("fenced", "missing"):
                self._pod.observer.count("refused", run.processor.prefix)
                result = settlement.transition.status.value
                _log.warning("late result refused", **run.named, token=run.timer.token, answer=code, result=result)
        self._report_removed(batch, codes)
        self._written(runs)

    def _report_removed(self, batch: Sequence[tuple[Run, Settlement]], codes: Sequence[str]) -> None:
        """Report the failed timers of a batch, by prefix, unless they are kept."""
        removed = defaultdict[str, list[str]](list)
        for (run, settlement), code in zip(batch, codes, strict=True) if not self._keeps_failed else ():
            if code == "settled" and settlement.transition.status is Status.FAILED:
                removed[run.timer.prefix].append(run.timer.id)
        for prefix, ids in removed.items():
            self._pod.report_removed(prefix, Status.FAILED, len(ids), ids[0])

    async def _release_permits(self, runs: Sequence[Run]) -> None:
        """Give back the permits of a batch. If that fails, the batch is written again, which changes nothing."""
        if permits := [run.permit for run in runs if run.permit]:
            await self._pod.permits.release(permits)
        for run in runs:
            run.permit = None

    async def _release_lost(self) -> None:
        """Nothing of a lost run is written. A permit that cannot be released ends with the lease."""
        lost, self._lost = self._lost, []
        with suppress(Unavailable):
            await self._release_permits(lost)
        self._written(lost)

    async def _write_ends(self, shard: int, settlements: Sequence[Settlement]) -> list[str]:
        """Write a batch. If that fails, write each end alone, so that one bad end does not hold up the others. The run
        of a bad end is given up: its lease expires and it is rescued."""
        try:
            return await self._pod.store.settle(
                shard,
                settlements,
                pod=self._pod.name,
                retention_ms=self._pod.options.retention_ms,
                keeps_failed=self._keeps_failed,
                durability=self._pod.options.durability,
            )
        except (Unavailable, asyncio.CancelledError):
            raise
        except BaseException as error:  # noqa: BLE001 (whatever it is, it must not stop all ends of the pod)
            if len(settlements) > 1:
                return [code for one in settlements for code in await self._write_ends(shard, [one])]
            _log.error("result of a run cannot be written", timer=settlements[0].timer.key, exc_info=error)
            return ["unwritable"]
