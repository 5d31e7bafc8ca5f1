"""Owns the life of services: starts and watches them, restarts those that stop, and stops them all."""

import asyncio
import threading
from collections.abc import Mapping, Sequence
from typing import Final, Protocol

from timers.errors import Full, Unavailable
from timers.logs import get_logger

FIRST_PAUSE_SECONDS: Final = 0.05
LONGEST_PAUSE_SECONDS: Final = 0.5
"""Pauses between restarts double from the first to the longest. When Redis comes back, services notice within the
longest pause, because what became due meanwhile must start within a second."""

STEADY_SECONDS: Final = 1.0
"""A service that ran this long starts over with the first pause: one outage must not lengthen the next."""

_log = get_logger("timers.supervisor")


class Service(Protocol):
    """A part that runs until it is cancelled. It keeps no state in `run` that a restart must not lose."""

    @property
    def name(self) -> str: ...

    async def run(self) -> None: ...


class Supervisor:
    """Runs services. A service that raises or returns is started again after a pause, so nothing dies silently."""

    def __init__(
        self,
        services: Sequence[Service],
        *,
        first_pause_seconds: float = FIRST_PAUSE_SECONDS,
        longest_pause_seconds: float = LONGEST_PAUSE_SECONDS,
    ) -> None:
        self._services = services
        self._first_pause_seconds, self._longest_pause_seconds = first_pause_seconds, longest_pause_seconds
        self._states: dict[str, str] = {service.name: "stopped" for service in services}
        self._watched: list[asyncio.Task[None]] = []

    @property
    def states(self) -> Mapping[str, str]:
        """By name: `running`, `restarting: <reason>`, `waiting: <reason>` for memory on the server, or `stopped`."""
        return self._states

    def start(self) -> None:
        """Start all. Idempotent while running."""
        if not self._watched:
            self._watched = [asyncio.create_task(self._watch(s), name=f"timers.{s.name}") for s in self._services]

    async def stop(self) -> None:
        """Cancel all and wait until they have ended."""
        stopping = self._watched
        for watched in stopping:
            watched.cancel()
        await asyncio.gather(*stopping, return_exceptions=True)
        # If stop is called twice at once, the second call may find services that were started since. Leave those alone.
        if self._watched is stopping:
            self._watched = []
            self._states.update(dict.fromkeys(self._states, "stopped"))

    async def _watch(self, service: Service) -> None:
        pause = self._first_pause_seconds
        while not _is_cancelled():
            started = asyncio.get_running_loop().time()
            self._states[service.name] = "running"
            state = await self._once(service)
            if asyncio.get_running_loop().time() - started > STEADY_SECONDS:
                pause = self._first_pause_seconds
            self._states[service.name] = state
            await asyncio.sleep(pause)
            pause = min(pause * 2, self._longest_pause_seconds)

    async def _once(self, service: Service) -> str:
        """Run the service in its own task: before Python 3.13 a `TaskGroup` that fails leaves its task marked as
        cancelled."""
        try:
            await asyncio.create_task(service.run(), name=f"timers.{service.name}.run")
        except asyncio.CancelledError:
            if _is_cancelled():
                raise
            return _report_end(service.name, "it cancelled itself")
        except Exception as error:  # noqa: BLE001 (a service that failed is started again, whatever it was)
            return _report_failure(service.name, _first(error))
        return _report_end(service.name, "it ended")


class Apart(Supervisor):
    """A supervisor with a thread and an event loop of its own: its services go on while the pod's loop is blocked. Call
    it from the pod's loop."""

    _loop: asyncio.AbstractEventLoop | None = None

    def start(self) -> None:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._loop.call_soon(super().start)
            threading.Thread(target=_serve, args=(self._loop,), name="timers.apart", daemon=True).start()

    async def stop(self) -> None:
        loop, self._loop = self._loop, None
        if loop is not None:
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(super().stop(), loop))
            loop.call_soon_threadsafe(loop.stop)


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    loop.run_forever()
    loop.close()


def _is_cancelled() -> bool:
    """Whether this service should end, however it ended: a `TaskGroup` that fails while it is cancelled raises the
    failure, and a service may return when it is cancelled."""
    current = asyncio.current_task()
    return current is not None and current.cancelling() > 0


def _first(error: Exception) -> Exception:
    """The failure itself, if a task group wrapped it."""
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error


def _report_end(name: str, how: str) -> str:
    _log.error("service ended and is restarted", service=name, how=how)
    return f"restarting: {how}"


def _report_failure(name: str, error: Exception) -> str:
    if isinstance(error, Unavailable):
        _log.warning("service waits for Redis", service=name, reason=str(error))
        return f"{'waiting' if isinstance(error, Full) else 'restarting'}: {error}"
    _log.error("service failed and is restarted", service=name, exc_info=error)
    return f"restarting: {type(error).__name__}: {error}"
