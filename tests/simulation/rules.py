"""Owns the rules of a record: which script may turn which state into which, and on whose behalf."""

from collections.abc import Callable
from typing import Final, NamedTuple

from tests.simulation.lives import FINISHED, Life, State
from tests.simulation.loop import Actor

MAX_ATTEMPTS: Final = 3
"""Of every processor."""

WRITERS: Final = frozenset(
    (
        *("arm", "cancel", "reschedule", "rearm", "claim", "rescue", "settle", "abandon", "prune", "pause"),
        *("restore", "audit", "bare/adopt", "bare/resolve"),
    )
)
"""The scripts that change records."""

_MAKERS: Final = ("arm", "bare/adopt", "bare/resolve")


class Step(NamedTuple):
    """A script of an actor has changed the record of a life. `may_run` says whether the actor has the prefix's own
    processor; `excused` whether something may have cost an actor its lease so many
    seconds ago."""

    script: str
    actor: Actor
    life: Life
    before: State | None
    after: State | None
    may_run: bool
    excused: Callable[[Actor, float], bool]


def broken_by(step: Step) -> str | None:
    """The rule that a step breaks."""
    script, before, after = step.script, step.before, step.after
    if script == "restore":
        return _given(step, before, after)
    if before is None:
        return _made(script, after)
    if after is None:
        return None if script in ("cancel", "prune") and before.status != "r" else "nothing is lost"
    if after.created != before.created or after.version <= before.version:
        return "versions rise"
    if script in ("claim", "rescue"):
        return _begun(step, before, after)
    if after.token != before.token:
        return None if script == "abandon" and after.token > step.life.newest_token else "tokens come with claims"
    if before.status == "r" or script == "settle":
        return _ended(step, before, after)
    return _changed(script, before, after)


def _made(script: str, after: State | None) -> str | None:
    if after is None or script not in _MAKERS:
        return "only an arming makes a timer"
    return None if (after.attempt, after.token) == (0, 0) else "a new timer is new"


def _given(step: Step, before: State | None, after: State | None) -> str | None:
    """By the ledger, which accepted it while the server was away. An application's row, or a caller whose answer was
    lost, may have made another one of that name before, which the ledger did not know."""
    if after is not None and after.status == "x" and before is not None and None in step.life.states[1:]:
        return None  # what was removed, and came back with a create under way, is removed again
    lost = step.life.lost
    if lost is not None and lost.row is not None and after is not None and after.created == lost.row.created:
        return None if after.version > lost.row.version else "versions rise"
    if after is None or (after.created in step.life.makers and lost is None):
        return "what was removed stays away"
    if before is not None and after.created < before.created:
        return "versions rise"
    return None if after.attempt == 0 else "a new timer is new"


def _changed(script: str, before: State, after: State) -> str | None:
    """Of a timer that does not run, by a caller, a bare key or upkeep."""
    made_and_cancelled = script == "arm" and after.version > before.version + 1  # by rows of one inbox
    if after.status == "x" and script not in ("cancel", "bare/resolve") and not made_and_cancelled:
        return "only a caller cancels"
    if after.status in "cfu" and script != "abandon":
        return "only a run ends a timer"
    if before.status in FINISHED and script not in (*_MAKERS, "rearm"):
        return "what has ended stays"
    return None


def _begun(step: Step, before: State, after: State) -> str | None:
    if after.status != "r" or after.token <= step.life.newest_token:
        return "tokens rise"
    if (after.attempt, after.occurrence, after.due) != (before.attempt + 1, before.occurrence, before.due):
        return "attempts are counted"
    if after.failures != before.failures + (step.script == "rescue"):
        return "attempts are counted"
    if not step.may_run:
        return "the right processor"
    return _claimed(step.life, before, after) if step.script == "claim" else _rescued(step, before, after)


def _claimed(life: Life, before: State, after: State) -> str | None:
    if before.status != "s":
        return "a claim takes what is scheduled"
    if after.at_ms < before.due:
        return "never early"
    started = {*life.fired, (after.created, after.occurrence)}
    if life.keys and len(started) > sum(key.deadline_ms <= after.at_ms for key in life.keys):
        return "a bare key fires once"
    return None


def _rescued(step: Step, before: State, after: State) -> str | None:
    until_ms = step.life.leased_until.get(before.token, after.at_ms)
    if before.status != "r" or until_ms > after.at_ms:
        return "a rescue needs a lost lease"
    ago_s = (after.at_ms - until_ms) / 1000  # a limit may have kept everybody from rescuing it sooner
    return None if step.excused(step.life.takers[before.token], ago_s) else "a lease is kept"


def _ended(step: Step, before: State, after: State) -> str | None:
    """Of a timer that runs."""
    if step.script == "abandon":
        return None
    if step.script != "settle" or before.status != "r":
        return "one door out of running"
    if step.life.takers.get(before.token) is not step.actor:
        return "no stale result"
    run = step.life.runs.get(before.token)
    return _fits(None if run is None else run.how, before, after)


def _fits(how: str | None, before: State, after: State) -> str | None:
    """Whether the end of a run is what its processor did."""
    failed = after.failures - before.failures if after.occurrence == before.occurrence else 0
    if failed not in (0, 1):
        return "one try for one failure"
    goes_on = after.status == "s" and after.occurrence == before.occurrence + 1 and after.attempt == 0
    match how:
        case "done":
            fits = after.cause == "completed" and (after.status == "c" or goes_on)
        case "rearm":
            fits = after.cause == "re-armed" and goes_on
        case "fail":
            fits = after.cause == ("retry" if before.failures + 1 < MAX_ATTEMPTS else "failed") and failed == 1
        case "give up":
            fits = after.cause == "failed" and after.status == "f"
        case "snooze":
            fits = after.cause == "snoozed" and after.status == "s" and failed == 0
        case "stopped":
            fits = after.cause in ("handed-back", "failed", "retry")
        case _:  # it was not called: it had used up its tries, or its pod drained
            fits = after.cause in ("handed-back", "failed", "skipped")
    return None if fits else "ends are of runs"
