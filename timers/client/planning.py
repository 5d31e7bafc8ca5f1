"""Owns what becomes of a caller's request: what the store arms and when that is due, and what the store's reply means:
the timer that is there now, or the error that says why not. Pure: it never reads a clock."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final, Literal, ParamSpec, TypeVar

from timers.core.calls import Armed, NewTimerFields
from timers.core.cron import next_after
from timers.core.decide import start
from timers.core.durations import format_time
from timers.core.model import NO_PROGRESS, Progress, Status, Timer
from timers.core.policies import Repeat
from timers.core.shapes import Durability
from timers.core.spec import NewTimer, TimerChange, own_due_ms
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
    Unavailable,
    VersionMismatch,
)
from timers.ids import new_id
from timers.store.callers import Quota
from timers.store.codec import ARMED_BY, encode_act
from timers.store.store import Arming, Reply

P = ParamSpec("P")
T = TypeVar("T")


def plan(
    new: NewTimer | NewTimerFields,
    now_ms: float,
    traceparent: str | None = None,
    by: str | None = None,
    durability: Durability | Literal[""] = "",
) -> Arming:
    """Plan a new timer's due time and first progress. The trace, and who arms it, are kept with the spec. `durability`
    is that of a timer that asks for none. Raises InvalidInput."""
    new = new if isinstance(new, NewTimer) else NewTimer.parse(new)
    due_ms, progress = own_due_ms(new, now_ms), NO_PROGRESS
    if due_ms is None:
        due_ms = _first_due_ms(new, now_ms)
    due = f"@{due_ms}" if new.due_at is not None else f"+{due_ms - round(now_ms)}"
    if new.repeat is not None:
        _require_before_end(new.repeat, due_ms)
        due, progress = f"@{due_ms}", start(due_ms)
    spec = new.spec()
    if traceparent is not None:
        spec["traceparent"] = traceparent
    cause, durability = encode_act("replaced", by), new.durability or durability
    if by is not None:
        spec[ARMED_BY] = cause.partition(" ")[2]
    return Arming(new.prefix, new.id or new_id(), due, spec, progress, new.if_exists, cause, 0, durability)


def _first_due_ms(new: NewTimer, now_ms: float) -> int:
    """The first due time of a timer that gives none itself."""
    if new.repeat is not None and new.repeat.cron is not None:
        return next_after(round(now_ms), new.repeat.cron, new.repeat.timezone)
    ladder_ms = new.retry.ladder_ms if new.retry is not None else None
    if ladder_ms is None:
        raise InvalidInput.of("delay", None, "exactly one of delay and due_at")
    return round(now_ms) + ladder_ms[0]


def _require_before_end(repeat: Repeat, due_ms: int) -> None:
    if repeat.until_ms is not None and due_ms > repeat.until_ms:
        rule = f"a time at or after the first run, which would be due {format_time(due_ms)}"
        raise InvalidInput.of("repeat.until", repeat.until, rule)


def changed_progress(current: Timer, change: TimerChange, due_ms: int | None) -> Progress | None:
    """A moved due time or another cycle restarts the plan from there and keeps the counts. The due time of a further
    try moves without the cycle. None if nothing changes. Raises InvalidInput for a cycle that would already be over."""
    moved = current.progress if due_ms is None else replace(current.progress, first_due_ms=None)
    is_another = "repeat" in change.model_fields_set
    repeat = change.repeat if is_another else current.repeat
    if repeat is None or (due_ms is None and not is_another):
        return None if moved == current.progress else moved
    if not is_another and current.progress.first_due_ms is not None:
        return None
    first_ms = current.first_due_ms if due_ms is None else due_ms
    _require_before_end(repeat, first_ms)
    number = current.progress.occurrences + 1
    if is_another and repeat.count is not None and repeat.count < number:
        rule = f"at least {number}, because occurrence {number} of the cycle is scheduled; cancel it to end the cycle"
        raise InvalidInput.of("repeat.count", repeat.count, rule)
    started = start(first_ms)
    return replace(moved, slot_ms=started.slot_ms, anchor_ms=started.anchor_ms, step=0)


Reason = InvalidInput | TooManyPending | Refused | Unavailable
REASONS: Final = (InvalidInput, TooManyPending, Refused, RedisRights, NewerFormat)
"""Why one timer of several may be refused. Every other error ends the whole call."""

Wish = NewTimer | NewTimerFields | InvalidInput | Refused
"""A timer of a batch, or the error that is its result."""

Results = list[Armed | Reason]
"""The result for each timer of a batch."""


def tried(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | Reason:
    """What the call returns, or the reason that it raises."""
    try:
        return call(*args, **kwargs)
    except REASONS as reason:
        return reason


def armed(answer: Reply, arming: Arming, quota: Quota | None) -> Armed:
    """The result of arming within the quota. Raises as `accepted`."""
    codes = ("created", "replaced", "kept", "cancelled")
    return Armed(accepted(answer, arming.prefix, arming.id, codes, quota), answer.code)


def accepted(answer: Reply, prefix: str, timer_id: str, codes: tuple[str, ...], quota: Quota | None = None) -> Timer:
    """The timer, if the reply has one of these codes. Raises the error for any other code."""
    if answer.code in codes and answer.timer is not None:
        return answer.timer
    if answer.refused is not None:
        raise answer.refused
    if answer.code == "lost":
        raise Unavailable("Redis has just lost data: repeat it", nothing_done=True)
    if answer.code == "full" and quota is not None:
        raise TooManyPending(
            f"at least {quota.most} timers under {', '.join(quota.prefixes)} are scheduled or running, "
            "the maximum of the key; try again when some have run, or cancel some"
        )
    if answer.code == "prefixes" and quota is not None:
        raise TooManyPending(
            f"at least {quota.most_prefixes} prefixes under {', '.join(quota.prefixes)} have timers, "
            "the maximum of the key; use one of these prefixes, or cancel and purge all timers of one"
        )
    raise refusal(answer.code, prefix, timer_id, answer.timer)


def refusal(code: str, prefix: str, timer_id: str, timer: Timer | None) -> Refused:
    """The error for a code that is no success, in words that say what to do."""
    status, version = ("unknown", "?") if timer is None else (timer.status.value, timer.version)
    kind = _REFUSALS.get(code, NotScheduled)
    again = "a create with if_exists 'replace'" if status == Status.COMPLETED else "retry"
    said = (kind.says or _NOT_SCHEDULED[code]).format(status=status, version=version, again=again)
    return kind(f"timer {prefix}:{timer_id} {said}")


_REFUSALS: Final[Mapping[str, type[Refused]]] = {
    "missing": NotFound,
    "exists": AlreadyExists,
    "running": Running,
    "locked": EditLocked,
    "version": VersionMismatch,
}
_NOT_SCHEDULED: Final = {
    "scheduled": "is scheduled already; fire makes it due now",
    "completed": "is completed; {again} arms it again",
    "finished": "is {status} and no longer scheduled; {again} arms it again",
}
