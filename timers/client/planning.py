"""Owns what becomes of a caller's request: what the store arms and when that is due, and what the store's reply means:
the timer that is there now, or the error that says why not. Pure: it never reads a clock."""

import os
import string
import time
from dataclasses import replace
from typing import Final, NamedTuple

from timers.core.calls import NewTimerFields
from timers.core.decide import first_slot, start
from timers.core.durations import Duration, format_time, parse_time, within_reach
from timers.core.model import NO_PROGRESS, Progress, Status, Timer
from timers.core.policies import Repeat
from timers.core.spec import NewTimer, TimerChange
from timers.errors import (
    AlreadyExists,
    EditLocked,
    InvalidInput,
    NewerFormat,
    NotFound,
    NotScheduled,
    RedisRights,
    Refused,
    Running,
    TooManyPending,
    VersionMismatch,
)
from timers.store.callers import Quota
from timers.store.codec import encode_act
from timers.store.store import Arming, Reply

_DIGITS: Final = string.digits + string.ascii_uppercase + string.ascii_lowercase
_PAIRS: Final = [first + second for first in _DIGITS for second in _DIGITS]
"""The numbers below 62² in base 62. The digits are in the order of their bytes, so that texts sort as their numbers."""


Wish = NewTimer | NewTimerFields | InvalidInput | Refused
"""A timer of a batch, or the error that is its result."""


