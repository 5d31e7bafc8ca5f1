"""Owns the lab: a timer service for one test, in the test's process. Its clock is frozen until the test moves it.

The records, scripts, claims, policies and the runner are the service's own. It has no events, sweeps or other pods, and
nothing extends a lease.
"""

import asyncio
import heapq
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, asynccontextmanager, contextmanager
from contextvars import ContextVar
from copy import deepcopy
from dataclasses import dataclass, replace
from datetime import datetime
from functools import wraps
from itertools import count
from types import ModuleType
from typing import Any, Final, Self
from unittest.mock import patch

from fakeredis import FakeRedis

from timers.client import TimerClient, client_over
from timers.core.calls import Delay
from timers.core.clock import Later, ServerClock
from timers.core.durations import Duration, parse_time, to_datetime
from timers.core.model import Timer
from timers.engine.claimer import Claimer
from timers.engine.intake import Intake
from timers.engine.pod import Pod, WorkerOptions
from timers.engine.runner import Runner
from timers.engine.runs import Run, Runs
from timers.engine.supervisor import Lifespans, Supervisor
from timers.processor import Processor, Registry, in_module
from timers.store import keys, queries
from timers.store.store import Settlement, Store
from timers.testing.fake import clocks, fake_connections, server_on_clock

PATIENCE_SECONDS: Final = 1.0
"""If a run waits this long, in real time, for something other than the lab's clock, it is taken to wait for its
timeout."""

HANG_SECONDS: Final = 10.0
"""A plain function that works this long, in real time, is taken to wait for its timeout, and a run without one to
hang."""

TURN_SECONDS: Final = 0.005
"""A turn of the loop that takes longer was work, not waiting."""

CONCURRENCY: Final = 1000
FOR_EVER_MS: Final = 365 * 24 * 3600 * 1000
"""How long a lab's leases, which nothing extends, and its retention last."""

_RUN_OF: ContextVar["TimerLab | None"] = ContextVar("timers.testing.lab", default=None)
_really_sleep = asyncio.sleep


class Engine:
    """The part of a pod that claims and runs timers, over one shard."""

    def __init__(self, store: Store, timers: TimerClient, processors: Iterable[Processor], later: Later) -> None:
        options = WorkerOptions("lab", CONCURRENCY, FOR_EVER_MS, FOR_EVER_MS, drain_timeout_ms=0)
        pod = Pod(store, Registry(processors), options)
        self.loop = asyncio.get_running_loop()
        self.registry = pod.registry
        self._lifespans = Lifespans(pod.registry.processors)
        self._is_open = False
        self._runs = Runs(pod, self._written)
        self.runner = Runner(pod, self._runs, timers, self._lifespans, later=later)
        self._intake = Intake(later, limited=pod.registry.limits_fleet)
        self._claimer = Claimer(pod, self._intake, self.runner)
        self._services = Supervisor({"claimer": self._claimer.run, "settler": self._runs.settle})

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
        """Take back the runs that have not ended, and leave what processors hold open."""
        await self.runner.hand_back()
        await self._lifespans.close()

    @property
    def is_busy(self) -> bool:
        """Whether it is claiming or writing anything."""
        return not self._intake.is_empty or not self._claimer.is_idle or self._runs.waiting > 0

    def claim(self, prefixes: Iterable[str]) -> None:
        """Claim whatever is due in these queues."""
        for prefix in prefixes:
            self._intake.mark_all(0, prefix, "sweep")

    def _written(self, runs: Sequence[Run]) -> None:
        self.runner.room_changed()
        self.claim({run.timer.prefix for run in runs if run.processor.limits.bounds_concurrency})


@dataclass(frozen=True, slots=True)
class LabRun:
    """A run that has ended. `status` says how: `completed`, `failed` (it may be tried again), `skipped`, `snoozed` or
    `handed-back`. `error` is its failure, as `type: reason`. `at` is when it started."""

    prefix: str
    id: str
    attempt: int
    occurrence: int
    payload: Any
    status: str
    error: str | None
    at: datetime


