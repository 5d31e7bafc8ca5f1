"""When a repeating timer runs next: rate and delay, calendar months, cron, its end, and after an outage."""

from typing import Any, NamedTuple

import pytest

from tests.unit.samples import START_MS, a_timer, at
from timers.client.planning import plan
from timers.core.decide import CATCH_UP_LIMIT, next_occurrence, start
from timers.core.durations import DAY_MS, HOUR_MS, MINUTE_MS, SECOND_MS, Duration, format_time
from timers.core.model import Progress, Timer
from timers.core.spec import NewTimer

GRACE = {"grace": "10m"}


def repeating(first: str = "2026-11-21T10:00:00Z", *, missed: object = "fire", **repeat: Any) -> Timer:
    """A timer in the first run of its cycle."""
    due_ms = at(first[11:-1], first[:10])
    return a_timer(due_ms=due_ms, progress=start(due_ms), spec={"repeat": repeat, "missed": missed})


class Planned(NamedTuple):
    due_ms: int
    progress: Progress
    dropped: bool


def following(timer: Timer, now_ms: int) -> Planned | None:
    assert timer.repeat is not None
    planned = next_occurrence(timer, timer.repeat, now_ms)
    return None if planned is None else Planned(*planned)


def then(timer: Timer, now_ms: int | None = None) -> Timer | None:
    """The timer in its next run, if this one ended at `now_ms` or else 1 s after its slot; None after the last."""
    slot_ms = timer.progress.slot_ms
    assert slot_ms is not None
    planned = following(timer, slot_ms + SECOND_MS if now_ms is None else now_ms)
    if planned is None:
        return None
    return a_timer(due_ms=planned.due_ms, progress=planned.progress, spec=dict(timer.spec))


def times(timer: Timer | None, most: int) -> list[str]:
    """The due times of the next runs, if each run ends a second after its due time."""
    found: list[str] = []
    while timer is not None and (timer := then(timer)) is not None and len(found) < most:
        found.append(format_time(timer.due_ms))
    return found


