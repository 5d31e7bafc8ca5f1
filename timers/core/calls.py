"""Owns the calls that the Python client and processors can make, with the types of their keyword arguments, so that
editors and type checkers know each name and its values.

The values are checked when they are used; see `core/spec.py`. The names are those of the HTTP API.
"""

from abc import ABC, abstractmethod
from collections.abc import Coroutine, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Generic, NamedTuple, NotRequired, Required, TypeVar, Unpack, overload

from typing_extensions import TypedDict

from timers.core.model import Status, Timer
from timers.core.policies import Repeat, RetryPolicy
from timers.core.shapes import BackoffFormula, Durability, IfExists, MissedRule, RepeatMode, StatusName
from timers.core.spec import NewTimer

T_co = TypeVar("T_co", covariant=True)
A_co = TypeVar("A_co", covariant=True)

Delay = str | int | float | timedelta
"""`"24h"`, `"P1M"`, a number of seconds, or a timedelta."""

Time = datetime | str | int
"""An aware datetime, RFC 3339 text, or epoch milliseconds."""

Texts = list[str] | tuple[str, ...]
"""Several strings. Not any sequence, because a string is a sequence of its characters."""


class RetryFields(TypedDict, total=False):
    """A retry policy as in the JSON; see RetryPolicy."""

    max_attempts: int
    backoff: BackoffFormula | Sequence[Delay]
    base: Delay
    cap: Delay
    jitter: bool


class RepeatFields(TypedDict, total=False):
    """A repeat as in the JSON; see Repeat."""

    every: Delay
    cron: str
    timezone: str
    count: int
    until: Time
    mode: RepeatMode


class GraceFields(TypedDict):
    """A missed policy that allows this much lateness."""

    grace: Delay


Retries = RetryPolicy | RetryFields
Repeats = Repeat | RepeatFields
Missed = MissedRule | GraceFields


class _Fields(TypedDict, total=False):
    payload: Any
    missed: Missed
    timeout: Delay | None
    tags: Texts
    metadata: Mapping[str, str]
    if_exists: IfExists
    durability: Durability | None
    traceparent: str | None


class After(_Fields):
    """A timer that is due after a delay."""

    delay: Required[Delay]
    repeat: NotRequired[Repeats | None]
    retry: NotRequired[Retries | None]


class At(_Fields):
    """A timer that is due at a time."""

    due_at: Required[Time]
    repeat: NotRequired[Repeats | None]
    retry: NotRequired[Retries | None]


class ByCron(_Fields):
    """A timer whose first time comes from its cron."""

    repeat: Required[Repeats]
    retry: NotRequired[Retries | None]


class ByLadder(_Fields):
    """A timer whose first delay is the first step of a retry ladder."""

    retry: Required[Retries]
    repeat: NotRequired[None]


class NewTimerFields(_Fields, total=False):
    """A timer to arm: an entry of a batch."""

    prefix: Required[str]
    id: str
    delay: Delay
    due_at: Time
    repeat: Repeats | None
    retry: Retries | None


class ChangeFields(TypedDict, total=False):
    """What can be changed in a scheduled timer. None removes an optional field."""

    delay: Delay
    due_at: Time
    payload: Any
    repeat: Repeats | None
    retry: Retries | None
    tags: Texts | None
    metadata: Mapping[str, str] | None


class FilterFields(TypedDict, total=False):
    """Which timers to find. A condition that is left out or None matches any timer. A prefix may end in `*`; a bound
    may be a duration from now (`"1h"`, `"-1d"`, a timedelta)."""

    prefix: str | None
    status: Status | StatusName | Sequence[Status | StatusName] | None
    tag: str | Texts | None
    due_after: Time | timedelta | None
    due_before: Time | timedelta | None


class Armed(NamedTuple):
    """A timer that is there now, and whether this call `created` it, `replaced` another or `kept` an existing one."""

    timer: Timer
    how: str

    @property
    def created(self) -> bool:
        """True if the identity was free."""
        return self.how == "created"


class TimerCalls(ABC, Generic[T_co, A_co]):
    """What a processor can do with other timers. Every method raises Unavailable while Redis is down, InvalidInput for
    bad values, and a Refused if the timer's state forbids the call."""

    @overload
    def create(self, prefix: str, id: str | None = None, **fields: Unpack[After]) -> T_co: ...
    @overload
    def create(self, prefix: str, id: str | None = None, **fields: Unpack[At]) -> T_co: ...
    @overload
    def create(self, prefix: str, id: str | None = None, **fields: Unpack[ByCron]) -> T_co: ...
    @overload
    def create(self, prefix: str, id: str | None = None, **fields: Unpack[ByLadder]) -> T_co: ...
    def create(self, prefix: str, id: str | None = None, **fields: Any) -> T_co:
        """Arm a timer, and return the timer that exists now. The keyword arguments are the fields of `POST /v1/timers`,
        and `traceparent`, the W3C trace that its runs are linked to. Without an id the service makes one."""
        return self._create(prefix, id, fields)

    @abstractmethod
    def _create(self, prefix: str, id: str | None, fields: Mapping[str, Any]) -> T_co: ...

    @abstractmethod
    def arm(self, new: NewTimer, *, traceparent: str | None = None) -> A_co:
        """As `create`, for a checked timer; tells whether it was created, replaced or kept."""

    @abstractmethod
    def get(self, prefix: str, id: str) -> T_co:
        """Return the timer. Raises NotFound."""

    @abstractmethod
    def cancel(self, prefix: str, id: str, *, version: int | None = None, purge: bool = False) -> T_co:
        """Cancel a scheduled timer: it never starts after that. `purge` also removes the record, even of a finished
        timer. Raises NotFound, Running, EditLocked, NotScheduled, VersionMismatch."""


Timers = TimerCalls[Coroutine[Any, Any, Timer], Coroutine[Any, Any, Armed]]
"""The calls of an async processor; `timers.TimerClient` can do more."""

BlockingTimers = TimerCalls[Timer, Armed]
"""The calls of a plain processor, which wait for their results and raise RunOver once its run is over;
`timers.BlockingTimerClient` can do more."""