class TimerLab:
    """A timer service for one test, as a context manager. `timers` is its client. `runs` are the runs that have ended,
    in order. While the lab is open, a processor's `asyncio.sleep` waits for the lab's clock. `asyncio.timeout` and
    `asyncio.wait_for` count real time, so that no such sleep takes too long for them; timeouts of runs count the lab's.
    Several labs may be open at a time, each with its own clock.

    At its end it takes back the runs that have not ended and leaves the lifespans of processors. `async with` waits for
    that, and so does the fixture; `with` on an event loop leaves it to the loop's next turns."""

    def __init__(self, *, start: datetime | None = None) -> None:
        """A lab whose clock begins at `start`, an aware datetime, or now by default. Raises InvalidInput."""
        self._now_ms: float = round(time.time() * 1000) if start is None else parse_time(start, "start")
        self.runs: list[LabRun] = []
        self._processors: dict[str, Processor] = {}
        self._engine: Engine | None = None
        self._retired: list[Engine] = []
        self._waiting: list[tuple[float, int, asyncio.Handle, Callable[[], object]]] = []
        self._order = count()
        self._sleeping = 0
        self._working = set[str]()
        """The timers in whose plain functions threads are."""
        self._open = ExitStack()
        self._is_open = False

    def __enter__(self) -> Self:
        self._open.enter_context(_patched)
        self._is_open = True
        self._store = _LabStore(self)
        self.timers = client_over(self._store)
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()
        self._close()

    def _close(self) -> None:
        self._is_open = False
        self._open.close()

    def _check_open(self) -> None:
        if not self._is_open:
            raise RuntimeError("this TimerLab is not open; use it inside `with TimerLab() as lab:`")

    def leave(self) -> None:
        """Take back the runs that have not ended, and leave the lifespans of processors."""
        self._retire_engine()
        for loop in {engine.loop for engine in self._retired if not engine.loop.is_closed()}:
            if loop.is_running():
                self._leaving = loop.create_task(self._leave())
            else:
                loop.run_until_complete(self._leave())

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(self, *_: object) -> None:
        self._retire_engine()
        await self._leave()
        self._close()

    @property
    def now(self) -> datetime:
        """The lab's time. Only `advance` moves it."""
        return to_datetime(round(self._now_ms))

    def add(self, *processors: Processor | ModuleType) -> None:
        """Serve with these processors, or with all processors of a module. If two have the same prefix, the later one
        counts."""
        self._check_open()
        if self._sleeping:
            raise RuntimeError("a run is in progress; add processors before it starts")
        for given in processors:
            if not isinstance(given, Processor | ModuleType):
                raise TypeError(f"{given!r} is neither a processor nor a module of them; is @processor missing?")
            found = in_module(given, f"the module {given.__name__}") if isinstance(given, ModuleType) else [given]
            self._processors |= {each.prefix: replace(each, function=self._clocked(each)) for each in found}
        self._store.declare(self._processors)
        self._retire_engine()

    async def advance(self, by: Delay) -> None:
        """Let this much time pass. Everything that becomes due runs at its time, in order, and so do its retries,
        repeats and re-armed timers."""
        until_ms = Duration.parse(by).add_to(round(self._now_ms))
        self._check_open()
        if self._engine is not None and self._engine.loop is not asyncio.get_running_loop():
            self._retire_engine()
        await self._leave()
        engine = self._engine = self._engine or Engine(self._store, self.timers, self._processors.values(), self.later)
        async with engine.working():
            await self._run_what_is_due(engine, until_ms)
            while (at_ms := await self._next_ms(engine)) <= until_ms:
                self._now_ms = max(at_ms, self._now_ms)
                self._wake()
                await self._run_what_is_due(engine, until_ms)
        self._now_ms = until_ms

    def later(self, seconds: float, call: Callable[[], object]) -> asyncio.Handle:
        """Call `call` after this much of the lab's time."""
        handle = asyncio.Handle(call, (), asyncio.get_running_loop())
        heapq.heappush(self._waiting, (self._now_ms + seconds * 1000, next(self._order), handle, call))
        return handle

    def ended(self, timer: Timer, ends: Settlement) -> None:
        code, _ = ends.transition.cause
        status = {"re-armed": "completed", "retry": "failed"}.get(code, code)
        last = ends.transition.progress.last_error or timer.last_error or {}
        error = f"{last.get('type')}: {last.get('reason')}" if status == "failed" else None
        started = to_datetime(timer.updated_ms)
        self.runs.append(
            LabRun(timer.prefix, timer.id, timer.attempt, timer.occurrence, timer.payload, status, error, started)
        )

    async def sleep(self, seconds: float) -> None:
        """Wait until the lab's clock has moved this far."""
        awake = asyncio.Event()
        self._sleeping += 1
        handle = self.later(seconds, awake.set)
        try:
            await awake.wait()
        finally:
            handle.cancel()
            self._sleeping -= 1

    async def _run_what_is_due(self, engine: Engine, until_ms: float) -> None:
        """Run timers until no more become due now. A timer that is due but does not start (paused, at its limit)
        stays."""
        before = None
        while before != (before := (len(self.runs), engine.runner.executing)):
            engine.claim(
                [prefix for prefix, due_ms in (await self._earliest_due(engine)).items() if due_ms <= self._now_ms]
            )
            await self._until_quiet(engine, until_ms)

    async def _until_quiet(self, engine: Engine, until_ms: float) -> None:
        """Wait until all runs have ended or wait for the lab's clock."""
        waited, turns = 0.0, 0
        while engine.runner.executing > self._sleeping or engine.is_busy:
            turns += 1
            began = time.monotonic()
            await _really_sleep(0 if turns < 1000 else 0.001)
            waited += min(time.monotonic() - began, TURN_SECONDS)
            patience = HANG_SECONDS if self._working else PATIENCE_SECONDS
            if waited > patience and self._waiting and self._waiting[0][0] <= until_ms and not engine.is_busy:
                return
            if waited > HANG_SECONDS:
                raise AssertionError(
                    f"{engine.runner.executing} runs do not end: they wait for something other than time"
                )

    def _retire_engine(self) -> None:
        if self._engine is not None:
            self._engine.runner.close()  # the process would not end while threads of plain functions wait for work
            self._retired.append(self._engine)
            self._engine = None

    async def _leave(self) -> None:
        """Close the engines that are no longer used. One of another loop ended with that loop."""
        while self._retired:
            engine = self._retired.pop()
            if engine.loop is asyncio.get_running_loop():
                await engine.close()

    def _wake(self) -> None:
        while self._waiting and self._waiting[0][0] <= self._now_ms:
            _, _, handle, call = heapq.heappop(self._waiting)
            if not handle.cancelled():
                handle.cancel()
                call()

    async def _next_ms(self, engine: Engine) -> float:
        """The next time at which something happens: a timer becomes due, or a wait is over."""
        while self._waiting and self._waiting[0][2].cancelled():
            heapq.heappop(self._waiting)
        due_times = [due_ms for due_ms in (await self._earliest_due(engine)).values() if due_ms > self._now_ms]
        return min([*due_times, *(at_ms for at_ms, *_ in self._waiting[:1])], default=float("inf"))

    async def _earliest_due(self, engine: Engine) -> dict[str, int]:
        """By prefix, of those that are served."""
        due_times = await queries.earliest_due(self._store)
        return {prefix: due_ms for prefix, due_ms in due_times.items() if engine.registry.match(prefix)}

    def _clocked(self, processor: Processor) -> Callable[..., Any]:
        """The processor's function, with its sleeps on the lab's clock. What it does to the payload stays its own."""
        function = processor.function

        @wraps(function)
        async def clocked(timer: Timer, context: Any) -> Any:
            _RUN_OF.set(self)
            result: Any = function(_own(timer), context)
            return await result

        @wraps(function)
        def worked(timer: Timer, context: Any) -> Any:
            self._working.add(timer.key)
            try:
                return function(_own(timer), context)
            finally:
                self._working.discard(timer.key)

        return clocked if processor.is_async else worked


