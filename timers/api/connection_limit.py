"""Owns a client's connection: how many an API holds, how long one may take to send a request or to accept the answer,
and the answer to what is not HTTP. aiohttp limits neither number nor time."""

import asyncio
import resource
from typing import Any, Final, cast

from aiohttp import web

from timers.api.problems import CONTENT_TYPE, RETRY_AFTER_SECONDS, of_status
from timers.api.tracing import REQUEST_ID, new_request
from timers.logs import get_logger

CONNECTION_LIMIT: Final = 4096
"""The number of connections that a pod holds at a time. An idle one costs about 30 KB."""

OTHER_FILES: Final = 256
"""File descriptors left for Redis, logs and whatever processors open; half of all if there are few."""

IDLE_SECONDS: Final = 20.0
"""How long a connection may stay open without a complete request head: a new one, one between two requests, or one that
sends slowly."""

TAKE_SECONDS: Final = 60.0
"""How long a client may take to accept its answer."""

SHORT_BYTES: Final = 16 * 1024
"""What a connection's buffer holds beyond the system's own buffer. Writing no more than that never waits."""

FAREWELL_SECONDS: Final = 1.0
"""How long a refused connection has to read the reason. If it were closed at once, it would be reset before that."""

_log = get_logger("timers.api")


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
        if soft == resource.RLIM_INFINITY:
            return cls(CONNECTION_LIMIT)
        return cls(min(CONNECTION_LIMIT, max(soft - OTHER_FILES, soft // 2)))


def _refuse(transport: asyncio.Transport) -> None:
    """Answer 503 and hang up. Whatever the client sends is ignored."""
    transport.set_protocol(asyncio.Protocol())
    transport.write(_full())
    transport.write_eof()
    asyncio.get_running_loop().call_later(FAREWELL_SECONDS, transport.abort)


def _full() -> bytes:
    told = of_status(503, "this pod has as many connections as it takes; try again soon").text
    body = (told or "").encode()
    head = (
        f"HTTP/1.1 503 Service Unavailable\r\nContent-Type: {CONTENT_TYPE}\r\nRetry-After: {RETRY_AFTER_SECONDS}\r\n"
        f"Connection: close\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


class Connection(web.RequestHandler):
    """A client's connection. It counts against the limit, and is closed when the client takes too long. A request that
    is not HTTP gets an answer in the same form as all others."""

    def __init__(self, manager: web.Server, *, limit: ConnectionLimit, **options: Any) -> None:
        super().__init__(manager, keepalive_timeout=limit.idle_seconds, **options)
        self._limit = limit

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio. A connection beyond the limit never becomes a connection of the server."""
        if self._limit.inside >= self._limit.limit:
            _refuse(cast("asyncio.Transport", transport))
            return
        self._limit.inside += 1
        super().connection_made(transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        """See asyncio."""
        self._limit.inside -= 1
        super().connection_lost(exc)

    def handle_error(
        self, request: web.BaseRequest, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> web.StreamResponse:
        """See aiohttp. The answer to a request that reached no handler."""
        with new_request() as request_id:
            _log.info("request cannot be read", status=status, reason=message or repr(exc))
            response = of_status(status, message or "the request is not valid HTTP")
        response.headers[REQUEST_ID] = request_id
        response.force_close()
        return response

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
