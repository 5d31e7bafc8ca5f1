"""Owns the one table of calls: method, address, right, what goes in, what comes out.

Routes, rights and the OpenAPI document are all made from it, so that none of them can forget a call.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from aiohttp import web
from pydantic import BaseModel

from timers.api import parameters as given
from timers.api import schemas
from timers.api.tracing import Handler
from timers.client.actions import BulkAction
from timers.core.spec import NewTimer, PutTimer, TimerChange
from timers.store.listing import PageRequest

Right = Literal["read", "write", "operate"]

JSON: Final = "application/json"
MERGE_PATCH: Final = "application/merge-patch+json"
NDJSON: Final = "application/x-ndjson"
EVENTS: Final = "text/event-stream"
TEXT: Final = "text/plain"
HTML: Final = "text/html"
CSS: Final = "text/css"
JAVASCRIPT: Final = "text/javascript"

_ONE: Final = "/v1/timers/{prefix}/{id}"


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer of a call. `body` is its model, None where it is text of the media type; without a media type there is
    no content."""

    status: int
    description: str
    body: type[BaseModel] | None
    headers: tuple[str, ...] = ()
    media_type: str | None = JSON


@dataclass(frozen=True, slots=True)
class Operation:
    """One call. `right` is what a key must have for it, None where everybody may. `body` maps media types to models,
    None for text. `problems` are the types this call can answer beside those that every call of its kind can."""

    id: str
    method: str
    path: str
    right: Right | None
    tag: str
    summary: str
    answers: tuple[Answer, ...]
    parameters: tuple[given.Parameter, ...] = ()
    body: Mapping[str, type[BaseModel] | None] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    query: type[BaseModel] | None = None


_TAGGED: Final = ("ETag",)
_IDENTITY: Final = (given.PREFIX_IN_PATH, given.ID_IN_PATH)
_SAME_TIMER: Final = (Answer(200, "The timer.", schemas.TimerAnswer, _TAGGED),)

TIMER_OPERATIONS: Final = (
    Operation(
        "createTimer",
        "POST",
        "/v1/timers",
        "write",
        "timers",
        "Arm a timer",
        (
            Answer(201, "The new timer.", schemas.TimerAnswer, ("ETag", "Location")),
            Answer(200, "The timer that was kept or replaced.", schemas.TimerAnswer, ("ETag", "Location")),
        ),
        (given.TRACEPARENT,),
        {JSON: NewTimer},
        ("no-processor", "already-exists", "running", "edit-locked", "timer-not-found", "too-many-pending"),
    ),
    Operation(
        "putTimer",
        "PUT",
        _ONE,
        "write",
        "timers",
        "Arm a timer, or replace the one that is there",
        (
            Answer(201, "The new timer.", schemas.TimerAnswer, ("ETag", "Location")),
            Answer(200, "The timer that replaced another.", schemas.TimerAnswer, ("ETag", "Location")),
        ),
        (*_IDENTITY, given.TRACEPARENT),
        {JSON: PutTimer},
        ("no-processor", "running", "edit-locked", "timer-not-found", "too-many-pending"),
    ),
    Operation(
        "getTimer",
        "GET",
        _ONE,
        "read",
        "timers",
        "Read a timer",
        (*_SAME_TIMER, Answer(304, "The caller has this version already.", None, _TAGGED, None)),
        (*_IDENTITY, given.IF_NONE_MATCH),
        problems=("timer-not-found",),
    ),
    Operation(
        "changeTimer",
        "PATCH",
        _ONE,
        "write",
        "timers",
        "Change a scheduled timer",
        (Answer(200, "The changed timer.", schemas.TimerAnswer, _TAGGED),),
        (*_IDENTITY, given.IF_MATCH),
        {JSON: TimerChange, MERGE_PATCH: TimerChange},
        ("timer-not-found", "running", "not-scheduled", "edit-locked", "version-mismatch"),
    ),
    Operation(
        "cancelTimer",
        "DELETE",
        _ONE,
        "write",
        "timers",
        "Cancel a timer; with purge its record goes too",
        (Answer(200, "The cancelled timer.", schemas.TimerAnswer, _TAGGED),),
        (*_IDENTITY, given.IF_MATCH),
        query=schemas.CancelQuery,
        problems=("timer-not-found", "running", "not-scheduled", "edit-locked", "version-mismatch"),
    ),
    Operation(
        "retryTimer",
        "POST",
        _ONE + "/retry",
        "write",
        "timers",
        "Arm a failed, unhandled or cancelled timer again, now",
        (Answer(200, "The armed timer.", schemas.TimerAnswer, _TAGGED),),
        _IDENTITY,
        problems=("timer-not-found", "running", "not-scheduled"),
    ),
    Operation(
        "fireTimer",
        "POST",
        _ONE + "/fire",
        "write",
        "timers",
        "Make a scheduled timer due now",
        (Answer(200, "The timer, due now.", schemas.TimerAnswer, _TAGGED),),
        _IDENTITY,
        problems=("timer-not-found", "running", "not-scheduled"),
    ),
)

