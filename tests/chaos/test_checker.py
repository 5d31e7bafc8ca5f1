"""The checker on histories with known faults: it finds each planted fault, and none in a clean history."""

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.chaos.clean import MAX_ATTEMPTS, clean_histories
from tests.chaos.findings import Counts, Property
from tests.chaos.histories import EPOCH_MS, Past
from tests.chaos.planted import NOT_SEEN_ALONE, PLANTS
from tests.chaos.plants import ONE_TOO_MANY, TIMER, Plant, done
from tests.chaos.timeline import EVERY_POD
from tests.chaos.witness import FaultKind, Kind, Made, Outcome, Verb


@pytest.mark.parametrize(
    ("broken", "plant"),
    [pytest.param(broken, plant, id=plant.__name__) for broken, plants in PLANTS.items() for plant in plants],
)
def test_planted_fault_is_caught(broken: Property, plant: Plant) -> None:
    past = Past()
    plant(past)
    report = past.judged(MAX_ATTEMPTS)
    assert report.of(broken), str(report)
    assert broken.value in str(report)


@given(clean_histories())
@settings(max_examples=400)
def test_clean_history_gives_no_finding(past: Past) -> None:
    report = past.judged(MAX_ATTEMPTS)
    assert report.ok, str(report)


@given(clean_histories(), st.sampled_from([plant for plants in PLANTS.values() for plant in plants]))
@settings(max_examples=200)
def test_planted_fault_is_caught_among_clean_timers(past: Past, plant: Plant) -> None:
    assume(plant not in NOT_SEEN_ALONE)
    past.counts = None
    plant(past)
    report = past.judged(MAX_ATTEMPTS)
    assert {finding.timer for finding in report.findings} <= {TIMER, ONE_TOO_MANY, "chaos/stranger"}
    assert not report.ok


@given(clean_histories())
@settings(max_examples=100)
def test_record_taken_from_a_clean_history_is_missed(past: Past) -> None:
    assume(past.end_states)
    timer = min(past.end_states)
    armed_for_sure = any(event.timer == timer and event.kind in {Kind.OK, Kind.START} for event in past.events)
    assume(armed_for_sure)
    del past.end_states[timer]
    assert [finding.timer for finding in past.judged(MAX_ATTEMPTS).of(Property.LOST)] == [timer]


def test_a_run_that_was_claimed_before_a_loss_and_began_after_it_may_be_made_again() -> None:
    def again_after(claimed: int) -> Past:
        past = Past()
        past.create(TIMER)
        past.run(TIMER, 1_200, pod="a", token=(EPOCH_MS + claimed) * 1_000)
        past.fault(FaultKind.LOSS, EVERY_POD, 1_100)
        past.run(TIMER, 2_000, pod="b", token=(EPOCH_MS + 2_000) * 1_000)
        past.completed(TIMER, 2_005, token=(EPOCH_MS + 2_000) * 1_000)
        return past

    assert again_after(1_090).judged().ok
    assert again_after(1_150).judged().of(Property.ONE_WINNER)


def test_a_number_that_a_loss_took_back_comes_again_also_beside_a_create_that_nobody_answered() -> None:
    def again_as(attempt: int, loss: int) -> Past:
        past = Past()
        past.create(TIMER)
        for number in (1, 2, 3):
            past.run(TIMER, 1_000 + 100 * number, pod="a", attempt=number, token=number, outcome=Outcome.FAILED)
        past.create(TIMER, 1_400, answer=Kind.INFO)
        past.fault(FaultKind.LOSS, EVERY_POD, loss)
        past.run(TIMER, 2_000, pod="b", attempt=attempt, token=4)
        past.completed(TIMER, 2_005, attempt=attempt, token=4)
        return past

    for attempt in (2, 3, 4):
        assert not again_as(attempt, 1_450).judged().of(Property.TOKENS_RISE)
    assert again_as(6, 1_450).judged().of(Property.TOKENS_RISE)
    assert again_as(3, 1_050).judged().of(Property.TOKENS_RISE)


def test_a_loss_may_take_an_end_that_the_ledger_was_too_far_behind_to_have() -> None:
    def again_behind(lag_ms: int) -> Past:
        past = Past()
        past.create(TIMER)
        past.run(TIMER, 1_000, pod="a", token=1)
        past.fault(FaultKind.LOSS, EVERY_POD, 5_000, lag_ms=lag_ms)
        past.run(TIMER, 6_000, pod="b", token=2)
        past.completed(TIMER, 6_005, token=2)
        return past

    assert again_behind(4_000).judged().ok
    assert again_behind(1_000).judged().of(Property.ONE_WINNER)


def test_a_takeover_from_a_pod_that_had_no_core_is_explained() -> None:
    past = Past()
    past.create(TIMER)
    past.run(TIMER, 1_002, pod="a", attempt=1, took=1_000)
    past.fault(FaultKind.STARVED, "a", 1_500, took=0)
    done(past, at=1_800, pod="b", attempt=2)
    report = past.judged(MAX_ATTEMPTS)
    assert report.ok, str(report)
    assert (report.figures.duplicates, report.figures.faults_proven) == (1, 0)


def test_a_start_that_is_late_because_its_pod_had_no_core_is_counted() -> None:
    past = Past()
    past.create(TIMER)
    past.waited("a", 1_500, 1_000)
    past.waited(EVERY_POD, 2_700, 200)
    done(past, at=3_600)
    report = past.judged(MAX_ATTEMPTS)
    assert report.ok, str(report)
    assert report.figures.starved == 1


