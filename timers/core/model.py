"""Owns what a timer *is*: its statuses, the record as the program sees it, and why it changed: the history keeps a code
that programs compare, which becomes English when it is shown. Pure, immutable."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple

from timers.core.answers import HistoryAnswer, LeaseAnswer, TimerAnswer
from timers.core.durations import format_time, parse_ms, to_datetime
from timers.core.policies import MissedPolicy, Repeat, RetryPolicy
from timers.core.shapes import Durability

Cause = tuple[str, str]
"""A code and the details of this change (empty for none)."""

ACTS: Final = frozenset(
    ("created", "replaced", "changed", "rescheduled", "fired", "cancelled", "removed", "retried", "replayed")
)
"""What callers do. The details of such a change are the name of the caller's API key."""

IMPORTED: Final = "imported"
RESTORED: Final = "restored"
"""The cause of the entry with which a timer came from another db. It tells nothing of the timer's life."""

ENGLISH: Final[Mapping[str, str]] = MappingProxyType(
    {
        "created": "created",
        "dropped": "{} older entries dropped",
        "replaced": "replaced",
        "changed": "changed",
        "rescheduled": "rescheduled",
        "fired": "fired on request",
        "cancelled": "cancelled",
        "removed": "cancelled and removed",
        "retried": "retried on request",
        "replayed": "replayed",
        IMPORTED: "imported from {}",
        RESTORED: "restored from the ledger after a loss",
        "event": "event",
        "late-look": "late look",
        "sweep": "sweep",
        "sweep-start": "sweep at the start of its pod",
        "sweep-gap": "sweep after a gap",
        "sweep-deaf": "sweep without notifications",
        "sweep-busy": "sweep when its pod had room",
        "room": "room",
        "rate": "rate",
        "rescue": "rescue",
        "completed": "{}",
        "skipped": "skipped: {}",
        "re-armed": "re-armed",
        "retry": "will retry after {}",
        "snoozed": "snoozed: {}",
        "handed-back": "handed back: {}",
        "failed": "gave up after {}",
        "unserved": "no live pod serves the prefix",
        "lost-unserved": "its pod died or lost the lease, and no live pod serves the prefix",
        "bare-adopted": "adopted from its bare key",
        "bare-set-again": "its bare key was set again",
        "bare-expired": "its bare key expired",
        "bare-due": "its bare key existed until its due time",
        "bare-deleted": "its bare key was deleted",
        "bare-lost-ttl": "its bare key lost its TTL",
    }
)
"""Each cause in English; `{}` stands for the details of the entry."""


def in_english(cause: str, text: str) -> str:
    """A cause and its details as people read them. An unknown cause is shown as it is."""
    template = ENGLISH.get(cause)
    return f"{cause} {text}".rstrip() if template is None else template.format(text or cause)


Json = Any
"""A JSON value as Python's `json` gives it."""


class Status(StrEnum):
    """Where a timer is in its life. `RETRYING` is no timer's `status`: it counts and lists those scheduled timers whose
    last attempt failed."""

    SCHEDULED = "scheduled"
    RETRYING = "retrying"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    UNHANDLED = "unhandled"
    CANCELLED = "cancelled"

    @property
    def finished(self) -> bool:
        """True where nothing more happens unless somebody arms the timer again."""
        return self not in (Status.SCHEDULED, Status.RETRYING, Status.RUNNING)


