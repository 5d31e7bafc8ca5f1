"""Owns when a repeating timer runs next: the slot after the current one, by interval, calendar or cron. Pure."""

from dataclasses import replace
from functools import lru_cache
from typing import Final

from timers.cron import Cron
from timers.durations import Duration
from timers.model import Progress, Timer
from timers.spec import Repeat

CATCH_UP_LIMIT: Final = 1000
"""Slots that `missed: all` makes up for after an outage; older ones are dropped and the history says so."""


@lru_cache(maxsize=4096)
def _cron(expression: str, timezone: str) -> Cron:
    return Cron.parse(expression, timezone)


def first_slot(repeat: Repeat, now_ms: int) -> int:
    """The first planned time of a cron that was given no due time: strictly after `now_ms`."""
    if repeat.cron is None:
        raise ValueError("only a cron plans its own first time")
    return _cron(repeat.cron, repeat.timezone).next_after(now_ms)


def start(first_ms: int) -> Progress:
    """The progress of a cycle whose first occurrence is planned at `first_ms`."""
    return Progress(slot_ms=first_ms, anchor_ms=first_ms)


def next_occurrence(timer: Timer, repeat: Repeat, now_ms: int) -> tuple[int, Progress] | None:
    """The due time after the current occurrence and the progress to keep; None when the cycle is over."""
    progress = timer.progress if timer.progress.slot_ms is not None else start(timer.due_ms)
    done = progress.occurrences + 1
    if repeat.count is not None and done >= repeat.count:
        return None
    slot_ms, step = _next_slot(timer, repeat, progress, now_ms)
    if repeat.until_ms is not None and slot_ms > repeat.until_ms:
        return None
    anchor_ms = slot_ms if step == 0 else progress.anchor_ms
    return slot_ms, replace(progress, slot_ms=slot_ms, anchor_ms=anchor_ms, step=step, occurrences=done, last_error=None)


def _next_slot(timer: Timer, repeat: Repeat, progress: Progress, now_ms: int) -> tuple[int, int]:
    """The slot and its step from the anchor; step 0 means that the slot is a new anchor."""
    slot_ms = progress.slot_ms if progress.slot_ms is not None else timer.due_ms
    catches_up = timer.missed.policy == "all"
    interval = repeat.interval
    if interval is None:
        return _next_cron(repeat, slot_ms, now_ms, catches_up=catches_up), 0
    if repeat.mode == "fixed_delay":
        return interval.add_to(now_ms, repeat.timezone), 0
    anchor_ms = progress.anchor_ms if progress.anchor_ms is not None else slot_ms
    return _next_interval(interval, repeat.timezone, anchor_ms, progress.step, now_ms, catches_up=catches_up)


def _next_cron(repeat: Repeat, slot_ms: int, now_ms: int, *, catches_up: bool) -> int:
    cron = _cron(repeat.cron or "", repeat.timezone)
    if repeat.mode == "fixed_delay":
        return cron.next_after(now_ms)
    following_ms = cron.next_after(slot_ms)
    return following_ms if catches_up or following_ms > now_ms else cron.next_after(now_ms)


def _next_interval(
    interval: Duration, timezone: str, anchor_ms: int, step: int, now_ms: int, *, catches_up: bool
) -> tuple[int, int]:
    """The next slot of anchor + step × interval. What was missed is jumped over, except for the newest
    `CATCH_UP_LIMIT` slots where the timer asked for each of them."""
    newest = _first_step_after(interval, timezone, anchor_ms, step + 1, now_ms)
    step = max(step + 1, newest - CATCH_UP_LIMIT) if catches_up else newest
    return _slot(interval, timezone, anchor_ms, step), step


def _first_step_after(interval: Duration, timezone: str, anchor_ms: int, low: int, now_ms: int) -> int:
    """The smallest step ≥ `low` whose slot lies after `now_ms`: doubling, then bisection, so that a long outage of a
    short interval costs a few dozen steps of calendar arithmetic and not one for each slot."""
    if _slot(interval, timezone, anchor_ms, low) > now_ms:
        return low
    width = 1
    while _slot(interval, timezone, anchor_ms, low + width) <= now_ms:
        low, width = low + width, width * 2
    high = low + width
    while high - low > 1:
        middle = (low + high) // 2
        if _slot(interval, timezone, anchor_ms, middle) > now_ms:
            high = middle
        else:
            low = middle
    return high


def _slot(interval: Duration, timezone: str, anchor_ms: int, step: int) -> int:
    """Anchor + step × interval, multiplied before it is added: 31 January + 2 months is 31 March."""
    return Duration(interval.months * step, interval.days * step, interval.ms * step).add_to(anchor_ms, timezone)
