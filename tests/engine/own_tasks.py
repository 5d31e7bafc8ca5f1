"""Keeps track of one pod's tasks in a test's loop, so that the test can kill this pod."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any


class OwnTasks:
    """The unfinished tasks of a pod."""

    def __init__(self) -> None:
        self._alive: set[asyncio.Task[Any]] = set()

    @contextmanager
    def creating(self) -> Iterator[None]:
        """In this context every new task is the pod's, and so are the tasks that it creates."""
        asyncio.get_running_loop().set_task_factory(_create)
        before = _creator.set(self)
        try:
            yield
        finally:
            _creator.reset(before)

    async def kill(self) -> None:
        """Cancel all of them, and those that they create meanwhile, until all have ended."""
        while self._alive:
            for task in self._alive:
                task.cancel()
            await asyncio.wait(self._alive)

    def add(self, task: asyncio.Task[Any]) -> None:
        """Add a task that the pod has created."""
        self._alive.add(task)
        task.add_done_callback(self._alive.discard)


_creator: ContextVar[OwnTasks | None] = ContextVar("creator", default=None)


def _create(loop: asyncio.AbstractEventLoop, coro: Any, **options: Any) -> asyncio.Task[Any]:
    task: asyncio.Task[Any] = asyncio.Task(coro, loop=loop, **options)
    creator = _creator.get()
    if creator is not None:
        creator.add(task)
    return task