class HistoryEntry(NamedTuple):
    """One transition. `lateness_ms` is set where a run started: how long after due. `pod` is None for a caller's.

    An end tells how long its run took: `claim_ms` from when the pod knew that the queue had due timers (it heard an
    event, or a sweep found them) to the claim, None if the timer waited for room or for the rate or was rescued;
    `queue_ms` from there to the call of the processor; `run_ms` the call."""

    at_ms: int
    status: Status
    attempt: int
    pod: str | None
    cause: str
    text: str = ""
    lateness_ms: int | None = None
    processor: str | None = None
    claim_ms: int | None = None
    queue_ms: int | None = None
    run_ms: int | None = None

    @property
    def note(self) -> str:
        """The cause in English, with what only this entry knows."""
        return in_english(self.cause, self.text)

    @property
    def by(self) -> str | None:
        """The name of the API key that a caller made the change with; None if there is none."""
        return self.text or None if self.cause in ACTS else None

    @property
    def at(self) -> datetime:
        return to_datetime(self.at_ms)

    def to_json(self) -> HistoryAnswer:
        shown: HistoryAnswer = {
            "at": format_time(self.at_ms),
            "status": self.status._value_,
            "attempt": self.attempt,
            "pod": self.pod,
            "processor": self.processor,
            "cause": self.cause,
            "note": in_english(self.cause, self.text),
            "by": self.by,
            "lateness_ms": self.lateness_ms,
        }
        if self.queue_ms is not None and self.run_ms is not None:
            shown |= {"claim_ms": self.claim_ms, "queue_ms": self.queue_ms, "run_ms": self.run_ms}
        return shown


@dataclass(frozen=True, slots=True)
class Lease:
    """Who runs the timer now, and until when if nothing extends it."""

    pod: str
    expires_ms: int

    @property
    def expires_at(self) -> datetime:
        return to_datetime(self.expires_ms)

    def to_json(self) -> LeaseAnswer:
        return {"pod": self.pod, "expires_at": format_time(self.expires_ms)}


@dataclass(frozen=True, slots=True)
class Progress:
    """What the engine itself remembers between runs; a caller never sets it.

    `slot_ms` is the planned time of the current occurrence: `due_ms` moves with retries, the slot does not, so a
    fixed rate cannot drift. `anchor_ms` and `step` give the slot as anchor + step × interval, so that the 31st stays
    the 31st after a short month; with a cron `step` counts the missed slots made up for in a row. `occurrences` counts
    the runs of a repeat against its `count`. `result` is that of the newest run that completed.
    `first_due_ms` is when the occurrence's first try was due, once a try has failed or was snoozed.
    """

    last_error: Mapping[str, Json] | None = None
    slot_ms: int | None = None
    anchor_ms: int | None = None
    step: int = 0
    occurrences: int = 0
    result: Json = None
    first_due_ms: int | None = None


NO_PROGRESS: Final = Progress()


