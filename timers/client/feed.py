"""Owns following changes of timers: all listeners of a process share one subscription, and without listeners there is
none.

Scripts publish changes while somebody listens. The newest are in one log, in which each listener has its own position:
a slow one costs nothing, and one whose connection broke comes back to its position. A listener is told when it may have
missed changes: `Gap` after a broken subscription, `Dropped` if they came faster than it took them.
"""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from secrets import token_hex
from typing import Any, Final

from timers.core.answers import ChangeAnswer
from timers.core.durations import format_time
from timers.core.fields import is_own
from timers.errors import Unavailable
from timers.logs import get_logger
from timers.store.notifications import Change

LOG_LIMIT: Final = 5000
"""How many changes are remembered. A listener that has more to take loses the oldest."""

AGAIN_SECONDS: Final = 0.5
"""The pause between two tries to subscribe."""

_log = get_logger("timers.feed")


@dataclass(frozen=True, slots=True)
class Open:
    """From now on the listener hears every change. `place` is its position, to come back to."""

    place: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class Gap:
    """Changes until now may be lost: the subscription broke and is back, or the listener's place is not remembered.
    `place` as in Open."""

    place: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class Dropped:
    """This many changes came faster than they were taken, and are lost to this listener. None if it wants only some
    changes, because nobody has checked which of the lost ones those were."""

    count: int | None


Event = Change | Open | Gap | Dropped

Wants = Callable[[Change], bool]

Changes = Callable[[Callable[[Change | None], None]], Awaitable[None]]
"""Passes on every change, and None once the subscription is confirmed, until it breaks: `notifications.changes`."""


def change_json(change: Change) -> ChangeAnswer:
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
    match event:
        case Change():
            return "change", {**change_json(event)}
        case Dropped(count):
            return "dropped", {"count": count}
        case Gap():
            return "gap", {}
    return "open", {}


def _of_callers(change: Change | None) -> bool:
    return change is not None and not is_own(change.prefix)


class FeedListener:
    """A listener: what it wants, and its position in the log. `Feed.join` makes one."""

    def __init__(self, feed: "Feed", wants: Wants | None) -> None:
        self._feed, self.wants, self._wants_all = feed, wants or _of_callers, wants is None
        self.move_to_end()
        self.first: Event | None = None
        """What it is told before anything in the log."""
        self.missed = False
        """Whether changes may have been missed by the time the subscription is confirmed."""
        self._something = asyncio.Event()

    def move_to_end(self) -> None:
        """Nothing in the log is for this listener."""
        self.at, self.number = self._feed.end, self._feed.number

    def wake(self) -> None:
        """There is something for it, or the end."""
        self._feed.idle.discard(self)
        self._something.set()

    async def next(self) -> Event | None:
        """The next event, None at the end. May be cancelled without loss."""
        while (event := self._take()) is None and not self._feed.closed:
            self._something.clear()
            self._feed.idle.add(self)
            try:
                await self._something.wait()
            finally:
                self._feed.idle.discard(self)
        return event

    def waiting(self, most: int) -> list[Event]:
        """Take what is there without waiting, at most `most` events."""
        return [event for _ in range(most) if (event := self._take()) is not None]

    def _take(self) -> Event | None:
        feed = self._feed
        if self.first is not None:
            event, self.first = self.first, None
            return event
        if self.at < feed.start:
            lost, is_new = feed.lost_to(self), self.at <= feed.confirmed < feed.start
            self.at, self.number = feed.start, feed.forgotten
            return self._confirmed(feed.before) if is_new else Dropped(lost if self._wants_all else None)
        while self.at < feed.end:
            place, change = feed.log[self.at - feed.start]
            self.at, self.number = self.at + 1, self.number + _of_callers(change)
            if change is None:
                return self._confirmed(place)
            if self.wants(change):
                return change
        return None

    def _confirmed(self, place: str) -> Event:
        missed, self.missed = self.missed, True
        return Gap(place) if missed else Open(place)

    @property
    def place(self) -> str | None:
        """The listener's place; None while something may wait for it."""
        return None if self.first is not None or self.at < self._feed.end else self._feed.place


