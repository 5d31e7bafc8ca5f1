"""Owns what a run can end in: what a processor may return or raise, and what only the engine can observe."""

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from timers.errors import InvalidInput

Delay = str | int | float | timedelta
"""A duration as callers write it: `"24h"`, `"P1M"`, seconds, or a timedelta."""


class _Unset:
    """The type of `UNSET`, so that a payload of None can be told from no payload."""

    def __repr__(self) -> str:
        return "UNSET"


UNSET: Final = _Unset()


@dataclass(frozen=True, slots=True)
class Done:
    """The run is complete. `note` goes into the history, e.g. why there was nothing to do."""

    note: str = "completed"


@dataclass(frozen=True, slots=True)
class Rearm:
    """Arm the timer's own key again: exactly one of `after` (from the end of this run) and `at`; optionally another payload."""

    after: Delay | None = None
    at: datetime | str | int | None = None
    payload: Any = field(default=UNSET)

    def __post_init__(self) -> None:
        if (self.after is None) == (self.at is None):
            raise InvalidInput.of("Rearm", (self.after, self.at), "exactly one of after= and at=")


class Retry(Exception):  # noqa: N818 (it asks for something, it is not an error; the public contract names it so)
    """Raised by a processor to ask for another try. `after` overrides the policy's delay; it counts as a failed attempt.

    With `snooze=True` it does not count: the thing to wait for is simply not there yet.
    """

    def __init__(self, reason: str = "", *, after: Delay | None = None, snooze: bool = False) -> None:
        super().__init__(reason or "the processor asked for another try")
        self.after = after
        self.snooze = snooze


class Fail(Exception):  # noqa: N818 (as above)
    """Raised by a processor to give up at once, whatever tries are left."""

    def __init__(self, reason: str = "the processor gave up") -> None:
        super().__init__(reason)


@dataclass(frozen=True, slots=True)
class Failed:
    """An attempt that did not succeed. `error` is its kind, `reason` one line, `detail` a traceback or empty."""

    error: str
    reason: str
    detail: str = ""
    after: Delay | None = None
    final: bool = False


@dataclass(frozen=True, slots=True)
class Snooze:
    """Not ready: try again after `after` without counting a failure. None means the policy's first delay."""

    reason: str
    after: Delay | None = None


@dataclass(frozen=True, slots=True)
class HandBack:
    """The pod gives the run up unfinished (it drains): due again at once, and no failure of the timer's."""

    reason: str


@dataclass(frozen=True, slots=True)
class Missed:
    """The run was not started because the timer's `missed` policy forbids one this late."""

    lateness_ms: int


Outcome = Done | Rearm | Failed | Snooze | HandBack | Missed