MANY_OPERATIONS: Final = (
    Operation(
        "listTimers",
        "GET",
        "/v1/timers",
        "read",
        "many timers",
        "List timers, page by page",
        (Answer(200, "A page.", schemas.PageAnswer),),
        query=PageRequest,
    ),
    Operation(
        "createTimers",
        "POST",
        "/v1/timers/batch",
        "write",
        "many timers",
        "Arm up to 1,000 timers; each has its own result",
        (Answer(200, "A result for each timer, in order.", schemas.BatchAnswer),),
        (given.TRACEPARENT,),
        {JSON: schemas.Batch, NDJSON: None},
        ("too-many-pending",),
    ),
    Operation(
        "actOnTimers",
        "POST",
        "/v1/timers/actions",
        "write",
        "many timers",
        "Cancel, retry, reschedule or purge all timers that pass a filter, about 1,000 a call",
        (Answer(200, "How many were found, done and refused.", schemas.ActionAnswer),),
        body={JSON: BulkAction},
    ),
    Operation(
        "streamEvents",
        "GET",
        "/v1/events",
        "read",
        "many timers",
        "Follow the timers' life as server-sent events",
        (
            Answer(
                200,
                "Events until one of the two sides closes: `open` once every change is heard, `change`, `gap` where "
                "some may be lost because Redis was away, `dropped` with the `count` of what came too fast to be read, "
                "which is null where a listener hears only some prefixes.",
                None,
                media_type=EVENTS,
            ),
        ),
        query=schemas.EventsQuery,
    ),
)

POD_OPERATIONS: Final = (
    Operation(
        "getStats",
        "GET",
        "/v1/stats",
        "read",
        "operations",
        "Counts, lateness, and whether notifications arrive",
        (Answer(200, "The state of the whole service.", schemas.StatsAnswer),),
    ),
    Operation(
        "listPrefixes",
        "GET",
        "/v1/prefixes",
        "read",
        "operations",
        "The prefixes that have timers or a processor",
        (Answer(200, "The prefixes.", schemas.PrefixesAnswer),),
    ),
    Operation(
        "pausePrefix",
        "POST",
        "/v1/prefixes/{prefix}/pause",
        "operate",
        "operations",
        "Start no more timers of a prefix",
        (Answer(200, "The prefix, paused.", schemas.PausedAnswer),),
        (given.PREFIX_IN_PATH,),
        problems=("timer-not-found",),
    ),
    Operation(
        "resumePrefix",
        "POST",
        "/v1/prefixes/{prefix}/resume",
        "operate",
        "operations",
        "Start timers of a prefix again",
        (Answer(200, "The prefix, no longer paused.", schemas.PausedAnswer),),
        (given.PREFIX_IN_PATH,),
        problems=("timer-not-found",),
    ),
    Operation(
        "forgetPrefix",
        "DELETE",
        "/v1/prefixes/{prefix}",
        "operate",
        "operations",
        "Take back the declaration of a prefix, once no live pod has its processor",
        (Answer(204, "Its timers are for the processor of a shorter prefix now, if there is one.", None, (), None),),
        (given.PREFIX_IN_PATH,),
        problems=("timer-not-found", "refused"),
    ),
    Operation(
        "listPods",
        "GET",
        "/v1/pods",
        "read",
        "operations",
        "The pods that are alive",
        (Answer(200, "The pods.", schemas.PodsAnswer),),
    ),
    Operation(
        "acknowledgeLosses",
        "POST",
        "/v1/losses/acknowledge",
        "operate",
        "operations",
        "End the warnings of lost data",
        (Answer(200, "What was lost.", schemas.LossesAnswer),),
    ),
    Operation(
        "getMetrics",
        "GET",
        "/metrics",
        "read",
        "operations",
        "Metrics for Prometheus",
        (Answer(200, "The exposition text.", None, media_type=TEXT),),
    ),
)

