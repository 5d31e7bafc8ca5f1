"""The tasks of one pod among those of a test's loop, so that the pod can be killed beside the others."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any


class OwnTasks:
    """All tasks that a pod has created and that go on."""

    def __init__(self) -> None:
        self._alive: set[asyncio.Task[Any]] = set()

    @contextmanager
    def creating(self) -> Iterator[None]:
        """Within this context every task is the pod's, and so is every task that such a task creates."""
        asyncio.get_running_loop().set_task_factory(_create)
        before = _creator.set(self)
        try:
            yield
        finally:
            _creator.reset(before)

    async def kill(self) -> None:
        """Cancel all, and those that they create meanwhile, until none goes on."""
        while self._alive:
            for task in self._alive:
                task.cancel()
            await asyncio.wait(self._alive)

    def add(self, task: asyncio.Task[Any]) -> None:
        """The pod has created a task."""
        self._alive.add(task)
        task.add_done_callback(self._alive.discard)


_creator: ContextVar[OwnTasks | None] = ContextVar("creator", default=None)


def _create(loop: asyncio.AbstractEventLoop, coro: Any, **options: Any) -> asyncio.Task[Any]:
    task: asyncio.Task[Any] = asyncio.Task(coro, loop=loop, **options)
    creator = _creator.get()
    if creator is not None:
        creator.add(task)
    return task
