"""Owns the decision what happens to a timer after a run, and when a repeating one runs next: the slot after the current
one, by interval, calendar or cron. Pure: time and randomness are arguments."""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import islice
from random import Random
from typing import Any, Final, NamedTuple

from timers.core.calls import Delay
from timers.core.cron import next_after
from timers.core.durations import Duration, format_time, parse_ms, parse_time, within_reach
from timers.core.fields import encode
from timers.core.model import IMPORTED, RESTORED, Cause, HistoryEntry, Progress, Status, Timer
from timers.core.outcome import UNSET, Done, Exhausted, Failed, HandBack, Missed, Outcome, Rearm, Snooze
from timers.core.policies import Repeat, RetryPolicy, allowed_ms

DETAIL_LIMIT_CHARACTERS: Final = 4000

CATCH_UP_LIMIT: Final = 1000
"""How many missed slots in a row are made up for: the newest of an interval, the oldest of a cron. The others are
dropped, and the history says so."""


class Transition(NamedTuple):
    """What the end of a run changes, and why. With `spec` None the caller's fields stay as they are."""

    status: Status
    due_ms: int
    attempt: int
    failures: int
    occurrence: int
    progress: Progress
    cause: Cause
    spec: Mapping[str, Any] | None = None


def decide(timer: Timer, outcome: Outcome, now_ms: int, policy: RetryPolicy, rng: Random) -> Transition:
    """The transition out of `running`. `policy` is the processor's; the timer's own takes precedence. Raises
    InvalidInput for an impossible `Rearm`."""
    match outcome:
        case Done():  # nearly every run; a pattern with its fields takes half a microsecond longer
            note, result, progress = outcome.note, outcome.result, timer.progress
            if result is not None or progress.result is not None:
                progress = replace(progress, result=result)
            described = note if result is None else _with_result(note, result)
            return _next_or_finish(timer, Status.COMPLETED, progress, now_ms, ("completed", described))
        case Rearm():
            return _rearm(timer, outcome, now_ms)
        case HandBack(reason):
            return _again(timer, timer.due_ms, timer.failures, timer.progress, ("handed-back", reason))
        case Snooze(reason, after):
            delay_ms = _delayed(after, now_ms, _backoff_ms(timer, policy, 1, rng))
            progress = replace(timer.progress, first_due_ms=timer.first_due_ms)
            return _again(timer, delay_ms, timer.failures, progress, ("snoozed", reason))
        case Missed(lateness_ms):
            rule = timer.missed if isinstance(timer.missed, str) else "grace"
            text = f"{lateness_ms} ms late, missed policy {rule}"
            status, cause = Status.COMPLETED, ("skipped", text)
            if timer.failures:  # as completed, nobody would see that it failed
                status, cause = Status.FAILED, ("failed", f"a try that came {text}")
            return _next_or_finish(_not_started(timer), status, timer.progress, now_ms, cause)
        case Exhausted(reason):
            last = _not_started(timer)
            known = None if was_lost(timer) else timer.last_error
            error = known or _error(last, Failed("Lost", reason), now_ms)
            progress = replace(timer.progress, last_error=error, first_due_ms=timer.first_due_ms)
            return _next_or_finish(last, Status.FAILED, progress, now_ms, ("failed", reason))
        case Failed():
            return _failed(timer, outcome, now_ms, policy, rng)


def _with_result(note: str, result: Any) -> str:
    """What the history says of a run that completed with a result."""
    shown = f"result {encode(result)}"
    return shown if note == Done().note else f"{note}; {shown}"


