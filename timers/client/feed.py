"""Owns following changes of timers: all listeners of a process share one subscription, and without listeners there is
none.

Scripts publish changes while somebody listens. The newest are remembered here, for listeners whose connection broke. A
listener is told when it may have missed changes: `GAP` after a broken subscription, `Dropped` if they came faster than
it took them.
"""

import asyncio
import time
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from itertools import takewhile
from secrets import token_hex
from typing import Any, Final

from timers.core.answers import ChangeAnswer
from timers.core.durations import format_time
from timers.core.fields import is_own
from timers.errors import Unavailable
from timers.logs import get_logger
from timers.store.notifications import Change

QUEUE_LIMIT: Final = 1000
"""How many changes may wait for one listener; it loses those beyond that."""

LOG_LIMIT: Final = 5000
"""How many changes are remembered for listeners that come back."""

AGAIN_SECONDS: Final = 0.5
"""The pause between two tries to subscribe."""

_log = get_logger("timers.feed")


@dataclass(frozen=True, slots=True)
class Open:
    """From now on the listener hears every change. `place` is its position, to come back to."""

    place: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class Gap:
    """Changes until now may be lost: the subscription broke and is back, or the listener's position is not remembered.
    `place` as in Open."""

    place: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class Dropped:
    """This many changes came faster than they were taken, and are lost to this listener. None if it wants only some
    changes, because nobody has checked which of the lost ones those were."""

    count: int | None


OPEN: Final = Open()
GAP: Final = Gap()
Event = Change | Open | Gap | Dropped

Wants = Callable[[Change], bool]

Changes = Callable[[Callable[[Change | None], None]], Awaitable[None]]
"""Passes on every change, and None once the subscription is confirmed, until it breaks: `notifications.changes`."""


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


class _Log:
    """The newest changes since the subscription was confirmed, in order, by place."""

    def __init__(self) -> None:
        self._changes: OrderedDict[str, Change | None] = OrderedDict()
        self.begin()

    def begin(self) -> None:
        """Forget everything, because what came before may have a hole."""
        self._changes.clear()
        self._changes[token_hex(8)] = None

    def add(self, change: Change) -> None:
        """Remember a change, and forget the oldest where there are too many."""
        self._changes[change.place] = change
        if len(self._changes) > LOG_LIMIT:
            self._changes.popitem(last=False)

    @property
    def place(self) -> str:
        """The place of the newest change."""
        return next(reversed(self._changes))

    def since(self, place: str) -> list[Change] | None:
        """The changes after a place; None if the place is not remembered."""
        if place not in self._changes:
            return None
        newest_first = takewhile(lambda each: each[0] != place, reversed(self._changes.items()))
        return [change for _, change in newest_first if change is not None][::-1]


def _of_callers(change: Change) -> bool:
    return not is_own(change.prefix)


class FeedListener:
    """A listener: what waits for it, and from which change on it has lost some. `Feed.join` makes one."""

    def __init__(self, feed: "Feed", wants: Wants | None) -> None:
        self._feed, self._wants, self._wants_all = feed, wants or _of_callers, wants is None
        self._waiting: deque[Event] = deque()
        self._lost_from: int | None = None
        self._ended = False
        self._room = QUEUE_LIMIT
        self._something = asyncio.Event()
        self.missed = False
        """Whether changes may have been missed by the time the subscription is confirmed."""

    def open(self, place: str) -> None:
        """The subscription is confirmed, for the first time or again."""
        event = Gap(place) if self.missed else Open(place)
        self.missed = True
        if self._waiting and self._waiting[-1] == event:
            self._waiting.pop()
        self._waiting.append(event)
        self._something.set()

    def catch_up(self, place: str, missed: Iterable[Change]) -> None:
        """The subscription is confirmed and the listener is back: it first hears what it has missed."""
        self.open(place)
        self._waiting += [change for change in missed if self._wants(change)]
        self._room += len(self._waiting)

    def offer(self, change: Change) -> bool:
        """Hand a change over without waiting. False if the listener's queue is full."""
        if not self._wants(change):
            return True
        if len(self._waiting) >= self._room:
            return False
        self._waiting.append(change)
        self._something.set()
        return True

    def fall_behind(self, lost_from: int) -> None:
        """Changes are lost from this one on, until all that waits is taken. One count covers the whole hole."""
        self._lost_from = lost_from

    def end(self) -> None:
        """No more events will come."""
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
        lost = self._feed.keep_up(self) - self._lost_from
        self._lost_from = None
        return Dropped(lost if self._wants_all else None)

    @property
    def place(self) -> str | None:
        """The listener's place; None while something waits for it."""
        return None if self._waiting or self._lost_from is not None else self._feed.place

    def waiting(self, most: int) -> list[Event]:
        """Take what is there without waiting, at most `most` events."""
        return [self._waiting.popleft() for _ in range(min(most, len(self._waiting)))]