class TestInterval:
    @pytest.mark.parametrize(
        ("every", "after_ms"),
        [
            ("90s", 90 * SECOND_MS),
            (5, 5 * SECOND_MS),
            ("PT36H", 36 * HOUR_MS),
            ("1d", DAY_MS),
            ("TEN_MINS", 10 * MINUTE_MS),
            ("HOURLY", HOUR_MS),
            ("DAILY", DAY_MS),
            ("WEEKLY", 7 * DAY_MS),
            ("MONTHLY", 30 * DAY_MS),  # November
            ("P1Y", 365 * DAY_MS),
        ],
    )
    def test_counts_from_the_planned_time(self, every: str | int, after_ms: int) -> None:
        timer = repeating(every=every)
        planned = following(timer, START_MS + 700)
        assert planned is not None
        assert planned.due_ms == START_MS + after_ms
        assert not planned.dropped

    def test_a_fixed_rate_does_not_drift_however_late_the_runs_end(self) -> None:
        timer: Timer | None = repeating(every="1m")
        for run in range(1, 500):
            assert timer is not None
            timer = then(timer, timer.due_ms + 50_000 + run % 7)
            assert timer is not None
            assert timer.due_ms == START_MS + run * MINUTE_MS

    def test_retries_move_the_due_time_and_not_the_slot(self) -> None:
        timer = a_timer(due_ms=START_MS + 40_000, progress=start(START_MS), spec={"repeat": {"every": "1m"}})
        planned = following(timer, START_MS + 41_000)
        assert planned is not None
        assert planned.due_ms == START_MS + MINUTE_MS

    def test_a_fixed_delay_counts_from_the_end_of_the_run(self) -> None:
        timer = repeating(every="1m", mode="fixed_delay")
        planned = following(timer, START_MS + 50_007)
        assert planned == Planned(
            START_MS + 110_007,
            Progress(slot_ms=START_MS + 110_007, anchor_ms=START_MS + 110_007, occurrences=1),
            dropped=False,
        )

    @pytest.mark.parametrize(
        ("missed", "allowed_ms"), [("fire", 1000), ("latest", 1000), ("skip", 1000), (GRACE, 600_000)]
    )
    def test_a_slot_that_passed_during_the_last_run_is_run(self, missed: object, allowed_ms: int) -> None:
        """If a run or its retries took longer than the interval, the next slot is late but not missed yet."""
        timer = repeating(every="1h", missed=missed)
        assert following(timer, START_MS + HOUR_MS + allowed_ms) == Planned(
            START_MS + HOUR_MS,
            Progress(slot_ms=START_MS + HOUR_MS, anchor_ms=START_MS, step=1, occurrences=1),
            False,
        )
        later = following(timer, START_MS + HOUR_MS + allowed_ms + 1)
        assert later is not None
        assert (later.due_ms, later.dropped) == (START_MS + 2 * HOUR_MS, True)

    def test_each_slot_within_its_grace_is_run_and_those_before_are_not(self) -> None:
        timer: Timer | None = repeating(every="4m", missed=GRACE)
        minutes = []
        while timer is not None and timer.due_ms <= START_MS + HOUR_MS:
            timer = then(timer, START_MS + HOUR_MS)
            assert timer is not None
            minutes.append((timer.due_ms - START_MS) // MINUTE_MS)
        assert minutes == [52, 56, 60, 64]

    def test_without_progress_the_due_time_is_the_first_slot(self) -> None:
        timer = a_timer(spec={"repeat": {"every": "1m"}})
        planned = following(timer, START_MS)
        assert planned is not None
        assert planned.due_ms == START_MS + MINUTE_MS


class TestMonths:
    def test_the_31st_stays_the_31st_over_a_short_month(self) -> None:
        assert times(repeating("2027-01-31T09:00:00Z", every="MONTHLY"), 5) == [
            "2027-02-28T09:00:00.000Z",
            "2027-03-31T09:00:00.000Z",
            "2027-04-30T09:00:00.000Z",
            "2027-05-31T09:00:00.000Z",
            "2027-06-30T09:00:00.000Z",
        ]

    def test_also_after_a_retry_in_the_short_month(self) -> None:
        timer = then(repeating("2027-01-31T09:00:00Z", every="P1M"))
        assert timer is not None
        retried = a_timer(due_ms=timer.due_ms + HOUR_MS, progress=timer.progress, spec=dict(timer.spec))
        assert times(retried, 1) == ["2027-03-31T09:00:00.000Z"]

    def test_29_february_comes_back_in_a_leap_year(self) -> None:
        assert [time[:10] for time in times(repeating("2028-02-29T09:00:00Z", every="P1Y"), 4)] == [
            "2029-02-28",
            "2030-02-28",
            "2031-02-28",
            "2032-02-29",
        ]

    def test_days_keep_the_wall_time_of_their_zone_over_a_change_of_clocks(self) -> None:
        berlin = {"timezone": "Europe/Berlin"}
        assert times(repeating("2026-03-28T08:00:00Z", every="1d", **berlin), 2) == [
            "2026-03-29T07:00:00.000Z",
            "2026-03-30T07:00:00.000Z",
        ]
        assert times(repeating("2026-03-28T08:00:00Z", every="24h", **berlin), 1) == ["2026-03-29T08:00:00.000Z"]

    def test_months_that_were_missed_are_jumped_over(self) -> None:
        timer = then(repeating("2027-01-31T09:00:00Z", every="MONTHLY"), at("00:00:00", "2027-06-01"))
        assert timer is not None
        assert format_time(timer.due_ms) == "2027-06-30T09:00:00.000Z"
        assert times(timer, 1) == ["2027-07-31T09:00:00.000Z"]


class TestCron:
    def test_plans_its_own_first_time_strictly_after_now(self) -> None:
        new = NewTimer.parse({"prefix": "note", "repeat": {"cron": "0 9 * * MON-FRI", "timezone": "Europe/Berlin"}})
        first_ms = at("08:00:00", "2026-11-23")
        assert plan(new, START_MS).due == f"@{first_ms}"
        assert plan(new, first_ms).due == f"@{at('08:00:00', '2026-11-24')}"

    def test_goes_from_slot_to_slot_in_its_zone(self) -> None:
        timer = repeating("2026-10-23T07:00:00Z", cron="0 9 * * MON-FRI", timezone="Europe/Berlin")
        assert times(timer, 2) == ["2026-10-26T08:00:00.000Z", "2026-10-27T08:00:00.000Z"]

    def test_a_run_that_ends_early_by_another_clock_does_not_run_twice_for_one_slot(self) -> None:
        planned = following(repeating(cron="0 * * * *"), START_MS - 5)
        assert planned is not None
        assert planned.due_ms == START_MS + HOUR_MS

    def test_missed_slots_are_skipped(self) -> None:
        planned = following(repeating(cron="*/5 * * * *"), START_MS + HOUR_MS + 1001)
        assert planned is not None
        assert planned.due_ms == START_MS + HOUR_MS + 5 * MINUTE_MS
        assert planned.dropped

    @pytest.mark.parametrize(("missed", "allowed_ms"), [("fire", 1000), ("skip", 1000), (GRACE, 60_000)])
    def test_a_slot_that_passed_just_now_runs(self, missed: object, allowed_ms: int) -> None:
        timer = repeating(cron="*/5 * * * *", missed=missed)
        planned = following(timer, START_MS + 5 * MINUTE_MS + allowed_ms)
        assert planned is not None
        assert (planned.due_ms, planned.dropped) == (START_MS + 5 * MINUTE_MS, False)

    def test_a_fixed_delay_is_the_next_time_after_the_run(self) -> None:
        planned = following(repeating(cron="*/5 * * * *", mode="fixed_delay"), START_MS + HOUR_MS)
        assert planned is not None
        assert planned.due_ms == START_MS + HOUR_MS + 5 * MINUTE_MS
        assert not planned.dropped


class TestEnd:
    @pytest.mark.parametrize("mode", ["fixed_rate", "fixed_delay"])
    @pytest.mark.parametrize("cycle", [{"every": "1h"}, {"cron": "0 * * * *"}])
    @pytest.mark.parametrize("count", [1, 2, 5])
    def test_count_is_the_number_of_runs_in_all(self, cycle: dict[str, Any], mode: str, count: int) -> None:
        assert len(times(repeating(**cycle, mode=mode, count=count), 10)) == count - 1

    def test_a_count_that_was_lowered_below_what_has_run_ends_the_cycle(self) -> None:
        progress = Progress(slot_ms=START_MS, anchor_ms=START_MS, occurrences=7)
        timer = a_timer(progress=progress, spec={"repeat": {"every": "1h", "count": 3}})
        assert following(timer, START_MS) is None

    def test_nothing_is_planned_after_until(self) -> None:
        cycle = {"every": "1h", "until": "2026-11-21T12:00:00Z"}
        assert times(repeating(**cycle), 10) == ["2026-11-21T11:00:00.000Z", "2026-11-21T12:00:00.000Z"]

    def test_until_in_milliseconds_is_exact(self) -> None:
        assert len(times(repeating(every="1h", until=START_MS + HOUR_MS), 10)) == 1
        assert len(times(repeating(every="1h", until=START_MS + HOUR_MS - 1), 10)) == 0

    def test_an_outage_past_until_ends_the_cycle(self) -> None:
        timer = repeating(every="1h", until="2026-11-21T12:00:00Z")
        assert following(timer, START_MS + 5 * HOUR_MS) is None


class TestOutage:
    @pytest.mark.parametrize("missed", ["fire", "latest", "skip"])
    def test_missed_slots_are_jumped_over_without_leaving_the_grid(self, missed: str) -> None:
        planned = following(repeating(every="7m", missed=missed), START_MS + 30 * MINUTE_MS)
        assert planned is not None
        assert planned.due_ms == START_MS + 35 * MINUTE_MS
        assert planned.progress.step == 5
        assert planned.progress.occurrences == 1
        assert planned.dropped

    @pytest.mark.parametrize("cycle", [{"every": "7m"}, {"cron": "*/7 * * * *"}])
    def test_all_makes_up_for_each_missed_slot_in_order(self, cycle: dict[str, Any]) -> None:
        timer: Timer | None = repeating(**cycle, missed="all")
        now_ms, due = START_MS + 30 * MINUTE_MS, []
        for _ in range(5):
            assert timer is not None
            timer = then(timer, now_ms)
            assert timer is not None
            due.append(timer.due_ms)
        assert due == [START_MS + n * 7 * MINUTE_MS for n in range(1, 6)]

    def test_all_keeps_the_newest_slots_of_an_interval_up_to_the_limit(self) -> None:
        now_ms = START_MS + (CATCH_UP_LIMIT + 500) * MINUTE_MS
        planned = following(repeating(every="1m", missed="all"), now_ms)
        assert planned is not None
        assert planned.due_ms == now_ms - (CATCH_UP_LIMIT - 1) * MINUTE_MS
        assert planned.dropped

    def test_all_drops_nothing_at_the_limit(self) -> None:
        planned = following(repeating(every="1m", missed="all"), START_MS + CATCH_UP_LIMIT * MINUTE_MS)
        assert planned is not None
        assert planned.due_ms == START_MS + MINUTE_MS
        assert not planned.dropped

    @pytest.mark.parametrize("cycle", [{"every": "1m"}, {"cron": "* * * * *"}])
    def test_all_is_bounded_after_an_outage_of_a_year(self, cycle: dict[str, Any]) -> None:
        timer: Timer | None = repeating(**cycle, missed="all")
        now_ms, runs = START_MS + 365 * DAY_MS, 0
        while timer is not None and timer.due_ms <= now_ms:
            timer, runs = then(timer, now_ms), runs + 1
        assert runs == CATCH_UP_LIMIT + 1  # and the one that was due
        assert timer is not None
        assert timer.due_ms == now_ms + MINUTE_MS

    def test_a_cron_that_has_caught_up_counts_from_zero(self) -> None:
        timer: Timer | None = repeating(cron="* * * * *", missed="all")
        steps = []
        for minutes in (2.5, 2.5, 2.5, 4.5, 4.5):
            assert timer is not None
            timer = then(timer, START_MS + int(minutes * MINUTE_MS))
            assert timer is not None
            steps.append((timer.progress.step, (timer.due_ms - START_MS) // MINUTE_MS))
        assert steps == [(1, 1), (2, 2), (0, 3), (1, 4), (0, 5)]

    @pytest.mark.parametrize("every", ["1ms", "P1M", "1d"])
    def test_a_long_outage_costs_a_few_steps_and_not_one_for_each_slot(
        self, every: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        steps: list[int] = []
        times = Duration.__mul__

        def counting(interval: Duration, step: int) -> Duration:
            steps.append(step)
            return times(interval, step)

        monkeypatch.setattr(Duration, "__mul__", counting)
        now_ms = START_MS + 3_650 * DAY_MS
        planned = following(repeating(every=every), now_ms)
        assert planned is not None
        assert now_ms - 1000 <= planned.due_ms <= now_ms + 31 * DAY_MS
        assert 1 < len(steps) < 110
