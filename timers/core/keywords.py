"""Owns the types of the keyword arguments of the Python client, so that editors and type checkers know each name and
its values.

The values are checked when they are used; see `core/spec.py`. The names are those of the HTTP API.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Literal, NotRequired, Required, TypedDict

from timers.core.policies import Repeat, RetryPolicy

Delay = str | int | float | timedelta
"""`"24h"`, `"P1M"`, a number of seconds, or a timedelta."""

Time = datetime | str | int
"""An aware datetime, RFC 3339 text, or epoch milliseconds."""

Texts = list[str] | tuple[str, ...]
"""Several strings. Not any sequence, because a string is a sequence of its characters."""

StatusName = Literal["scheduled", "retrying", "running", "completed", "failed", "unhandled", "cancelled"]
Action = Literal["cancel", "retry", "reschedule", "change", "purge"]
IfExists = Literal["error", "replace", "keep"]


class RetryFields(TypedDict, total=False):
    """A retry policy as in the JSON; see RetryPolicy."""

    max_attempts: int
    backoff: Literal["exponential", "fixed"] | Sequence[Delay]
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
    mode: Literal["fixed_rate", "fixed_delay"]


class GraceFields(TypedDict):
    """A missed policy that allows this much lateness."""

    grace: Delay


Retries = RetryPolicy | RetryFields
Repeats = Repeat | RepeatFields
Missed = Literal["fire", "skip", "latest", "all"] | GraceFields


class _Fields(TypedDict, total=False):
    payload: Any
    missed: Missed
    timeout: Delay | None
    tags: Texts
    metadata: Mapping[str, str]
    if_exists: IfExists
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
    may be a duration from now (`"1h"`, `"-1d"`)."""

    prefix: str | None
    status: StatusName | Sequence[StatusName] | None
    tag: str | Texts | None
    due_after: Time | None
    due_before: Time | None
