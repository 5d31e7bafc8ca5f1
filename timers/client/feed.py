"""Owns following the timers' life: one subscription of a process for all who listen, none while nobody does.

Changes are published while somebody listens and are not kept. What a listener may have missed it is told: `GAP` for a
broken subscription, `Dropped` for what came faster than it was taken.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any, Final

from timers.core.durations import format_time
from timers.errors import Unavailable
from timers.store.queries import Change, Queries

QUEUE_LIMIT: Final = 1000
"""Changes that wait for one listener; with more it loses some."""

AGAIN_SECONDS: Final = 0.5
"""Between two tries to subscribe."""


@dataclass(frozen=True, slots=True)
class Open:
    """From now on every change is heard."""


@dataclass(frozen=True, slots=True)
class Gap:
    """The subscription broke and is back: changes between may be lost."""


@dataclass(frozen=True, slots=True)
class Dropped:
    """So many changes came faster than they were taken, and are lost to this listener."""

    count: int


OPEN: Final = Open()
GAP: Final = Gap()
Event = Change | Open | Gap | Dropped

Wants = Callable[[Change], bool]


def change_json(change: Change) -> dict[str, Any]:
    """A change as the API shows it."""
    return {
        "prefix": change.prefix,
        "id": change.id,
        "status": change.status.value,
        "version": change.version,
        "attempt": change.attempt,
        "due_at": format_time(change.due_ms),
        "at": format_time(change.at_ms),
        "processor": change.processor,
        "cause": change.cause,
        "note": change.note,
    }


def event_json(event: Event) -> tuple[str, dict[str, Any]]:
    """An event's name and data as the API shows them."""
    match event:
        case Change():
            return "change", change_json(event)
        case Dropped(count):
            return "dropped", {"count": count}
        case Gap():
            return "gap", {}
    return "open", {}


class Listener:
    """One who listens. Iterate over it; leave it by closing the context of `Feed.listen`."""

    def __init__(self, wants: Wants | None) -> None:
        self._wants = wants
        self._waiting: deque[Event] = deque()
        self._dropped = 0
        self._ended = False
        self._opened = False
        self._something = asyncio.Event()

    def open(self) -> None:
        """The subscription stands: for the first time, or again."""
        self.offer(GAP if self._opened else OPEN)
        self._opened = True

    def offer(self, event: Event) -> None:
        """Hand an event over. Never waits: when the queue is full changes are dropped until all that is kept is taken,
        so that one count tells of the whole hole."""
        if isinstance(event, Change):
            if self._wants is not None and not self._wants(event):
                return
            if self._dropped or len(self._waiting) >= QUEUE_LIMIT:
                self._dropped += 1
                return
        elif self._waiting and self._waiting[-1] == event:
            return
        self._waiting.append(event)
        self._something.set()

    def end(self) -> None:
        """No more comes."""
        self._ended = True
        self._something.set()

    async def next(self) -> Event | None:
        """The next event, None at the end. May be cancelled without loss."""
        while not self._waiting and not self._dropped and not self._ended:
            self._something.clear()
            await self._something.wait()
        if self._waiting:
            return self._waiting.popleft()
        dropped, self._dropped = self._dropped, 0
        return Dropped(dropped) if dropped else None

    def waiting(self) -> list[Event]:
        """What could be taken without waiting."""
        events = list(self._waiting)
        self._waiting.clear()
        return events


class Feed:
    """The changes of one db."""

    def __init__(self, queries: Queries) -> None:
        self._queries = queries
        self._listeners: set[Listener] = set()
        self._subscribing: asyncio.Task[None] | None = None
        self._stands = False
        self._closed = False

    def join(self, wants: Wants | None = None) -> Listener:
        """Listen from now on, to the changes that are wanted. `OPEN` says that the subscription stands. The listener
        must `leave`."""
        listener = Listener(wants)
        if self._closed:
            listener.end()
            return listener
        self._listeners.add(listener)
        if self._subscribing is None:
            self._subscribing = asyncio.create_task(self._subscribe())
        if self._stands:
            listener.open()
        return listener

    async def leave(self, listener: Listener) -> None:
        """Listen no more; the last to leave ends the subscription, which costs the server work for every change."""
        self._listeners.discard(listener)
        if not self._listeners:
            await self._unsubscribe()

    async def events(self, wants: Wants | None = None) -> AsyncIterator[Event]:
        """What happens from now on; ends when the feed is closed."""
        listener = self.join(wants)
        try:
            while (event := await listener.next()) is not None:
                yield event
        finally:
            await self.leave(listener)

    async def close(self) -> None:
        """End all listeners after what they have waiting, and the subscription."""
        self._closed = True
        for listener in self._listeners:
            listener.end()
        await self._unsubscribe()

    async def _subscribe(self) -> None:
        """Subscribe, and again whenever it breaks."""
        while True:
            try:
                await self._queries.changes(self._take)
            except Unavailable:
                self._stands = False
                await asyncio.sleep(AGAIN_SECONDS)

    async def _unsubscribe(self) -> None:
        subscribing, self._subscribing, self._stands = self._subscribing, None, False
        if subscribing is not None:
            subscribing.cancel()
            await asyncio.gather(subscribing, return_exceptions=True)

    def _take(self, change: Change | None) -> None:
        self._stands = True
        for listener in self._listeners:
            if change is None:
                listener.open()
            else:
                listener.offer(change)