def missed(timer: Timer, now_ms: int) -> Missed | None:
    """Whether the timer's `missed` policy forbids a run that would start now.

    Lateness counts from the due time, or from the last arming if that was later, because a timer armed with a due time
    in the past was not missed. A change that left the due time alone arms nothing. A run that is rescued, or was handed
    back, was not missed either: it had started, and would otherwise end without a result as if it had been skipped.
    """
    runs_late = isinstance(timer.missed, str) and timer.missed != "skip"
    if runs_late or was_lost(timer) or _is_handed_back(timer):
        return None
    armed = (e.at_ms for e in life(timer) if e.status is Status.SCHEDULED and e.cause != "changed")
    armed_ms = max(armed, default=timer.created_ms)
    lateness_ms = now_ms - max(timer.due_ms, armed_ms)
    return Missed(lateness_ms) if lateness_ms > allowed_ms(timer.missed) else None


def was_skipped(timer: Timer) -> bool:
    """Whether the `missed` policy completed the timer without a run."""
    return any(entry.cause == "skipped" for entry in islice(life(timer), 1))


def was_lost(timer: Timer) -> bool:
    """Whether the entry before the newest, which may be this claim's, is a start: its run has no end."""
    return any(entry.status is Status.RUNNING for entry in islice(life(timer), 1, 2))


def _is_handed_back(timer: Timer) -> bool:
    """Whether the entry before the newest, which is this claim's, gave a run up without an end. Between them may be
    changes that left the due time alone."""
    before = (entry for entry in islice(life(timer), 1, None) if entry.cause != "changed")
    return any(entry.cause == "handed-back" for entry in islice(before, 1))


def life(timer: Timer) -> Iterator[HistoryEntry]:
    """The history, newest first, without where it came from another db: that makes no timer punctual."""
    return (entry for entry in timer.history if entry.cause not in (IMPORTED, RESTORED))


def exhausted(timer: Timer, policy: RetryPolicy) -> Exhausted | None:
    """Why no further run may start: a crash has used up the last try, or the policy was changed and allows fewer."""
    if timer.failures < _maximum(timer, timer.retry or policy):
        return None
    if was_lost(timer):
        return Exhausted("its pod died or lost its lease in the last attempt that its retry policy allows")
    return Exhausted("its retry policy was changed to allow no more attempts")


def _not_started(timer: Timer) -> Timer:
    """Take back the attempt that the claim counted, since it did not start."""
    return timer._replace(attempt=timer.attempt - 1)


def _next_or_finish(timer: Timer, status: Status, progress: Progress, now_ms: int, cause: Cause) -> Transition:
    """The next occurrence if the timer repeats, else the end."""
    repeat = timer.repeat if "repeat" in timer.spec else None
    planned = None if repeat is None else next_occurrence(timer, repeat, now_ms)
    if planned is None:
        return Transition(status, timer.due_ms, timer.attempt, timer.failures, timer.occurrence, progress, cause)
    due_ms, following, dropped = planned
    if dropped:
        code, text = cause
        cause = code, f"{text}; skipped what was missed before {format_time(due_ms)}"
    last_error = progress.last_error if status is Status.FAILED else None
    return _next(timer, due_ms, replace(following, last_error=last_error, result=progress.result), cause)


def _rearm(timer: Timer, rearm: Rearm, now_ms: int) -> Transition:
    """The processor named its own next time: a new occurrence, and a new anchor for a declared repeat. Raises
    InvalidInput for a time more than ten years ahead."""
    if rearm.at is not None:
        due_ms = within_reach(parse_time(rearm.at, "Rearm.at"), now_ms, "Rearm.at", rearm.at)
    else:
        due_ms = within_reach(_delayed(rearm.after, now_ms, 0), now_ms, "Rearm.after", rearm.after)
    progress = Progress()
    if timer.repeat is not None:
        progress = replace(start(due_ms), occurrences=timer.progress.occurrences + 1)
    return _next(timer, due_ms, progress, ("re-armed", ""), rearm.payload)


def _next(timer: Timer, due_ms: int, progress: Progress, cause: Cause, payload: object = UNSET) -> Transition:
    """A new occurrence, with nothing counted against it yet."""
    spec = _next_spec(timer.spec, payload)
    return Transition(Status.SCHEDULED, due_ms, 0, 0, timer.occurrence + 1, progress, cause, spec)


