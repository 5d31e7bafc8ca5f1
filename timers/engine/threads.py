"""Owns plain functions: the threads in which they run, and their `context.timers`, which the event loop answers."""

import asyncio
import concurrent.futures
import contextvars
import threading
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, Final, TypeVar

from timers.core.calls import Armed, BlockingTimers, Timers
from timers.core.model import Timer
from timers.core.spec import NewTimer
from timers.errors import RunOver
from timers.logs import get_logger

Ended = tuple[object, BaseException | None]
"""What a function returned or raised. These are values because a future cannot hold StopIteration."""

_log = get_logger("timers.threads")


class Threads:
    """Call its methods from the event loop's thread. It has no limit; the caller bounds how many functions
    run."""

    def __init__(self) -> None:
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._made = self._busy = 0

    def call(self, function: Callable[[], object], freed: Callable[[], None]) -> asyncio.Future[Ended]:
        """Call the function in a thread at once. `freed` is called when the function has ended, even if nobody waits
        for the result any more. If the machine allows no more threads, the function waits for another to end; raises
        RuntimeError if there is no thread at all."""
        loop = asyncio.get_running_loop()
        end: asyncio.Future[Ended] = loop.create_future()
        inside = contextvars.copy_context()

        def work() -> None:
            ended = _ended(inside, function)
            with suppress(RuntimeError):  # the loop is closed: nobody is there to be told
                loop.call_soon_threadsafe(self._free, end, ended, freed)

        if self._busy >= self._made:
            self._make()
        self._busy += 1
        self._work.put(work)
        return end

    def close(self) -> None:
        """Release the threads without waiting for functions that hang in them."""
        for _ in range(self._made):
            self._work.put(None)

    def _make(self) -> None:
        try:
            threading.Thread(target=self._serve, name=f"timers.processor-{self._made}").start()
        except RuntimeError as error:
            if not self._made:
                raise
            _log.warning("no more threads: a plain function waits", threads=self._made, reason=str(error))
        else:
            self._made += 1

    def _serve(self) -> None:
        """Runs in the thread: call one function after the other."""
        while (work := self._work.get()) is not None:
            work()
            del work  # what it holds must not live on while the thread waits

    def _free(self, end: asyncio.Future[Ended], ended: Ended, freed: Callable[[], None]) -> None:
        self._busy -= 1
        freed()
        if not end.done():
            end.set_result(ended)


def _ended(inside: contextvars.Context, function: Callable[[], object]) -> Ended:
    try:
        return inside.run(function), None
    except BaseException as error:  # noqa: BLE001 (whatever a function raises, SystemExit too, is its run's end)
        return None, error


_BLOCKS: Final = (
    "context.timers of a plain function blocks, so it cannot be used on the event loop; make the processor an async def"
)

_ENDED: Final = "the pod has stopped, so context.timers no longer works"

T = TypeVar("T")
Call = Callable[[], Coroutine[Any, Any, T]]


class ThreadTimers(BlockingTimers):
    """See `BlockingTimers`. Create it on the event loop and call it from other threads, until it is closed."""

    def __init__(self, timers: Timers) -> None:
        self._timers, self._loop = timers, asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self._over: str | None = None
        self._waited_for: set[concurrent.futures.Future[Any]] = set()
        self._lock = threading.Lock()

    def _create(self, prefix: str, id: str | None, fields: Mapping[str, Any]) -> Timer:
        return self._result(lambda: self._timers.create(prefix, id, **fields))

    def arm(self, new: NewTimer, *, traceparent: str | None = None) -> Armed:
        return self._result(lambda: self._timers.arm(new, traceparent=traceparent))

    def get(self, prefix: str, id: str) -> Timer:
        return self._result(lambda: self._timers.get(prefix, id))

    def cancel(self, prefix: str, id: str, *, version: int | None = None, purge: bool = False) -> Timer:
        return self._result(lambda: self._timers.cancel(prefix, id, version=version, purge=purge))

    def close(self, why: str) -> None:
        """Cancel the calls in progress and refuse later ones with a RunOver that says why."""
        with self._lock:
            self._over, waited_for = why, list(self._waited_for)
        for answer in waited_for:
            answer.cancel()

    def _result(self, call: Call[T]) -> T:
        if threading.get_ident() == self._loop_thread:
            raise RuntimeError(_BLOCKS)
        answer = self._asked(call)
        try:
            return answer.result()
        except concurrent.futures.CancelledError:
            raise RunOver(self._over or _ENDED) from None
        finally:
            with self._lock:
                self._waited_for.discard(answer)

    def _asked(self, call: Call[T]) -> concurrent.futures.Future[T]:
        """Takes the lock, so that no call slips in between the end of the run and `close`."""
        with self._lock:
            if self._over is not None:
                raise RunOver(self._over)
            asked = call()
            try:
                answer = asyncio.run_coroutine_threadsafe(asked, self._loop)
            except RuntimeError:
                asked.close()
                raise RunOver(_ENDED) from None
            self._waited_for.add(answer)
            return answer
