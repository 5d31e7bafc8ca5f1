"""Owns the shapes of the answers. mypy checks each `to_json` against them; the OpenAPI document describes them and
takes its examples from them."""

from typing import Annotated, Any, Final, NotRequired, get_args

from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema, create_model
from typing_extensions import TypedDict

from timers.core import shapes
from timers.core.shapes import HISTORY_LIMIT, choice

Instant = Annotated[
    str, WithJsonSchema({"type": "string", "format": "date-time", "examples": ["2026-11-21T20:00:00.000Z"]})
]
"""RFC 3339 in UTC, with milliseconds."""

Count = Annotated[int, Field(ge=0)]
HttpStatus = Annotated[int, Field(ge=200, le=599)]
StatusName = Annotated[str, WithJsonSchema(shapes.STATUS)]
Delivery = Annotated[
    str,
    WithJsonSchema(
        choice(
            "Delivery",
            *get_args(shapes.Delivery),
            said="how Redis's notifications arrive: `ok`; `late`, after more than half a second; `deaf`, not at all, "
            "so that only the sweep finds timers",
        )
    ),
]
RedisState = Annotated[
    str,
    WithJsonSchema(
        choice(
            "RedisState",
            *get_args(shapes.RedisState),
            said="`ok`; `full`, at its `maxmemory`; `partly away`, some primaries of a cluster do not answer; `away`, "
            "so that only new timers are taken, for the ledger",
        )
    ),
]
Prefix = Annotated[str, WithJsonSchema(shapes.PREFIX)]
Id = Annotated[str, WithJsonSchema(shapes.ID)]
PodName = Annotated[str, Field(examples=["worker-1"])]
Cause = Annotated[str, Field(examples=["created"])]
Cursor = Annotated[str, WithJsonSchema(shapes.CURSOR)]


class LeaseAnswer(TypedDict):
    """Which pod runs the timer, and until when unless it extends the lease."""

    pod: PodName
    expires_at: Instant


class HistoryAnswer(TypedDict):
    """One transition. `pod` is null if a caller made the change; `by` is then the name of its API key, if it has one.
    `processor` and `lateness_ms` are set if a run
    started. `cause` is a code for programs to compare, `note` says the same in English. The end of a run has its times:
    `claim_ms` (from when the pod knew that it was due to the claim; null if it waited for room or for the rate, or was
    rescued), `queue_ms` (from there to the call of the processor) and `run_ms` (the call)."""

    at: Instant
    status: StatusName
    attempt: Count
    pod: str | None
    processor: str | None
    cause: Cause
    note: Cause
    by: Annotated[str, Field(examples=["billing"])] | None
    lateness_ms: int | None
    claim_ms: NotRequired[int | None]
    queue_ms: NotRequired[Count]
    run_ms: NotRequired[Count]


class TimerAnswer(TypedDict):
    """A timer as it was when it was read. `version` is its ETag. `token` only grows, over the whole life of a prefix
    and id. `history` is newest first; its last entry is the creation, or says how many older ones were dropped.
    `result` is what the newest run that completed returned, null if nothing. `last_error` is the last failed attempt:
    `type` (the exception's class, or `Timeout`, `Lost` or `CorruptRecord`), `reason`, `detail` (the traceback), `where`
    (the line of the processor's code), `at`, `since` (when the first of the failures in a row was) and `attempt`. The
    answer to a create that armed it has the `durability` that was reached in time, if one was asked for or the service
    has a ledger; and `armed` false while only the ledger has the timer."""

    prefix: Prefix
    id: Id
    status: StatusName
    due_at: Instant
    payload: Annotated[Any, WithJsonSchema(shapes.PAYLOAD)]
    repeat: Annotated[dict[str, Any], WithJsonSchema(shapes.reference("Repeat"))] | None
    retry: Annotated[dict[str, Any], WithJsonSchema(shapes.reference("RetryPolicy"))] | None
    missed: Annotated[str | dict[str, Any], WithJsonSchema(shapes.MISSED)]
    timeout: Annotated[str | int | float, WithJsonSchema(shapes.TIMEOUT)] | None
    tags: Annotated[list[str], Field(examples=[["vip"]])]
    metadata: Annotated[dict[str, str], Field(examples=[{"campaign": "autumn"}])]
    version: Count
    token: Count
    attempt: Count
    failures: Count
    occurrence: Count
    created_at: Instant
    updated_at: Instant
    lease: LeaseAnswer | None
    last_error: dict[str, Any] | None
    result: Annotated[Any, WithJsonSchema(shapes.RESULT)]
    history: Annotated[list[HistoryAnswer], Field(max_length=HISTORY_LIMIT)]
    armed: NotRequired[bool]
    durability: NotRequired[shapes.Durability]
    traceparent: NotRequired[str]