def _next_spec(spec: Mapping[str, Any], payload: object) -> Mapping[str, Any] | None:
    """The caller's fields for a new occurrence; None if they stay. The occurrence has its own due time, so no step of a
    ladder is used up before its first try."""
    if payload is UNSET and "ladder_first" not in spec:
        return None
    kept = {name: value for name, value in spec.items() if name != "ladder_first"}
    return kept if payload is UNSET else {**kept, "payload": payload}


def _failed(timer: Timer, failed: Failed, now_ms: int, policy: RetryPolicy, rng: Random) -> Transition:
    chosen = timer.retry or policy
    failures = timer.failures + 1
    error = _error(timer, failed, now_ms)
    progress = replace(timer.progress, last_error=error, first_due_ms=timer.first_due_ms)
    text = f"{failed.error}: {failed.reason}"
    if failed.final or failures >= _maximum(timer, chosen):
        last = timer._replace(failures=failures)
        return _next_or_finish(last, Status.FAILED, progress, now_ms, ("failed", text))
    due_ms = _delayed(failed.after, now_ms, _backoff_ms(timer, policy, failures, rng))
    return _again(timer, due_ms, failures, progress, ("retry", text))


def _again(timer: Timer, due_ms: int, failures: int, progress: Progress, cause: Cause) -> Transition:
    """Another try for the same occurrence."""
    return Transition(Status.SCHEDULED, due_ms, timer.attempt, failures, timer.occurrence, progress, cause)


def _delayed(after: Delay | None, now_ms: int, default_ms: int) -> int:
    return now_ms + default_ms if after is None else Duration.parse(after, "after").add_to(now_ms)


def _error(timer: Timer, failed: Failed, now_ms: int) -> dict[str, Any]:
    """The last error: when this attempt failed, and since when all attempts of the occurrence have."""
    before = timer.last_error
    return {
        "type": failed.error,
        "reason": failed.reason[:DETAIL_LIMIT_CHARACTERS],
        "detail": failed.detail[-DETAIL_LIMIT_CHARACTERS:],
        **({"where": failed.where[-DETAIL_LIMIT_CHARACTERS:]} if failed.where else {}),
        "at": format_time(now_ms),
        "since": before.get("since", before.get("at")) if timer.failures and before else format_time(now_ms),
        "attempt": timer.attempt,
    }


def _ladder_offset(timer: Timer) -> int:
    """1 if the ladder's first step was already the delay before the first try."""
    return 1 if timer.spec.get("ladder_first") else 0


def _maximum(timer: Timer, policy: RetryPolicy) -> int:
    """Failed attempts after which the timer has failed. A ladder has one try for each step; if the timer has its own
    due time, the try at that time is added."""
    if policy.ladder_ms is None:
        return policy.max_attempts
    return len(policy.ladder_ms) + 1 - _ladder_offset(timer)


