"""Feeds a client's listeners with changes that the test makes up."""

import asyncio
from collections.abc import Callable
from typing import Any

from timers.client import TimerClient
from timers.client.feed import Feed
from timers.store.notifications import Change


class MadeUp:
    """A subscription that is up from the first listener on. The test makes the changes: `told(change)`."""

    def __init__(self) -> None:
        self.told: Callable[[Change | None], None] = lambda _: None

    async def changes(self, sink: Callable[[Change | None], None]) -> None:
        self.told = sink
        sink(None)
        await asyncio.Event().wait()


class OwnFeed(TimerClient):
    """A client that gets its changes from the test."""

    def __init__(self, feed: Feed) -> None:
        super().__init__()
        self._feed = feed

    async def _open(self) -> Any:
        return None
