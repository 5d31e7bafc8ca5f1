"""A subscriber for tests: it records what it hears, in order, and can wait for more."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from operator import eq
from typing import Any, Final

from tests.waiting import DEADLINE_SECONDS
from timers.store import keys
from timers.store.notifications import Notification, listen, parts
from timers.store.servers.connections import Connections
from timers.store.store import Store

SUBSCRIBED: Final = ("subscribed",)
"""A confirmation, without its time."""


class Heard:
    """A sink that records what it gets."""

    def __init__(self) -> None:
        self.all: list[Notification] = []
        self._more = asyncio.Event()

    def __call__(self, what: str, *said: object) -> None:
        self.all.append(SUBSCRIBED if what == "subscribed" else (what, *said))
        self._more.set()

    async def until(self, wanted: Callable[[Notification], bool], what: str) -> None:
        """Wait until something wanted has been heard."""
        try:
            async with asyncio.timeout(DEADLINE_SECONDS):
                while not any(map(wanted, self.all)):
                    self._more.clear()
                    await self._more.wait()
        except TimeoutError:
            raise AssertionError(f"{what} was not heard among {self.all}") from None

    async def expect(self, *wanted: Notification) -> None:
        """Wait until each of these has been heard."""
        for one in wanted:
            await self.until(partial(eq, one), str(one))


@asynccontextmanager
async def listening(connections: Connections) -> AsyncIterator[tuple[Heard, asyncio.Task[None]]]:
    """A confirmed subscription. Its stream ends with the context, unless the test ends it earlier."""
    heard, (whole,) = Heard(), parts(connections, 1)
    stream = asyncio.create_task(listen(whole, heard))
    try:
        await heard.expect(SUBSCRIBED)
        yield heard, stream
    finally:
        stream.cancel()
        await asyncio.gather(stream, return_exceptions=True)


@asynccontextmanager
async def wakes(store: Store, root: str = keys.root(0)) -> AsyncIterator[Callable[[], Any]]:
    """Returns a function that returns the messages published so far on the wake channel; where each shard has its own,
    and the pods have one, on that of `root`."""
    await store.connections.refresh()
    is_own, redis = store.connections.is_spread, store.connections.node_of(root).commands
    channel = f"{root}{keys.OWN_WAKE}" if is_own else keys.wake_channel(store.connections.db)
    async with redis.pubsub() as listener:

        async def next_message() -> Any:
            message = await listener.get_message(timeout=DEADLINE_SECONDS)
            assert message is not None
            return message["data"]

        async def heard() -> list[str]:
            await redis.execute_command("SPUBLISH" if is_own else "PUBLISH", channel, "end")  # type: ignore[no-untyped-call]
            found: list[str] = []
            while (data := await next_message()) != b"end":
                found.append(data.decode())
            return found

        await (listener.ssubscribe if is_own else listener.subscribe)(channel)
        await next_message()  # the confirmation
        yield heard
