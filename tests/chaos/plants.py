"""Histories with one planted fault each."""

from collections.abc import Callable

from tests.chaos.clean import MAX_ATTEMPTS
from tests.chaos.findings import Completion, Counts
from tests.chaos.histories import EPOCH_MS, LEASE_MS, Past
from tests.chaos.processors import CAP, CAPPED
from tests.chaos.witness import FaultKind, Kind, Made, Outcome, Verb

Plant = Callable[[Past], None]

TIMER = "chaos/t"


def done(past: Past, *, at: int = 1_002, pod: str = "a", attempt: int = 1) -> None:
    past.run(TIMER, at, pod=pod, attempt=attempt)
    past.completed(TIMER, at + 6, attempt=attempt)


ONE_TOO_MANY = f"{CAPPED}/{CAP}"


def armed_beyond_the_quota(past: Past) -> None:
    for number in range(CAP + 1):
        timer = f"{CAPPED}/{number}"
        past.create(timer, number)
        past.run(timer, 1_002 + number, pod="a")
        past.completed(timer, 1_020 + number)


def lost_without_a_record(past: Past) -> None:
    past.create(TIMER)


def lost_after_its_pod_was_killed(past: Past) -> None:
    past.create(TIMER)
    past.run(TIMER, 1_002, pod="a", outcome=None)
    past.fault(FaultKind.KILL, "a", 1_003)
    past.ended(TIMER, "running")


def lost_while_scheduled(past: Past) -> None:
    past.create(TIMER)
    past.ended(TIMER, "scheduled", attempt=0)


def lost_though_its_create_is_known_only_by_its_refusal(past: Past) -> None:
    past.create(TIMER, answer=Kind.INFO)
    past.call(Verb.CREATE, TIMER, 20, answer=Kind.FAIL, outcome=Made.EXISTS)


def not_found_though_created(past: Past) -> None:
    past.create(TIMER)
    past.call(Verb.CANCEL, TIMER, 20, answer=Kind.FAIL, outcome="NotFound")
    done(past)


def completed_without_a_run(past: Past) -> None:
    past.create(TIMER)
    past.completed(TIMER, 1_010)


def failed_without_a_reason(past: Past) -> None:
    past.create(TIMER)
    past.run(TIMER, 1_002, pod="a", outcome=Outcome.GAVE_UP)
    past.ended(TIMER, "failed")


def cancelled_by_nobody(past: Past) -> None:
    past.create(TIMER)
    past.ended(TIMER, "cancelled", attempt=0)


def early_by_its_own_word(past: Past) -> None:
    past.create(TIMER, due=900)
    done(past, at=999)


def early_by_what_was_asked_for(past: Past) -> None:
    past.create(TIMER, due=1_500)
    done(past, at=1_499)


def early_by_a_lost_reschedule(past: Past) -> None:
    past.create(TIMER, due=1_000)
    past.call(Verb.RESCHEDULE, TIMER, 100, due=1_500)
    done(past, at=1_001)


def overlap(past: Past) -> None:
    past.create(TIMER)
    past.run(TIMER, 1_002, pod="a", attempt=1, took=50)
    done(past, at=1_010, pod="b", attempt=2)


def duplicate_after_success(past: Past) -> None:
    past.create(TIMER)
    past.run(TIMER, 1_002, pod="a", attempt=1)
    done(past, at=1_010, pod="b", attempt=2)


def duplicate_after_a_fault_elsewhere(past: Past) -> None:
    past.create(TIMER)
    past.run(TIMER, 1_002, pod="a", attempt=1, outcome=None)
    past.fault(FaultKind.KILL, "c", 1_003)
    done(past, at=3_500, pod="b", attempt=2)


def duplicate_after_a_fault_without_proof(past: Past) -> None:
    past.create(TIMER)
    past.run(TIMER, 1_002, pod="a", attempt=1, outcome=None)
    past.fault(FaultKind.KILL, "a", 1_003, proof="")
    done(past, at=3_500, pod="b", attempt=2)


