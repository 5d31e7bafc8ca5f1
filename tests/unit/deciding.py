"""Helpers for tests of what follows a run."""

from collections.abc import Mapping
from itertools import pairwise
from random import Random
from typing import Any

from tests.unit.samples import START_MS, a_timer
from timers.core.decide import Transition, decide, start
from timers.core.model import Status, Timer
from timers.core.outcome import Failed, Outcome
from timers.core.policies import RetryPolicy
from timers.core.spec import NewTimer

ENDED_MS = START_MS + 300
BROKEN = Failed("ValueError", "broken")
STEADY = RetryPolicy(jitter=False)


def after(timer: Timer, outcome: Outcome, now_ms: int = ENDED_MS, policy: RetryPolicy = STEADY) -> Transition:
    return decide(timer, outcome, now_ms, policy, Random(1))


def claimed(timer: Timer, transition: Transition) -> Timer:
    """The timer in the next run after a transition."""
    assert transition.status is Status.SCHEDULED
    return timer._replace(
        due_ms=transition.due_ms,
        attempt=transition.attempt + 1,
        failures=transition.failures,
        occurrence=transition.occurrence,
        progress=transition.progress,
        spec=timer.spec if transition.spec is None else transition.spec,
        token=timer.token + 1,
    )


def failing(timer: Timer, policy: RetryPolicy = STEADY, most: int = 100) -> list[Transition]:
    """The transitions of a timer whose runs all fail at once, until it has failed."""
    found: list[Transition] = []
    while len(found) < most:
        found.append(after(timer, BROKEN, timer.due_ms, policy))
        if found[-1].status is not Status.SCHEDULED:
            break
        timer = claimed(timer, found[-1])
    return found


def waits(timer: Timer, policy: RetryPolicy = STEADY) -> list[int]:
    """The waits in ms between the tries of a timer whose runs all fail at once."""
    due = [timer.due_ms, *(t.due_ms for t in failing(timer, policy) if t.status is Status.SCHEDULED)]
    return [later - earlier for earlier, later in pairwise(due)]


def armed(fields: Mapping[str, Any], due_ms: int = START_MS) -> Timer:
    """The first run of a timer that a caller armed."""
    new = NewTimer.parse({"prefix": "reminder", "id": "user-42", **fields})
    return a_timer(due_ms=due_ms, spec=new.spec(), **({"progress": start(due_ms)} if new.repeat else {}))
