"""Lives of timers: whatever the outcomes, the next step is allowed, bounded and on the planned grid."""

from dataclasses import dataclass, replace
from random import Random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.deciding import claimed
from tests.unit.samples import START_MS, a_timer
from timers.core.cron import next_after
from timers.core.decide import CATCH_UP_LIMIT, Transition, decide, exhausted, missed, start
from timers.core.durations import DAY_MS, HOUR_MS, MINUTE_MS, parse_interval, parse_ms
from timers.core.model import Progress, Status, Timer
from timers.core.outcome import UNSET, Done, Exhausted, Failed, HandBack, Missed, Outcome, Rearm, Snooze
from timers.core.policies import RetryPolicy, allowed_ms
from timers.core.spec import NewTimer
from timers.errors import InvalidInput

steady = settings(max_examples=100)

DURATIONS = st.sampled_from(["0s", "1ms", "250ms", "5s", "1m", "7m30s", "1h", "24h", "1d", "3d", 0.1, 90])
MONTHS = st.sampled_from(["P1M", "P1Y", "P1M1DT1H", "MONTHLY", "DAILY"])
ZONES = st.sampled_from(["UTC", "Europe/Berlin", "Australia/Lord_Howe", "America/St_Johns"])
CRONS = st.sampled_from(["* * * * *", "*/7 * * * *", "0 9 * * MON-FRI", "30 2 * * *", "0 0 31 * *", "0 0 29 2 *"])
LATENESS_MS = st.one_of(
    st.integers(0, 5_000), st.integers(0, 3 * DAY_MS), st.sampled_from([0, HOUR_MS, DAY_MS, 400 * DAY_MS])
)

formulas = st.fixed_dictionaries(
    {},
    optional={
        "max_attempts": st.integers(1, 6),
        "backoff": st.sampled_from(["exponential", "fixed"]),
        "base": DURATIONS,
        "cap": DURATIONS,
        "jitter": st.booleans(),
    },
)
ladders = st.fixed_dictionaries({"backoff": st.lists(DURATIONS, min_size=1, max_size=5)})
retries = st.one_of(formulas, ladders)
ends = {
    "count": st.integers(1, 6),
    "until": st.integers(START_MS, START_MS + 40 * DAY_MS),
    "mode": st.sampled_from(["fixed_rate", "fixed_delay"]),
    "timezone": ZONES,
}
positive = DURATIONS.filter(lambda duration: duration != "0s")
repeats = st.one_of(
    st.fixed_dictionaries({"every": st.one_of(positive, MONTHS)}, optional=ends),
    st.fixed_dictionaries({"cron": CRONS}, optional=ends),
)
policies = retries.map(RetryPolicy.parse)


@st.composite
def new_timers(draw: st.DrawFn) -> NewTimer:
    """Any timer that a caller can ask for, with the fields that matter after a run."""
    fields: dict[str, Any] = {"prefix": "reminder"}
    if draw(st.booleans()):
        fields["repeat"] = draw(repeats)
    if draw(st.booleans()):
        fields["retry"] = draw(retries)
    if draw(st.booleans()):
        fields["delay"] = "1h"
    all_but = ["fire", "skip", {"grace": "10m"}]
    fields["missed"] = draw(st.sampled_from([*all_but, "latest", "all"] if "repeat" in fields else all_but))
    try:
        return NewTimer.parse(fields)
    except InvalidInput:
        return NewTimer.parse({**fields, "delay": "1h"})


def planned(new: NewTimer) -> Timer:
    """A timer in its first run."""
    due_ms, repeat = START_MS, new.repeat
    if repeat is not None and repeat.cron is not None and new.delay is None:
        due_ms = next_after(START_MS, repeat.cron, repeat.timezone)
    progress = Progress() if new.repeat is None else start(due_ms)
    return a_timer(due_ms=due_ms, spec=new.spec(), progress=progress)


outcomes: st.SearchStrategy[Outcome] = st.one_of(
    st.builds(Done, st.text(max_size=5)),
    st.builds(
        Rearm, after=st.one_of(DURATIONS, st.just("P1M")), payload=st.one_of(st.just(UNSET), st.none(), st.booleans())
    ),
    st.builds(lambda ms: Rearm(at=START_MS + ms), st.integers(-DAY_MS, 40 * DAY_MS)),
    st.builds(Failed, st.just("ValueError"), st.text(max_size=5), after=st.one_of(st.none(), DURATIONS)),
    st.builds(Failed, st.just("Fail"), st.text(max_size=5), final=st.just(True)),
    st.builds(Snooze, st.text(max_size=5), st.one_of(st.none(), DURATIONS)),
    st.builds(HandBack, st.text(max_size=5)),
    st.builds(Missed, st.integers(1, DAY_MS)),
    st.builds(Exhausted, st.text(max_size=5)),
)


