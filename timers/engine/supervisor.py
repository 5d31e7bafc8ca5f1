"""Owns how long things live: services, which are started again until they are stopped, and what processors hold
open."""

import asyncio
import threading
import time
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Mapping
from contextlib import AsyncExitStack
from typing import Any, Final, TypeVar

from timers.errors import ConfigurationError, Full, LedgerUnavailable, Moving, Unavailable
from timers.logs import Reminders, get_logger
from timers.processor import Lifespan, Processor
from timers.store.cooperative import cancelled, set_within

FIRST_PAUSE_SECONDS: Final = 0.05
LONGEST_PAUSE_SECONDS: Final = 0.5
"""Pauses between restarts double from the first to the longest. When Redis comes back, services notice within the
longest pause, because what became due meanwhile must start within a second."""

STEADY_SECONDS: Final = 1.0
"""A service that ran this long starts over with the first pause: one outage must not lengthen the next."""

OPENING_SECONDS: Final = 10.0
"""When a lifespan that still opens is named: its pod starts nothing meanwhile."""

SHORTEST_REST_SECONDS: Final = 0.02
LONGEST_REST_SECONDS: Final = 2.0
"""Bounds of the rest after a step of long work that is in no hurry."""

T = TypeVar("T")

_log = get_logger("timers.supervisor")
_lifespans_log = get_logger("timers.lifespans")


Services = Mapping[str, Callable[[], Coroutine[Any, Any, None]]]
"""By name, what runs until it is cancelled. It keeps no state in a run that a restart must not lose."""


async def repeat(work: Callable[[], Awaitable[None]], seconds: float, soon: asyncio.Event | None = None) -> None:
    """Do it, rest, and do it again; at once if `soon` is set."""
    soon = soon or asyncio.Event()
    while True:
        soon.clear()
        await work()
        await set_within(soon, seconds)


async def unhurried(steps: AsyncIterable[T], rests: Callable[[], int]) -> AsyncIterator[T]:
    """Take one step after the other, and after each a rest that lasts so many times as long as the step and what was
    made of it, within bounds: a step also seems long when the pod itself stalls, and the last must still come."""
    began = time.monotonic()
    async for step in steps:
        yield step
        rest = (time.monotonic() - began) * rests()
        await asyncio.sleep(min(max(SHORTEST_REST_SECONDS, rest), LONGEST_REST_SECONDS))
        began = time.monotonic()


class Supervisor:
    """Runs services. A service that raises or returns is started again after a pause, so nothing dies silently."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._states = dict.fromkeys(services, "stopped")
        self._watched: list[asyncio.Task[None]] = []
        self._reminders = Reminders()

    @property
    def states(self) -> Mapping[str, str]:
        """By name: `running`, `restarting: <reason>`, `waiting: <reason>` for memory on the server, or `stopped`."""
        return self._states

    def start(self) -> None:
        """Start all. Idempotent while running."""
        if not self._watched:
            self._watched = [asyncio.create_task(self._watch(name), name=f"timers.{name}") for name in self._services]

    async def stop(self) -> None:
        """Cancel all and wait until they have ended."""
        stopping = self._watched
        await cancelled(stopping)
        # If stop is called twice at once, the second call may find services that were started since. Leave those alone.
        if self._watched is stopping:
            self._watched = []
            self._states.update(dict.fromkeys(self._states, "stopped"))

    async def _watch(self, name: str) -> None:
        pause = FIRST_PAUSE_SECONDS
        while not _is_cancelled():
            started = asyncio.get_running_loop().time()
            self._states[name] = "running"
            state = await self._once(name)
            if asyncio.get_running_loop().time() - started > STEADY_SECONDS:
                pause = FIRST_PAUSE_SECONDS
            self._states[name] = state
            await asyncio.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE_SECONDS)

    async def _once(self, name: str) -> str:
        """Run the service in its own task: before Python 3.13 a `TaskGroup` that fails leaves its task marked as
        cancelled."""
        try:
            await asyncio.create_task(self._services[name](), name=f"timers.{name}.run")
            how = "it ended"
        except asyncio.CancelledError:
            if _is_cancelled():
                raise
            how = "it cancelled itself"
        except Exception as error:  # noqa: BLE001 (a service that failed is started again, whatever it was)
            return self._report_failure(name, error)
        _log.error("service ended and is restarted", service=name, how=how)
        return f"restarting: {how}"

    def _report_failure(self, name: str, error: Exception) -> str:
        while isinstance(error, ExceptionGroup):
            error = error.exceptions[0]
        if isinstance(error, Moving):  # which `peers` logs once
            return f"waiting: {error}"
        reason = str(error)
        if isinstance(error, Unavailable):
            if self._reminders.is_due((name, reason)):
                _log.warning("service waits for Redis", service=name, reason=reason)
            return f"{'waiting' if isinstance(error, Full) else 'restarting'}: {reason}"
        if isinstance(error, LedgerUnavailable):
            if self._reminders.is_due((name, reason)):
                _log.warning("service waits for the ledger", service=name, reason=reason)
            return f"waiting: {reason}"
        _log.error("service failed and is restarted", service=name, exc_info=error)
        return f"restarting: {type(error).__name__}: {reason}"


class ThreadSupervisor(Supervisor):
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
    """Whether this task should end, however its work ended: a `TaskGroup` that fails while it is cancelled raises the
    failure, and a service may return when it is cancelled."""
    current = asyncio.current_task()
    return current is not None and current.cancelling() > 0


class Lifespans:
    """What these processors hold open: entered once before the first claim, left after the last run. Several may share
    one lifespan."""

    def __init__(self, processors: Iterable[Processor]) -> None:
        self._owners = {p.lifespan: p for p in processors if p.lifespan is not None}
        self.states: dict[Lifespan[Any] | None, Any] = {None: None}
        """What each lifespan yielded, and nothing for processors without one."""
        self._closing = asyncio.Event()
        self._holding: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Enter all. If one fails, leave the others and raise ConfigurationError with the processor's name."""
        opened = asyncio.Event()
        self._holding = asyncio.create_task(self._hold(opened), name="timers.lifespans")
        self._holding.add_done_callback(lambda _: opened.set())
        try:
            await opened.wait()
        except asyncio.CancelledError:
            self._holding.cancel()
            raise
        if self._holding.done():
            failed, self._holding = self._holding, None
            await failed

    async def close(self) -> None:
        """Leave all, the newest first. Failures are logged. Does nothing if none is open."""
        self._closing.set()
        if self._holding is None:
            return
        try:
            await self._holding
        except Exception as error:  # noqa: BLE001 (a processor's own code; the pod ends all the same)
            _lifespans_log.error("the lifespan of a processor could not be closed", exc_info=error)

    async def _hold(self, opened: asyncio.Event) -> None:
        """Runs in its own task, because a context may have to be left in the task that entered it."""
        async with AsyncExitStack() as stack:
            for lifespan, owner in self._owners.items():
                telling = asyncio.get_running_loop().call_later(OPENING_SECONDS, _tell_unopened, owner.origin)
                try:
                    self.states[lifespan] = await stack.enter_async_context(lifespan())
                except ConfigurationError:
                    raise
                except (Exception, asyncio.CancelledError, SystemExit) as error:
                    if _is_cancelled():
                        raise
                    said = f"{type(error).__name__}: {error}"
                    raise ConfigurationError(f"the lifespan of the processor {owner.origin} failed: {said}") from error
                finally:
                    telling.cancel()
            opened.set()
            await self._closing.wait()


def _tell_unopened(processor: str) -> None:
    _lifespans_log.warning("the lifespan of a processor is not open yet", processor=processor)