class Timer(NamedTuple):
    """One timer as it was when it was read. The JSON's names are attributes with the JSON's values, times as aware
    datetimes (`due_at` …); those are epoch milliseconds by the Redis server's clock too (`due_ms` …).

    `history` is newest first. `spec` is what the caller asked for, with the JSON's names and only what differs from the
    defaults. `armed` is false in the answer to a create that only the ledger has yet, and `durability` says there which
    one was reached. (A tuple, because a frozen dataclass of so many fields takes four times as long to make.)
    """

    prefix: str
    id: str
    status: Status
    due_ms: int
    version: int
    token: int
    attempt: int
    failures: int
    occurrence: int
    created_ms: int
    updated_ms: int
    spec: Mapping[str, Json] = MappingProxyType({})
    progress: Progress = NO_PROGRESS
    lease: Lease | None = None
    history: Sequence[HistoryEntry] = ()
    armed: bool = True
    durability: Durability | Literal[""] = ""

    @property
    def payload(self) -> Json:
        """What the caller gave to be handed to the processor."""
        return self.spec.get("payload")

    @property
    def retry(self) -> RetryPolicy | None:
        """The timer's own retry policy; None means the processor's."""
        value = self.spec.get("retry")
        return None if value is None else RetryPolicy.model_validate(value)

    @property
    def repeat(self) -> Repeat | None:
        """The declared repeat, if any."""
        value = self.spec.get("repeat")
        return None if value is None else Repeat.model_validate(value)

    @property
    def missed(self) -> MissedPolicy:
        """What to do when it could not run in time: `"fire"` … or `{"grace": "10m"}`."""
        value: MissedPolicy = self.spec.get("missed", "fire")
        return value

    @property
    def timeout(self) -> str | int | float | None:
        """Longest run as the caller wrote it; None means the processor's."""
        value: str | int | float | None = self.spec.get("timeout")
        return value

    @property
    def timeout_ms(self) -> int | None:
        """Longest run in milliseconds; None means the processor's."""
        return None if self.timeout is None else parse_ms(self.timeout, "timeout")

    @property
    def tags(self) -> list[str]:
        """Short labels to find the timer by."""
        return list(self.spec.get("tags", ()))

    @property
    def metadata(self) -> dict[str, str]:
        """String pairs the service keeps and does not read."""
        return dict(self.spec.get("metadata", ()))

    @property
    def traceparent(self) -> str | None:
        """The W3C trace that the caller armed it in."""
        value: str | None = self.spec.get("traceparent")
        return value

    @property
    def is_retrying(self) -> bool:
        """Whether it is scheduled and its last attempt failed."""
        return self.status is Status.SCHEDULED and self.failures > 0

    @property
    def last_error(self) -> Mapping[str, Json] | None:
        """Why the newest failed attempt failed: `type`, `reason`, `detail`, `at`, `attempt`."""
        return self.progress.last_error

    @property
    def result(self) -> Json:
        """What the newest run that completed returned as `Done(result=…)`; None if nothing."""
        return self.progress.result

    @property
    def first_due_ms(self) -> int:
        """When the first try of this occurrence was due; `due_ms` moves with each retry."""
        return self.due_ms if self.progress.first_due_ms is None else self.progress.first_due_ms

    @property
    def due_at(self) -> datetime:
        return to_datetime(self.due_ms)

    @property
    def created_at(self) -> datetime:
        """When it was first armed."""
        return to_datetime(self.created_ms)

    @property
    def updated_at(self) -> datetime:
        """When it last changed."""
        return to_datetime(self.updated_ms)

    @property
    def key(self) -> str:
        """`prefix:id`, unambiguous because a prefix has no colon."""
        return f"{self.prefix}:{self.id}"

    @property
    def idempotency_key(self) -> str:
        """`prefix:id:created:occurrence`, created as epoch ms: the same on every try of an occurrence, and never used
        again, also not after a purge or a replace."""
        return f"{self.prefix}:{self.id}:{self.created_ms}:{self.occurrence}"

    def to_json(self) -> TimerAnswer:
        """The timer as the HTTP API shows it."""
        spec, progress = self.spec, self.progress
        retry, repeat = (self.retry if "retry" in spec else None), (self.repeat if "repeat" in spec else None)
        shown: TimerAnswer = {
            "prefix": self.prefix,
            "id": self.id,
            "status": self.status._value_,
            "due_at": format_time(self.due_ms),
            "payload": spec.get("payload"),
            "repeat": None if repeat is None else repeat.to_json(),
            "retry": None if retry is None else retry.to_json(),
            "missed": spec.get("missed", "fire"),
            "timeout": spec.get("timeout"),
            "tags": spec.get("tags", []),
            "metadata": spec.get("metadata", {}),
            "version": self.version,
            "token": self.token,
            "attempt": self.attempt,
            "failures": self.failures,
            "occurrence": self.occurrence,
            "created_at": format_time(self.created_ms),
            "updated_at": format_time(self.updated_ms),
            "lease": None if self.lease is None else self.lease.to_json(),
            "last_error": None if progress.last_error is None else dict(progress.last_error),
            "result": progress.result,
            "history": [entry.to_json() for entry in self.history],
        }
        if "traceparent" in spec:
            shown["traceparent"] = spec["traceparent"]
        if self.durability:
            shown |= {"durability": self.durability, **({} if self.armed else {"armed": False})}
        return shown