class ChangeAnswer(TypedDict):
    """A change of a timer: its new state, and why it changed. The data of the event `change`."""

    prefix: Prefix
    id: Id
    status: StatusName
    version: Count
    attempt: Count
    due_at: Instant
    at: Instant
    processor: str | None
    cause: Cause
    note: Cause


class BadField(TypedDict):
    """One invalid field: its path, the value given, what would be accepted, and all of that as a text."""

    field: str
    value: str
    accepted: str
    message: str


class Problem(TypedDict):
    """RFC 9457. `type` is stable; `detail` says what to do; `errors` names each bad field."""

    type: str
    title: str
    status: HttpStatus
    detail: str
    request_id: NotRequired[str]
    errors: NotRequired[list[BadField]]


class BatchArmed(TypedDict):
    """A timer of a batch that is armed, that was kept, or that only the ledger has yet (202)."""

    status: Annotated[int, Field(ge=200, le=202, examples=[201])]
    timer: TimerAnswer


class BatchRefused(TypedDict):
    """A timer of a batch that was refused, and why."""

    status: Annotated[int, Field(ge=400, le=599, examples=[422])]
    problem: Problem


class RefusedTimer(TypedDict):
    """A timer that an action did not take, and why."""

    prefix: Prefix
    id: Id
    detail: str


class ActionAnswer(TypedDict):
    """How many timers matched the filter, how many were acted on, and how many refused it, by reason, with a few
    examples of each. The counts are of this call alone, which ends after about 1,000 timers. Continue with
    `next_cursor`; it is null at the end. Timers that have changed since the first call began are left alone and not
    counted."""

    matched: Count
    done: Count
    refused: Annotated[dict[str, Count], Field(examples=[{"running": 1}])]
    examples: dict[str, list[RefusedTimer]]
    next_cursor: str | None


class ByStatus(TypedDict):
    """How many timers are in each status. `retrying` are those of the scheduled ones whose last attempt failed."""

    scheduled: Count
    retrying: Count
    running: Count
    completed: Count
    failed: Count
    unhandled: Count
    cancelled: Count


class Lateness(TypedDict):
    """The time from due to start, in milliseconds, over the last five minutes; null if nothing started."""

    p50: Count | None
    p99: Count | None
    max: Count | None


class PodAnswer(TypedDict):
    """A live pod. `format` is the newest format of records that may be written while it is alive. `serves` are the
    prefixes of the processors that it can run. `shards` is null if it takes all shards, `notifications` is null if it
    runs no timers, `running` is null for a key that sees only some prefixes. `trouble` says which part of its heartbeat
    cannot be read."""

    pod: PodName
    seen_at: Instant
    version: str | None
    format: Count
    roles: Annotated[list[str], Field(examples=[["api", "worker"]])]
    serves: Annotated[list[str], Field(examples=[["send-message"]])]
    only: Annotated[list[str], Field(examples=[[]])]
    shards: list[Count] | None
    running: Count | None
    concurrency: Count
    notifications: Delivery | None
    lateness_ms: Lateness
    trouble: str | None


