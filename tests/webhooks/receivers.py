"""Receivers of web hooks on loopback, which answer as the test says, or not at all."""

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
    """A request that arrived completely."""

    method: str
    path: str
    headers: CIMultiDictProxy[str]
    body: bytes


@dataclass(slots=True)
class Receiver:
    """An HTTP server. It gives `answers` in order, and repeats the last one; without any, 200 and no body."""

    url: str = ""
    answers: list[web.Response] = field(default_factory=list)
    received: list[Received] = field(default_factory=list)

    async def handle(self, request: web.Request) -> web.Response:
        body = await request.read()
        self.received.append(Received(request.method, request.path_qs, request.headers, body))
        given = self.answers.pop(0) if len(self.answers) > 1 else next(iter(self.answers), web.Response())
        # A response object can be sent only once.
        return web.Response(status=given.status, reason=given.reason, body=given.body, headers=given.headers)

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])


@asynccontextmanager
async def receiving(
    *answers: web.Response, host: str = "127.0.0.1", tls: ssl.SSLContext | None = None
) -> AsyncIterator[Receiver]:
    """Run a receiver."""
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
    """The URL of a server that calls `handler` after each request's head."""

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
    """Settings that allow calls to loopback."""
    return Settings(**{"webhook_allow": LOOPBACK, **given})


@asynccontextmanager
async def opened(processor: Processor) -> AsyncIterator[Any]:
    """The state from the processor's lifespan."""
    assert processor.lifespan is not None
    async with processor.lifespan() as state:
        yield state


async def hang(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
    """Answers nothing until the client gives up."""
    await reader.read()
