"""Owns what a script's reply means to a caller: the timer that is there now, or the error that says why not."""

from typing import NamedTuple

from timers.core.model import Status, Timer
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
from timers.store.store import Reply


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
