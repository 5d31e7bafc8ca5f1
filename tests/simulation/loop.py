"""Owns virtual time: an event loop whose clock jumps to the next thing that happens, and actors that can stop in it."""

import asyncio
import contextvars
import heapq
from collections.abc import Callable, Coroutine
from contextvars import ContextVar
from itertools import count
from typing import Any, Final, TypeVarTuple, Unpack

_Given = TypeVarTuple("_Given")

START_SECONDS: Final = 1000.0
"""The loop's time at first."""


TURN_SECONDS: Final = 1e-6
"""What a turn of the loop takes, so that nobody who waits for the next moment waits for ever."""


class Actor:
    """A process of its own: a pod or a caller. Whatever it starts belongs to it. While it is stopped, nothing of it
    happens; what should have happened is kept in `held`."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.stopped = False
        self.held: list[asyncio.Handle] = []
        self.tasks: list[asyncio.Task[Any]] = []


_ACTOR: Final[ContextVar[Actor | None]] = ContextVar("tests.simulation.actor", default=None)


class _Step(asyncio.TimerHandle):
    """As asyncio's handles, without what debugging needs: a world makes thousands."""

    __slots__ = ()

    def __init__(
        self, when: float, callback: Any, args: Any, loop: "VirtualLoop", context: contextvars.Context | None
    ) -> None:
        self._when, self._callback, self._args, self._loop = when, callback, args, loop
        self._context = contextvars.copy_context() if context is None else context
        self._cancelled, self._source_traceback, self._repr = False, None, None

    def cancel(self) -> None:
        """It stays where it waits until its turn comes."""
        self._cancelled, self._callback, self._args = True, None, ()


class VirtualLoop(asyncio.BaseEventLoop):
    """One step runs what is ready; if nothing is, the time jumps. Nothing waits for the machine."""

    _ready: Any

    def __init__(self) -> None:
        super().__init__()
        self._now = START_SECONDS
        self._later: list[tuple[float, int, Any]] = []
        self._order = count()
        self.until = float("inf")
        """The world ends then."""
        self.set_task_factory(_own)

    def time(self) -> float:
        """The virtual time in seconds."""
        return self._now

    def resume(self, actor: Actor) -> None:
        """Let a stopped actor go on, with what should have happened meanwhile first."""
        actor.stopped = False
        self._ready.extend(actor.held)
        actor.held = []

    def call_at(
        self,
        when: float,
        callback: Callable[[Unpack[_Given]], object],
        *args: *_Given,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        """As asyncio's, but the heap has tuples, which compare faster."""
        step = _Step(when, callback, args, self, context)
        heapq.heappush(self._later, (when, next(self._order), step))
        return step

    def call_soon(
        self,
        callback: Callable[[Unpack[_Given]], object],
        *args: *_Given,
        context: contextvars.Context | None = None,
    ) -> asyncio.Handle:
        """As asyncio's."""
        step = _Step(0.0, callback, args, self, context)
        self._ready.append(step)
        return step

    def _run_once(self) -> None:
        ready, later = self._ready, self._later
        self._now += TURN_SECONDS
        while later and later[0][2]._cancelled:
            heapq.heappop(later)
        if not ready:
            if not later or later[0][0] > self.until:
                raise WorldStands
            self._now = max(later[0][0], self._now)
        while later and later[0][0] <= self._now:
            ready.append(heapq.heappop(later)[2])
        for _ in range(len(ready)):
            step = ready.popleft()
            if step._cancelled:
                continue
            context = step._context
            actor = context.get(_ACTOR)
            if actor is not None and actor.stopped:
                actor.held.append(step)
                continue
            try:
                context.run(step._callback, *step._args)
            except Exception as error:  # noqa: BLE001 (as in asyncio the others go on)
                self.call_exception_handler({"message": f"in {step!r}", "exception": error})

    def _write_to_self(self) -> None:
        """Another thread would wake the loop with it; there is none."""


class WorldStands(RuntimeError):
    """Nothing will ever happen any more, or not before the end."""


def _own(loop: asyncio.AbstractEventLoop, work: Any, **given: Any) -> asyncio.Task[Any]:
    task = asyncio.Task(work, loop=loop, **given)
    context: contextvars.Context | None = given.get("context")
    actor = _ACTOR.get() if context is None else context.get(_ACTOR)
    if actor is not None:
        actor.tasks.append(task)
    return task


def acting() -> Actor | None:
    """To whom what runs now belongs."""
    return _ACTOR.get()


def of_actor(actor: Actor) -> contextvars.Context:
    """A context in which everything belongs to the actor."""
    context = contextvars.Context()
    context.run(_ACTOR.set, actor)
    return context


def unwind(loop: VirtualLoop, actors: list[Actor], turns: int = 50) -> None:
    """End all tasks of the actors, so that no collector has to, and close the loop."""
    loop.until = float("inf")
    for _ in range(turns):
        alive = [task for actor in actors for task in actor.tasks if not task.done()]
        if not alive:
            break
        for actor in actors:
            loop.resume(actor)
        for task in alive:
            task.cancel()
        _turn(loop)
    loop._later.clear()
    loop.close()


def _turn(loop: VirtualLoop, most: int = 10) -> None:
    """A few steps without a jump in time."""
    for _ in range(most):
        if not loop._ready:
            return
        loop.run_until_complete(_nothing())


async def _nothing() -> None:
    pass


def run(loop: VirtualLoop, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run to the end of `work`."""
    loop.run_until_complete(loop.create_task(work(), context=contextvars.Context()))
