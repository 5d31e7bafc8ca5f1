"""Owns the one table of calls: method, path, right, input and output; and how a handler says which call it answers.

Routes, rights and the OpenAPI document are all made from the table, so none of them can miss a call. A page for people
is not in it: its handler says its address and its right.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Final, TypeVar

from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field, PlainValidator, WithJsonSchema

from timers.access import Right
from timers.client import BATCH_LIMIT
from timers.client.actions import BulkAction
from timers.core import answers, shapes
from timers.core.fields import PrefixPattern, StrictModel
from timers.core.spec import NewTimer, PutTimer, TimerChange
from timers.errors import InvalidInput
from timers.store.listing import PageRequest


def _checked_batch(value: object) -> Sequence[Any]:
    if isinstance(value, list) and len(value) <= BATCH_LIMIT:
        return value
    given = f"more than {BATCH_LIMIT} timers" if isinstance(value, list) else value
    raise InvalidInput.of("", given, f"a list of at most {BATCH_LIMIT} timers")


_Timers = Annotated[list[NewTimer], Field(max_length=BATCH_LIMIT)]


class Batch(StrictModel):
    """Up to 1,000 timers to arm. Each is checked on its own, so a bad one does not affect the others."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"timers": [shapes.NEW_TIMER_EXAMPLE]}]})

    timers: Annotated[Sequence[Any], PlainValidator(_checked_batch, json_schema_input_type=_Timers)]


def _checked_flag(value: object) -> bool:
    if value not in ("true", "false"):
        raise InvalidInput.of("", value, "true or false")
    return value == "true"


class CancelQuery(StrictModel):
    """The parameters of a cancel."""

    purge: Annotated[
        bool,
        PlainValidator(_checked_flag),
        WithJsonSchema({"type": "boolean", "description": "also remove the record", "examples": [True]}),
    ] = False


class PrefixQuery(StrictModel):
    """Which prefixes: all but the service's own, or those asked for."""

    prefix: PrefixPattern | None = None


LAST_EVENT_ID: Final = "Last-Event-ID"


JSON: Final = "application/json"
MERGE_PATCH: Final = "application/merge-patch+json"
NDJSON: Final = "application/x-ndjson"
EVENTS: Final = "text/event-stream"
TEXT: Final = "text/plain"
HTML: Final = "text/html"
CSS: Final = "text/css"
JAVASCRIPT: Final = "text/javascript"

DASHBOARD: Final = "dashboard"
"""The tag of calls that answer with pages for people. A browser session opens them as well as a key does."""

_ONE: Final = "/v1/timers/{prefix}/{id}"


@dataclass(frozen=True, slots=True)
class Answer:
    """One possible answer to a call. `body` is its model, or None for text of the media type. Without a media type the
    answer has no content."""

    status: int
    description: str
    body: type[Any] | None
    headers: tuple[str, ...] = ()
    media_type: str | None = JSON


@dataclass(slots=True)
class Operation:
    """One call, by its method and path. `right` is the right that a key needs for it, or None if everybody may make it.
    `headers` are those that it takes. `body` maps media types to models, or
    to None for text. `problems` are the types that this call can answer in addition to those of every call of its
    kind. `of_all` calls concern all prefixes at once: only keys that cover all prefixes may make them."""

    id: str
    call: str
    right: Right | None
    summary: str
    answers: tuple[Answer, ...]
    headers: tuple[str, ...] = ()
    body: Mapping[str, type[BaseModel] | None] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    query: type[BaseModel] | None = None
    tag: str = ""
    of_all: bool = False
    method: str = field(init=False)
    path: str = field(init=False)
    is_endless: bool = field(init=False)
    """Whether its answer is a stream of events."""
    works_without_redis: bool = field(init=False)
    """Whether it works while Redis is down, when people look at a pod most. It shows nothing new then, so the
    last known keys will do."""
    arms: bool = field(init=False)
    """Whether it arms timers, which a ledger takes while Redis is down."""

    def __post_init__(self) -> None:
        self.method, self.path = self.call.split()
        self.is_endless = any(answer.media_type == EVENTS for answer in self.answers)
        self.works_without_redis = self.id == "getMetrics" or (self.tag == DASHBOARD and self.method == "GET")
        self.arms = self.id in ("createTimer", "createTimers", "putTimer")


def _ok(description: str, body: type[Any] | None = None, media_type: str = JSON) -> tuple[Answer, ...]:
    return (Answer(200, description, body, media_type=media_type),)


def _timer(description: str) -> tuple[Answer, ...]:
    return (Answer(200, description, answers.TimerAnswer, ("ETag",)),)


def _armed(kept: str) -> tuple[Answer, ...]:
    located = ("ETag", "Location")
    made = Answer(201, "The new timer.", answers.TimerAnswer, located)
    later = Answer(202, "The new timer; only the ledger has it until Redis is back.", answers.TimerAnswer, located)
    return made, Answer(200, kept, answers.TimerAnswer, located), later


