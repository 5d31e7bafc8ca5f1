"""Owns the threads in which plain functions run: one for each running function, created on demand and reused."""

import asyncio
import contextvars
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue

from timers.logs import get_logger

Ended = tuple[object, BaseException | None]
"""What a function returned or raised. These are values because a future cannot hold StopIteration."""

_log = get_logger("timers.threads")


class Threads:
    """Call its methods from the event loop's thread. It has no limit of its own; the caller bounds how many functions
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
