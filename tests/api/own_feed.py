"""Changes that a test makes up, as a client's listeners hear them."""

import asyncio
from collections.abc import Callable

from timers.client import TimerClient
from timers.client.feed import Feed
from timers.store.queries import Change, Queries


class MadeUp(Queries):
    """A subscription that stands from the first listener on; the test makes the changes: `told(change)`."""

    def __init__(self) -> None:
        self.told: Callable[[Change | None], None] = lambda _: None

    async def changes(self, sink: Callable[[Change | None], None]) -> None:
        self.told = sink
        sink(None)
        await asyncio.Event().wait()


class OwnFeed(TimerClient):
    """A client whose feed is the test's."""

    def __init__(self, feed: Feed) -> None:
        super().__init__()
        self._own = feed

    async def feed(self) -> Feed:
        return self._own