@dataclass(frozen=True)
class Step:
    """One run of a life: the timer, the outcome, its time, and what follows."""

    timer: Timer
    outcome: Outcome
    now_ms: int
    decided: Transition


@st.composite
def lives(draw: st.DrawFn, what: st.SearchStrategy[Outcome] = outcomes) -> tuple[RetryPolicy, list[Step]]:
    """The runs of one timer, up to its last or its twentieth. Time never goes back."""
    policy, timer, rng = draw(policies), planned(draw(new_timers())), Random(draw(st.integers(0, 2**32)))
    steps: list[Step] = []
    now_ms = timer.due_ms
    while len(steps) < 20:
        now_ms = max(now_ms, timer.due_ms) + draw(LATENESS_MS)
        outcome = draw(what)
        decided = decide(timer, outcome, now_ms, policy, rng)
        steps.append(Step(timer, outcome, now_ms, decided))
        if decided.status is not Status.SCHEDULED:
            break
        timer = claimed(timer, decided)
    return policy, steps


def most_failures(timer: Timer, policy: RetryPolicy) -> int:
    """How many runs of an occurrence may fail, computed anew: a ladder's steps, plus one if it has a due time."""
    chosen = timer.retry or policy
    if chosen.ladder_ms is None:
        return chosen.max_attempts
    return len(chosen.ladder_ms) + (0 if "ladder_first" in timer.spec else 1)


@steady
@given(lives())
def test_only_allowed_changes_with_sane_numbers(life: tuple[RetryPolicy, list[Step]]) -> None:
    for step in life[1]:
        before, after = step.timer, step.decided
        assert after.status in (Status.SCHEDULED, Status.COMPLETED, Status.FAILED)
        assert after.due_ms >= 0
        assert after.occurrence in (before.occurrence, before.occurrence + 1)
        if after.occurrence != before.occurrence:
            assert (after.status, after.attempt, after.failures) == (Status.SCHEDULED, 0, 0)
        else:
            assert after.attempt == before.attempt - isinstance(step.outcome, Missed | Exhausted)


@steady
@given(lives())
def test_failures_are_bounded_by_one_limit(life: tuple[RetryPolicy, list[Step]]) -> None:
    policy, steps = life
    for step in steps:
        before, after = step.timer, step.decided
        assert not exhausted(before, policy)
        failed = isinstance(step.outcome, Failed)
        if after.occurrence == before.occurrence:
            assert after.failures == before.failures + failed <= most_failures(before, policy)
        if isinstance(step.outcome, Exhausted):
            continue
        gave_up = after.status is Status.FAILED or after.occurrence != before.occurrence
        used_up = before.failures + 1 >= most_failures(before, policy)
        if isinstance(step.outcome, Failed):
            assert gave_up is (step.outcome.final or used_up)


@steady
@given(lives(st.builds(Failed, st.just("ValueError"), st.just("broken"))))
def test_a_timer_that_always_fails_ends_each_occurrence_after_exactly_its_maximum(
    life: tuple[RetryPolicy, list[Step]],
) -> None:
    policy, steps = life
    for step in steps:
        ended = step.decided.status is Status.FAILED or step.decided.occurrence != step.timer.occurrence
        assert ended is (step.timer.attempt == most_failures(step.timer, policy))


@steady
@given(lives(st.one_of(st.builds(HandBack, st.just("drain")), st.builds(Snooze, st.just("wait"), DURATIONS))))
def test_hand_backs_and_snoozes_use_up_no_attempts_and_end_nothing(life: tuple[RetryPolicy, list[Step]]) -> None:
    for step in life[1]:
        assert step.decided.status is Status.SCHEDULED
        assert (step.decided.failures, step.decided.occurrence) == (0, 1)
        begun = replace(step.timer.progress, first_due_ms=step.timer.first_due_ms)
        assert step.decided.progress in (step.timer.progress, begun)


@steady
@given(lives())
def test_only_a_timer_that_repeats_or_re_arms_has_a_next_occurrence(life: tuple[RetryPolicy, list[Step]]) -> None:
    for step in life[1]:
        if step.timer.repeat is None and not isinstance(step.outcome, Rearm):
            assert step.decided.occurrence == step.timer.occurrence


