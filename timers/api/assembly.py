"""Owns which calls an API has, all from the table of operations and over one pod's parts, and which of them a probe
port has."""

from collections.abc import Sequence

from aiohttp import web

from timers.api.auth import as_stranger
from timers.api.docs import DocsRoutes
from timers.api.health import HealthRoutes
from timers.api.many import ManyRoutes
from timers.api.operating import OperatingRoutes
from timers.api.operations import route
from timers.api.problems import answer_problems
from timers.api.routes import TimerRoutes
from timers.api.stream import EventRoutes
from timers.api.tracing import follow
from timers.client import TimerClient
from timers.engine.worker import Worker
from timers.metrics import Metrics


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
