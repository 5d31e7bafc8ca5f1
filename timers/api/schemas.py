"""Owns the shapes of the answers as models, for the OpenAPI document; the tests hold real answers against them."""

from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, PlainValidator, WithJsonSchema

from timers.client import BATCH_LIMIT
from timers.core import shapes
from timers.core.fields import Id, Prefix
from timers.core.model import Status
from timers.core.policies import MissedInput, Repeat, RetryPolicy
from timers.core.spec import NewTimer
from timers.core.strict import StrictModel
from timers.errors import InvalidInput
from timers.store.filters import PrefixPattern

Instant = Annotated[
    str, WithJsonSchema({"type": "string", "format": "date-time", "examples": ["2026-11-21T20:00:00.000Z"]})
]
"""RFC 3339 in UTC, with milliseconds."""

Count = Annotated[int, Field(ge=0)]
Hearing = Literal["ok", "late", "deaf"]
"""How notifications arrive."""

Tag = Annotated[str, WithJsonSchema(shapes.TAG)]


TIMER_EXAMPLE: Final[dict[str, Any]] = {
    "prefix": "send-message",
    "id": "user-42",
    "status": "scheduled",
    "due_at": "2026-11-22T20:00:00.000Z",
    "payload": {"email": "ada@example.org"},
    "repeat": None,
    "retry": None,
    "missed": "fire",
    "timeout": None,
    "tags": ["vip"],
    "metadata": {},
    "version": 1,
    "token": 0,
    "attempt": 0,
    "failures": 0,
    "occurrence": 1,
    "created_at": "2026-11-21T20:00:00.000Z",
    "updated_at": "2026-11-21T20:00:00.000Z",
    "lease": None,
    "last_error": None,
    "history": [
        {
            "at": "2026-11-21T20:00:00.000Z",
            "status": "scheduled",
            "attempt": 0,
            "pod": None,
            "processor": None,
            "cause": "created",
            "note": "created",
            "lateness_ms": None,
        }
    ],
}

_COUNTS_EXAMPLE: Final[dict[str, Any]] = {
    "scheduled": 3,
    "running": 1,
    "completed": 40,
    "failed": 0,
    "unhandled": 0,
    "cancelled": 2,
}
_LATENESS_EXAMPLE: Final[dict[str, Any]] = {"p50": 3, "p99": 6, "max": 9}
_POD_EXAMPLE: Final[dict[str, Any]] = {
    "pod": "worker-1",
    "seen_at": "2026-11-21T20:00:00.000Z",
    "roles": ["api", "worker"],
    "serves": ["log", "send-message"],
    "only": [],
    "shards": None,
    "running": 1,
    "concurrency": 1000,
    "notifications": "ok",
    "lateness_ms": _LATENESS_EXAMPLE,
    "trouble": None,
}
_STATS_EXAMPLE: Final[dict[str, Any]] = {
    "by_status": _COUNTS_EXAMPLE,
    "by_prefix": {"send-message": _COUNTS_EXAMPLE},
    "lateness_ms": _LATENESS_EXAMPLE,
    "overdue_ms": 0,
    "notifications": "ok",
    "pods": [_POD_EXAMPLE],
    "losses": [],
}
_LOSS_EXAMPLE: Final[dict[str, Any]] = {
    "shard": None,
    "from": "2026-11-21T19:59:59.000Z",
    "to": "2026-11-21T20:00:00.000Z",
    "timers": 20000,
}
_PREFIX_EXAMPLE: Final[dict[str, Any]] = {
    "prefix": "send-message",
    "processor": "send-message",
    "pods": ["worker-1"],
    "away": False,
    "declared_at": "2026-11-21T20:00:00.000Z",
    "declared_by": "worker-1",
    "paused": False,
    "counts": _COUNTS_EXAMPLE,
    "next_due_at": "2026-11-22T20:00:00.000Z",
}
_READY_EXAMPLE: Final[dict[str, Any]] = {
    "ready": True,
    "redis": "ok",
    "notifications": "ok",
    "services": {"listener": "running", "sweeper": "running"},
    "running": 1,
    "warnings": [],
    "problems": [],
}


