"""Owns the threads in which plain functions run: as many as functions run at once, made on demand and used again."""

import asyncio
import contextvars
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue

from timers.logs import get_logger

Ended = tuple[object, BaseException | None]
"""How a function ended: what it returned, or what it raised. As values, because a future takes no StopIteration."""

_log = get_logger("timers.threads")


class Threads:
    """Its methods are for the event loop's thread. It has no limit of its own: who calls bounds what runs."""

    def __init__(self) -> None:
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._made = self._busy = 0

    def call(self, function: Callable[[], object], freed: Callable[[], None]) -> asyncio.Future[Ended]:
        """Call the function in a thread, at once. `freed` is called when it has ended, also where nobody waits for its
        end any more. Where the machine gives no further thread it is called when another function has ended; raises
        RuntimeError where there is none at all."""
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
        """Let go of the threads without waiting for what hangs in them."""
        for _ in range(self._made):
            self._work.put(None)

    def _make(self) -> None:
        try:
            threading.Thread(target=self._serve, name=f"timers.processor-{self._made}").start()
        except RuntimeError as error:
            if not self._made:
                raise
            _log.warning("no further thread: a plain function waits", threads=self._made, reason=str(error))
        else:
            self._made += 1

    def _serve(self) -> None:
        """In the thread: one function after the other."""
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
