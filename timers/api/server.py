"""Owns the applications, the address that they listen on, and the connections of their clients."""

import asyncio
import errno
import re
import resource
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

from aiohttp import web
from aiohttp.http_exceptions import InvalidURLError
from aiohttp.typedefs import Middleware

from timers.api.answer import (
    CONTENT_TYPE,
    HTTP_PROBLEMS,
    RETRY_AFTER_SECONDS,
    answer,
    answer_problems,
    of_status,
    problem,
)
from timers.api.auth import AUTH, Auth, anonymous
from timers.api.health import HealthRoutes
from timers.api.openapi import DocsRoutes
from timers.api.operations import routes_of
from timers.api.requests import REQUEST_ID, REQUEST_SECONDS, Deadlines, follow, new_id
from timers.api.routes import ClientRoutes, refuse_unchecked
from timers.api.stream import EventRoutes
from timers.client import TimerClient
from timers.errors import ConfigurationError, FieldError, LedgerUnavailable, Unavailable, shown
from timers.logs import get_logger, request_id
from timers.metrics import CONTENT_TYPE as METRICS_TYPE
from timers.metrics import Metrics

if TYPE_CHECKING:
    from timers.ledger.database import Database

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

_QUOTED: Final = re.compile(r""":?\s+(?:(?:bytearray\()?b['"]|(?<=:\s)['"]|(?<=line\s)['"]).*""", re.DOTALL)
"""Where aiohttp begins to repeat a request: bytes, or text after a colon or the name of the status line."""

_log = get_logger("timers.api")


