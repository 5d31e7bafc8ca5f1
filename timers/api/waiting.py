"""Owns what a pod answers before it has reached Redis: it lives, it is not ready, and everything else has to wait."""

from typing import Final

from aiohttp import web

from timers.api.answer import answer
from timers.api.problems import HTTP_KINDS, answer_problems, problem
from timers.api.tracing import follow
from timers.errors import Unavailable

REASON: Final = "the pod starts and has not reached Redis yet (TIMERS_REDIS_URL)"


def waiting_application() -> web.Application:
    """The application that serves while Redis is away at the start."""
    app = web.Application(middlewares=[follow, answer_problems])
    app.router.add_get("/healthz", _healthz)
    app.router.add_get("/readyz", _readyz)
    app.router.add_route("*", "/{path:.*}", _refuse)
    return app


async def _healthz(_request: web.Request) -> web.Response:
    return answer({"status": "ok"})


async def _readyz(_request: web.Request) -> web.Response:
    return problem(HTTP_KINDS[503], REASON, ready=False, redis=REASON, warnings=[], problems=[REASON])


async def _refuse(_request: web.Request) -> web.Response:
    raise Unavailable(REASON, nothing_done=True)