def new_id() -> str:
    """22 characters: the Unix ms, then 80 random bits, as in a ULID, but in base 62. So ids sort by creation time, and
    take 14 bytes less than a UUID in each key and index."""
    value = (time.time_ns() // 1_000_000 << 80) | int.from_bytes(os.urandom(10), "big")
    pairs: list[str] = []
    for _ in range(11):
        value, pair = divmod(value, len(_PAIRS))
        pairs.append(_PAIRS[pair])
    return "".join(reversed(pairs))


def plan(new: NewTimer, now_ms: float, traceparent: str | None = None, by: str | None = None) -> Arming:
    """Plan a new timer's due time and first progress. The trace is kept with the spec; if it replaces another timer,
    the history names who did that. Raises InvalidInput."""
    due, progress = _first_due(new, now_ms), NO_PROGRESS
    if new.repeat is not None:
        due_ms = round(now_ms) + int(due[1:]) if due[0] == "+" else int(due[1:])
        _require_before_end(new.repeat, due_ms)
        due, progress = f"@{due_ms}", start(due_ms)
    spec = new.spec() if traceparent is None else {**new.spec(), "traceparent": traceparent}
    return Arming(new.prefix, new.id or new_id(), due, spec, progress, new.if_exists, encode_act("replaced", by))


def try_plan(new: Wish, now_ms: float, traceparent: str | None, by: str | None) -> Arming | InvalidInput | Refused:
    """As `plan`, for a timer of a batch: the error instead of raising it."""
    if isinstance(new, InvalidInput | Refused):
        return new
    try:
        return plan(new if isinstance(new, NewTimer) else NewTimer.parse(new), now_ms, traceparent, by)
    except InvalidInput as error:
        return error


def _first_due(new: NewTimer, now_ms: float) -> str:
    if new.due_at is not None:
        return f"@{within_reach(parse_time(new.due_at, 'due_at'), now_ms, 'due_at', new.due_at)}"
    if new.delay is not None:
        delay = Duration.parse(new.delay, "delay")
        if delay.months:
            return f"@{within_reach(delay.add_to(round(now_ms)), now_ms, 'delay', new.delay)}"
        wait_ms = delay.exact_ms
        within_reach(round(now_ms) + wait_ms, now_ms, "delay", new.delay)
        return f"+{wait_ms}"
    if new.repeat is not None and new.repeat.cron is not None:
        return f"@{first_slot(new.repeat, round(now_ms))}"
    ladder_ms = new.retry.ladder_ms if new.retry is not None else None
    if ladder_ms is None:
        raise InvalidInput.of("delay", None, "exactly one of delay and due_at")
    return f"+{ladder_ms[0]}"


def _require_before_end(repeat: Repeat, due_ms: int) -> None:
    if repeat.until_ms is not None and due_ms > repeat.until_ms:
        rule = f"a time at or after the first run, which would be due {format_time(due_ms)}"
        raise InvalidInput.of("repeat.until", repeat.until, rule)


def due_of_change(change: TimerChange, now_ms: float) -> int | None:
    """The new due time of a change in epoch ms; None if it does not move."""
    if change.due_at is not None:
        return within_reach(parse_time(change.due_at, "due_at"), now_ms, "due_at", change.due_at)
    if change.delay is not None:
        due_ms = Duration.parse(change.delay, "delay").add_to(round(now_ms))
        return within_reach(due_ms, now_ms, "delay", change.delay)
    return None


def changed_progress(current: Timer, change: TimerChange, due_ms: int | None) -> Progress | None:
    """A moved due time or another cycle restarts the plan from there and keeps the counts. None if nothing changes.
    Raises InvalidInput for a cycle that would already be over."""
    moved = current.progress if due_ms is None else replace(current.progress, first_due_ms=None)
    repeat = change.repeat if "repeat" in change.model_fields_set else current.repeat
    if repeat is None or (due_ms is None and "repeat" not in change.model_fields_set):
        return None if moved == current.progress else moved
    first_ms = current.due_ms if due_ms is None else due_ms
    _require_before_end(repeat, first_ms)
    started = start(first_ms)
    return replace(moved, slot_ms=started.slot_ms, anchor_ms=started.anchor_ms, step=0)


class Armed(NamedTuple):
    """A timer that is there now, and whether this call `created` it, `replaced` another or `kept` an existing one."""

    timer: Timer
    how: str

    @property
    def created(self) -> bool:
        """True if the identity was free."""
        return self.how == "created"


Results = list[Armed | Refused | InvalidInput | TooManyPending | RedisRights | NewerFormat]
"""The result for each timer of a batch."""


def armed(answer: Reply, quota: Quota | None) -> Armed | Refused | TooManyPending | RedisRights | NewerFormat:
    """The result of arming within the quota."""
    if answer.refused is not None:
        return answer.refused
    if answer.code == "full" and quota is not None:
        return _too_many(quota)
    if answer.code == "prefixes" and quota is not None:
        return TooManyPending(
            f"{quota.most_prefixes} prefixes under {', '.join(quota.prefixes)} have timers, the maximum of the key; "
            "use one of these prefixes, or cancel and purge all timers of one"
        )
    timer = answer.timer
    if timer is None:
        raise ValueError("an arm answer has a timer")
    if answer.code in ("created", "replaced", "kept"):
        return Armed(timer, answer.code)
    return refusal(answer.code, timer.prefix, timer.id, timer)


def _too_many(quota: Quota) -> TooManyPending:
    return TooManyPending(
        f"{quota.most} timers are scheduled under {', '.join(quota.prefixes)}, the maximum of the key, or running; "
        "try again when some have run, or cancel some"
    )


def accepted(answer: Reply, prefix: str, timer_id: str, codes: tuple[str, ...], quota: Quota | None = None) -> Timer:
    """The timer, if the reply has one of these codes. Raises the error for any other code."""
    if answer.code == "full" and quota is not None:
        raise _too_many(quota)
    if answer.refused is not None:
        raise answer.refused
    if answer.code not in codes or answer.timer is None:
        raise refusal(answer.code, prefix, timer_id, answer.timer)
    return answer.timer


def refusal(code: str, prefix: str, timer_id: str, timer: Timer | None) -> Refused:
    """The error for a code that is no success, in words that say what to do."""
    status, version = ("unknown", "?") if timer is None else (timer.status.value, str(timer.version))
    kinds: dict[str, tuple[type[Refused], str]] = {
        "missing": (NotFound, "does not exist"),
        "exists": (
            AlreadyExists,
            f"exists and is {status}; use if_exists 'replace' to arm it again, or 'keep' to get it",
        ),
        "running": (Running, "is running; wait until it has ended, or let its processor return Rearm"),
        "scheduled": (NotScheduled, "is scheduled already; fire makes it due now"),
        "completed": (NotScheduled, f"is completed; {_how_to_rearm(timer)}"),
        "finished": (NotScheduled, f"is {status} and no longer scheduled; {_how_to_rearm(timer)}"),
        "locked": (EditLocked, "is due so soon that it can no longer be changed (TIMERS_EDIT_LOCK)"),
        "version": (VersionMismatch, f"has version {version}, not the expected one; read it again"),
    }
    kind, said = kinds[code]
    return kind(f"timer {prefix}:{timer_id} {said}")


def _how_to_rearm(timer: Timer | None) -> str:
    """How to arm a finished timer again."""
    if timer is not None and timer.status is Status.COMPLETED:
        return "a create with if_exists 'replace' arms it again"
    return "retry arms it again"
