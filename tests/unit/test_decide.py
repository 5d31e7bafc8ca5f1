"""What follows a run: every outcome, and the rules for tries, waits, repeats and missed timers."""

from dataclasses import replace
from datetime import timedelta
from random import Random
from typing import Any

import pytest

from tests.unit.deciding import ENDED_MS, STEADY, after, armed, claimed
from tests.unit.samples import START_MS, a_timer, at
from timers.core.decide import Transition, decide, exhausted, missed, was_skipped
from timers.core.durations import DAY_MS, HOUR_MS, MAX_MS, MINUTE_MS, SECOND_MS
from timers.core.model import HistoryEntry, Progress, Status, in_english
from timers.core.outcome import Done, Exhausted, HandBack, Missed, Rearm, Snooze
from timers.core.policies import IN_TIME_MS, RetryPolicy
from timers.errors import InvalidInput


class TestDone:
    def test_completes_with_its_note_and_counts_as_they_are(self) -> None:
        timer = a_timer(attempt=3, failures=2, occurrence=4)
        assert after(timer, Done("skipped: no phone")) == Transition(
            Status.COMPLETED, START_MS, 3, 2, 4, Progress(), ("completed", "skipped: no phone")
        )

    def test_keeps_why_an_earlier_try_failed(self) -> None:
        timer = a_timer(progress=Progress(last_error={"type": "ValueError"}))
        assert after(timer, Done()).progress.last_error == {"type": "ValueError"}

    def test_keeps_its_result_and_shows_it_behind_the_note(self) -> None:
        decided = after(a_timer(), Done("charged", {"cents": 5}))
        assert decided.progress == Progress(result={"cents": 5})
        assert in_english(*decided.cause) == 'charged; result {"cents":5}'

    def test_of_a_repeat_plans_the_next_occurrence_with_nothing_counted(self) -> None:
        timer = armed({"delay": 0, "repeat": {"every": "1h"}})
        timer = timer._replace(attempt=3, failures=2, progress=replace(timer.progress, last_error={"type": "X"}))
        assert after(timer, Done("sent")) == Transition(
            Status.SCHEDULED,
            START_MS + HOUR_MS,
            0,
            0,
            2,
            Progress(slot_ms=START_MS + HOUR_MS, anchor_ms=START_MS, step=1, occurrences=1),
            ("completed", "sent"),
        )

    def test_of_a_repeat_s_last_occurrence_completes(self) -> None:
        timer = armed({"delay": 0, "repeat": {"every": "1h", "count": 1}})
        assert after(timer, Done()).status is Status.COMPLETED

    def test_notes_what_a_repeat_has_skipped(self) -> None:
        timer = armed({"delay": 0, "repeat": {"every": "1h"}})
        decided = after(timer, Done("sent"), START_MS + 5 * HOUR_MS + 1001)
        assert decided.due_ms == START_MS + 6 * HOUR_MS
        assert in_english(*decided.cause) == "sent; skipped what was missed before 2026-11-21T16:00:00.000Z"