@steady
@given(lives(outcomes.filter(lambda outcome: not isinstance(outcome, Rearm))))
def test_a_repeat_never_runs_more_often_than_its_count_nor_after_its_end(life: tuple[RetryPolicy, list[Step]]) -> None:
    for step in life[1]:
        repeat, after = step.timer.repeat, step.decided
        if repeat is None:
            continue
        assert repeat.count is None or after.occurrence <= repeat.count
        assert repeat.count is None or 0 <= after.progress.occurrences < repeat.count
        if repeat.until_ms is not None and after.occurrence > step.timer.occurrence:
            assert after.due_ms <= repeat.until_ms


@steady
@given(lives())
def test_the_next_occurrence_of_a_repeat_was_not_missed_unless_each_missed_one_is_wanted(
    life: tuple[RetryPolicy, list[Step]],
) -> None:
    for step in life[1]:
        new = step.decided.occurrence > step.timer.occurrence and not isinstance(step.outcome, Rearm)
        if new and step.timer.missed != "all":
            assert step.decided.due_ms >= step.now_ms - allowed_ms(step.timer.missed)


@steady
@given(lives(outcomes.filter(lambda outcome: not isinstance(outcome, Rearm))))
def test_a_fixed_rate_never_leaves_its_grid(life: tuple[RetryPolicy, list[Step]]) -> None:
    """The oracle computes from the first slot directly, so runs, retries and outages in between cannot move it."""
    first_ms = life[1][0].timer.progress.slot_ms
    for step in life[1]:
        repeat, after = step.timer.repeat, step.decided
        if repeat is None or repeat.every is None or repeat.mode == "fixed_delay" or first_ms is None:
            continue
        slot_ms, steps = after.progress.slot_ms, after.progress.step
        assert slot_ms == (parse_interval(repeat.every) * steps).add_to(first_ms, repeat.timezone)
        assert after.occurrence == step.timer.occurrence or after.due_ms == slot_ms


@settings(max_examples=25)
@given(
    st.sampled_from([{"every": "1m"}, {"every": "1h"}, {"cron": "* * * * *"}, {"cron": "*/30 * * * *"}]),
    st.integers(0, 100 * DAY_MS),
)
def test_all_makes_up_for_a_bounded_number_of_missed_runs_each_once(cycle: dict[str, str], outage_ms: int) -> None:
    new = NewTimer.parse({"prefix": "reminder", "delay": 0, "repeat": cycle, "missed": "all"})
    timer, now_ms, due = planned(new), START_MS + outage_ms, []
    while timer.due_ms <= now_ms:
        due.append(timer.due_ms)
        timer = claimed(timer, decide(timer, Done(), now_ms, RetryPolicy(), Random(0)))
    width_ms = HOUR_MS if cycle == {"every": "1h"} else 30 * MINUTE_MS if "*/30" in str(cycle) else MINUTE_MS
    wanted = outage_ms // width_ms
    assert len(due) == min(wanted, CATCH_UP_LIMIT) + 1
    assert due == sorted(set(due))
    assert now_ms < timer.due_ms <= now_ms + width_ms


@steady
@given(new_timers(), st.integers(0, DAY_MS))
def test_a_run_in_time_is_never_taken_for_missed(new: NewTimer, early_ms: int) -> None:
    timer = planned(new)
    for now_ms in (timer.due_ms, timer.due_ms + 1000, timer.due_ms - early_ms):
        assert missed(timer, now_ms) is None


@steady
@given(formulas, st.integers(1, 999), st.integers(0, 2**32))
def test_a_wait_is_within_half_and_whole_of_the_formula(formula: dict[str, Any], failures: int, seed: int) -> None:
    policy = RetryPolicy.parse({**formula, "max_attempts": 1000})
    timer = a_timer(failures=failures - 1)
    wait_ms = decide(timer, Failed("ValueError", ""), START_MS, policy, Random(seed)).due_ms - START_MS
    base_ms, cap_ms = parse_ms(policy.base), parse_ms(policy.cap)
    if policy.backoff == "fixed":
        assert wait_ms == base_ms
        return
    whole_ms = min(cap_ms, base_ms * 2 ** (failures - 1))
    assert whole_ms - whole_ms // 2 <= wait_ms <= whole_ms
    assert policy.jitter or wait_ms == whole_ms
