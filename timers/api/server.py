"""Owns listening: the application with its routes, and the address."""

import asyncio
import errno
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Any, Final, Self, cast

from aiohttp import web
from aiohttp.typedefs import Middleware

from timers.api.auth import AUTH, Auth
from timers.api.conditions import refuse_unchecked
from timers.api.connection_limit import Connection, ConnectionLimit
from timers.api.deadlines import REQUEST_SECONDS, Deadlines
from timers.api.problems import answer_problems, of_status
from timers.api.tracing import REQUEST_ID, follow, new_request
from timers.errors import ConfigurationError, FieldError, shown

_Handle = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]

FINISH_SECONDS: Final = 5.0
"""How long a stop waits for requests in progress: as long as Redis may take to answer one."""


def _answer_expectations(handle: _Handle, request: web.BaseRequest) -> Awaitable[web.StreamResponse]:
    """Catch the errors of `Expect` headers here: aiohttp checks them before any middleware runs."""
    return _answer_expectation(handle, request) if "Expect" in request.headers else handle(request)


async def _answer_expectation(handle: _Handle, request: web.BaseRequest) -> web.StreamResponse:
    try:
        return await handle(request)
    except web.HTTPExpectationFailed as error:
        with new_request() as request_id:
            response = of_status(error.status, f"{shown(request.headers['Expect'])} is not met; only 100-continue is")
        response.headers[REQUEST_ID] = request_id
        return response


def application(
    routes: Iterable[web.AbstractRouteDef], auth: Auth, *around: Middleware, request_seconds: float = REQUEST_SECONDS
) -> web.Application:
    """An application with these routes, for callers that `auth` lets through. `around` are middlewares that see every
    error before it becomes a problem."""
    deadlines = Deadlines(request_seconds)
    inner = (deadlines.answer_in_time, auth.check, refuse_unchecked)
    app = web.Application(middlewares=[follow, answer_problems, *around, *inner])
    app[AUTH] = auth
    app.add_routes(routes)
    return app


class ApiServer:
    """An API that listens. `url` is its address for clients on this machine."""

    def __init__(self, runner: web.AppRunner, listener: asyncio.Server, host: str) -> None:
        self._runner, self._listener, self._host = runner, listener, host

    @classmethod
    async def start(
        cls,
        app: web.Application,
        host: str,
        port: int,
        *,
        setting: str = "TIMERS_HTTP_PORT",
        limit: ConnectionLimit | None = None,
    ) -> Self:
        """Start to listen. Raises ConfigurationError if the address cannot be used, and names the `setting` that the
        port comes from. Without a `limit` it takes as many connections as this process can hold."""
        # No access log: at a thousand requests a second it would be the busiest part of the process.
        runner = web.AppRunner(app, shutdown_timeout=FINISH_SECONDS)
        await runner.setup()
        server = cast("web.Server", runner.server)
        server.request_handler = partial(_answer_expectations, server.request_handler)
        connect = partial(
            Connection,
            server,
            limit=limit or ConnectionLimit.allowed_by_the_system(),
            loop=asyncio.get_running_loop(),
            access_log=None,  # this is how aiohttp turns it off
            auto_decompress=False,  # unpacking a small body could fill the memory
        )
        try:
            listener = await asyncio.get_running_loop().create_server(connect, host, port)
        except (OSError, UnicodeError) as error:
            await runner.cleanup()
            raise _unusable(host, setting, port, error) from None
        return cls(runner, listener, host)

    @property
    def url(self) -> str:
        """The address for clients on this machine, with the port that was really taken."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self._host, self._host)  # noqa: S104 (compared, not bound)
        return f"http://{f'[{host}]' if ':' in host else host}:{self._address()[1]}"

    def _address(self) -> tuple[Any, ...]:
        address: tuple[Any, ...] = self._listener.sockets[0].getsockname()
        return address

    async def stop(self) -> None:
        """Stop listening, finish the requests in progress, and close the connections."""
        self._listener.close()
        await self._runner.cleanup()


def _unusable(host: str, setting: str, port: int, error: Exception) -> ConfigurationError:
    """The error for an address that cannot be used. It says which of the two settings is wrong, if the system tells."""
    reason = getattr(error, "strerror", None) or str(error)
    if getattr(error, "errno", None) in (errno.EADDRINUSE, errno.EACCES):
        wrong = FieldError(setting, str(port), f"a port of {host} that is free to use ({reason})")
    else:
        wrong = FieldError("TIMERS_HTTP_HOST", shown(host), f"an address of this machine ({reason})")
    return ConfigurationError(str(wrong))