class TestRearm:
    def test_after_counts_from_the_end_of_the_run(self) -> None:
        timer = a_timer(attempt=3, failures=2, occurrence=4, progress=Progress(last_error={"type": "X"}))
        assert after(timer, Rearm(after="24h")) == Transition(
            Status.SCHEDULED, ENDED_MS + DAY_MS, 0, 0, 5, Progress(), ("re-armed", "")
        )

    @pytest.mark.parametrize(
        ("delay", "ms"), [(0, 0), (90, 90_000), (0.5, 500), (timedelta(days=1), DAY_MS), ("P1M", 30 * DAY_MS)]
    )
    def test_after_in_every_form(self, delay: str | float | timedelta, ms: int) -> None:
        assert after(a_timer(), Rearm(after=delay)).due_ms == ENDED_MS + ms

    def test_at_is_a_time_also_in_the_past(self) -> None:
        assert after(a_timer(), Rearm(at="2026-11-22T10:00:00+01:00")).due_ms == at("09:00:00", "2026-11-22")
        assert after(a_timer(), Rearm(at=START_MS - 5)).due_ms == START_MS - 5

    def test_at_was_not_held_to_ten_years(self) -> None:
        assert after(a_timer(), Rearm(at=ENDED_MS + MAX_MS)).due_ms == ENDED_MS + MAX_MS
        with pytest.raises(InvalidInput, match=r"Rearm.at: .* expected a time at most 10 years ahead"):
            after(a_timer(), Rearm(at=ENDED_MS + MAX_MS + 1))

    @pytest.mark.parametrize("delay", ["P10Y", MAX_MS // 1000])
    def test_after_the_longest_delay_is_accepted(self, delay: str | int) -> None:
        assert after(a_timer(), Rearm(after=delay)).due_ms == ENDED_MS + MAX_MS

    @pytest.mark.parametrize("payload", [{"n": 2}, None, [], 0])
    def test_takes_another_payload_and_keeps_the_other_spec(self, payload: object) -> None:
        timer = a_timer(spec={"payload": 1, "tags": ["a"]})
        decided = after(timer, Rearm(after=0, payload=payload))
        assert decided.spec == {"payload": payload, "tags": ["a"]}
        assert claimed(timer, decided).payload == payload

    def test_without_a_payload_keeps_the_old_one(self) -> None:
        timer = a_timer(spec={"payload": 1})
        assert after(timer, Rearm(after=0)).spec is None

    def test_of_a_repeat_is_its_next_occurrence_and_its_new_anchor(self) -> None:
        timer = armed({"delay": 0, "repeat": {"every": "1h", "count": 3}})
        due_ms = START_MS + 7 * MINUTE_MS
        rearmed = after(timer, Rearm(at=due_ms))
        assert rearmed.progress == Progress(slot_ms=due_ms, anchor_ms=due_ms, occurrences=1)
        second = after(claimed(timer, rearmed), Done(), due_ms)
        assert second.due_ms == due_ms + HOUR_MS
        assert second.progress.occurrences == 2
        assert after(claimed(timer, second), Done(), second.due_ms).status is Status.COMPLETED

    @pytest.mark.parametrize(
        ("arguments", "complaint"),
        [
            ({}, "Rearm: (None, None)"),
            ({"after": 1, "at": 1}, "Rearm: (1, 1)"),
            ({"after": "soon"}, "Rearm.after: 'soon'"),
            ({"after": -1}, "Rearm.after: -1"),
            ({"at": "2026-11-22T10:00:00"}, "Rearm.at: '2026-11-22T10:00:00'"),
            ({"after": 1, "payload": {1, 2}}, "Rearm.payload: "),
            ({"after": 1, "payload": "x" * 70_000}, "Rearm.payload: '70002 bytes'"),
        ],
    )
    def test_nonsense_is_refused_in_the_processor_where_it_is_a_failed_try(
        self, arguments: dict[str, Any], complaint: str
    ) -> None:
        with pytest.raises(InvalidInput) as caught:
            Rearm(**arguments)
        assert str(caught.value).startswith(complaint)


class TestHandBack:
    def test_is_due_again_at_once_and_burns_nothing(self) -> None:
        timer = a_timer(attempt=2, failures=1, progress=Progress(last_error={"type": "X"}))
        assert after(timer, HandBack("draining")) == Transition(
            Status.SCHEDULED, START_MS, 2, 1, 1, Progress(last_error={"type": "X"}), ("handed-back", "draining")
        )

    def test_handing_back_a_thousand_times_uses_up_no_attempt(self) -> None:
        timer = a_timer(spec={"retry": {"max_attempts": 1}})
        for _ in range(1000):
            timer = claimed(timer, after(timer, HandBack("draining")))
        assert not exhausted(timer, STEADY)
        assert after(timer, Done()).status is Status.COMPLETED


class TestSnooze:
    def test_waits_as_asked_and_burns_nothing(self) -> None:
        timer = a_timer(attempt=2, failures=1, progress=Progress(last_error={"type": "X"}))
        assert after(timer, Snooze("not there yet", "10m")) == Transition(
            *(Status.SCHEDULED, ENDED_MS + 10 * MINUTE_MS, 2, 1, 1),
            Progress(last_error={"type": "X"}, first_due_ms=START_MS),
            ("snoozed", "not there yet"),
        )

    def test_without_a_time_waits_the_first_delay_of_the_policy_each_time(self) -> None:
        timer = a_timer(failures=3, spec={"retry": {"base": "2s", "jitter": False}})
        assert after(timer, Snooze("")).due_ms == ENDED_MS + 2 * SECOND_MS

    def test_with_a_ladder_waits_a_step_of_it(self) -> None:
        assert after(armed({"delay": 0, "retry": {"backoff": ["5s", "30s"]}}), Snooze("")).due_ms == ENDED_MS + 5_000
        assert after(armed({"retry": {"backoff": ["5s", "30s"]}}), Snooze("")).due_ms == ENDED_MS + 30_000
        assert after(armed({"retry": {"backoff": ["5s"]}}), Snooze("")).due_ms == ENDED_MS + 5_000

    def test_leaves_the_slot_of_a_repeat_where_it_is(self) -> None:
        timer = armed({"delay": 0, "repeat": {"every": "1h"}})
        snoozed = claimed(timer, after(timer, Snooze("", "5m")))
        assert after(snoozed, Done(), snoozed.due_ms).due_ms == START_MS + HOUR_MS


class TestGivenUpBeforeTheStart:
    LOST = Exhausted("5 runs were lost with their pods")

    def test_fails_with_the_reason_and_without_another_start(self) -> None:
        decided = after(a_timer(attempt=6, failures=5), self.LOST)
        assert (decided.status, decided.attempt, decided.failures) == (Status.FAILED, 5, 5)
        assert in_english(*decided.cause) == "gave up after 5 runs were lost with their pods"
        error = decided.progress.last_error
        assert error is not None
        assert (error["type"], error["reason"]) == ("Lost", "5 runs were lost with their pods")
        assert error["attempt"] == 5

    def test_of_a_repeat_goes_on_with_the_next_occurrence(self) -> None:
        decided = after(armed({"delay": 0, "repeat": {"every": "1h"}})._replace(attempt=6, failures=5), self.LOST)
        assert (decided.status, decided.due_ms) == (Status.SCHEDULED, START_MS + HOUR_MS)
        assert decided.progress.last_error is not None


class TestMissed:
    def test_fire_latest_and_all_run_however_late(self) -> None:
        for policy in ("fire", "latest", "all"):
            timer = armed({"delay": 0, "repeat": {"every": "1h"}, "missed": policy})
            assert missed(timer, START_MS + 365 * DAY_MS) is None

    def test_skip_allows_no_more_than_a_healthy_service_needs(self) -> None:
        timer = armed({"delay": 0, "missed": "skip"})
        assert missed(timer, START_MS + IN_TIME_MS) is None
        assert missed(timer, START_MS + IN_TIME_MS + 1) == Missed(IN_TIME_MS + 1)

    def test_grace_allows_what_it_says(self) -> None:
        timer = armed({"delay": 0, "missed": {"grace": "10m"}})
        assert missed(timer, START_MS + 10 * MINUTE_MS) is None
        assert missed(timer, START_MS + 10 * MINUTE_MS + 1) == Missed(10 * MINUTE_MS + 1)

    def test_a_grace_shorter_than_a_sweep_is_as_long_as_one(self) -> None:
        timer = armed({"delay": 0, "missed": {"grace": "5ms"}})
        assert missed(timer, START_MS + IN_TIME_MS) is None

    def test_a_timer_armed_with_a_time_in_the_past_was_not_missed(self) -> None:
        timer = armed({"due_at": START_MS - DAY_MS, "missed": "skip"}, START_MS - DAY_MS)._replace(created_ms=START_MS)
        assert missed(timer, START_MS + 5) is None
        assert missed(timer, START_MS + 1_500) == Missed(1_500)

    def test_a_change_that_left_the_due_time_alone_takes_back_no_lateness(self) -> None:
        changed = HistoryEntry(START_MS + HOUR_MS, Status.SCHEDULED, 0, None, "changed", "shop")
        run = HistoryEntry(START_MS + HOUR_MS + 5, Status.RUNNING, 1, "pod-1", "sweep", lateness_ms=HOUR_MS + 5)
        timer = armed({"delay": 0, "missed": "skip"})
        late = missed(timer._replace(history=(run, changed)), START_MS + HOUR_MS + 5)
        assert late == Missed(HOUR_MS + 5)
        rescheduled = changed._replace(at_ms=START_MS + HOUR_MS - 500, cause="rescheduled")
        assert missed(timer._replace(history=(run, changed, rescheduled)), START_MS + HOUR_MS + 5) is None

    def test_a_run_that_was_handed_back_is_not_missed_however_long_its_next_pod_takes(self) -> None:
        """Otherwise a restart would end a timer as skipped although its run started in time."""
        back = HistoryEntry(START_MS + 500, Status.SCHEDULED, 1, "pod-1", "handed-back", "draining")
        run = HistoryEntry(START_MS + HOUR_MS, Status.RUNNING, 2, "pod-2", "sweep-start", lateness_ms=HOUR_MS)
        timer = armed({"delay": 0, "missed": "skip"})
        assert missed(timer._replace(history=(run, back)), START_MS + HOUR_MS) is None
        changed = HistoryEntry(START_MS + 1000, Status.SCHEDULED, 1, None, "changed")
        assert missed(timer._replace(history=(run, changed, changed, back)), START_MS + HOUR_MS) is None
        moved = HistoryEntry(START_MS + 1000, Status.SCHEDULED, 1, None, "rescheduled")
        assert missed(timer._replace(history=(run, moved, back)), START_MS + HOUR_MS) == Missed(HOUR_MS - 1000)

    def test_a_run_that_died_with_its_pod_is_not_missed_when_it_is_rescued(self) -> None:
        """Otherwise a crash would end a timer as skipped although its run started in time."""
        started = HistoryEntry(START_MS + 5, Status.RUNNING, 1, "pod-1", "event", lateness_ms=5)
        rescued = HistoryEntry(START_MS + 30_000, Status.RUNNING, 2, "pod-2", "rescue", lateness_ms=30_000)
        timer = armed({"delay": 0, "missed": "skip"})
        assert missed(timer._replace(history=(rescued, started)), START_MS + 30_000) is None
        assert missed(timer._replace(history=(rescued,)), START_MS + 30_000) == Missed(30_000)

    def test_an_import_neither_arms_a_timer_nor_hides_what_it_went_through(self) -> None:
        imported = HistoryEntry(START_MS + HOUR_MS, Status.SCHEDULED, 1, None, "imported", "an export")
        started = HistoryEntry(START_MS + 5, Status.RUNNING, 1, "pod-1", "event", lateness_ms=5)
        again = HistoryEntry(START_MS + HOUR_MS + 5, Status.RUNNING, 2, "pod-2", "sweep", lateness_ms=HOUR_MS)
        timer = armed({"delay": 0, "missed": "skip"})
        assert missed(timer._replace(history=(again, imported)), START_MS + HOUR_MS) == Missed(HOUR_MS)
        assert missed(timer._replace(history=(again, imported, started)), START_MS + HOUR_MS) is None

    def test_completes_with_the_reason_and_without_a_start_or_a_failure(self) -> None:
        timer = armed({"delay": 0, "missed": "skip"})
        decided = after(timer, Missed(5_000))
        assert (decided.status, decided.attempt, decided.failures) == (Status.COMPLETED, 0, 0)
        assert in_english(*decided.cause) == "skipped: 5000 ms late, missed policy skip"

    def test_what_has_failed_and_comes_too_late_for_another_try_has_failed(self) -> None:
        """Otherwise it would end as completed, and nobody would see that it failed."""
        for repeat in ({}, {"repeat": {"every": "1h"}}):
            timer = armed({"delay": 0, "missed": "skip", **repeat})
            failed = timer._replace(
                attempt=2, failures=1, progress=replace(timer.progress, last_error={"type": "ValueError"})
            )
            decided = after(failed, Missed(5_000), START_MS + 65_000)
            assert decided.status is (Status.SCHEDULED if repeat else Status.FAILED)
            assert decided.progress.last_error == {"type": "ValueError"}
            assert in_english(*decided.cause) == "gave up after a try that came 5000 ms late, missed policy skip"

    def test_of_a_repeat_goes_on_after_now(self) -> None:
        timer = armed({"delay": 0, "repeat": {"every": "1h"}, "missed": {"grace": "10m"}})
        decided = after(timer, Missed(3 * HOUR_MS), START_MS + 3 * HOUR_MS + 600_001)
        assert (decided.status, decided.due_ms) == (Status.SCHEDULED, START_MS + 4 * HOUR_MS)
        assert in_english(*decided.cause).startswith(
            "skipped: 10800000 ms late, missed policy grace; skipped what was missed"
        )

    def test_latest_is_one_run_for_all_that_were_missed(self) -> None:
        timer = armed({"delay": 0, "repeat": {"every": "1h"}, "missed": "latest"})
        assert after(timer, Done(), START_MS + 5 * HOUR_MS + 1001).due_ms == START_MS + 6 * HOUR_MS

    def test_all_is_a_run_for_each_that_was_missed(self) -> None:
        timer = armed({"delay": 0, "repeat": {"every": "1h"}, "missed": "all"})
        due = []
        for _ in range(3):
            decided = after(timer, Done(), START_MS + 2 * HOUR_MS + 1)
            timer = claimed(timer, decided)
            due.append(timer.due_ms)
        assert due == [START_MS + hours * HOUR_MS for hours in (1, 2, 3)]


def test_a_processors_own_note_made_a_completed_run_look_skipped() -> None:
    ran = decide(a_timer(), Done("skipped: 5 ms late, missed policy skip"), ENDED_MS, RetryPolicy(), Random(1))
    entry = HistoryEntry(ENDED_MS, ran.status, 1, "pod-1", *ran.cause)
    assert entry.note == "skipped: 5 ms late, missed policy skip"
    assert not was_skipped(a_timer(status=Status.COMPLETED, history=[entry]))


def test_a_skipped_timer_is_skipped_after_an_import_too() -> None:
    skipped = HistoryEntry(ENDED_MS, Status.COMPLETED, 0, "pod-1", "skipped", "5 ms late")
    imported = HistoryEntry(ENDED_MS + 1, Status.COMPLETED, 0, None, "imported", "an export")
    assert was_skipped(a_timer(status=Status.COMPLETED, history=[imported, skipped]))
