"""Owns the applications: all calls over one pod's parts, those of a probe port, and what a pod answers before it has
reached Redis."""

from collections.abc import Sequence
from typing import Final

from aiohttp import web

from timers.api.answer import answer
from timers.api.auth import as_stranger
from timers.api.docs import DocsRoutes
from timers.api.health import HealthRoutes
from timers.api.many import ManyRoutes
from timers.api.operating import OperatingRoutes
from timers.api.operations import route
from timers.api.problem_types import HTTP_KINDS
from timers.api.problems import answer_problems, problem
from timers.api.routes import TimerRoutes
from timers.api.stream import EventRoutes
from timers.api.tracing import follow
from timers.client import TimerClient
from timers.engine.worker import Worker
from timers.errors import Unavailable
from timers.metrics import CONTENT_TYPE, Metrics


def all_routes(
    client: TimerClient, health: HealthRoutes, metrics: Metrics, worker: Worker | None
) -> Sequence[web.RouteDef]:
    """The routes to add to an application. Paths without braces come before paths with them."""
    return (
        *health.routes(),
        *DocsRoutes().routes(),
        *OperatingRoutes(client, metrics, worker).routes(),
        *EventRoutes(client).routes(),
        *ManyRoutes(client).routes(),
        *TimerRoutes(client).routes(),
    )


def probe_application(
    client: TimerClient, health: HealthRoutes, metrics: Metrics, worker: Worker | None
) -> web.Application:
    """An application with health, readiness and metrics, without keys, for kubelets and scrapers."""
    app = web.Application(middlewares=[follow, answer_problems, as_stranger])
    app.add_routes([*health.routes(), route("getMetrics", OperatingRoutes(client, metrics, worker).metrics)])
    return app


REASON: Final = "the pod is starting and has not reached Redis yet (TIMERS_REDIS_URL)"


def waiting_application() -> web.Application:
    """The application that serves while Redis is down at the start. Its metrics say just that."""
    app = web.Application(middlewares=[follow, answer_problems])
    app.router.add_get("/healthz", _healthz)
    app.router.add_get("/readyz", _readyz)
    app.router.add_get("/metrics", _metrics)
    app.router.add_route("*", "/{path:.*}", _refuse)
    return app


async def _healthz(_request: web.Request) -> web.Response:
    return answer({"status": "ok"})


async def _readyz(_request: web.Request) -> web.Response:
    return problem(HTTP_KINDS[503], REASON, ready=False, redis=REASON, warnings=[], problems=[REASON])


async def _metrics(_request: web.Request) -> web.Response:
    text = Metrics().render(None, None, losses=0, dropped=0)
    return web.Response(body=text, headers={"Content-Type": CONTENT_TYPE})


async def _refuse(_request: web.Request) -> web.Response:
    raise Unavailable(REASON, nothing_done=True)
