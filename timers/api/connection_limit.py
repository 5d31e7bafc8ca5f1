"""Owns how many connections an API holds, and how long one may take to send a request or to accept the answer. aiohttp
limits neither."""

import asyncio
import resource
from typing import Any, Final, cast

from aiohttp import web

from timers.api.problems import CONTENT_TYPE, RETRY_AFTER_SECONDS, of_status

CONNECTION_LIMIT: Final = 4096
"""The number of connections that a pod holds at a time. An idle one costs about 30 KB."""

OTHER_FILES: Final = 256
"""File descriptors left for Redis, logs and whatever processors open."""

IDLE_SECONDS: Final = 20.0
"""How long a connection may stay open without a complete request head: a new one, one between two requests, or one that
sends slowly."""

TAKE_SECONDS: Final = 60.0
"""How long a client may take to accept its answer."""

SHORT_BYTES: Final = 16 * 1024
"""What a connection's buffer holds beyond the system's own buffer. Writing no more than that never waits."""

FAREWELL_SECONDS: Final = 1.0
"""How long a refused connection has to read the reason. If it were closed at once, it would be reset before that."""


class ConnectionLimit:
    """Counts the open connections, and says how long one may idle or take to accept an answer."""

    def __init__(self, limit: int, *, idle_seconds: float = IDLE_SECONDS, take_seconds: float = TAKE_SECONDS) -> None:
        self.limit, self.idle_seconds, self.take_seconds = limit, idle_seconds, take_seconds
        self.inside = 0

    @classmethod
    def allowed_by_the_system(cls) -> "ConnectionLimit":
        """A limit of CONNECTION_LIMIT, or less if the system grants too few file descriptors."""
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = CONNECTION_LIMIT + OTHER_FILES
        if soft != resource.RLIM_INFINITY and soft < wanted:
            soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        return cls(CONNECTION_LIMIT if soft == resource.RLIM_INFINITY else min(CONNECTION_LIMIT, soft - OTHER_FILES))


class RefusedConnection(asyncio.Protocol):
    """A connection beyond the limit. It gets an answer, and nothing is read from it."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Answer 503 and hang up."""
        stream = cast("asyncio.Transport", transport)
        stream.write(_full())
        stream.write_eof()
        asyncio.get_running_loop().call_later(FAREWELL_SECONDS, stream.abort)


def _full() -> bytes:
    told = of_status(503, "this pod has as many connections as it takes; try again soon").text
    body = (told or "").encode()
    head = (
        f"HTTP/1.1 503 Service Unavailable\r\nContent-Type: {CONTENT_TYPE}\r\nRetry-After: {RETRY_AFTER_SECONDS}\r\n"
        f"Connection: close\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


class BoundedConnection(web.RequestHandler):
    """A client's connection. It counts against the limit, and is closed when the client takes too long."""

    def __init__(self, manager: web.Server, *, limit: ConnectionLimit, **options: Any) -> None:
        super().__init__(manager, keepalive_timeout=limit.idle_seconds, **options)
        self._limit = limit

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio. A connection beyond the limit never becomes a connection of the server."""
        if self._limit.inside >= self._limit.limit:
            away = RefusedConnection()
            transport.set_protocol(away)
            away.connection_made(transport)
            return
        self._limit.inside += 1
        super().connection_made(transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        """See asyncio."""
        self._limit.inside -= 1
        super().connection_lost(exc)

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        """See aiohttp. If the client does not accept the answer in time, its connection is dropped."""
        transport = self.transport
        if _fits_the_buffer(resp, transport):
            return await super().finish_response(request, resp, start_time)
        try:
            async with asyncio.timeout(self._limit.take_seconds):
                return await super().finish_response(request, resp, start_time)
        except TimeoutError:
            if transport is not None:
                transport.abort()  # close() would wait for the same client
            return resp, True


def _fits_the_buffer(resp: web.StreamResponse, transport: asyncio.Transport | None) -> bool:
    """Whether the answer can be written without waiting: it is short, and nothing before it is still unsent."""
    if transport is None or not isinstance(resp, web.Response) or not isinstance(resp.body, bytes):
        return False
    return len(resp.body) < SHORT_BYTES and transport.get_write_buffer_size() == 0
