"""After a failed attempt: how often and when the timer is tried again."""

from dataclasses import replace
from random import Random
from typing import Any

import pytest

from tests.unit.deciding import BROKEN, ENDED_MS, STEADY, after, armed, claimed, failing, waits
from tests.unit.samples import START_MS, a_timer, at
from timers.client.planning import changed_progress
from timers.core.decide import DETAIL_LIMIT_CHARACTERS, Transition, decide, exhausted
from timers.core.durations import DAY_MS, HOUR_MS, MINUTE_MS, SECOND_MS, format_time
from timers.core.model import Progress, Status, in_english
from timers.core.outcome import Done, Failed, Outcome, Rearm, Retry
from timers.core.policies import RetryPolicy
from timers.core.spec import TimerChange
from timers.errors import InvalidInput


class TestFailed:
    def test_tries_again_and_says_why(self) -> None:
        decided = after(a_timer(attempt=1), Failed("ValueError", "broken", "Traceback …"))
        assert decided == Transition(
            Status.SCHEDULED,
            ENDED_MS + SECOND_MS,
            1,
            1,
            1,
            Progress(
                last_error={
                    "type": "ValueError",
                    "reason": "broken",
                    "detail": "Traceback …",
                    "at": format_time(ENDED_MS),
                    "since": format_time(ENDED_MS),
                    "attempt": 1,
                },
                first_due_ms=START_MS,
            ),
            ("retry", "ValueError: broken"),
        )

    def test_keeps_when_the_occurrence_was_due_first_until_the_next_begins(self) -> None:
        first = armed({"delay": 0, "repeat": {"every": "1h"}})
        assert first.progress.first_due_ms is None
        retried = claimed(first, after(first, Failed("ValueError", "broken")))
        assert retried.due_ms > first.due_ms
        twice = claimed(retried, after(retried, Failed("ValueError", "broken")))
        assert twice.first_due_ms == retried.first_due_ms == first.due_ms
        assert after(twice, Done()).progress.first_due_ms is None

    def test_a_due_time_that_a_caller_moves_is_the_occurrences_first(self) -> None:
        timer = a_timer()
        retried = claimed(timer, after(timer, Failed("ValueError", "broken")))
        progress = changed_progress(retried, TimerChange.parse({"delay": "1h"}), START_MS + HOUR_MS)
        assert progress == replace(retried.progress, first_due_ms=None)
        assert changed_progress(retried, TimerChange.parse({"tags": ["x"]}), None) is None

    @pytest.mark.parametrize("change", [{"delay": 0}, {"repeat": {"every": "1d", "count": 9}}])
    def test_a_change_between_two_tries_does_not_move_the_cycle(self, change: dict[str, Any]) -> None:
        timer = armed({"delay": 0, "repeat": {"every": "1d"}})
        retried = claimed(timer, after(timer, Failed("ValueError", "broken", after="3h")))
        asked = TimerChange.parse(change)
        due_ms = START_MS + HOUR_MS if asked.moves_due else None
        progress = changed_progress(retried, asked, due_ms) or retried.progress
        again = retried._replace(progress=progress, due_ms=due_ms or retried.due_ms)
        assert after(again, Done(), START_MS + 4 * HOUR_MS).due_ms == timer.due_ms + DAY_MS

    def test_a_count_that_has_been_reached_is_refused(self) -> None:
        timer = armed({"delay": 0, "repeat": {"every": "1d"}})
        second = claimed(timer, after(timer, Done()))
        with pytest.raises(InvalidInput, match="at least 2, because occurrence 2"):
            changed_progress(second, TimerChange.parse({"repeat": {"every": "1d", "count": 1}}), None)
        assert changed_progress(second, TimerChange.parse({"repeat": {"every": "1d", "count": 2}}), None) is not None

    def test_the_error_says_since_when_every_try_has_failed(self) -> None:
        earlier = Progress(last_error={"type": "ValueError", "at": "2026-11-21T09:00:00.000Z", "since": "long ago"})
        again = after(
            a_timer(failures=2)._replace(progress=earlier), Failed("ValueError", "broken")
        ).progress.last_error
        assert again is not None
        assert again["since"] == "long ago"
        older = Progress(last_error={"type": "ValueError", "at": "2026-11-21T09:00:00.000Z"})
        again = after(a_timer(failures=2)._replace(progress=older), Failed("ValueError", "broken")).progress.last_error
        assert again is not None
        assert again["since"] == "2026-11-21T09:00:00.000Z"
        of_the_last_occurrence = after(a_timer()._replace(progress=earlier), Failed("ValueError", "broken"))
        assert of_the_last_occurrence.progress.last_error is not None
        assert of_the_last_occurrence.progress.last_error["since"] == format_time(ENDED_MS)

    @pytest.mark.parametrize("most", [1, 2, 5, 17])
    def test_max_attempts_is_the_number_of_runs_that_may_fail(self, most: int) -> None:
        """It means the same everywhere: not `>` here and `>=` there."""
        runs = failing(a_timer(), RetryPolicy(max_attempts=most, jitter=False))
        assert [t.status for t in runs] == [Status.SCHEDULED] * (most - 1) + [Status.FAILED]
        assert [t.failures for t in runs] == list(range(1, most + 1))
        assert runs[-1].attempt == most
        assert in_english(*runs[-1].cause) == "gave up after ValueError: broken"

    def test_the_timer_s_own_policy_goes_before_the_processor_s(self) -> None:
        timer = a_timer(spec={"retry": {"max_attempts": 2}})
        assert len(failing(timer, RetryPolicy(max_attempts=9))) == 2

    def test_final_gives_up_whatever_is_left(self) -> None:
        decided = after(a_timer(), Failed("Fail", "no such user", final=True))
        assert (decided.status, decided.failures) == (Status.FAILED, 1)

    def test_a_delay_of_its_own_overrides_the_policys_and_counts_as_an_attempt(self) -> None:
        decided = after(a_timer(), Failed("Retry", "busy", after="7m"))
        assert (decided.due_ms, decided.failures) == (ENDED_MS + 7 * MINUTE_MS, 1)
        assert after(a_timer(failures=4), Failed("Retry", "busy", after="7m")).status is Status.FAILED

    def test_retry_refuses_nonsense_in_the_processor_where_it_is_a_failed_try(self) -> None:
        with pytest.raises(InvalidInput, match=r"^Retry\.after: 'soon'"):
            Retry("busy", after="soon")

    def test_what_is_kept_of_an_error_is_bounded(self) -> None:
        long = "".join(chr(97 + n % 26) for n in range(20_000))
        error = after(a_timer(), Failed("ValueError", long, long)).progress.last_error
        assert error is not None
        assert error["reason"] == long[:DETAIL_LIMIT_CHARACTERS]
        assert error["detail"] == long[-DETAIL_LIMIT_CHARACTERS:]  # the line in which a traceback names its error

    def test_a_repeat_continues_with_its_next_occurrence_and_keeps_the_reason(self) -> None:
        timer = armed({"delay": 0, "repeat": {"every": "1h"}, "retry": {"max_attempts": 1}})._replace(attempt=1)
        decided = after(timer, BROKEN)
        assert (decided.status, decided.due_ms) == (Status.SCHEDULED, START_MS + HOUR_MS)
        assert (decided.attempt, decided.failures, decided.occurrence) == (0, 0, 2)
        assert decided.progress.last_error is not None
        assert in_english(*decided.cause) == "gave up after ValueError: broken"

    def test_the_last_occurrence_of_a_repeat_fails_with_its_count_of_failures(self) -> None:
        timer = armed({"delay": 0, "repeat": {"every": "1h", "count": 1}, "retry": {"max_attempts": 1}})
        decided = after(timer, BROKEN)
        assert (decided.status, decided.failures) == (Status.FAILED, 1)

    def test_retries_of_a_fixed_rate_do_not_make_it_drift(self) -> None:
        timer = armed({"delay": 0, "repeat": {"every": "1h"}})
        for occurrence in range(1, 50):
            again = claimed(timer, after(timer, BROKEN, timer.due_ms + 777))
            assert again.due_ms != timer.due_ms
            timer = claimed(again, after(again, Done(), again.due_ms + 777))
            assert timer.due_ms == START_MS + occurrence * HOUR_MS