class Feed:
    """The changes of one db."""

    def __init__(self, changes: Changes, *, again_seconds: float = AGAIN_SECONDS) -> None:
        self._changes_of, self._again_seconds = changes, again_seconds
        self._listeners: set[FeedListener] = set()
        self._keeping_up: set[FeedListener] = set()
        self._changes = 0
        self.dropped = 0
        """Changes that listeners lost because they were slow. A change that two listeners lost counts twice."""
        self._subscribing: asyncio.Task[None] | None = None
        self._lingering: asyncio.Task[None] | None = None
        self._linger_until = 0.0
        self._log = _Log()
        self._stands = False
        self._closed = False

    @property
    def place(self) -> str:
        """The place of a listener that has taken all that waits for it."""
        return self._log.place

    def join(self, wants: Wants | None = None, after: str | None = None) -> FeedListener:
        """Listen to the changes that are wanted, by default to all but those of the service's own timers: from now on,
        or with a place from there on, as far as it is remembered. `OPEN` says that the subscription is confirmed, `GAP`
        that changes since the place may be lost. The listener must `leave`."""
        listener = FeedListener(self, wants)
        if self._closed:
            listener.end()
            return listener
        self._listeners.add(listener)
        self._keeping_up.add(listener)
        if self._lingering is not None:
            self._lingering.cancel()
        if self._subscribing is None:
            self._subscribing = asyncio.create_task(self._subscribe())
        missed = self._log.since(after) if after is not None and self._stands else None
        listener.missed = after is not None and missed is None
        if after is not None and missed is not None:
            listener.catch_up(after, missed)
        elif self._stands:
            listener.open(self.place)
        return listener

    async def leave(self, listener: FeedListener, linger_seconds: float = 0.0) -> None:
        """Stop listening. When the last listener leaves, the subscription ends, because it costs the server work for
        every change. It stays for the `linger_seconds` of each listener that has left, so that one that comes back by
        then has missed nothing."""
        self._listeners.discard(listener)
        self._keeping_up.discard(listener)
        self._linger_until = max(self._linger_until, time.monotonic() + linger_seconds)
        if self._listeners:
            return
        seconds = self._linger_until - time.monotonic()
        if seconds > 0 and not self._closed:
            self._lingering = asyncio.create_task(self._linger(seconds))
        else:
            await self._unsubscribe()

    async def _linger(self, seconds: float) -> None:
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
        self._closed = True
        for listener in self._listeners:
            listener.end()
        if self._lingering is not None:
            self._lingering.cancel()
            await asyncio.gather(self._lingering, return_exceptions=True)
        await self._unsubscribe()

    async def _subscribe(self) -> None:
        """Subscribe, and subscribe again whenever the subscription breaks, for whatever reason: nobody else would."""
        while True:
            try:
                await self._changes_of(self._take)
            except Unavailable:
                pass
            except Exception:  # noqa: BLE001 (listeners wait for the next subscription, whatever ended this one)
                _log.warning("changes are not heard; subscribing again", exc_info=True)
            self._stands = False
            await asyncio.sleep(self._again_seconds)

    async def _unsubscribe(self) -> None:
        subscribing, self._subscribing, self._stands = self._subscribing, None, False
        if subscribing is not None:
            subscribing.cancel()
            await asyncio.gather(subscribing, return_exceptions=True)

    def keep_up(self, listener: FeedListener) -> int:
        """Tell the listener of changes again; returns how many there have been of callers' timers."""
        self._keeping_up.add(listener)
        return self._changes

    def _take(self, change: Change | None) -> None:
        """Pass a change on. A listener whose queue is full is skipped until it has emptied it, and costs nothing
        meanwhile."""
        self._stands = True
        if change is None:
            self._log.begin()
            for listener in self._listeners:
                listener.open(self.place)
            return
        self._log.add(change)
        full = [listener for listener in self._keeping_up if not listener.offer(change)]
        for listener in full:
            listener.fall_behind(self._changes)
        self._keeping_up.difference_update(full)
        self.dropped += len(self._listeners) - len(self._keeping_up)
        self._changes += _of_callers(change)