def duplicate_after_a_short_pause(past: Past) -> None:
    past.create(TIMER)
    past.run(TIMER, 1_002, pod="a", attempt=1, took=2_900)
    past.fault(FaultKind.PAUSE, "a", 1_003, took=LEASE_MS // 4)
    done(past, at=3_500, pod="b", attempt=2)


def duplicate_long_after_a_starved_half_lease(past: Past) -> None:
    past.create(TIMER)
    past.fault(FaultKind.STARVED, "a", 500, took=0)
    past.run(TIMER, 600 + LEASE_MS, pod="a", attempt=1, took=200)
    done(past, at=1_500 + LEASE_MS, pod="b", attempt=2)


def duplicate_after_a_cut_of_the_subscription(past: Past) -> None:
    past.create(TIMER)
    past.run(TIMER, 1_002, pod="a", attempt=1, outcome=None)
    past.fault(FaultKind.PUBSUB, "a", 1_003, took=5_000)
    done(past, at=3_500, pod="b", attempt=2)


def duplicate_of_a_run_that_was_over_long_before_the_kill(past: Past) -> None:
    past.create(TIMER)
    past.run(TIMER, 1_002, pod="a", attempt=1)
    past.fault(FaultKind.KILL, "a", 1_010 + 2 * LEASE_MS)
    done(past, at=9_000, pod="b", attempt=2)


def handed_back_by_a_pod_that_nobody_stopped(past: Past) -> None:
    past.create(TIMER)
    past.run(TIMER, 1_002, pod="a", attempt=1, outcome=Outcome.HANDED_BACK)
    done(past, at=1_010, pod="b", attempt=2)


def occurrence_begun_during_the_last(past: Past) -> None:
    past.create(TIMER)
    past.run(TIMER, 1_002, pod="a", token=1, occurrence=1, took=100, outcome=Outcome.REARMED)
    past.run(TIMER, 1_050, pod="b", token=2, occurrence=2, due=1_050)
    past.completed(TIMER, 1_056, token=2)


def reused_attempt(past: Past) -> None:
    past.create(TIMER)
    past.run(TIMER, 1_002, pod="a", attempt=1, token=1, outcome=Outcome.FAILED)
    past.run(TIMER, 1_100, pod="b", attempt=1, token=2)
    past.completed(TIMER, 1_106, token=2)


def falling_token(past: Past) -> None:
    past.create(TIMER)
    past.run(TIMER, 1_002, pod="a", attempt=1, token=7, outcome=Outcome.FAILED)
    past.run(TIMER, 1_100, pod="b", attempt=2, token=6)
    past.completed(TIMER, 1_106, attempt=2, token=7)


def reused_token(past: Past) -> None:
    past.create(TIMER)
    past.run(TIMER, 1_002, pod="a", attempt=1, token=7, outcome=Outcome.FAILED)
    past.run(TIMER, 1_100, pod="b", attempt=2, token=7)
    past.completed(TIMER, 1_106, attempt=2, token=7)


def token_reused_in_the_next_life(past: Past) -> None:
    past.create(TIMER)
    past.run(TIMER, 1_002, pod="a", token=3)
    past.create(TIMER, 1_100, due=1_200)
    past.run(TIMER, 1_201, pod="b", token=3, due=1_200)
    past.completed(TIMER, 1_207, token=3)


def token_of_the_record_behind(past: Past) -> None:
    past.create(TIMER)
    past.run(TIMER, 1_002, pod="a", token=7)
    past.completed(TIMER, 1_008, token=6)


def attempt_skipped(past: Past) -> None:
    past.create(TIMER)
    past.run(TIMER, 1_002, pod="a", attempt=1, outcome=Outcome.FAILED)
    done(past, at=1_100, pod="a", attempt=3)


def first_attempt_skipped(past: Past) -> None:
    past.create(TIMER)
    done(past, attempt=2)


def one_fault_for_two_missing_attempts(past: Past) -> None:
    past.create(TIMER)
    past.fault(FaultKind.KILL, "a", 1_001)
    done(past, at=6_000, pod="b", attempt=3)


def attempt_skipped_faster_than_a_lease_ends(past: Past) -> None:
    past.create(TIMER)
    past.fault(FaultKind.KILL, "a", 1_001)
    done(past, at=LEASE_MS - 100, pod="b", attempt=2)


def start_after_cancel(past: Past) -> None:
    past.create(TIMER)
    past.call(Verb.CANCEL, TIMER, 500)
    past.run(TIMER, 1_002, pod="a")
    past.ended(TIMER, "cancelled", attempt=1)


def completed_after_cancel(past: Past) -> None:
    past.create(TIMER)
    past.call(Verb.CANCEL, TIMER, 500)
    done(past)


def _paused_and_taken_over(past: Past) -> None:
    past.create(TIMER)
    past.run(TIMER, 1_002, pod="a", attempt=1, took=5_000)
    past.fault(FaultKind.PAUSE, "a", 1_003, took=4_900)
    past.run(TIMER, 3_500, pod="b", attempt=2, took=4_000)


def zombie_result(past: Past) -> None:
    _paused_and_taken_over(past)
    past.ended(TIMER, "completed", attempt=2, completions=(Completion(1, EPOCH_MS + 6_003),))


def zombie_result_before_the_real_one(past: Past) -> None:
    _paused_and_taken_over(past)
    both = (Completion(1, EPOCH_MS + 6_003), Completion(2, EPOCH_MS + 7_501))
    past.ended(TIMER, "completed", attempt=2, completions=both)


def zombie_result_under_the_newest_name(past: Past) -> None:
    past.create(TIMER)
    past.run(TIMER, 1_002, pod="a", attempt=1, took=5_000)
    past.fault(FaultKind.PAUSE, "a", 1_003, took=4_900)
    past.run(TIMER, 3_500, pod="b", attempt=2, outcome=Outcome.FAILED, took=4_000)
    past.completed(TIMER, 6_003, attempt=2)


def zombie_result_while_the_newest_still_runs(past: Past) -> None:
    _paused_and_taken_over(past)
    past.completed(TIMER, 6_003, attempt=2)


def completed_twice(past: Past) -> None:
    past.create(TIMER)
    past.run(TIMER, 1_002, pod="a")
    past.ended(TIMER, "completed", completions=(Completion(1, EPOCH_MS + 1_008), Completion(1, EPOCH_MS + 1_009)))


def too_many_attempts(past: Past) -> None:
    past.create(TIMER)
    for attempt in range(1, MAX_ATTEMPTS + 2):
        past.run(TIMER, 1_000 + 100 * attempt, pod="a", attempt=attempt, outcome=Outcome.FAILED)
    past.ended(TIMER, "failed", attempt=MAX_ATTEMPTS + 1, reason="it said no")


def failed_too_soon(past: Past) -> None:
    past.create(TIMER)
    past.run(TIMER, 1_002, pod="a", outcome=Outcome.FAILED)
    past.ended(TIMER, "failed", reason="it said no")


def hand_back_burnt_an_attempt(past: Past) -> None:
    past.create(TIMER)
    past.fault(FaultKind.STOP, "a", 1_003, took=50)
    past.run(TIMER, 1_002, pod="a", attempt=1, outcome=Outcome.HANDED_BACK)
    for attempt in range(2, MAX_ATTEMPTS + 1):
        past.run(TIMER, 1_000 + 100 * attempt, pod="b", attempt=attempt, outcome=Outcome.FAILED)
    past.ended(TIMER, "failed", attempt=MAX_ATTEMPTS, reason="it said no")


def kill_burnt_two_attempts(past: Past) -> None:
    past.create(TIMER)
    past.run(TIMER, 1_002, pod="a", attempt=1, outcome=None)
    past.fault(FaultKind.KILL, "a", 1_005)
    past.fault(FaultKind.KILL, "c", 1_200)
    past.run(TIMER, 5_100, pod="b", attempt=2)
    past.ended(TIMER, "completed", attempt=2, failures=2, completions=(Completion(2, EPOCH_MS + 5_106),))


def _repeats_twice(past: Past) -> None:
    past.create(TIMER, slots=2)
    past.run(TIMER, 1_002, pod="a", token=1, occurrence=1, outcome=Outcome.DONE)


def slot_made_twice(past: Past) -> None:
    _repeats_twice(past)
    past.run(TIMER, 1_052, pod="a", token=2, occurrence=2, due=1_000)
    past.completed(TIMER, 1_060, token=2)


def slot_made_twice_beside_a_move_of_another_time(past: Past) -> None:
    past.create(TIMER, due=900, slots=2)
    past.call(Verb.RESCHEDULE, TIMER, 100, due=1_000)
    past.run(TIMER, 1_002, pod="a", token=1, occurrence=1)
    past.run(TIMER, 1_052, pod="a", token=2, occurrence=2, due=1_000)
    past.completed(TIMER, 1_060, token=2)


def slot_too_many(past: Past) -> None:
    _repeats_twice(past)
    for occurrence in (2, 3):
        past.run(TIMER, 1_000 * occurrence, pod="a", token=occurrence, occurrence=occurrence, due=1_000 * occurrence)
    past.completed(TIMER, 3_010, token=3)


def bare_key_fired_twice(past: Past) -> None:
    past.call(Verb.CREATE, TIMER, 0, due=1_000, slots=1, outcome=Made.CREATED, if_exists="replace")
    past.run(TIMER, 1_002, pod="a", token=1, occurrence=1)
    past.run(TIMER, 7_002, pod="b", token=2, occurrence=2, due=7_001)
    past.completed(TIMER, 7_010, token=2)


def slot_left_out(past: Past) -> None:
    _repeats_twice(past)
    past.completed(TIMER, 1_010)


def stop_counted_as_a_failure(past: Past) -> None:
    past.create(TIMER)
    past.fault(FaultKind.STOP, "a", 1_003, took=50)
    past.run(TIMER, 1_002, pod="a", attempt=1, outcome=Outcome.HANDED_BACK)
    past.run(TIMER, 1_100, pod="b", attempt=2)
    past.ended(TIMER, "completed", attempt=2, failures=1, completions=(Completion(2, EPOCH_MS + 1_106),))


def told_to_stop_and_ended_badly(past: Past) -> None:
    past.create(TIMER)
    done(past)
    past.fault(FaultKind.STOP, "a", 1_500, exit_code=1)


def error_in_the_log_of_a_pod(past: Past) -> None:
    past.create(TIMER)
    done(past)
    past.complaints.append("a: service failed and is restarted")


def created_twice(past: Past) -> None:
    past.create(TIMER)
    past.create(TIMER, 100)
    done(past)


def replaced_by_a_strict_create(past: Past) -> None:
    past.create(TIMER)
    past.call(Verb.CREATE, TIMER, 100, due=1_000, outcome=Made.REPLACED)
    done(past)


def counts_that_differ_from_the_records(past: Past) -> None:
    past.create(TIMER)
    done(past)
    past.counts = Counts(finished=0, cancelled=1, scheduled=0, running=0)


def refused_but_run(past: Past) -> None:
    past.create(TIMER, answer=Kind.FAIL)
    done(past)


def run_without_a_create(past: Past) -> None:
    past.run(TIMER, 1_002, pod="a")


def leak_of_a_timer(past: Past) -> None:
    past.create(TIMER)
    done(past)
    past.counts = Counts(finished=0, cancelled=0, scheduled=0, running=0)


def timer_counted_twice(past: Past) -> None:
    past.create(TIMER)
    done(past)
    past.counts = Counts(finished=1, cancelled=0, scheduled=0, running=1)


def leftover_key(past: Past) -> None:
    past.create(TIMER)
    done(past)
    past.counts = Counts(finished=1, cancelled=0, scheduled=0, running=0, leftover_keys=("timers:{0}:lease:chaos:t",))


def timer_that_nobody_armed(past: Past) -> None:
    past.create(TIMER)
    done(past)
    past.completed("chaos/stranger", 1_000)