class Feed:
    """The changes of one db."""

    def __init__(self, changes: Changes) -> None:
        self._changes = changes
        self.log = deque[tuple[str, Change | None]]()
        """The newest changes with their places, oldest first; None where a subscription was confirmed."""
        self.start = self.number = self.forgotten = self._dropped = 0
        """The position of the log's first entry. How many changes of callers' timers there have been, and how many of
        them are no longer in the log."""
        self.confirmed, self.before = -1, ""
        """The position of the newest confirmation, and the place of the newest change that is no longer in the log."""
        self.idle: set[FeedListener] = set()
        """The listeners that have taken everything and wait."""
        self._listeners: set[FeedListener] = set()
        self._subscribing: asyncio.Task[None] | None = None
        self._lingering: asyncio.Task[None] | None = None
        self._linger_until = 0.0
        self._stands = False
        self.closed = False

    @property
    def end(self) -> int:
        """The position behind the newest entry."""
        return self.start + len(self.log)

    @property
    def place(self) -> str:
        """The place of a listener that has taken all that waits for it."""
        return self.log[-1][0] if self.log else ""

    @property
    def dropped(self) -> int:
        """Changes that listeners lost because they were slow. A change that two listeners lost counts twice."""
        return self._dropped + sum(map(self._lost_now, self._listeners))

    def _lost_now(self, listener: FeedListener) -> int:
        return max(0, self.forgotten - listener.number)

    def lost_to(self, listener: FeedListener) -> int:
        """How many changes the listener has lost since it was last asked."""
        lost = self._lost_now(listener)
        self._dropped += lost
        return lost

    def join(self, wants: Wants | None = None, after: str | None = None) -> FeedListener:
        """Listen to the changes that are wanted, by default to all but those of the service's own timers: from now on,
        or with a place from there on, as far as it is remembered. `Open` says that the subscription is confirmed, `Gap`
        that changes since the place may be lost. The listener must `leave`."""
        listener = FeedListener(self, wants)
        if self.closed:
            return listener
        self._listeners.add(listener)
        if self._lingering is not None:
            self._lingering.cancel()
        if self._subscribing is None:
            self._subscribing = asyncio.create_task(self._subscribe())
        missed = None if after is None or not self._stands else self._since(after)
        listener.missed = after is not None and missed is None
        if self._stands:
            place = self.place if after is None or missed is None else after
            listener.first, listener.missed = Gap(place) if listener.missed else Open(place), True
        listener.at -= missed or 0
        listener.number -= sum(_of_callers(self.log[-back - 1][1]) for back in range(missed or 0))
        return listener

    def _since(self, place: str) -> int | None:
        """How many changes came after a place; None if it is not remembered, or came before the newest confirmation."""
        for back, (there, change) in enumerate(reversed(self.log)):
            if there == place:
                return back
            if change is None:
                return None
        return None

    async def leave(self, listener: FeedListener, linger_seconds: float = 0.0) -> None:
        """Stop listening. When the last listener leaves, the subscription ends, because it costs the server work for
        every change. It stays for the `linger_seconds` of each listener that has left, so that one that comes back by
        then has missed nothing."""
        if listener in self._listeners:
            self.lost_to(listener)
            self._listeners.remove(listener)
        self._linger_until = max(self._linger_until, time.monotonic() + linger_seconds)
        if self._listeners:
            return
        seconds = self._linger_until - time.monotonic()
        if seconds > 0 and not self.closed:
            self._lingering = asyncio.create_task(self._close_later(seconds))
        else:
            await self._unsubscribe()

    async def _close_later(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        self._lingering = None
        await self._unsubscribe()

    async def events(self, wants: Wants | None = None) -> AsyncIterator[Event]:
        """All events from now on; ends when the feed is closed."""
        listener = self.join(wants)
        try:
            while (event := await listener.next()) is not None:
                yield event
        finally:
            await self.leave(listener)

    async def close(self) -> None:
        """End the subscription, and each listener after what waits for it."""
        self.closed = True
        for listener in self._listeners:
            listener.wake()
        if self._lingering is not None:
            self._lingering.cancel()
            await asyncio.gather(self._lingering, return_exceptions=True)
        await self._unsubscribe()

    async def _subscribe(self) -> None:
        """Subscribe, and subscribe again whenever the subscription breaks, for whatever reason: nobody else would."""
        while True:
            try:
                await self._changes(self._take)
            except Unavailable:
                pass
            except Exception:  # noqa: BLE001 (listeners wait for the next subscription, whatever ended this one)
                _log.warning("changes are not heard; subscribing again", exc_info=True)
            self._stands = False
            await asyncio.sleep(AGAIN_SECONDS)

    async def _unsubscribe(self) -> None:
        subscribing, self._subscribing, self._stands = self._subscribing, None, False
        if subscribing is not None:
            subscribing.cancel()
            await asyncio.gather(subscribing, return_exceptions=True)

    def _take(self, change: Change | None) -> None:
        """Put a change into the log, and wake who waits for it."""
        self._stands = True
        if change is None:
            self.confirmed = self.end
        self.log.append((token_hex(8) if change is None else change.place, change))
        self.number += _of_callers(change)
        if len(self.log) > LOG_LIMIT:
            self.before, gone = self.log.popleft()
            self.start += 1
            self.forgotten += _of_callers(gone)
        for listener in tuple(self.idle):
            if change is None or listener.wants(change):
                listener.wake()
            else:
                listener.move_to_end()