class TestBackoff:
    def test_exponential_doubles_up_to_the_cap(self) -> None:
        policy = RetryPolicy(max_attempts=8, base="1s", cap="20s", jitter=False)
        assert waits(a_timer(), policy) == [1_000, 2_000, 4_000, 8_000, 16_000, 20_000, 20_000]

    def test_exponential_stays_bounded_after_a_thousand_failures(self) -> None:
        policy = RetryPolicy(max_attempts=1000, base="1s", cap="1h", jitter=False)
        assert after(a_timer(failures=998), BROKEN, ENDED_MS, policy).due_ms == ENDED_MS + HOUR_MS

    def test_a_base_above_the_cap_is_the_cap(self) -> None:
        assert set(waits(a_timer(), RetryPolicy(base="2h", cap="1h", jitter=False))) == {HOUR_MS}

    def test_fixed_waits_the_base_each_time(self) -> None:
        assert waits(a_timer(), RetryPolicy(backoff="fixed", base="90s")) == [90_000] * 4

    def test_jitter_draws_from_the_upper_half_and_reaches_both_ends(self) -> None:
        """Many failing timers spread out, but none retries at once."""
        rng = Random(7)
        policy = RetryPolicy(base="10ms")
        drawn = {decide(a_timer(), BROKEN, ENDED_MS, policy, rng).due_ms - ENDED_MS for _ in range(1000)}
        assert drawn == {5, 6, 7, 8, 9, 10}

    def test_jitter_stays_below_the_cap(self) -> None:
        rng = Random(7)
        policy = RetryPolicy(base="1s", cap="3s", max_attempts=50)
        timer = a_timer(failures=40)
        drawn = [decide(timer, BROKEN, ENDED_MS, policy, rng).due_ms - ENDED_MS for _ in range(1000)]
        assert 1_500 <= min(drawn) < 1_550
        assert 2_950 < max(drawn) <= 3_000