PROBE_OPERATIONS: Final = (
    Operation(
        "getHealth",
        "GET",
        "/healthz",
        None,
        "probes",
        "Whether the process lives",
        (Answer(200, "It lives.", schemas.HealthAnswer),),
    ),
    Operation(
        "getReadiness",
        "GET",
        "/readyz",
        None,
        "probes",
        "Whether the pod can do its work now",
        (Answer(200, "It can.", schemas.ReadyAnswer),),
        problems=("not-ready",),
    ),
    Operation(
        "getDocument",
        "GET",
        "/openapi.json",
        None,
        "probes",
        "This document",
        (Answer(200, "OpenAPI 3.1.", schemas.Document),),
    ),
    Operation(
        "getDocs",
        "GET",
        "/docs",
        None,
        "probes",
        "This document as a page",
        (Answer(200, "The page.", None, media_type=HTML),),
    ),
    Operation(
        "getDocsStyle",
        "GET",
        "/docs/swagger-ui.css",
        None,
        "probes",
        "The page's style",
        (Answer(200, "Swagger UI's.", None, media_type=CSS),),
    ),
    Operation(
        "getDocsProgram",
        "GET",
        "/docs/swagger-ui-bundle.js",
        None,
        "probes",
        "The page's program",
        (Answer(200, "Swagger UI's.", None, media_type=JAVASCRIPT),),
    ),
    Operation(
        "getDocsStart",
        "GET",
        "/docs/start.js",
        None,
        "probes",
        "What sets the page's program going",
        (Answer(200, "A call of the program.", None, media_type=JAVASCRIPT),),
    ),
)

DASHBOARD: Final = "dashboard"
"""The tag of calls that answer pages for people. A browser's session opens them as well as a key does."""

DASHBOARD_OPERATIONS: Final = (
    Operation(
        "getDashboard",
        "GET",
        "/",
        "read",
        DASHBOARD,
        "The dashboard",
        (
            Answer(200, "The first page.", None, media_type=HTML),
            Answer(303, "To the page for signing in, where a browser has not.", None, media_type=None),
        ),
    ),
)


def _page(operation_id: str, method: str, path: str, right: Right | None) -> Operation:
    return Operation(operation_id, method, f"/ui/{path}", right, DASHBOARD, "", ())


_SINGLE: Final = "timers/{prefix}/{id}"

PAGES: Final = (
    _page("asset", "GET", "static/{name}", None),
    _page("signInPage", "GET", "sign-in", None),
    _page("signIn", "POST", "sign-in", None),
    _page("signOut", "POST", "sign-out", None),
    _page("setReadOnly", "POST", "read-only", "read"),
    _page("timersPage", "GET", "timers", "read"),
    _page("newTimerPage", "GET", "new", "write"),
    _page("newTimer", "POST", "new", "write"),
    _page("timerPage", "GET", _SINGLE, "read"),
    _page("editPage", "GET", _SINGLE + "/edit", "write"),
    _page("editTimer", "POST", _SINGLE + "/edit", "write"),
    _page("actOnTimer", "POST", _SINGLE + "/{action}", "write"),
    _page("bulkPage", "GET", "bulk", "write"),
    _page("bulk", "POST", "bulk", "write"),
    _page("failedPage", "GET", "failed", "read"),
    _page("prefixesPage", "GET", "prefixes", "read"),
    _page("actOnPrefix", "POST", "prefixes/{prefix}/{action}", "operate"),
    _page("podsPage", "GET", "pods", "read"),
    _page("serverPage", "GET", "server", "read"),
    _page("acknowledge", "POST", "server/acknowledge", "operate"),
    _page("keysPage", "GET", "keys", "operate"),
    _page("makeKey", "POST", "keys", "operate"),
    _page("revokeKey", "POST", "keys/{key}/revoke", "operate"),
)
"""The pages behind the first one, for people alone: not in the document, but each has its right here."""

OPERATIONS: Final[Sequence[Operation]] = (
    *TIMER_OPERATIONS,
    *MANY_OPERATIONS,
    *POD_OPERATIONS,
    *PROBE_OPERATIONS,
    *DASHBOARD_OPERATIONS,
)
"""Every call, in the order of the document. A path without braces comes before one with them in an application."""

_BY_ID: Final = {operation.id: operation for operation in (*OPERATIONS, *PAGES)}
_BY_ADDRESS: Final = {(operation.method, operation.path): operation for operation in _BY_ID.values()}


def route(operation_id: str, handler: Handler) -> web.RouteDef:
    """The operation's route with its handler, to be added to an application."""
    operation = _BY_ID[operation_id]
    endless = any(answer.media_type == EVENTS for answer in operation.answers)
    options: dict[str, Any] = {"allow_head": False} if endless else {}
    return web.RouteDef(operation.method, operation.path, handler, options)


def operation_of(request: web.Request) -> Operation | None:
    """The operation that a request asks for; None where there is nothing of that method at that address."""
    resource = request.match_info.route.resource
    method = "GET" if request.method == "HEAD" else request.method
    return None if resource is None else _BY_ADDRESS.get((method, resource.canonical))