_ARMING: Final = ("no-processor", "running", "edit-locked", "timer-not-found", "too-many-pending")
_REARMING: Final = ("timer-not-found", "running", "not-scheduled")
_CHANGING: Final = (*_REARMING, "edit-locked", "version-mismatch")

TIMER_OPERATIONS: Final = (
    Operation(
        "createTimer",
        "POST /v1/timers",
        "write",
        "Arm a timer",
        _armed("The timer that was kept or replaced."),
        ("traceparent",),
        {JSON: NewTimer},
        (*_ARMING, "already-exists"),
    ),
    Operation(
        "putTimer",
        f"PUT {_ONE}",
        "write",
        "Arm a timer, or replace the existing one",
        _armed("The timer that replaced the existing one."),
        ("traceparent",),
        {JSON: PutTimer},
        _ARMING,
    ),
    Operation(
        "getTimer",
        f"GET {_ONE}",
        "read",
        "Read a timer",
        (*_timer("The timer."), Answer(304, "The caller already has this version.", None, ("ETag",), None)),
        ("If-None-Match",),
        problems=("timer-not-found",),
    ),
    Operation(
        "changeTimer",
        f"PATCH {_ONE}",
        "write",
        "Change a scheduled timer",
        _timer("The changed timer."),
        ("If-Match",),
        {JSON: TimerChange, MERGE_PATCH: TimerChange},
        _CHANGING,
    ),
    Operation(
        "cancelTimer",
        f"DELETE {_ONE}",
        "write",
        "Cancel a timer; purge also removes its record",
        _timer("The cancelled timer."),
        ("If-Match",),
        problems=_CHANGING,
        query=CancelQuery,
    ),
    Operation(
        "retryTimer",
        f"POST {_ONE}/retry",
        "write",
        "Arm a failed, unhandled or cancelled timer again, due now",
        _timer("The armed timer."),
        problems=(*_REARMING, "too-many-pending"),
    ),
    Operation(
        "fireTimer",
        f"POST {_ONE}/fire",
        "write",
        "Make a scheduled timer due now",
        _timer("The timer, due now."),
        problems=_REARMING,
    ),
)

_EVENTS: Final = """\
Events until either side closes: `open` once the stream hears every change; `change`; `gap` if changes may be lost, \
because Redis was down or the `Last-Event-ID` is no longer remembered; `dropped` with the `count` of changes that came \
faster than they were read, null for a listener that hears only some prefixes. An event has the same id on every pod."""

MANY_OPERATIONS: Final = (
    Operation(
        "listTimers",
        "GET /v1/timers",
        "read",
        "List timers page by page",
        _ok("A page.", answers.PageAnswer),
        query=PageRequest,
    ),
    Operation(
        "createTimers",
        "POST /v1/timers/batch",
        "write",
        "Arm up to 1,000 timers; each has its own result",
        _ok("A result for each timer, in order.", answers.BatchAnswer),
        ("traceparent",),
        {JSON: Batch, NDJSON: None},
        ("too-many-pending",),
    ),
    Operation(
        "actOnTimers",
        "POST /v1/timers/actions",
        "write",
        "Cancel, retry, reschedule, change or purge all timers that match a filter, about 1,000 per call",
        _ok("How many timers matched, were acted on, and were refused.", answers.ActionAnswer),
        body={JSON: BulkAction},
    ),
    Operation(
        "streamEvents",
        "GET /v1/events",
        "read",
        "Follow the changes of timers as server-sent events",
        _ok(_EVENTS, media_type=EVENTS),
        (LAST_EVENT_ID,),
        query=PrefixQuery,
    ),
)

_FORGOTTEN: Final = (
    "The declaration is gone. Its timers now belong to the processor of a shorter prefix, if there is one."
)

POD_OPERATIONS: Final = (
    Operation(
        "getStats",
        "GET /v1/stats",
        "read",
        "Get counts, lateness, and whether notifications arrive",
        _ok("The state of the whole service.", answers.StatsAnswer),
        query=PrefixQuery,
    ),
    Operation(
        "listPrefixes",
        "GET /v1/prefixes",
        "read",
        "List the prefixes that have timers or a processor",
        _ok("The prefixes.", answers.PrefixesAnswer),
        query=PrefixQuery,
    ),
    Operation(
        "pausePrefix",
        "POST /v1/prefixes/{prefix}/pause",
        "operate",
        "Start no more timers of a prefix",
        _ok("The prefix, paused.", answers.PausedAnswer),
        problems=("timer-not-found",),
    ),
    Operation(
        "resumePrefix",
        "POST /v1/prefixes/{prefix}/resume",
        "operate",
        "Start the timers of a paused prefix again",
        _ok("The prefix, no longer paused.", answers.PausedAnswer),
        problems=("timer-not-found",),
    ),
    Operation(
        "forgetPrefix",
        "DELETE /v1/prefixes/{prefix}",
        "operate",
        "Forget the declaration of a prefix, once no live pod has its processor",
        (Answer(204, _FORGOTTEN, None, media_type=None),),
        problems=("timer-not-found", "refused"),
    ),
    Operation("listPods", "GET /v1/pods", "read", "List the live pods", _ok("The pods.", answers.PodsAnswer)),
    Operation(
        "acknowledgeLosses",
        "POST /v1/losses/acknowledge",
        "operate",
        "End the warnings about lost data",
        _ok("The losses.", answers.LossesAnswer),
        of_all=True,
    ),
    Operation(
        "getMetrics",
        "GET /metrics",
        "read",
        "Get metrics for Prometheus",
        _ok("Prometheus' text format.", media_type=TEXT),
        of_all=True,
    ),
)


