"""Owns the client for code without an event loop: Flask, Django, scripts. A TimerClient in a thread does the work, so
the two cannot differ."""

import asyncio
import os
import selectors
import sys
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping
from functools import partial, wraps
from typing import Any, Concatenate, ParamSpec, Self, TypeVar, Unpack

from timers.client.client import TimerClient, wished
from timers.client.feed import Event
from timers.client.planning import Results, Wish
from timers.core.calls import BlockingTimers, FilterFields
from timers.core.model import Timer
from timers.core.shapes import Durability

P = ParamSpec("P")
T = TypeVar("T")


_loops: dict[int, asyncio.AbstractEventLoop] = {}
"""By process id. `setdefault` is one step, so threads agree on one loop; a fork could leave a lock held for ever."""


def _loop_of(pid: int) -> asyncio.AbstractEventLoop:
    """The loop of this process, in a thread that ends with it. Threads do not survive a fork, so the child, which has
    another process id, gets its own loop and closes its copy of this one. Hence no epoll: parent and child would
    share it, and that close would leave the parent deaf."""
    if pid not in _loops:
        made = asyncio.SelectorEventLoop(getattr(selectors, "PollSelector", selectors.SelectSelector)())
        if _loops.setdefault(pid, made) is made:
            threading.Thread(target=made.run_forever, name="timers.blocking", daemon=True).start()
        else:
            made.close()
    return _loops[pid]


def _on_the_loop(asked: Coroutine[Any, Any, T]) -> T:
    """Wait for it. Raises RuntimeError on an event loop, which would be blocked meanwhile, and while Python ends: the
    loop's thread stands still then."""
    if sys.is_finalizing():
        asked.close()
        raise RuntimeError(
            "Python is ending, so BlockingTimerClient makes no more calls; make them in an atexit handler"
        )
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        answer = asyncio.run_coroutine_threadsafe(asked, _loop_of(os.getpid()))
    else:
        asked.close()
        raise RuntimeError("BlockingTimerClient would block the event loop; use TimerClient there")
    try:
        return answer.result()
    finally:
        answer.cancel()


def _waiting(
    method: Callable[Concatenate[TimerClient, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate["BlockingTimerClient", P], T]:
    """The twin of a method, which waits for its result."""

    @wraps(method)
    def call(self: "BlockingTimerClient", /, *args: P.args, **kwargs: P.kwargs) -> T:
        return _on_the_loop(method(self._here(), *args, **kwargs))

    return call


async def _next(events: AsyncIterator[Event]) -> Event | None:
    return await anext(events, None)


class BlockingTimerClient(BlockingTimers):
    """Timers of one db. Methods and errors are those of TimerClient; each method waits for its result.

    Safe to share among threads. After a fork the child gets its own loop and connections. Close it, or use it as a
    context manager; whatever is left open ends with the process. Do not use it on an event loop, which it would block.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        edit_lock_ms: int = 0,
        ledger: str | None = None,
        durability: Durability = "ledger",
    ) -> None:
        """As TimerClient's."""
        self._make = partial(TimerClient, url, edit_lock_ms=edit_lock_ms, ledger=ledger, durability=durability)
        self._make()  # raises here, not at the first call; connects to nothing
        self._made: dict[int, TimerClient] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections of this process. A later call opens them again."""
        client = self._made.pop(os.getpid(), None)
        if client is not None:
            _on_the_loop(client.close())

    def _create(self, prefix: str, id: str | None, fields: Mapping[str, Any]) -> Timer:
        return _on_the_loop(self._here().create(prefix, id, **fields))

    arm = _waiting(TimerClient.arm)
    get = _waiting(TimerClient.get)
    cancel = _waiting(TimerClient.cancel)
    change = _waiting(TimerClient.change)
    reschedule = _waiting(TimerClient.reschedule)
    fire = _waiting(TimerClient.fire)
    retry = _waiting(TimerClient.retry)
    list = _waiting(TimerClient.list)
    page = _waiting(TimerClient.page)
    act = _waiting(TimerClient.act)
    stats = _waiting(TimerClient.stats)
    counts = _waiting(TimerClient.counts)
    retrying = _waiting(TimerClient.retrying)
    fleet = _waiting(TimerClient.fleet)
    prefixes = _waiting(TimerClient.prefixes)
    pods = _waiting(TimerClient.pods)
    owner = _waiting(TimerClient.owner)
    forget = _waiting(TimerClient.forget)
    acknowledge_losses = _waiting(TimerClient.acknowledge_losses)
    pause = _waiting(TimerClient.pause)
    resume = _waiting(TimerClient.resume)

    def batch(self, news: Iterable[Wish], *, traceparent: str | None = None) -> Results:
        # Read here: a generator of the caller may make calls of its own, which the loop's thread refuses.
        return _on_the_loop(self._here().batch(wished(news), traceparent=traceparent))

    batch.__doc__ = TimerClient.batch.__doc__

    def iterate(self, **wanted: Unpack[FilterFields]) -> Iterator[Timer]:
        page = self.list(**wanted)
        yield from page.items
        while page.next_cursor is not None:
            page = self.list(cursor=page.next_cursor, **wanted)
            yield from page.items

    def events(self, prefix: str | None = None) -> Iterator[Event]:
        events = self._here().events(prefix)
        while (event := _on_the_loop(_next(events))) is not None:
            yield event

    def _here(self) -> TimerClient:
        """The client of this process."""
        pid = os.getpid()
        return self._made.get(pid) or self._made.setdefault(pid, self._make())
