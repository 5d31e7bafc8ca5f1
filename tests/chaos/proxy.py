"""A proxy in front of the server that makes trouble between it and its callers: it loses replies, holds bytes up,
delays them, and tells when a script is called."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, Self
from urllib.parse import unquote, urlsplit

from hiredis import Reader

from timers.store import scripts

_CHUNK: Final = 1 << 16
PATIENCE_S: Final = 2.0
"""How long to wait for a script to be called."""

Moment = Literal["before", "lost", "after"]
"""Of a call of a script: the server has not got it yet; it has carried it out, but its reply does not arrive; all is
done."""
MOMENTS: Final[tuple[Moment, ...]] = ("before", "lost", "after")


@dataclass(frozen=True, slots=True)
class _Order:
    moment: Moment
    at_least: int
    """The size of the reply in bytes."""
    done: asyncio.Future[int]


class Proxy:
    """Listens on a port of loopback and passes bytes on. Use as `async with Proxy(url) as proxy:`."""

    def __init__(self, url: str) -> None:
        """A proxy in front of the server at a `unix://` URL."""
        self._upstream = Path(unquote(urlsplit(url).path))
        self._wanted: dict[bytes, _Order] = {}
        self._listening: asyncio.Server | None = None
        self._links: set[asyncio.Task[None]] = set()
        self._open = asyncio.Event()
        self._open.set()
        self._held = 0
        self.delay_s = 0.0
        """How long each reply takes besides."""
        self.url = ""

    def lose_reply(self, script: str, *, at_least: int = 0, patience_s: float = PATIENCE_S) -> asyncio.Task[int]:
        """Loses the next reply to a script, of at least so many bytes, and closes its caller's connection. Returns the
        reply's size in bytes; 0 if none came in time."""
        return self.catch(script, "lost", at_least=at_least, patience_s=patience_s)

    def catch(
        self, script: str, moment: Moment, *, at_least: int = 0, patience_s: float = PATIENCE_S
    ) -> asyncio.Task[int]:
        """Stops at a moment of the next call of a script, and closes its caller's connection there unless it is over.
        Returns the size of the call, or of its reply, in bytes; 0 if none came in time."""
        digest, done = scripts.digest(script).encode(), asyncio.get_running_loop().create_future()
        self._wanted[digest] = _Order(moment, at_least, done)
        return asyncio.create_task(self._caught(digest, done, patience_s))

    async def _caught(self, digest: bytes, done: asyncio.Future[int], patience_s: float) -> int:
        with suppress(asyncio.CancelledError):  # who gives up learns whether a call was caught
            await asyncio.wait([done], timeout=patience_s)
        self._wanted.pop(digest, None)
        return done.result() if done.done() else 0

    @asynccontextmanager
    async def shut(self) -> AsyncIterator[None]:
        """Nothing passes for as long as the block lasts; all connections stay open, and what was sent arrives after
        it."""
        self._open.clear()
        self._held = 0
        try:
            yield
        finally:
            self._open.set()

    @property
    def held(self) -> int:
        """How many bytes, or new connections, have waited since it was last shut."""
        return self._held

    async def __aenter__(self) -> Self:
        self._listening = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.url = f"redis://127.0.0.1:{self._listening.sockets[0].getsockname()[1]}/0"
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._listening is not None:
            self._listening.close()
        for link in self._links:
            link.cancel()
        await asyncio.gather(*self._links, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._links.add(task)
        with suppress(asyncio.CancelledError):
            await self.opened(1)
            await _Link(self, reader, writer).serve(self._upstream)
        self._links.discard(task)

    async def opened(self, size: int) -> None:
        """Waits while it is shut, with so much to pass on."""
        if not self._open.is_set():
            self._held += size
            await self._open.wait()

    def taken(self, call: bytes, size: int, *moments: Moment) -> _Order | None:
        """Takes the order for one of these moments of a call, given by its first two words, if there is one."""
        for digest, order in self._wanted.items():
            if digest in call and order.moment in moments and size >= order.at_least:
                del self._wanted[digest]
                return order
        return None


class _Link:
    """A client's connection and the one to the server."""

    def __init__(self, proxy: Proxy, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._proxy, self._reader, self._writer = proxy, reader, writer
        self._requests, self._replies = Reader(), Reader()
        self._asked = deque[bytes]()

    async def serve(self, upstream: Path) -> None:
        """Pass bytes until either side closes or an order is carried out."""
        try:
            back, on = await asyncio.open_unix_connection(upstream)
        except OSError:
            self._writer.close()
            return
        ways = {asyncio.create_task(self._ask(on)), asyncio.create_task(self._answer(back))}
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            on.close()
            self._writer.close()
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)

    async def _ask(self, on: asyncio.StreamWriter) -> None:
        while data := await self._reader.read(_CHUNK):
            await self._proxy.opened(len(data))
            self._requests.feed(data)
            while (request := self._requests.gets()) is not False:
                call = b" ".join(request[:2])
                if order := self._proxy.taken(call, len(data), "before"):
                    order.done.set_result(len(data))
                    return
                self._asked.append(call)
            on.write(data)
            await on.drain()

    async def _answer(self, back: asyncio.StreamReader) -> None:
        while data := await back.read(_CHUNK):
            await self._proxy.opened(len(data))
            if self._proxy.delay_s:
                await asyncio.sleep(self._proxy.delay_s)
            self._replies.feed(data)
            over = None
            while (reply := self._replies.gets()) is not False:
                size = _size_of(reply)
                if self._asked and (order := self._proxy.taken(self._asked.popleft(), size, "lost", "after")):
                    if order.moment == "lost":
                        order.done.set_result(size)
                        return
                    over = order
            self._writer.write(data)
            await self._writer.drain()
            if over is not None:
                over.done.set_result(len(data))


def _size_of(reply: object) -> int:
    """The bytes that a reply says, without those that tell where each of its values ends."""
    if isinstance(reply, list):
        return 1 + sum(map(_size_of, reply))
    return len(reply) if isinstance(reply, bytes) else 1
