"""Owns the client for code without an event loop: Flask, Django, scripts. A TimerClient in a thread does the work, so
the two cannot differ."""

import asyncio
import os
import selectors
import sys
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

from timers.client.actions import Counts
from timers.client.answers import Results
from timers.client.client import TimerClient
from timers.client.feed import Event
from timers.client.fleet import PrefixView, Stats
from timers.core.calls import BlockingTimers
from timers.core.keywords import Action, ChangeFields, Delay, FilterFields, NewTimerFields, Time
from timers.core.model import Timer
from timers.core.spec import NewTimer, TimerChange
from timers.store.filters import Filter
from timers.store.listing import LIST_LIMIT, Page
from timers.store.membership import Member

T = TypeVar("T")


class BlockingTimerClient(BlockingTimers):
    """Timers of one db. Methods and errors are those of TimerClient; each method waits for its result.

    Safe to share among threads. After a fork the child gets its own loop and connections. Close it, or use it as a
    context manager; whatever is left open ends with the process. Do not use it on an event loop, which it would block.
    """

    def __init__(self, url: str | None = None, *, edit_lock_ms: int = 0) -> None:
        """As TimerClient's."""
        self._make = partial(TimerClient, url, edit_lock_ms=edit_lock_ms)
        self._made: dict[int, TimerClient] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections of this process. A later call opens them again."""
        client = self._made.pop(os.getpid(), None)
        if client is not None:
            _on_the_loop(client.close())

    def _create(self, prefix: str, id: str | None, fields: Mapping[str, Any]) -> Timer:
        return self._wait(lambda client: client.create(prefix, id, **fields))

    def batch(self, news: Sequence[NewTimer | NewTimerFields], *, traceparent: str | None = None) -> Results:
        """As TimerClient.batch."""
        return self._wait(lambda client: client.batch(news, traceparent=traceparent))

    def get(self, prefix: str, id: str) -> Timer:
        """As TimerClient.get."""
        return self._wait(lambda client: client.get(prefix, id))

    def cancel(self, prefix: str, id: str, *, version: int | None = None, purge: bool = False) -> Timer:
        """As TimerClient.cancel."""
        return self._wait(lambda client: client.cancel(prefix, id, version=version, purge=purge))

    def change(
        self,
        prefix: str,
        id: str,
        change: TimerChange | None = None,
        *,
        version: int | None = None,
        **fields: Unpack[ChangeFields],
    ) -> Timer:
        """As TimerClient.change."""
        return self._wait(lambda client: client.change(prefix, id, change, version=version, **fields))

    def reschedule(
        self,
        prefix: str,
        id: str,
        *,
        delay: Delay | None = None,
        due_at: Time | None = None,
        version: int | None = None,
    ) -> Timer:
        """As TimerClient.reschedule."""
        return self._wait(lambda client: client.reschedule(prefix, id, delay=delay, due_at=due_at, version=version))

    def fire(self, prefix: str, id: str) -> Timer:
        """As TimerClient.fire."""
        return self._wait(lambda client: client.fire(prefix, id))

    def retry(self, prefix: str, id: str) -> Timer:
        """As TimerClient.retry."""
        return self._wait(lambda client: client.retry(prefix, id))

    def list(self, *, limit: int = LIST_LIMIT, cursor: str | None = None, **wanted: Unpack[FilterFields]) -> Page:
        """As TimerClient.list."""
        return self._wait(lambda client: client.list(limit=limit, cursor=cursor, **wanted))

    def iterate(self, **wanted: Unpack[FilterFields]) -> Iterator[Timer]:
        """As TimerClient.iterate."""
        page = self.list(**wanted)
        yield from page.items
        while page.next_cursor is not None:
            page = self.list(cursor=page.next_cursor, **wanted)
            yield from page.items

    def act(
        self,
        action: Action,
        filter: Filter | FilterFields,  # noqa: A002
        *,
        dry_run: bool = False,
        cursor: str | None = None,
        delay: Delay | None = None,
        due_at: Time | None = None,
        changes: ChangeFields | None = None,
    ) -> Counts:
        """As TimerClient.act."""
        due: Any = {"delay": delay, "due_at": due_at}
        return self._wait(
            lambda client: client.act(action, filter, dry_run=dry_run, cursor=cursor, changes=changes, **due)
        )

    def stats(self, prefix: str | None = None) -> Stats:
        """As TimerClient.stats."""
        return self._wait(lambda client: client.stats(prefix))

    def prefixes(self, prefix: str | None = None) -> Sequence[PrefixView]:
        """As TimerClient.prefixes."""
        return self._wait(lambda client: client.prefixes(prefix))

    def pods(self) -> Sequence[Member]:
        """As TimerClient.pods."""
        return self._wait(lambda client: client.pods())

    def owner(self, prefix: str) -> str | None:
        """As TimerClient.owner."""
        return self._wait(lambda client: client.owner(prefix))

    def forget(self, prefix: str) -> None:
        """As TimerClient.forget."""
        self._wait(lambda client: client.forget(prefix))

    def pause(self, prefix: str) -> bool:
        """As TimerClient.pause."""
        return self._wait(lambda client: client.pause(prefix))

    def resume(self, prefix: str) -> bool:
        """As TimerClient.resume."""
        return self._wait(lambda client: client.resume(prefix))

    def events(self, prefix: str | None = None) -> Iterator[Event]:
        """As TimerClient.events."""
        events = self._here().events(prefix)
        while (event := _on_the_loop(_next(events))) is not None:
            yield event

    def _wait(self, call: Callable[[TimerClient], Coroutine[Any, Any, T]]) -> T:
        return _on_the_loop(call(self._here()))

    def _here(self) -> TimerClient:
        """The client of this process."""
        pid = os.getpid()
        return self._made.get(pid) or self._made.setdefault(pid, self._make())


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


async def _next(events: AsyncIterator[Event]) -> Event | None:
    return await anext(events, None)


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
