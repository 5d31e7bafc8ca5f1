"""A proxy in front of the server that loses replies: the server does what was asked, but the caller gets no answer."""

import asyncio
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import Final, Self
from urllib.parse import unquote, urlsplit

from hiredis import Reader

from timers.store import scripts

_CHUNK: Final = 1 << 16
_PATIENCE_S: Final = 2.0
"""How long to wait for a script to be called."""


class Proxy:
    """Listens on a port of loopback and passes bytes on. Use as `async with Proxy(url) as proxy:`."""

    def __init__(self, url: str) -> None:
        """A proxy in front of the server at a `unix://` URL."""
        self._upstream = Path(unquote(urlsplit(url).path))
        self._wanted: dict[bytes, tuple[asyncio.Future[int], int]] = {}
        self._listening: asyncio.Server | None = None
        self._links: set[asyncio.Task[None]] = set()
        self.url = ""

    def lose_reply(self, script: str, *, at_least: int = 0, patience_s: float = _PATIENCE_S) -> asyncio.Task[int]:
        """Loses the next reply to a script, of at least so many bytes, and closes its caller's connection. Returns the
        reply's size in bytes; 0 if none came in time."""
        digest, lost = scripts.digest(script).encode(), asyncio.get_running_loop().create_future()
        self._wanted[digest] = lost, at_least
        return asyncio.create_task(self._lost(digest, lost, patience_s))

    async def _lost(self, digest: bytes, lost: asyncio.Future[int], patience_s: float) -> int:
        try:
            async with asyncio.timeout(patience_s):
                return await lost
        except TimeoutError:
            return 0
        finally:
            self._wanted.pop(digest, None)

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
            await _Link(self, reader, writer).serve(self._upstream)
        self._links.discard(task)

    def losing(self, request: bytes, size: int) -> asyncio.Future[int] | None:
        """Takes the order to lose a reply of this size to this request, given by its first two words, if there is
        one."""
        for digest, (lost, at_least) in self._wanted.items():
            if digest in request and size >= at_least:
                del self._wanted[digest]
                return lost
        return None


class _Link:
    """A client's connection and the one to the server."""

    def __init__(self, proxy: Proxy, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._proxy, self._reader, self._writer = proxy, reader, writer
        self._requests, self._replies = Reader(), Reader()
        self._asked = deque[bytes]()
        self._size = 0

    async def serve(self, upstream: Path) -> None:
        """Pass bytes until either side closes or a reply is lost."""
        try:
            back, on = await asyncio.open_unix_connection(upstream)
        except OSError:
            self._writer.close()
            return
        ways = {asyncio.create_task(self._ask(on)), asyncio.create_task(self._answer(back))}
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            on.close()
            self._writer.close()

    async def _ask(self, on: asyncio.StreamWriter) -> None:
        while data := await self._reader.read(_CHUNK):
            self._requests.feed(data)
            while (request := self._requests.gets()) is not False:
                self._asked.append(b" ".join(request[:2]))
            on.write(data)
            await on.drain()

    async def _answer(self, back: asyncio.StreamReader) -> None:
        while data := await back.read(_CHUNK):
            self._replies.feed(data)
            self._size += len(data)
            while self._replies.gets() is not False:
                if self._asked and (losing := self._proxy.losing(self._asked.popleft(), self._size)):
                    losing.set_result(self._size)
                    return
                self._size = 0
            self._writer.write(data)
            await self._writer.drain()