def _file(operation_id: str, name: str, summary: str, description: str, media_type: str) -> Operation:
    found = _ok(description, media_type=media_type)
    return Operation(operation_id, f"GET /docs{name}", None, summary, found, problems=("invalid-input",))


PROBE_OPERATIONS: Final = (
    Operation(
        "getHealth",
        "GET /healthz",
        None,
        "Check whether the process is alive",
        _ok("It is alive.", answers.HealthAnswer),
    ),
    Operation(
        "getReadiness",
        "GET /readyz",
        None,
        "Check whether the pod can do its work now",
        _ok("It is ready.", answers.ReadyAnswer),
        problems=("not-ready",),
    ),
    Operation(
        "getDocument",
        "GET /openapi.json",
        None,
        "Get this document",
        _ok("OpenAPI 3.1.", answers.Document),
        problems=("invalid-input",),
    ),
    _file("getDocs", "", "Show this document as a page", "The page.", HTML),
    _file("getDocsStyle", "/swagger-ui.css", "Get the page's style sheet", "A file of Swagger UI.", CSS),
    _file("getDocsProgram", "/swagger-ui-bundle.js", "Get the page's script", "A file of Swagger UI.", JAVASCRIPT),
    _file("getDocsStart", "/start.js", "Get the code that starts the script", "A call to Swagger UI.", JAVASCRIPT),
)

DASHBOARD_OPERATIONS: Final = (
    Operation(
        "getDashboard",
        "GET /",
        "read",
        "Show the dashboard",
        (
            *_ok("The first page.", media_type=HTML),
            Answer(303, "A redirect to the sign-in page, for a browser that has not signed in.", None, media_type=None),
        ),
    ),
)


_BY_TAG: Final = {
    "timers": TIMER_OPERATIONS,
    "many timers": MANY_OPERATIONS,
    "operations": POD_OPERATIONS,
    "probes": PROBE_OPERATIONS,
    DASHBOARD: DASHBOARD_OPERATIONS,
}

OPERATIONS: Final[Sequence[Operation]] = tuple(
    replace(operation, tag=tag) for tag, operations in _BY_TAG.items() for operation in operations
)
"""Every call, in the order of the document. In an application, a path without braces comes before one with them."""

_BY_ID: Final = {operation.id: operation for operation in OPERATIONS}
_HANDLES: Final = "operation"
"""The attribute of a handler that says which call it answers."""

Page = TypeVar("Page", bound=Callable[..., Awaitable[web.StreamResponse]])


def call(operation_id: str) -> Callable[[Page], Page]:
    """Make a method answer the call."""
    return _answering(_BY_ID[operation_id])


def page_at(
    address: str, right: Right | None, *, of_all: bool = False, endless: bool = False
) -> Callable[[Page], Page]:
    """Make a method answer a page, such as `GET timers` for `/ui/timers`. Pages are only for people and not in the
    document, but their rights are checked like those of calls."""
    address = address.replace(" ", " /ui/")
    answers = _ok("", media_type=EVENTS if endless else HTML)
    return _answering(Operation(address, address, right, "", answers, tag=DASHBOARD, of_all=of_all))


def _answering(operation: Operation) -> Callable[[Page], Page]:
    def mark(handler: Page) -> Page:
        handler.__dict__[_HANDLES] = operation
        return handler

    return mark


def answered_by(kind: type[object]) -> Mapping[str, Operation]:
    """What the methods of a class answer, by their names: paths with fewer braces first, as an application needs
    them."""
    found = {
        name: each.__dict__[_HANDLES] for name, each in vars(kind).items() if _HANDLES in getattr(each, "__dict__", ())
    }
    return dict(sorted(found.items(), key=lambda each: each[1].path.count("{")))


def routes_of(handlers: object) -> Sequence[web.RouteDef]:
    """The routes of an object's methods, to add to an application."""
    return [
        web.RouteDef(each.method, each.path, getattr(handlers, name), {"allow_head": False} if each.is_endless else {})
        for name, each in answered_by(type(handlers)).items()
    ]


def operation_of(request: web.Request) -> Operation | None:
    """The operation that a request asks for, or None if its path has none for its method."""
    return getattr(request.match_info.route.handler, _HANDLES, None)