class _Shape(BaseModel):
    model_config = ConfigDict(extra="forbid")


class LeaseAnswer(_Shape):
    """Who runs the timer, and until when if nothing extends it."""

    pod: str
    expires_at: Instant


class HistoryAnswer(_Shape):
    """One transition. `pod` is null for a caller's; `processor` and `lateness_ms` are set where a run started. `cause`
    is a code to compare, `note` says the same in English."""

    at: Instant
    status: Status
    attempt: Count
    pod: str | None
    processor: str | None
    cause: str
    note: str
    lateness_ms: int | None


class TimerAnswer(_Shape):
    """A timer as it was when it was read. `version` is its ETag; `token` only ever grows for an identity."""

    model_config = ConfigDict(json_schema_extra={"examples": [TIMER_EXAMPLE]})

    prefix: Prefix
    id: Id
    status: Status
    due_at: Instant
    payload: Any
    repeat: Repeat | None
    retry: RetryPolicy | None
    missed: MissedInput
    timeout: str | int | float | None
    tags: list[str]
    metadata: dict[str, str]
    version: Count
    token: Count
    attempt: Count
    failures: Count
    occurrence: Count
    created_at: Instant
    updated_at: Instant
    lease: LeaseAnswer | None
    last_error: dict[str, Any] | None
    history: Annotated[list[HistoryAnswer], Field(max_length=50)]
    traceparent: str | None = None


class BadField(_Shape):
    """One field that is not accepted: its path, what was given, what would be accepted, and all that as a text."""

    field: str
    value: str
    accepted: str
    message: str


class Problem(BaseModel):
    """RFC 9457. `type` is stable; `detail` says what to do; `errors` names each bad field."""

    type: str
    title: str
    status: Annotated[int, Field(ge=400, le=599)]
    detail: str
    request_id: str = ""
    errors: list[BadField] = []


class PageAnswer(_Shape):
    """Timers, and where to go on; null at the end. A page ends early at about 2 MiB, and where few timers pass the
    filter; then it may be short or empty and still not be the last."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"items": [TIMER_EXAMPLE], "next_cursor": None}]})

    items: list[TimerAnswer]
    next_cursor: str | None


def _checked_batch(value: object) -> Sequence[Any]:
    if isinstance(value, list) and len(value) <= BATCH_LIMIT:
        return value
    given = f"{len(value)} timers" if isinstance(value, list) else value
    raise InvalidInput.of("", given, f"a list of at most {BATCH_LIMIT} timers")


_Timers = Annotated[list[NewTimer | Any], Field(max_length=BATCH_LIMIT)]


class Batch(StrictModel):
    """Up to 1,000 timers to arm. Each is judged alone, so that a bad one spoils no other."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"timers": [shapes.NEW_TIMER_EXAMPLE]}]})

    timers: Annotated[Sequence[Any], PlainValidator(_checked_batch, json_schema_input_type=_Timers)]


def _checked_flag(value: object) -> bool:
    if value not in ("true", "false"):
        raise InvalidInput.of("", value, "true or false")
    return value == "true"


_PURGE: Final[dict[str, Any]] = {"type": "boolean", "description": "remove the record too", "examples": [True]}


class CancelQuery(StrictModel):
    """The parameters of a cancel."""

    purge: Annotated[
        bool,
        PlainValidator(_checked_flag),
        WithJsonSchema({"type": "boolean", "description": "remove the record too", "examples": [True]}),
    ] = False


class EventsQuery(StrictModel):
    """Which changes a stream of events tells of."""

    prefix: PrefixPattern | None = None


class BatchArmed(_Shape):
    """A timer of a batch that is there now."""

    status: Literal[200, 201]
    timer: TimerAnswer


class BatchRefused(_Shape):
    """A timer of a batch that was refused, and why."""

    status: Annotated[int, Field(ge=400, le=599)]
    problem: Problem


class BatchAnswer(_Shape):
    """One result for each timer, in order."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"results": [{"status": 201, "timer": TIMER_EXAMPLE}]}]})

    results: list[BatchArmed | BatchRefused]


class HealthAnswer(_Shape):
    """The process lives."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"status": "ok"}]})

    status: Literal["ok"]


