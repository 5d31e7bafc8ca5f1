"""Owns `context.timers` for plain functions: the thread makes a call, the pod's event loop answers it."""

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final

from timers.core.calls import BlockingTimers, Timers
from timers.core.model import Timer
from timers.errors import RunOver

_BLOCKS: Final = (
    "context.timers of a plain function blocks, so it cannot be used on the event loop; make it an async def"
)

_ENDED: Final = "the pod has ended; context.timers does nothing any more"

Call = Callable[[], Coroutine[Any, Any, Timer]]


class ThreadTimers(BlockingTimers):
    """See `BlockingTimers`. Create it on the event loop and call it from other threads, until it is closed."""

    def __init__(self, timers: Timers) -> None:
        self._timers, self._loop = timers, asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self._over: str | None = None
        self._waited_for: set[concurrent.futures.Future[Timer]] = set()
        self._lock = threading.Lock()

    def _create(self, prefix: str, id: str | None, fields: Mapping[str, Any]) -> Timer:
        return self._result(lambda: self._timers.create(prefix, id, **fields))

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

    def _result(self, call: Call) -> Timer:
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

    def _asked(self, call: Call) -> concurrent.futures.Future[Timer]:
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