def _backoff_ms(timer: Timer, policy: RetryPolicy, failures: int, rng: Random) -> int:
    """The wait after the given number of failures. Exponential backoff with equal jitter (half fixed, half random;
    "Exponential Backoff And Jitter", AWS Architecture Blog, 2015) spreads a herd, and yet nobody retries at once."""
    chosen = timer.retry or policy
    if chosen.ladder_ms is not None:
        return chosen.ladder_ms[min(failures - 1 + _ladder_offset(timer), len(chosen.ladder_ms) - 1)]
    base_ms, cap_ms = parse_ms(chosen.base), parse_ms(chosen.cap)
    if chosen.backoff == "fixed":
        return base_ms
    # 2**40 ms is 34 years: above any cap, and the exponent stays bounded.
    whole_ms = min(cap_ms, base_ms << min(failures - 1, 40))
    return whole_ms - rng.randint(0, whole_ms // 2) if chosen.jitter else whole_ms


_Slot = tuple[int, int, bool]
"""A planned time, its step from the anchor (step 0 makes it a new anchor), and whether earlier slots were dropped."""


def start(first_ms: int) -> Progress:
    """The progress of a cycle whose first occurrence is planned at `first_ms`."""
    return Progress(slot_ms=first_ms, anchor_ms=first_ms)


def next_occurrence(timer: Timer, repeat: Repeat, now_ms: int) -> tuple[int, Progress, bool] | None:
    """When the next occurrence is due, the progress to keep, and whether earlier slots were missed and nothing makes up
    for them. None if the cycle is over."""
    progress = timer.progress if timer.progress.slot_ms is not None else start(timer.due_ms)
    done = progress.occurrences + 1
    if repeat.count is not None and done >= repeat.count:
        return None
    at_ms, step, dropped = _next_slot(timer, repeat, progress, now_ms)
    if repeat.until_ms is not None and at_ms > repeat.until_ms:
        return None
    anchor_ms = at_ms if step == 0 else progress.anchor_ms
    return at_ms, Progress(slot_ms=at_ms, anchor_ms=anchor_ms, step=step, occurrences=done), dropped


def _next_slot(timer: Timer, repeat: Repeat, progress: Progress, now_ms: int) -> _Slot:
    interval = repeat.interval
    slot_ms = progress.slot_ms if progress.slot_ms is not None else timer.due_ms
    # A slot that passed recently, or within its grace, was not missed and may still start.
    oldest_ms = 0 if timer.missed == "all" else now_ms - allowed_ms(timer.missed)
    if interval is None:
        return _next_cron(repeat, slot_ms, progress.step, now_ms, oldest_ms)
    if repeat.mode == "fixed_delay":
        return interval.add_to(now_ms, repeat.timezone), 0, False
    anchor_ms = progress.anchor_ms if progress.anchor_ms is not None else slot_ms

    def slot(step: int) -> int:
        """Anchor + step × interval, multiplied before adding: 31 January + 2 months is 31 March."""
        return (interval * step).add_to(anchor_ms, repeat.timezone)

    return _next_interval(slot, progress.step, now_ms, oldest_ms)


def _next_cron(repeat: Repeat, slot_ms: int, step: int, now_ms: int, oldest_ms: int) -> _Slot:
    """The next slot of a cron. Its step counts the missed slots made up for in a row, because the only way to count the
    slots of a cron in between is to walk them."""
    after = partial(next_after, expression=repeat.cron or "", timezone=repeat.timezone)
    if repeat.mode == "fixed_delay":
        return after(now_ms), 0, False
    following_ms = after(slot_ms)
    nearest_ms = following_ms if following_ms >= oldest_ms else after(oldest_ms - 1)
    if nearest_ms <= now_ms and step >= CATCH_UP_LIMIT:
        nearest_ms = after(now_ms)
    return nearest_ms, step + 1 if nearest_ms <= now_ms else 0, nearest_ms > following_ms


def _next_interval(slot: Callable[[int], int], step: int, now_ms: int, oldest_ms: int) -> _Slot:
    """The next slot of an interval, from the oldest that may still start; of those in the past, at most the newest
    `CATCH_UP_LIMIT`."""
    oldest = _first_step_after(slot, step + 1, oldest_ms - 1)
    newest = _first_step_after(slot, oldest, now_ms)
    following = max(oldest, newest - CATCH_UP_LIMIT)
    return slot(following), following, following > step + 1


def _first_step_after(slot: Callable[[int], int], low: int, at_ms: int) -> int:
    """The smallest step ≥ `low` whose slot is after `at_ms`. Doubles, then bisects, so that a long outage of a short
    interval takes a few dozen steps of calendar arithmetic instead of one for each slot."""
    if slot(low) > at_ms:
        return low
    width = 1
    while slot(low + width) <= at_ms:
        width *= 2
    return low + bisect_right(range(low, low + width), at_ms, lo=width // 2, key=slot)