class ReadyAnswer(_Shape):
    """Every part works; a Redis that is `full` takes no new timers, and all else goes on. The parts of a worker are
    told only by a pod that is one; `warnings` say whether Redis is full, and name shards, and prefixes with timers due,
    that no live pod takes."""

    model_config = ConfigDict(json_schema_extra={"examples": [_READY_EXAMPLE]})

    ready: Literal[True]
    redis: Literal["ok", "full"]
    notifications: Hearing = "ok"
    services: dict[str, str] = {}
    running: Count = 0
    warnings: list[str] = []
    problems: Annotated[list[str], Field(max_length=0)]


class Document(BaseModel):
    """An OpenAPI document."""

    model_config = ConfigDict(
        extra="allow",
        json_schema_extra={"examples": [{"openapi": "3.1.0", "info": {"title": "timers", "version": "0.1.0"}}]},
    )

    openapi: str


class ActionAnswer(_Shape):
    """How many timers passed the filter, how many were acted on, and how many refused it, by reason; of this call
    alone, which ends after about 1,000 timers. `next_cursor` goes on; null at the end."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"matched": 3, "done": 2, "refused": {"running": 1}, "next_cursor": None}],
        }
    )

    matched: Count
    done: Count
    refused: dict[str, Count]
    next_cursor: str | None


class ByStatus(_Shape):
    """How many timers are in each status."""

    scheduled: Count
    running: Count
    completed: Count
    failed: Count
    unhandled: Count
    cancelled: Count


class Lateness(_Shape):
    """From due to start, in milliseconds, over the last minutes; null where nothing started."""

    p50: Count | None
    p99: Count | None
    max: Count | None


class PodAnswer(_Shape):
    """A live pod. `serves` are the prefixes of the processors that it can run. `shards` is null where it takes all,
    `notifications` where it runs no timers; `trouble` says what of its sign of life cannot be read."""

    pod: str
    seen_at: Instant
    roles: list[str]
    serves: list[str]
    only: list[str]
    shards: list[Count] | None
    running: Count
    concurrency: Count
    notifications: Hearing | None
    lateness_ms: Lateness
    trouble: str | None


class LossAnswer(_Shape):
    """Data that Redis lost: of one shard, or of the whole db (null). What was written between `from` (null: ever) and
    `to` is gone; `timers` is how many were known, not how many of them are lost."""

    shard: Count | None
    from_: Annotated[Instant | None, Field(alias="from")]
    to: Instant
    timers: Count


class LossesAnswer(_Shape):
    """Losses of data."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"items": [_LOSS_EXAMPLE]}]})

    items: list[LossAnswer]


class StatsAnswer(_Shape):
    """The state of the whole service. `overdue_ms` is how long the oldest due timer has waited to be claimed, `losses`
    what was lost and nobody has acknowledged yet."""

    model_config = ConfigDict(json_schema_extra={"examples": [_STATS_EXAMPLE]})

    by_status: ByStatus
    by_prefix: dict[str, ByStatus]
    lateness_ms: Lateness
    overdue_ms: Count
    notifications: Hearing
    pods: list[PodAnswer]
    losses: list[LossAnswer]


class PrefixAnswer(_Shape):
    """A prefix that has timers, was declared, or is paused. `processor` is what its timers are for: the longest that
    was ever declared; `pods` are the live ones that run them; `away` says that there is none now. `declared_at` and
    `declared_by` are set where a pod has declared this very prefix."""

    prefix: Prefix
    processor: str | None
    pods: list[str]
    away: bool
    declared_at: Instant | None
    declared_by: str | None
    paused: bool
    counts: ByStatus
    next_due_at: Instant | None


class PrefixesAnswer(_Shape):
    """The prefixes, by name."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"items": [_PREFIX_EXAMPLE]}]})

    items: list[PrefixAnswer]


class PausedAnswer(_Shape):
    """Whether a prefix is paused."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"prefix": "send-message", "paused": True}]})

    prefix: Prefix
    paused: bool


class PodsAnswer(_Shape):
    """The pods that are alive, by name."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"items": [_POD_EXAMPLE]}]})

    items: list[PodAnswer]