LADDER = ["5s", "30s", "1m", "10m", "30m", "1h", "6h", "1d", "2d"]
LADDER_MS = [5_000, 30_000, 60_000, 600_000, 1_800_000, 3_600_000, 21_600_000, 86_400_000, 172_800_000]


class TestLadder:
    def test_armed_at_10_00_00_runs_at_05_35_and_10_01_35_and_ends_at_level_3(self) -> None:
        """The published design's example, to the second."""
        timer = armed({"retry": {"backoff": LADDER}}, due_ms=at("10:00:00") + LADDER_MS[0])
        started = [timer.due_ms]
        for _ in range(2):
            timer = claimed(timer, after(timer, BROKEN, timer.due_ms))
            started.append(timer.due_ms)
        assert started == [at("10:00:05"), at("10:00:35"), at("10:01:35")]
        ended = after(timer, Done(), timer.due_ms)
        assert (ended.status, ended.attempt) == (Status.COMPLETED, 3)

    def test_without_a_due_time_of_its_own_each_step_is_before_one_try(self) -> None:
        timer = armed({"retry": {"backoff": LADDER}})
        assert waits(timer) == LADDER_MS[1:]
        assert len(failing(timer)) == len(LADDER)
        assert failing(timer)[-1].status is Status.FAILED

    def test_with_one_the_try_at_the_due_time_comes_on_top(self) -> None:
        timer = armed({"delay": "1h", "retry": {"backoff": LADDER}})
        assert waits(timer) == LADDER_MS
        assert len(failing(timer)) == len(LADDER) + 1

    def test_of_the_processor_is_only_for_retries(self) -> None:
        policy = RetryPolicy(backoff=tuple(LADDER))
        assert waits(armed({"delay": 0}), policy) == LADDER_MS

    def test_of_one_step_is_one_try(self) -> None:
        assert len(failing(armed({"retry": {"backoff": ["5s"]}}))) == 1

    def test_is_not_spread_by_jitter(self) -> None:
        timer = armed({"delay": 0, "retry": {"backoff": ["10s"]}})
        assert {decide(timer, BROKEN, 0, STEADY, Random(seed)).due_ms for seed in range(20)} == {10_000}

    @pytest.mark.parametrize("outcome", [Done(), Rearm(after="1h"), BROKEN])
    def test_starts_at_its_first_step_in_the_next_occurrence(self, outcome: Outcome) -> None:
        """It has a due time of its own. Skipping the first step would lose a try and wait too long."""
        timer = armed({"retry": {"backoff": ["5s", "30s"]}, "repeat": {"every": "1h"}})
        second = claimed(timer, after(timer._replace(failures=1), outcome))
        assert (second.occurrence, second.repeat) == (2, timer.repeat)
        failed = after(second, BROKEN, second.due_ms)
        assert failed.due_ms == second.due_ms + 5_000
        assert not exhausted(second._replace(failures=2), STEADY)
        assert exhausted(second._replace(failures=3), STEADY)


class TestExhausted:
    """Crashes count as failures at the rescue. If they have used up every try, no run may start."""

    @pytest.mark.parametrize(("failures", "used_up"), [(0, False), (4, False), (5, True), (6, True)])
    def test_is_the_same_limit_as_that_of_failed_runs(self, failures: int, used_up: bool) -> None:
        assert (exhausted(a_timer(failures=failures), STEADY) is not None) is used_up

    def test_the_timer_s_own_policy_goes_before_the_processor_s(self) -> None:
        assert exhausted(a_timer(failures=2, spec={"retry": {"max_attempts": 2}}), STEADY)

    def test_a_ladder_brings_its_own_limit(self) -> None:
        assert exhausted(armed({"retry": {"backoff": ["5s", "30s"]}})._replace(failures=2), STEADY)
        assert not exhausted(armed({"delay": 0, "retry": {"backoff": ["5s", "30s"]}})._replace(failures=2), STEADY)