def _own(timer: Timer) -> Timer:
    return timer._replace(spec={**timer.spec, "payload": deepcopy(timer.payload)})


class _Shared:
    """A block that all labs are in, of whatever task or thread: entered with the first, left with the last."""

    def __init__(self, block: Callable[[], AbstractContextManager[None]]) -> None:
        self._block, self._lock = block, threading.Lock()
        self._users, self._open = 0, ExitStack()

    def __enter__(self) -> None:
        with self._lock:
            if self._users == 0:
                self._open.enter_context(self._block())
            self._users += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._users -= 1
            if self._users == 0:
                self._open.close()


@contextmanager
def _patches() -> Iterator[None]:
    with clocks(), patch("asyncio.sleep", _sleep):
        yield


_patched: Final = _Shared(_patches)
"""What a lab would restore while another is open cannot be each lab's own."""


async def _sleep(delay: float, result: Any = None) -> Any:
    lab = _RUN_OF.get()
    if lab is None:
        return await _really_sleep(delay, result)
    await lab.sleep(delay)
    return result


class _LabClock(ServerClock):
    def __init__(self, lab: TimerLab) -> None:
        super().__init__()
        self._lab = lab

    def observe(self, server_ms: int, sent: float, received: float) -> None:
        """Do nothing: this clock has nothing to learn."""

    @property
    def known(self) -> bool:
        return True

    def now_ms(self) -> float:
        return self._lab._now_ms


class _LabStore(Store):
    """A store on a fake server. It tells the lab of every end."""

    def __init__(self, lab: TimerLab) -> None:
        self._server = server_on_clock(lambda: lab._now_ms / 1000)
        super().__init__(fake_connections(self._server), clock=_LabClock(lab))
        self._lab = lab

    def declare(self, prefixes: Iterable[str]) -> None:
        """Declare prefixes as a pod does with its first sign of life."""
        redis = FakeRedis(server=self._server)
        for prefix in prefixes:
            redis.hset(f"{keys.PODS_ROOT}declared", prefix, "0 lab")
        redis.incr(f"{keys.PODS_ROOT}version")

    async def settle(self, shard: int, settlements: Sequence[Settlement], **given: Any) -> list[str]:
        codes = await super().settle(shard, settlements, **given)
        for ends, code in zip(settlements, codes, strict=True):
            if code == "settled":
                self._lab.ended(ends.timer, ends)
        return codes
