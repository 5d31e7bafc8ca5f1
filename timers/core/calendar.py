"""Owns when a repeating timer runs next: the slot after the current one, by interval, calendar or cron. Pure."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from timers.core.cron import Cron
from timers.core.durations import Duration
from timers.core.model import Progress, Timer
from timers.core.policies import MissedPolicy, Repeat

CATCH_UP_LIMIT: Final = 1000
"""How many missed slots in a row are made up for: the newest of an interval, the oldest of a cron. The others are
dropped, and the history says so."""


@dataclass(frozen=True, slots=True)
class Planned:
    """The next occurrence: when it is due and the progress to keep. `dropped` is true if earlier slots were missed and
    nothing makes up for them."""

    due_ms: int
    progress: Progress
    dropped: bool


@dataclass(frozen=True, slots=True)
class _Slot:
    """A planned time and its step from the anchor; step 0 makes it a new anchor."""

    at_ms: int
    step: int = 0
    dropped: bool = False


@lru_cache(maxsize=4096)
def _cron(expression: str, timezone: str) -> Cron:
    return Cron.parse(expression, timezone)


def first_slot(repeat: Repeat, now_ms: int) -> int:
    """The first planned time of a cron without a due time: strictly after `now_ms`."""
    if repeat.cron is None:
        raise ValueError("only a cron plans its own first time")
    return _cron(repeat.cron, repeat.timezone).next_after(now_ms)


def start(first_ms: int) -> Progress:
    """The progress of a cycle whose first occurrence is planned at `first_ms`."""
    return Progress(slot_ms=first_ms, anchor_ms=first_ms)


def next_occurrence(timer: Timer, repeat: Repeat, now_ms: int) -> Planned | None:
    """What follows the current occurrence; None if the cycle is over."""
    progress = timer.progress if timer.progress.slot_ms is not None else start(timer.due_ms)
    done = progress.occurrences + 1
    if repeat.count is not None and done >= repeat.count:
        return None
    slot = _next_slot(timer, repeat, progress, now_ms)
    if repeat.until_ms is not None and slot.at_ms > repeat.until_ms:
        return None
    anchor_ms = slot.at_ms if slot.step == 0 else progress.anchor_ms
    kept = Progress(slot_ms=slot.at_ms, anchor_ms=anchor_ms, step=slot.step, occurrences=done)
    return Planned(slot.at_ms, kept, slot.dropped)


def _next_slot(timer: Timer, repeat: Repeat, progress: Progress, now_ms: int) -> _Slot:
    slot_ms = progress.slot_ms if progress.slot_ms is not None else timer.due_ms
    oldest_ms = _oldest_ms(timer.missed_policy, now_ms)
    interval = repeat.interval
    if interval is None:
        return _next_cron(repeat, slot_ms, progress.step, now_ms, oldest_ms)
    if repeat.mode == "fixed_delay":
        return _Slot(interval.add_to(now_ms, repeat.timezone))
    anchor_ms = progress.anchor_ms if progress.anchor_ms is not None else slot_ms
    return _next_interval(interval, repeat.timezone, anchor_ms, progress.step, now_ms=now_ms, oldest_ms=oldest_ms)


def _oldest_ms(missed: MissedPolicy, now_ms: int) -> int:
    """The oldest slot that may still start now: a slot that passed recently, or within its grace, was not missed."""
    return 0 if missed.policy == "all" else now_ms - missed.allowed_ms


def _next_cron(repeat: Repeat, slot_ms: int, step: int, now_ms: int, oldest_ms: int) -> _Slot:
    """The next slot of a cron. Its step counts the missed slots made up for in a row, because the only way to count the
    slots of a cron in between is to walk them."""
    cron = _cron(repeat.cron or "", repeat.timezone)
    if repeat.mode == "fixed_delay":
        return _Slot(cron.next_after(now_ms))
    following_ms = cron.next_after(slot_ms)
    nearest_ms = following_ms if following_ms >= oldest_ms else cron.next_after(oldest_ms - 1)
    if nearest_ms <= now_ms and step >= CATCH_UP_LIMIT:
        nearest_ms = cron.next_after(now_ms)
    return _Slot(nearest_ms, step + 1 if nearest_ms <= now_ms else 0, dropped=nearest_ms > following_ms)


def _next_interval(
    interval: Duration, timezone: str, anchor_ms: int, step: int, *, now_ms: int, oldest_ms: int
) -> _Slot:
    """The next slot of anchor + step × interval, from the oldest that may still start; of those in the past, at most
    the newest `CATCH_UP_LIMIT`."""
    oldest = _first_step_after(interval, timezone, anchor_ms, step + 1, oldest_ms - 1)
    newest = _first_step_after(interval, timezone, anchor_ms, oldest, now_ms)
    following = max(oldest, newest - CATCH_UP_LIMIT)
    return _Slot(_slot(interval, timezone, anchor_ms, following), following, dropped=following > step + 1)


def _first_step_after(interval: Duration, timezone: str, anchor_ms: int, low: int, at_ms: int) -> int:
    """The smallest step ≥ `low` whose slot is after `at_ms`. Doubles, then bisects, so that a long outage of a short
    interval takes a few dozen steps of calendar arithmetic instead of one for each slot."""
    if _slot(interval, timezone, anchor_ms, low) > at_ms:
        return low
    width = 1
    while _slot(interval, timezone, anchor_ms, low + width) <= at_ms:
        low, width = low + width, width * 2
    high = low + width
    while high - low > 1:
        middle = (low + high) // 2
        if _slot(interval, timezone, anchor_ms, middle) > at_ms:
            high = middle
        else:
            low = middle
    return high


def _slot(interval: Duration, timezone: str, anchor_ms: int, step: int) -> int:
    """Anchor + step × interval, multiplied before adding: 31 January + 2 months is 31 March."""
    return (interval * step).add_to(anchor_ms, timezone)
