"""Owns running: calls processors within the pod's concurrency and their timeouts; every end becomes an outcome."""

import asyncio
import inspect
import math
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from random import Random
from typing import Any, Final, get_args

from timers.core.calls import Timers
from timers.core.clock import Later
from timers.core.decide import Transition, decide, exhausted, missed
from timers.core.durations import to_datetime
from timers.core.outcome import (
    AlreadyDone,
    Done,
    Fail,
    Failed,
    HandBack,
    Outcome,
    Rearm,
    Retry,
    Snooze,
    kept_result,
)
from timers.core.policies import Limits
from timers.engine.failure import conflicts, failure, plain, text_of, where
from timers.engine.pod import Pod
from timers.engine.runs import Run, Runs, StopReason
from timers.engine.spans import end_span
from timers.engine.supervisor import Lifespans
from timers.engine.threads import Ended, Threads, ThreadTimers
from timers.logs import get_logger, running
from timers.processor import Context
from timers.store.codec import as_stored
from timers.store.permits import Permit
from timers.store.starts import FAILED, RETRIED
from timers.store.store import Claimed, Identity, Settlement

IGNORED_CANCEL_SECONDS: Final = 1.0
"""How long a cancelled processor may take to stop before its run ends without it."""

STARTS_PER_TURN: Final = 20
"""Runs started in one turn of the event loop: about half a millisecond if the processors do nothing."""

LEASE_LEFT: Final = 0.25
"""Share of its lease that a run has left at least when it starts. A pod short of CPU time may start runs long after it
claimed them; without extending their leases first, it would still execute them when another pod takes them over."""

CONFLICT_SECONDS: Final = 0.1
"""After how long a run is tried again whose SQL transaction was undone because of another's."""

_CONFLICT: Final = "its SQL transaction conflicted with another and was undone"

_DONE: Final = Done()
_KINDS: Final = {kind: kind.__name__.lower() for kind in get_args(Outcome)}

_log = get_logger("timers.runner")
_processors_log = get_logger("timers.processor")


