"""Owns when a timer is due: turns a caller's request into what the store arms. Pure: it never reads a clock."""

import os
import string
import time
from dataclasses import replace
from typing import Final

from timers.core import calendar
from timers.core.calls import NewTimerFields
from timers.core.durations import Duration, format_time, parse_time, within_reach
from timers.core.model import NO_PROGRESS, Progress, Timer
from timers.core.policies import Repeat
from timers.core.spec import NewTimer, TimerChange
from timers.errors import InvalidInput, Refused
from timers.store.codec import encode_act
from timers.store.store import Arming

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
        due, progress = f"@{due_ms}", calendar.start(due_ms)
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
        return f"@{calendar.first_slot(new.repeat, round(now_ms))}"
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
    started = calendar.start(first_ms)
    return replace(moved, slot_ms=started.slot_ms, anchor_ms=started.anchor_ms, step=0)