def connections_allowed() -> int:
    """CONNECTION_LIMIT, or less if the system grants too few file descriptors."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = CONNECTION_LIMIT + OTHER_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft == resource.RLIM_INFINITY:
        return CONNECTION_LIMIT
    return min(CONNECTION_LIMIT, max(soft - OTHER_FILES, soft // 2))


def _refuse(transport: asyncio.Transport) -> None:
    """Answer 503 and hang up. Whatever the client sends is ignored."""
    body = (of_status(503, "this pod has as many connections as it takes; try again soon").text or "").encode()
    head = (
        f"HTTP/1.1 503 Service Unavailable\r\nContent-Type: {CONTENT_TYPE}\r\nRetry-After: {RETRY_AFTER_SECONDS}\r\n"
        f"Connection: close\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    transport.set_protocol(asyncio.Protocol())
    transport.write(head.encode() + body)
    transport.write_eof()
    asyncio.get_running_loop().call_later(FAREWELL_SECONDS, transport.abort)


class Connection(web.RequestHandler):
    """A client's connection, one of at most `limit`. It is closed when the client takes too long. A request that is not
    HTTP gets an answer in the same form as all others."""

    def __init__(self, manager: web.Server, *, limit: int, **options: Any) -> None:
        super().__init__(manager, keepalive_timeout=IDLE_SECONDS, **options)
        self._server, self._limit = manager, limit

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio. A connection beyond the limit never becomes a connection of the server."""
        if len(self._server.connections) >= self._limit:
            _refuse(cast("asyncio.Transport", transport))
        else:
            super().connection_made(transport)

    def handle_error(
        self, request: web.BaseRequest, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> web.StreamResponse:
        """See aiohttp. The answer to a request that reached no handler."""
        made = new_id()
        request_id.set(made)  # the last of this connection, which has a context of its own
        said = _unquoted(message or "the request is not valid HTTP", exc)
        _log.info("request cannot be read", status=status, reason=said if message else repr(exc))
        response = of_status(status, said)
        response.headers[REQUEST_ID] = made
        response.force_close()
        return response

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        """See aiohttp. If the client does not accept the answer in time, its connection is dropped."""
        transport = self.transport
        if isinstance(resp, web.HTTPExpectationFailed):  # aiohttp looks at that header before any middleware runs
            said = f"{shown(request.headers['Expect'])} is not met; only 100-continue is"
            resp = self.handle_error(request, resp.status, message=said)
        if _fits_the_buffer(resp, transport):
            return await super().finish_response(request, resp, start_time)
        try:
            async with asyncio.timeout(TAKE_SECONDS):
                return await super().finish_response(request, resp, start_time)
        except TimeoutError:
            if transport is not None:
                transport.abort()  # close() would wait for the same client
            return resp, True


def _unquoted(message: str, error: BaseException | None) -> str:
    """What aiohttp says of a request that it cannot read, without the part of the request, which may be a key."""
    if isinstance(error, InvalidURLError):
        return "the address is not a valid one"
    return " ".join(_QUOTED.sub("", message).split())


def _fits_the_buffer(resp: web.StreamResponse, transport: asyncio.Transport | None) -> bool:
    """Whether the answer can be written without waiting: it is short, and nothing before it is still unsent."""
    if transport is None or not isinstance(resp, web.Response) or not isinstance(resp.body, bytes):
        return False
    return len(resp.body) < SHORT_BYTES and transport.get_write_buffer_size() == 0


FINISH_SECONDS: Final = 5.0
"""How long a stop waits for requests in progress: as long as Redis may take to answer one."""


def application(
    routes: Iterable[web.AbstractRouteDef],
    auth: Auth,
    *around: Middleware,
    request_seconds: float = REQUEST_SECONDS,
    ledger: "Database | None" = None,
) -> web.Application:
    """An application with these routes, for callers that `auth` lets through. `around` are middlewares that see every
    error before it becomes a problem."""
    deadlines = Deadlines(request_seconds, frozenset if ledger is None else ledger.requests_waiting)
    inner = (deadlines.answer_in_time, auth.check, refuse_unchecked)
    app = web.Application(middlewares=[follow, answer_problems, *around, *inner])
    app[AUTH] = auth
    app.add_routes(routes)
    return app


@asynccontextmanager
async def listening(
    app: web.Application, host: str, port: int, *, setting: str = "TIMERS_HTTP_PORT", limit: int | None = None
) -> AsyncIterator[str]:
    """Listen until the context ends, which finishes the requests in progress. Yields the address for clients on this
    machine, with the port that was really taken. Raises ConfigurationError if the address cannot be used, and names the
    `setting` that the port comes from. Without a `limit` it takes as many connections as this process can hold."""
    # No access log: at a thousand requests a second it would be the busiest part of the process.
    runner = web.AppRunner(app, shutdown_timeout=FINISH_SECONDS)
    await runner.setup()
    connect = partial(
        Connection,
        cast("web.Server", runner.server),
        limit=limit or connections_allowed(),
        loop=asyncio.get_running_loop(),
        access_log=None,  # this is how aiohttp turns it off
        auto_decompress=False,  # unpacking a small body could fill the memory
    )
    async with AsyncExitStack() as ends:
        ends.push_async_callback(runner.cleanup)
        try:
            listener = await asyncio.get_running_loop().create_server(connect, host, port)
        except (OSError, UnicodeError) as error:
            raise _unusable(host, setting, port, error) from None
        ends.callback(listener.close)
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 (compared, not bound)
        yield f"http://{f'[{host}]' if ':' in host else host}:{listener.sockets[0].getsockname()[1]}"


def _unusable(host: str, setting: str, port: int, error: Exception) -> ConfigurationError:
    """The error for an address that cannot be used. It says which of the two settings is wrong, if the system tells."""
    reason = getattr(error, "strerror", None) or str(error)
    if getattr(error, "errno", None) in (errno.EADDRINUSE, errno.EACCES):
        wrong = FieldError(setting, str(port), f"a port of {host} that is free to use ({reason})")
    else:
        wrong = FieldError("TIMERS_HTTP_HOST", shown(host), f"an address of this machine ({reason})")
    return ConfigurationError(str(wrong))


def all_routes(client: TimerClient, health: HealthRoutes) -> Sequence[web.RouteDef]:
    """The routes to add to an application."""
    handlers = (health, DocsRoutes(), EventRoutes(client), ClientRoutes(client))
    return [each for some in handlers for each in routes_of(some)]


def probe_application(health: HealthRoutes) -> web.Application:
    """An application with health, readiness and metrics, without keys, for kubelets and scrapers."""
    app = web.Application(middlewares=[follow, answer_problems, anonymous])
    app.add_routes(routes_of(health))
    return app


REASON: Final = "the pod is starting and has not reached Redis yet (TIMERS_REDIS_URL)"
HELD: Final = (
    "the pod is starting and may not use the ledger yet (TIMERS_LEDGER_URL): its database is away, or pods of another "
    "Redis db use it"
)


def waiting_application(for_ledger: Callable[[], bool]) -> web.Application:
    """The application that serves while Redis is down at the start, or what it waits for is the ledger."""
    app = web.Application(middlewares=[follow, answer_problems])
    app.router.add_route("*", "/{path:.*}", partial(_wait, for_ledger))
    return app


async def _wait(for_ledger: Callable[[], bool], request: web.Request) -> web.Response:
    reason, redis = (HELD, "ok") if for_ledger() else (REASON, REASON)
    match request.path:
        case "/healthz":
            return answer({"status": "ok"})
        case "/readyz":
            return problem(HTTP_PROBLEMS[503], reason, ready=False, redis=redis, warnings=[], problems=[reason])
        case "/metrics":
            servers = {"": for_ledger()}
            text = Metrics().render(None, None, ready=False, servers=servers, losses=0, dropped=0)
            return web.Response(body=text, headers={"Content-Type": METRICS_TYPE})
    raise LedgerUnavailable(f"{reason}; nothing was done") if for_ledger() else Unavailable(reason, nothing_done=True)