class Runner:
    """The runs of one pod. `room` is how many more it takes now."""

    def __init__(
        self,
        pod: Pod,
        runs: Runs,
        timers: Timers,
        lifespans: Lifespans,
        *,
        later: Later | None = None,
    ) -> None:
        """A test passes `later` to control timeouts; it defaults to the loop's own `call_later`."""
        self._pod, self._runs, self._timers = pod, runs, timers
        self._lifespans, self._call_later = lifespans, later
        self._clock, self._observer, self._spans = pod.store.clock, pod.observer, pod.options.spans
        self._concurrency, self._lease_seconds = pod.options.concurrency, pod.lease_ms / 1000
        self._lease_left = self._lease_seconds * LEASE_LEFT
        self.executing = 0
        """Processors being run."""
        self.abandoned = 0
        """Plain functions that keep running although their runs were given up: a thread cannot be stopped."""
        self._of_prefix = Counter[str]()
        self._held_off: dict[str, float] = {}
        self.resumed: Callable[[str], object] = lambda _prefix: None
        """Told of a prefix with which this pod no longer holds off, because a run has succeeded."""
        self._starting: deque[Run] = deque()
        self._changed = asyncio.Event()
        self._threads = Threads()
        self._rng = Random()  # noqa: S311 (jitter, not a secret)

    def room_changed(self) -> None:
        """Look for room again: ends were written, or a claim brought less than it asked for."""
        self._changed.set()

    @property
    def room(self) -> int:
        """How many more runs this pod can take. Running processors, hanging threads and ends that are not yet written
        all count, because the last hold leases too."""
        return self._concurrency - max(self.executing + self.abandoned, self._runs.waiting - self._concurrency)

    @property
    def held(self) -> set[Identity]:
        """The timers whose runs this pod holds. It extends or settles them and never takes them for lost."""
        return {(run.timer.prefix, run.timer.id) for run in self._runs}

    def limits_of(self, prefix: str) -> Limits:
        return self._pod.registry.require(prefix).limits

    def room_of(self, prefix: str) -> int:
        """How many more timers of a queue this pod takes now."""
        limit = self.limits_of(prefix).pod_concurrency
        if prefix in self._held_off:
            limit = 0 if self.held_off_ms(prefix) else 1
        return self._concurrency if limit is None else max(limit - self._of_prefix[prefix], 0)

    def held_off_ms(self, prefix: str) -> int:
        """For how much longer nothing of the queue starts on this pod, because a processor asked for that."""
        return math.ceil(max(self._held_off.get(prefix, 0.0) - self._clock.now_ms(), 0.0))

    async def room_free(self, taken: Callable[[], int]) -> None:
        """Wait until there is room besides what claims in progress have `taken`, which changes meanwhile."""
        await self._until(lambda: self.room > taken())

    def start(
        self,
        shard: int,
        claimed: Claimed,
        asked_at: float,
        permits: Sequence[Permit] = (),
        known_at: Mapping[str, float | None] = {},
    ) -> None:
        """Run claimed timers, each with a permit of its prefix if there are any. `asked_at` is the monotonic time at
        which the claim was sent; from then on the leases are certain for their length. If the answer was read later
        than that, the runs are held until their leases have been extended. `known_at` tells for each queue when this
        pod learned of its due timers."""
        timers = [*claimed.timers, *(timer for timer, _ in claimed.unreadable)]
        processors = {prefix: self._pod.registry.require(prefix) for prefix in {timer.prefix for timer in timers}}
        now, lease_until = time.monotonic(), asked_at + self._lease_seconds
        runs = [
            Run(shard, timer, processors[timer.prefix], now, lease_until, known_at=known_at.get(timer.prefix))
            for timer in timers
        ]
        of_prefix: defaultdict[str, deque[Permit]] = defaultdict(deque)
        for permit in permits:
            of_prefix[permit[0]].append(permit)
        for run in runs if permits else ():
            if own := of_prefix[run.timer.prefix]:
                run.permit = own.popleft()
        self._runs.add(runs)
        self.executing += len(runs)
        self._of_prefix.update([timer.prefix for timer in timers])
        self._starting += runs[: len(claimed.timers)]
        for run, (_, reason) in zip(runs[len(claimed.timers) :], claimed.unreadable, strict=True):
            self._end(run, Failed("CorruptRecord", reason, final=True))
        if self._starting:
            asyncio.get_running_loop().call_soon(self._start_some)

    def _start_some(self) -> None:
        """Start a few runs in each turn of the loop, so that claims, settlements and heartbeats get their turns in a
        burst."""
        loop = asyncio.get_running_loop()
        for _ in range(min(STARTS_PER_TURN, len(self._starting))):
            run = self._starting.popleft()
            if not run.ended:
                run.coroutine = loop.create_task(self._live(run))
        if self._starting:
            loop.call_soon(self._start_some)

    def lose(self, run: Run) -> None:
        """Another pod has the run's lease: stop the run and ignore its result."""
        if run.ended or run.stop == "lost":
            return
        _log.warning("lease lost", **run.named, token=run.timer.token)
        self._stop(run, "lost")

    async def finished(self) -> None:
        await self._until(lambda: not self.executing)

    async def _until(self, so: Callable[[], object]) -> None:
        while not so():
            self._changed.clear()
            await self._changed.wait()

    async def hand_back(self) -> None:
        """Take back all runs. A processor that ignores its cancellation is left behind."""
        for run in self._runs:
            self._stop(run, HandBack("the pod drains"))
        with suppress(TimeoutError):
            async with asyncio.timeout(2 * IGNORED_CANCEL_SECONDS):
                await self.finished()

    def close(self) -> None:
        """Release the threads without waiting for functions that hang in them."""
        self._threads.close()

    async def _live(self, run: Run) -> None:
        """The task of a run, in one coroutine: each further one costs half a microsecond."""
        outcome: Outcome | None
        try:
            if time.monotonic() + self._lease_left >= run.lease_until:
                await self._runs.wait_for_lease(run, self._lease_left)
            timer, processor = run.timer, run.processor
            outcome = None
            if timer.failures or "missed" in timer.spec:  # it may have to end without a start
                outcome = exhausted(timer, processor.retry) or missed(timer, round(self._clock.now_ms()))
            if outcome is None:
                running.set(run)
                if self._spans is not None:
                    run.span = self._spans.begin(run.timer, run.processor.prefix)
                if processor.is_async:
                    self._started(run)
                    result: Any = processor.function(timer, self._context_of(run, self._timers))
                else:
                    result, error = await self._ended_in_thread(run)
                    if error is not None:
                        raise error  # noqa: TRY301 (out of a coroutine StopIteration comes as a RuntimeError)
                if inspect.isawaitable(result):
                    result = await result
                outcome = _DONE if result is None else _as_outcome(run, result)
        except BaseException as error:  # noqa: BLE001 (whatever a processor raises, SystemExit too, must not end the pod)
            outcome = self._raised(run, error)
        if run.stop is not None:
            # A run that finished while the pod was taking it back counts as finished; a run that timed out does not.
            stopped = not isinstance(run.stop, HandBack) or isinstance(outcome, Failed)
            outcome = _outcome_of_stop(run.stop) if stopped else outcome
        self._end(run, outcome)
        run.coroutine = None  # its context has the run: the collector would have to find each of these circles

    def _raised(self, run: Run, error: BaseException) -> Outcome:
        """What an exception of the processor asks for. Its class may be the processor's own."""
        try:
            if isinstance(error, AlreadyDone):
                return _as_outcome(run, error.outcome)
            if isinstance(error, Fail):
                return Failed("Fail", text_of(error), final=True, where=where(error))
            if not isinstance(error, Retry):
                return Snooze(_CONFLICT, CONFLICT_SECONDS) if conflicts(error) else failure(error)
            reason = text_of(error)
            if error.hold_off_ms is not None:
                self._hold_off(run.timer.prefix, error.hold_off_ms, reason)
            if error.snooze:
                return Snooze(reason, error.after)
            return Failed("Retry", reason, after=error.after, where=where(error))
        except BaseException as other:  # noqa: BLE001 (a run that is not ended would keep its lease for ever)
            return failure(other)

    def _end(self, run: Run, outcome: Outcome | None) -> None:
        """Only the first end of a run counts; a processor that outlived its timeout may come here a second time."""
        if run.ended:
            _log.warning("late result refused", **run.named, token=run.timer.token)
            return
        run.ended = True
        if run.timeout is not None:
            run.timeout.cancel()
            run.timeout = None  # its context has the run as well
        if run.in_thread:
            self.abandoned += 1
            _log.warning("function keeps running in its thread", **run.named, abandoned=self.abandoned)
        if run.timers is not None:
            run.timers.close(_why_over(run))
        timer, prefix = run.timer, run.processor.prefix
        self.executing -= 1
        self._of_prefix[timer.prefix] -= 1
        if not self._of_prefix[timer.prefix]:
            del self._of_prefix[timer.prefix]  # callers can make up prefixes without end
        self._changed.set()
        kind = "lost" if outcome is None else _KINDS[type(outcome)]
        now = time.monotonic()
        self._observer.ended(prefix, kind, now - run.started)
        if outcome is None:
            self._runs.lose(run)
        else:
            if self._held_off and isinstance(outcome, Done | Rearm) and self._held_off.pop(timer.prefix, 0.0):
                self.resumed(timer.prefix)
            transition = self._decided(run, outcome)
            if transition.cause[0] in ("retry", "failed"):
                self._observer.failed(prefix, RETRIED if transition.cause[0] == "retry" else FAILED)
            self._runs.put(run, Settlement(timer, transition, run.timings(now)))
        if run.span is not None:
            end_span(run.span, kind, outcome)

    def _hold_off(self, prefix: str, hold_off_ms: int, reason: str) -> None:
        if not self.held_off_ms(prefix):
            _log.warning("holding off with a prefix", prefix=prefix, seconds=hold_off_ms / 1000, reason=reason)
        self._held_off[prefix] = self._clock.now_ms() + hold_off_ms

    def _decided(self, run: Run, outcome: Outcome) -> Transition:
        now_ms = round(self._clock.now_ms())
        policy, timer = run.processor.retry, run.timer
        if isinstance(outcome, Failed):
            self._report(run, outcome)
        if isinstance(outcome, Rearm) or "ladder_first" in timer.spec:  # its fields may be written anew
            timer = as_stored(timer)
        try:
            return decide(timer, outcome, now_ms, policy, self._rng)
        except BaseException as error:  # noqa: BLE001 (of the processor's own objects; a run must be ended)
            failed = failure(error)
            self._report(run, failed)
            return decide(timer, failed, now_ms, policy, self._rng)

    def _report(self, run: Run, failed: Failed) -> None:
        _log.warning("attempt failed", **run.named, error=failed.error, reason=failed.reason, where=failed.where)

    async def _ended_in_thread(self, run: Run) -> Ended:
        in_thread = partial(self._call_in_thread, run, asyncio.get_running_loop())
        run.timers = ThreadTimers(self._timers)
        ended = self._threads.call(in_thread, partial(self._freed, run))
        run.in_thread = True
        return await ended

    def _call_in_thread(self, run: Run, loop: asyncio.AbstractEventLoop) -> object:
        if run.stop is not None:
            raise asyncio.CancelledError
        loop.call_soon_threadsafe(self._started, run)
        return run.processor.function(run.timer, self._context_of(run, run.timers))

    def _freed(self, run: Run) -> None:
        """The run's thread is free again, perhaps long after the run has ended."""
        run.in_thread = False
        if run.ended:
            self.abandoned -= 1
            self._changed.set()

    def _context_of(self, run: Run, timers: Timers | ThreadTimers | None) -> Context[Any, Any]:
        timer, timeout_ms = run.timer, run.timeout_ms
        return Context(
            timer.token,
            timer.idempotency_key,
            None if timeout_ms is None else to_datetime(round(self._clock.now_ms()) + timeout_ms),
            _processors_log,
            self._lifespans.states[run.processor.lifespan],
            timers,
            timer.traceparent,
        )

    def _started(self, run: Run) -> None:
        """The processor is called now, so its timeout starts."""
        if run.stop is not None:
            return
        now, timer, timeout_ms = time.monotonic(), run.timer, run.timeout_ms
        # The claim was the newest change. A due time before the creation (armed in the past) is not lateness.
        late_ms = timer.updated_ms - max(timer.due_ms, timer.created_ms) + round((now - run.started) * 1000)
        self._observer.started(run.processor.prefix, late_ms)
        run.started, run.is_started = now, True
        if timeout_ms is not None:
            later = self._call_later or asyncio.get_running_loop().call_later
            run.timeout = later(timeout_ms / 1000, partial(self._time_out, run))

    def _time_out(self, run: Run) -> None:
        self._stop(run, Failed("Timeout", f"the run took longer than its timeout of {run.timeout_ms} ms"))

    def _stop(self, run: Run, reason: StopReason) -> None:
        if run.ended:
            return
        run.stop = reason
        if run.coroutine is not None:
            run.coroutine.cancel()
        if run.coroutine is None or not _has_begun(run.coroutine):
            self._end(run, _outcome_of_stop(reason))
            return
        # In two steps, or a pod that freezes now would find the time over when it goes on.
        later, each = asyncio.get_running_loop().call_later, IGNORED_CANCEL_SECONDS / 2
        later(each, later, each, self._end_without, run)

    def _end_without(self, run: Run) -> None:
        """The processor did not stop: free its slot and its timer. Whatever it still does, it does without the
        token."""
        if run.ended:
            return
        _log.error("processor ignores its cancellation", **run.named, function=run.processor.origin)
        self._end(run, None if run.stop is None else _outcome_of_stop(run.stop))


def _has_begun(task: asyncio.Task[None]) -> bool:
    """Whether the task has had a turn. One that is cancelled before its first never gets any."""
    coroutine: Any = task.get_coro()
    return inspect.getcoroutinestate(coroutine) != inspect.CORO_CREATED


def _outcome_of_stop(reason: StopReason) -> Outcome | None:
    """How a stopped run ends; None if this pod no longer decides that."""
    return None if reason == "lost" else reason


def _why_over(run: Run) -> str:
    """The reason given to a plain function that keeps running after the end of its run."""
    why = run.stop.reason if isinstance(run.stop, Failed | HandBack) else run.stop or "it has returned"
    return f"the run of {run.timer.key} is over ({why}), so its context.timers no longer works"


def _as_outcome(run: Run, result: Any) -> Outcome:
    if isinstance(result, Rearm):
        return result
    if not isinstance(result, Done):
        kind = plain(type(result).__name__)
        return Failed("TypeError", f"the processor returned {kind}; it may return None, Done or Rearm")
    note, (kept, trouble) = plain(result.note), (None, "") if result.result is None else kept_result(result.result)
    if trouble:
        _log.warning("result of a run not kept", **run.named, reason=trouble)
        note = f"{note}; {trouble}"
    return Done(note, kept)
