"""Owns the other side of webhooks: receivers on loopback that answer as they are told, or do not."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from multidict import CIMultiDictProxy

from timers.processor import Processor
from timers.settings import Settings

LOOPBACK = "127.0.0.0/8"


@dataclass(frozen=True, slots=True)
class Received:
    """A request that arrived whole."""

    method: str
    path: str
    headers: CIMultiDictProxy[str]
    body: bytes


@dataclass(slots=True)
class Receiver:
    """An HTTP server. `answers` are given in their order, the last one for good; without any, 200 and no body."""

    url: str = ""
    answers: list[web.Response] = field(default_factory=list)
    received: list[Received] = field(default_factory=list)

    async def handle(self, request: web.Request) -> web.Response:
        body = await request.read()
        self.received.append(Received(request.method, request.path_qs, request.headers, body))
        given = self.answers.pop(0) if len(self.answers) > 1 else next(iter(self.answers), web.Response())
        # A response object can be sent once.
        return web.Response(status=given.status, reason=given.reason, body=given.body, headers=given.headers)

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])


@asynccontextmanager
async def receiving(
    *answers: web.Response, host: str = "127.0.0.1", tls: ssl.SSLContext | None = None
) -> AsyncIterator[Receiver]:
    """A receiver for as long as the context lasts."""
    receiver = Receiver(answers=list(answers))
    runner = web.ServerRunner(web.Server(receiver.handle))  # type: ignore[arg-type]
    await runner.setup()
    try:
        site = web.TCPSite(runner, host, 0, ssl_context=tls)
        await site.start()
        receiver.url = f"http://{host}:{runner.addresses[0][1]}"
        yield receiver
    finally:
        await runner.cleanup()


Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def speaking(handler: Handler) -> AsyncIterator[str]:
    """The URL of a server that says what it likes after a request's head. It ends when its connection does."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            await handler(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


def settings(**given: Any) -> Settings:
    """Settings with which loopback may be called."""
    return Settings(**{"webhook_allow": LOOPBACK, **given})


@asynccontextmanager
async def opened(processor: Processor) -> AsyncIterator[Any]:
    """What the processor's lifespan gives."""
    assert processor.lifespan is not None
    async with processor.lifespan() as state:
        yield state


async def hang(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
    """Answers nothing until the other side has had enough."""
    await reader.read()