LossAnswer = TypedDict("LossAnswer", {"shard": Count | None, "from": Instant | None, "to": Instant, "timers": Count})
LossAnswer.__doc__ = """Data that Redis lost: in one shard, or in the whole db (`shard` is null). Everything written
between `from` (null: since the beginning) and `to` is gone. `timers` is how many timers were known, not how many of
them are lost."""


class StatsAnswer(TypedDict):
    """The state of the whole service. `overdue_ms` is how long the oldest due timer that may run has waited to be
    claimed, `notifications` is that of the worst pod. `losses` are those that nobody has acknowledged yet."""

    by_status: ByStatus
    by_prefix: Annotated[dict[str, ByStatus], Field(examples=[{}])]
    lateness_ms: Lateness
    overdue_ms: Count
    notifications: Delivery
    pods: list[PodAnswer]
    losses: list[LossAnswer]


class PrefixAnswer(TypedDict):
    """A prefix that has timers, was declared, or is paused. `processor` is the longest declared prefix that serves its
    timers, `pods` are the live pods that run them, and `away` says that there is no such pod now. `declared_at` and
    `declared_by` are set if a pod declared exactly this prefix."""

    prefix: Prefix
    processor: str | None
    pods: list[PodName]
    away: bool
    declared_at: Instant | None
    declared_by: PodName | None
    paused: bool
    counts: ByStatus
    next_due_at: Instant | None


class ReadyAnswer(TypedDict):
    """The pod is ready. If `redis` is `full`, it takes no new timers, but everything else continues. The parts of a
    worker appear only for a pod with that role. `queues_waiting` queues with due timers wait for a claim of this pod;
    where the API asks for keys, that and `running` are only for keys that see all prefixes. `warnings` say whether
    Redis is full, whether such a queue waits long, and name shards and prefixes with due timers that no live pod
    takes; or why this pod cannot tell, because Redis does not take its own signs of life; and rights that its Redis
    user lacks."""

    ready: bool
    redis: RedisState
    notifications: NotRequired[Delivery]
    services: NotRequired[Annotated[dict[str, str], Field(examples=[{"sweeper": "running"}])]]
    running: NotRequired[Count]
    queues_waiting: NotRequired[Count]
    warnings: Annotated[list[str], Field(examples=[[]])]
    problems: Annotated[list[str], Field(max_length=0, examples=[[]])]


def _described(name: str, description: str, **fields: Any) -> type[BaseModel]:
    """An answer that is put together only as it is sent, so that only the document tells its shape."""
    shape: dict[str, Any] = {field: (kind, ...) for field, kind in fields.items()}
    model: type[BaseModel] = create_model(name, __doc__=description, __config__=ConfigDict(defer_build=True), **shape)
    return model


PageAnswer: Final = _described(
    "PageAnswer",
    "Timers, and the cursor of the next page, null at the end. A page ends early at about 2 MiB, or if few timers\n"
    "match the filter. It may then be short or even empty without being the last.",
    items=list[TimerAnswer],
    next_cursor=Cursor | None,
)
BatchAnswer: Final = _described(
    "BatchAnswer", "One result for each timer, in order.", results=list[BatchArmed | BatchRefused]
)
PodsAnswer: Final = _described("PodsAnswer", "The pods that are alive, by name.", items=list[PodAnswer])
LossesAnswer: Final = _described("LossesAnswer", "Losses of data.", items=list[LossAnswer])
PrefixesAnswer: Final = _described("PrefixesAnswer", "The prefixes, by name.", items=list[PrefixAnswer])
PausedAnswer: Final = _described("PausedAnswer", "Whether a prefix is paused.", prefix=Prefix, paused=bool)
Document: Final = _described(
    "Document",
    "An OpenAPI document.",
    openapi=Annotated[str, Field(examples=["3.1.0"])],
    **dict.fromkeys(("info", "paths", "components"), dict[str, Any]),
)
HealthAnswer: Final = _described(
    "HealthAnswer", "The process is alive.", status=Annotated[str, Field(pattern="^ok$", examples=["ok"])]
)
