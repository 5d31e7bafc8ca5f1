"""Owns following the timers' life: one subscription of a process for all who listen, none while nobody does.

Changes are published while somebody listens and are not kept. What a listener may have missed it is told: `GAP` for a
broken subscription, `Dropped` for what came faster than it was taken.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any, Final

from timers.core.answers import ChangeAnswer
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
    """So many changes came faster than they were taken, and are lost to this listener. None where it wants only some:
    nobody has looked which of them those were."""

    count: int | None


OPEN: Final = Open()
GAP: Final = Gap()
Event = Change | Open | Gap | Dropped

Wants = Callable[[Change], bool]


def change_json(change: Change) -> ChangeAnswer:
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
            return "change", {**change_json(event)}
        case Dropped(count):
            return "dropped", {"count": count}
        case Gap():
            return "gap", {}
    return "open", {}


class Listener:
    """One who listens: what waits for it, and since when it has lost what came. `Feed.join` makes one."""

    def __init__(self, feed: "Feed", wants: Wants | None) -> None:
        self._feed, self._wants = feed, wants
        self._waiting: deque[Event] = deque()
        self._lost_from: int | None = None
        self._ended = False
        self._opened = False
        self._something = asyncio.Event()

    def open(self) -> None:
        """The subscription stands: for the first time, or again."""
        event = GAP if self._opened else OPEN
        self._opened = True
        if not self._waiting or self._waiting[-1] != event:
            self._waiting.append(event)
            self._something.set()

    def offer(self, change: Change) -> bool:
        """Hand a change over; never waits. False where so many wait that it has no room."""
        if self._wants is not None and not self._wants(change):
            return True
        if len(self._waiting) >= QUEUE_LIMIT:
            return False
        self._waiting.append(change)
        self._something.set()
        return True

    def fall_behind(self, lost_from: int) -> None:
        """Changes are lost from this one on until all that waits is taken: one count tells of the whole hole."""
        self._lost_from = lost_from

    def end(self) -> None:
        """No more comes."""
        self._ended = True
        self._something.set()

    async def next(self) -> Event | None:
        """The next event, None at the end. May be cancelled without loss."""
        while not self._waiting and self._lost_from is None and not self._ended:
            self._something.clear()
            await self._something.wait()
        if self._waiting:
            return self._waiting.popleft()
        if self._lost_from is None:
            return None
        lost = self._feed.catch_up(self) - self._lost_from
        self._lost_from = None
        return Dropped(lost if self._wants is None else None)

    def waiting(self, most: int) -> list[Event]:
        """What could be taken without waiting, at most so many."""
        return [self._waiting.popleft() for _ in range(min(most, len(self._waiting)))]


class Feed:
    """The changes of one db."""

    def __init__(self, queries: Queries) -> None:
        self._queries = queries
        self._listeners: set[Listener] = set()
        self._keeping_up: set[Listener] = set()
        self._changes = 0
        self.dropped = 0
        """Changes that listeners have lost because they took them too slowly, each counted for each of them."""
        self._subscribing: asyncio.Task[None] | None = None
        self._stands = False
        self._closed = False

    def join(self, wants: Wants | None = None) -> Listener:
        """Listen from now on, to the changes that are wanted. `OPEN` says that the subscription stands. The listener
        must `leave`."""
        listener = Listener(self, wants)
        if self._closed:
            listener.end()
            return listener
        self._listeners.add(listener)
        self._keeping_up.add(listener)
        if self._subscribing is None:
            self._subscribing = asyncio.create_task(self._subscribe())
        if self._stands:
            listener.open()
        return listener

    async def leave(self, listener: Listener) -> None:
        """Listen no more; the last to leave ends the subscription, which costs the server work for every change."""
        self._listeners.discard(listener)
        self._keeping_up.discard(listener)
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

    def catch_up(self, listener: Listener) -> int:
        """Tell the listener of changes again; answers how many there have been."""
        self._keeping_up.add(listener)
        return self._changes

    def _take(self, change: Change | None) -> None:
        """Pass it on. A listener whose queue is full is told no more until it is empty: it costs nothing till then."""
        self._stands = True
        if change is None:
            for listener in self._listeners:
                listener.open()
            return
        full = [listener for listener in self._keeping_up if not listener.offer(change)]
        for listener in full:
            listener.fall_behind(self._changes)
        self._keeping_up.difference_update(full)
        self.dropped += len(self._listeners) - len(self._keeping_up)
        self._changes += 1
