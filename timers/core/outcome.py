"""Owns how a run can end: what a processor may return or raise, and what only the engine can observe."""

import json
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from timers.core.calls import Delay
from timers.core.durations import Duration, parse_ms, parse_time
from timers.core.fields import decode, encode
from timers.core.spec import encode_payload
from timers.errors import InvalidInput

UNSET: Final = ...
"""Tells no payload from a payload of None."""

RESULT_LIMIT_BYTES: Final = 4096
"""The largest result of a run, as JSON."""

NOTE_LIMIT_CHARACTERS: Final = 1200
"""A kilobyte of a webhook target's answer, and who answered."""
NOTE_READ_CHARACTERS: Final = 5 * NOTE_LIMIT_CHARACTERS
"""How much of a note is read: cleaning megabytes would take longer than running the timer."""


@dataclass(frozen=True, slots=True)
class Done:
    """The run is complete. `note` goes into the history, e.g. why there was nothing to do. `result` is any JSON of at
    most 4 KiB: it is kept as the timer's `result` until another run completes, and the history shows its beginning. If
    it cannot be kept, the note says so. Raises InvalidInput for a note that is not text."""

    note: str = "completed"
    result: Any = None

    def __post_init__(self) -> None:
        if not isinstance(self.note, str):
            raise InvalidInput.of("Done.note", self.note, "text")


def clean_note(note: str) -> str:
    """The note as a history entry can hold it: one line, bounded, without control characters (Lua's format ends at a
    NUL)."""
    if len(note) <= NOTE_LIMIT_CHARACTERS and note.isalnum():
        return note
    note = note[:NOTE_READ_CHARACTERS]
    shown = note if note.isprintable() else "".join(c if c.isprintable() else " " for c in note)
    return " ".join(shown.split())[:NOTE_LIMIT_CHARACTERS] or "-"


def kept_result(result: object) -> tuple[Any, str]:
    """A result as the record keeps it, and why it cannot, empty if it can. Work that is done is never done again only
    because its result cannot be kept."""
    try:
        return json.loads(encode_payload(result, "Done.result", RESULT_LIMIT_BYTES)), ""
    except InvalidInput as error:
        return None, f"its result was not kept: {error}"
    except BaseException as error:  # noqa: BLE001 (of the processor's own objects)
        return None, f"its result was not kept: it raised {type(error).__name__} when it was read"


@dataclass(frozen=True, slots=True)
class Rearm:
    """Arm the timer's own key again: exactly one of `after` (from the end of this run) and `at`; optionally another
    payload. Raises InvalidInput in the processor, where a bad value makes the run a failed attempt with its reason."""

    after: Delay | None = None
    at: datetime | str | int | None = None
    payload: Any = field(default=UNSET)

    def __post_init__(self) -> None:
        if (self.after is None) == (self.at is None):
            raise InvalidInput.of("Rearm", (self.after, self.at), "exactly one of after= and at=")
        if self.after is not None:
            Duration.parse(self.after, "Rearm.after")
        else:
            parse_time(self.at, "Rearm.at")
        if self.payload is not UNSET:
            # As the next run will get it, whatever the processor later does with its own object.
            object.__setattr__(self, "payload", json.loads(encode_payload(self.payload, "Rearm.payload")))


class Retry(Exception):
    """Raised by a processor to ask for another try, after the policy's delay or `after`. It counts as a failed attempt.

    With `snooze=True` it does not count: what the processor waits for is simply not there yet. `hold_off` is for a
    prefix whose timers all need what is not there: for that long the pod starts no other timer of the prefix, and then
    one at a time until one is done. Raises InvalidInput for a bad `after` or `hold_off`, which makes the run a failed
    attempt as well. A subclass with an `__init__` of its own may set `after` and `snooze` itself.
    """

    after: Delay | None = None
    snooze: bool = False
    hold_off_ms: int | None = None

    def __init__(
        self, reason: str = "", *, after: Delay | None = None, snooze: bool = False, hold_off: Delay | None = None
    ) -> None:
        super().__init__(reason or "the processor asked for another try")
        if after is not None:
            Duration.parse(after, "Retry.after")
        self.after = after
        self.snooze = snooze
        self.hold_off_ms = None if hold_off is None else parse_ms(hold_off, "Retry.hold_off")


class Fail(Exception):
    """Raised by a processor to give up at once, however many attempts are left."""

    def __init__(self, reason: str = "the processor gave up") -> None:
        super().__init__(reason)


class AlreadyDone(BaseException):
    """Raised by `timers.ledger.once` in a run whose occurrence was done by an earlier run: this one ends as that did.
    No Exception, so that it passes a processor's `except Exception`."""

    def __init__(self, outcome: Done | Rearm) -> None:
        super().__init__("an earlier run has done this occurrence")
        self.outcome = outcome


def encode_outcome(outcome: Done | Rearm) -> str:
    """The outcome as text that `decode_outcome` reads, with the note as the history shows it. A result that cannot be
    kept is left out."""
    if isinstance(outcome, Rearm):
        if outcome.after is not None:
            fields: dict[str, Any] = {"after": str(Duration.parse(outcome.after))}
        else:
            fields = {"at": parse_time(outcome.at)}
        return encode({"rearm": fields if outcome.payload is UNSET else {**fields, "payload": outcome.payload}})
    return encode(
        {"done": {"note": outcome.note and clean_note(outcome.note), "result": kept_result(outcome.result)[0]}}
    )


def decode_outcome(text: str) -> Done | Rearm:
    fields = decode(text)
    return Rearm(**fields["rearm"]) if "rearm" in fields else Done(**fields["done"])


@dataclass(frozen=True, slots=True)
class Failed:
    """An attempt that did not succeed. `error` is its kind, `reason` one line, `detail` a traceback or empty, `where`
    the line of the processor's code that failed, or empty."""

    error: str
    reason: str
    detail: str = ""
    after: Delay | None = None
    final: bool = False
    where: str = ""


@dataclass(frozen=True, slots=True)
class Snooze:
    """Not ready: try again after `after` without counting a failure. None means the policy's first delay."""

    reason: str
    after: Delay | None = None


@dataclass(frozen=True, slots=True)
class HandBack:
    """The pod hands the run back unfinished because it drains: due again at once, and not a failure."""

    reason: str


@dataclass(frozen=True, slots=True)
class Missed:
    """The run did not start because the timer's `missed` policy forbids one this late."""

    lateness_ms: int


@dataclass(frozen=True, slots=True)
class Exhausted:
    """The run did not start because no try is left: see `decide.exhausted`."""

    reason: str


Outcome = Done | Rearm | Failed | Snooze | HandBack | Missed | Exhausted