def test_a_start_after_a_fault_that_kept_every_pod_from_it_is_not_late() -> None:
    past = Past()
    past.create(TIMER)
    past.fault(FaultKind.ABSENT, EVERY_POD, 900, took=6_000)
    done(past, at=8_800)
    report = past.judged(MAX_ATTEMPTS)
    assert report.ok, str(report)
    assert (report.figures.starved, report.figures.faults_proven) == (0, 0)


def test_attempts_after_a_retry_that_was_answered_late_count_anew() -> None:
    past = Past()
    past.create(TIMER)
    past.call(Verb.RETRY, TIMER, 1_150, took=5_000)
    for attempt in range(1, 2 * MAX_ATTEMPTS + 1):
        past.run(TIMER, 1_000 + 200 * attempt, pod="a", attempt=attempt, outcome=Outcome.FAILED)
    past.ended(TIMER, "failed", attempt=2 * MAX_ATTEMPTS)
    report = past.judged(MAX_ATTEMPTS)
    assert not report.of(Property.BOUNDED), str(report)


def test_a_bare_key_waits_for_another_pod_to_scan() -> None:
    past = Past()
    past.fault(FaultKind.KILL, "c", 900)
    past.create(TIMER, slots=1)
    done(past, at=12_000)
    report = past.judged(MAX_ATTEMPTS)
    assert report.ok, str(report)


@pytest.mark.parametrize(("proof", "at"), [("seen", 5), ("all 3 keys lost", 50)])
def test_a_timer_that_refused_a_create_may_be_lost_with_the_data(proof: str, at: int) -> None:
    past = Past()
    past.create(TIMER)
    past.call(Verb.CREATE, TIMER, 20, answer=Kind.FAIL, outcome=Made.EXISTS)
    past.fault(FaultKind.POWER, EVERY_POD, at, took=100, proof=proof)
    assert past.judged(MAX_ATTEMPTS).ok == (proof != "seen")  # only the first create was answered before that


@pytest.mark.parametrize("asked_at", [49, 51])
def test_what_was_done_before_a_loss_may_be_answered_after_it(asked_at: int) -> None:
    past = Past()
    past.fault(FaultKind.POWER, EVERY_POD, 45, took=5, proof="all 3 keys lost")
    past.call(Verb.CREATE, TIMER, asked_at, due=1_000, outcome=Made.CREATED, took=60)
    assert past.judged(MAX_ATTEMPTS).ok == (asked_at == 49)


def test_a_result_that_outlives_a_forgotten_second_run_is_accepted() -> None:
    """The first loss comes before the ledger has the end, the second one after that, but before it has the next."""
    past = Past()
    past.create(TIMER)
    past.run(TIMER, 1_002, pod="a", token=1, key="one")
    past.fault(FaultKind.LOSS, EVERY_POD, 1_100)
    past.run(TIMER, 1_500, pod="a", token=2, key="one")
    past.fault(FaultKind.LOSS, EVERY_POD, 1_600)
    past.completed(TIMER, 1_010, token=2)
    report = past.judged(MAX_ATTEMPTS)
    assert report.ok, str(report)


@pytest.mark.parametrize("lost", [True, False])
def test_a_loss_may_lead_back_to_an_occurrence_whose_attempts_count_on(lost: bool) -> None:
    past = Past()
    past.create(TIMER)
    for token, (at, occurrence, attempt) in enumerate([(1_002, 1, 1), (1_050, 2, 1), (1_500, 1, 2), (1_550, 2, 1)], 1):
        past.run(TIMER, at, pod="a", token=token, key=str(occurrence), occurrence=occurrence, attempt=attempt)
    if lost:
        past.fault(FaultKind.LOSS, EVERY_POD, 1_100)
    assert bool(past.judged(MAX_ATTEMPTS).of(Property.TOKENS_RISE)) is not lost


def test_figures_count_what_happened() -> None:
    past = Past()
    past.create("chaos/calm")
    past.run("chaos/calm", 1_002, pod="b")
    past.completed("chaos/calm", 1_010)
    past.create("chaos/struck")
    past.run("chaos/struck", 1_004, pod="a", outcome=None)
    past.fault(FaultKind.KILL, "a", 1_006)
    past.run("chaos/struck", 3_100, pod="b", attempt=2)
    past.completed("chaos/struck", 3_110, attempt=2)
    past.create("chaos/unknown", answer=None)
    past.fault(FaultKind.PAUSE, "b", 4_000, proof="")
    figures = past.judged().figures
    assert (figures.timers, figures.starts, figures.duplicates, figures.max_attempt) == (3, 3, 1, 2)
    assert (figures.lateness_p50_ms, figures.lateness_p99_ms, figures.lateness_max_ms) == (2.0, 4.0, 4.0)
    assert (figures.unknown_creates, figures.faults_proven, figures.faults_unproven) == (1, 1, 1)


def test_unanswered_create_is_neither_lost_nor_kept() -> None:
    absent, present = Past(), Past()
    for past in (absent, present):
        past.create(TIMER, answer=None)
        past.counts = Counts(finished=int(past is present), cancelled=0, scheduled=0, running=0)
    done(present)
    assert absent.judged().ok
    assert present.judged().ok
