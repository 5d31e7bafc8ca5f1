"""Which promise each plant breaks."""

from tests.chaos import key_plants, late_plants, plants
from tests.chaos.findings import Property

PLANTS: dict[Property, list[plants.Plant]] = {
    Property.LOST: [
        plants.lost_without_a_record,
        plants.lost_after_its_pod_was_killed,
        plants.lost_while_scheduled,
        plants.lost_though_its_create_is_known_only_by_its_refusal,
        plants.not_found_though_created,
        plants.completed_without_a_run,
        plants.failed_without_a_reason,
        plants.cancelled_by_nobody,
    ],
    Property.EARLY: [
        plants.early_by_its_own_word,
        plants.early_by_what_was_asked_for,
        plants.early_by_a_lost_reschedule,
    ],
    Property.LATE: [
        late_plants.late_for_no_reason,
        late_plants.late_after_an_outage,
        late_plants.late_after_a_kill,
        late_plants.late_though_its_pod_had_a_core,
        late_plants.late_by_more_than_its_pod_waited,
        late_plants.late_though_made_by_a_bare_key_whose_pods_lived,
    ],
    Property.ONE_WINNER: [
        plants.overlap,
        plants.duplicate_after_success,
        plants.duplicate_after_a_fault_elsewhere,
        plants.duplicate_after_a_fault_without_proof,
        plants.duplicate_after_a_short_pause,
        plants.duplicate_long_after_a_starved_half_lease,
        plants.duplicate_after_a_cut_of_the_subscription,
        plants.duplicate_of_a_run_that_was_over_long_before_the_kill,
        plants.handed_back_by_a_pod_that_nobody_stopped,
        plants.occurrence_begun_during_the_last,
        plants.reused_attempt,
    ],
    Property.TOKENS_RISE: [
        plants.falling_token,
        plants.reused_token,
        plants.token_reused_in_the_next_life,
        plants.token_of_the_record_behind,
        plants.attempt_skipped,
        plants.first_attempt_skipped,
        plants.one_fault_for_two_missing_attempts,
        plants.attempt_skipped_faster_than_a_lease_ends,
    ],
    Property.CANCEL: [plants.start_after_cancel, plants.completed_after_cancel],
    Property.ZOMBIE: [
        plants.zombie_result,
        plants.zombie_result_before_the_real_one,
        plants.zombie_result_under_the_newest_name,
        plants.zombie_result_while_the_newest_still_runs,
        plants.completed_twice,
    ],
    Property.BOUNDED: [
        plants.too_many_attempts,
        plants.failed_too_soon,
        plants.hand_back_burnt_an_attempt,
        plants.kill_burnt_two_attempts,
        plants.stop_counted_as_a_failure,
    ],
    Property.REPEATS: [
        plants.slot_made_twice,
        plants.slot_made_twice_beside_a_move_of_another_time,
        plants.slot_too_many,
        plants.bare_key_fired_twice,
        plants.slot_left_out,
    ],
    Property.IDEMPOTENT: [
        plants.created_twice,
        plants.replaced_by_a_strict_create,
        plants.refused_but_run,
        plants.run_without_a_create,
    ],
    Property.KEYS: [key_plants.another_key_after_a_loss, key_plants.key_of_the_occurrence_before],
    Property.QUOTAS: [plants.armed_beyond_the_quota],
    Property.CONSERVATION: [
        plants.leak_of_a_timer,
        plants.timer_counted_twice,
        plants.counts_that_differ_from_the_records,
        plants.leftover_key,
        plants.timer_that_nobody_armed,
    ],
    Property.ORDERLY: [plants.told_to_stop_and_ended_badly, plants.error_in_the_log_of_a_pod],
}

# Among other timers, counts say nothing about one, and any pod's fault may have hidden a claim that nobody saw start,
# or ended the scans for bare keys.
NOT_SEEN_ALONE = {
    plants.leak_of_a_timer,
    plants.timer_counted_twice,
    plants.counts_that_differ_from_the_records,
    plants.leftover_key,
    plants.attempt_skipped,
    plants.first_attempt_skipped,
    plants.one_fault_for_two_missing_attempts,
    plants.attempt_skipped_faster_than_a_lease_ends,
    plants.stop_counted_as_a_failure,
    plants.told_to_stop_and_ended_badly,
    plants.error_in_the_log_of_a_pod,
    late_plants.late_though_made_by_a_bare_key_whose_pods_lived,
}
