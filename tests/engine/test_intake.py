"""The intake alone: it asks for what is marked, for no more than there is room for, and forgets no mark."""

from collections.abc import Callable
from dataclasses import replace
from time import monotonic

import pytest

from timers.engine.intake import (
    BUSY_SECONDS,
    CLAIM_BATCH,
    CLAIM_QUEUES,
    LATER_SECONDS,
    LIMITED_QUEUES,
    Intake,
    QueueClaim,
)

NOTE = (0, "note")


class _Time:
    """A fake `call_later` whose time the test moves."""

    def __init__(self) -> None:
        self.now = 0.0
        self._calls: list[tuple[float, Callable[[], None]]] = []

    def later(self, seconds: float, call: Callable[[], None]) -> None:
        self._calls.append((self.now + seconds, call))

    def pass_(self, seconds: float) -> None:
        """Let time pass. What is called then may call later again."""
        until = self.now + seconds
        while due := [call for call in self._calls if call[0] <= until + 1e-9]:
            first = min(due, key=lambda call: call[0])
            self._calls.remove(first)
            self.now = first[0]
            first[1]()
        self.now = until

    @property
    def pending(self) -> int:
        return len(self._calls)


@pytest.fixture
def time() -> _Time:
    return _Time()


@pytest.fixture
def intake(time: _Time) -> Intake:
    return Intake(time.later)


def taken(intake: Intake, room: int = 1000) -> list[tuple[int, str, str, int]]:
    """What the intake asks for, as (shard, cause, prefix, most)."""
    return [(ask.shard, ask.cause, ask.prefix, ask.most) for asks in intake.take(room) for ask in asks]


def only_ask(intake: Intake, room: int = 1000) -> QueueClaim:
    ((ask,),) = intake.take(room)
    return ask


def test_nothing_marked_is_nothing_to_take(intake: Intake) -> None:
    assert taken(intake) == []
    assert intake.take_orphans(10) == {}
    assert intake.is_empty


def test_each_event_asks_for_one_timer(intake: Intake) -> None:
    for _ in range(3):
        intake.mark(*NOTE)
    assert taken(intake) == [(0, "event", "note", 3)]
    assert taken(intake) == []


def test_a_sweep_tells_a_pod_without_room_from_an_event_that_was_lost(
    intake: Intake, monkeypatch: pytest.MonkeyPatch
) -> None:
    intake.mark(*NOTE)
    later = monotonic() + 2 * BUSY_SECONDS
    monkeypatch.setattr("timers.engine.intake.time.monotonic", lambda: later)
    intake.mark_all(*NOTE, "sweep")
    intake.mark_all(0, "other", "sweep")
    assert {prefix: cause for _, cause, prefix, _ in taken(intake)} == {"note": "sweep-busy", "other": "sweep"}


def test_a_sweep_asks_for_a_batch(intake: Intake) -> None:
    intake.mark_all(*NOTE, "sweep")
    assert taken(intake) == [(0, "sweep", "note", CLAIM_BATCH)]
    assert taken(intake) == []


def test_a_burst_of_events_is_asked_for_in_batches(intake: Intake) -> None:
    for _ in range(2 * CLAIM_BATCH + 1):
        intake.mark(*NOTE)
    assert [taken(intake)[0][3] for _ in range(3)] == [CLAIM_BATCH, CLAIM_BATCH, 1]
    assert taken(intake) == []


def test_no_more_is_asked_for_than_there_is_room(intake: Intake) -> None:
    for prefix in ("a", "b", "c"):
        for _ in range(4):
            intake.mark(0, prefix)
    assert taken(intake, room=6) == [(0, "event", "a", 4), (0, "event", "b", 2)]
    assert taken(intake, room=0) == []
    assert taken(intake, room=-1) == []
    assert sorted(taken(intake)) == [(0, "event", "b", 2), (0, "event", "c", 4)]


def test_queues_of_one_shard_and_cause_go_into_one_claim(intake: Intake) -> None:
    intake.mark(0, "a")
    intake.mark(1, "a")
    intake.mark(0, "b")
    intake.mark_all(0, "c", "sweep")
    claims = [[(ask.shard, ask.cause, ask.prefix, ask.most) for ask in asks] for asks in intake.take(1000)]
    assert claims == [
        [(0, "event", "a", 1), (0, "event", "b", 1)],
        [(1, "event", "a", 1)],
        [(0, "sweep", "c", CLAIM_BATCH)],
    ]


def test_a_queue_that_an_event_marked_and_a_sweep_too_is_drained_like_one_of_the_sweep(intake: Intake) -> None:
    """Otherwise a claim cut short by lack of room would look like one for a single event, and have no successor."""
    intake.mark(*NOTE)
    intake.mark_all(*NOTE, "sweep")
    assert taken(intake, room=5) == [(0, "sweep", "note", 5)]


def test_an_event_in_a_queue_that_is_to_be_drained_keeps_it_so(intake: Intake) -> None:
    intake.mark_all(*NOTE, "sweep")
    intake.mark(*NOTE)
    assert taken(intake) == [(0, "sweep", "note", CLAIM_BATCH)]


def test_a_deep_queue_stays_marked_so_that_two_claims_can_be_under_way(intake: Intake) -> None:
    intake.mark_all(*NOTE, "sweep", deep=True)
    assert taken(intake) == taken(intake) == [(0, "sweep", "note", CLAIM_BATCH)]


def test_a_claim_that_found_less_than_it_asked_for_takes_the_mark_off(intake: Intake) -> None:
    intake.mark_all(*NOTE, "sweep", deep=True)
    intake.emptied(only_ask(intake))
    assert taken(intake) == []
    assert intake.is_empty


def test_a_mark_put_on_while_a_claim_was_under_way_survives_its_empty_answer(intake: Intake) -> None:
    """Its timer may have become due after the script ran."""
    intake.mark_all(*NOTE, "sweep", deep=True)
    ask = only_ask(intake)
    intake.mark(*NOTE)
    intake.emptied(ask)
    assert taken(intake) == [(0, "sweep", "note", CLAIM_BATCH)]


def test_a_mark_put_on_again_after_it_was_taken_survives_the_empty_answer(intake: Intake) -> None:
    intake.mark(*NOTE)
    ask = only_ask(intake)
    intake.mark(*NOTE)
    intake.emptied(ask)
    assert taken(intake) == [(0, "event", "note", 1)]


def test_an_empty_answer_for_a_queue_says_nothing_of_another(intake: Intake) -> None:
    intake.mark_all(0, "a", "sweep", deep=True)
    intake.mark_all(0, "b", "sweep", deep=True)
    ((first, _),) = intake.take(1000)
    intake.emptied(first)
    intake.emptied(replace(first, shard=1))
    assert taken(intake) == [(0, "sweep", "b", CLAIM_BATCH)]


def test_an_event_of_another_pod_is_looked_at_a_little_later(intake: Intake, time: _Time) -> None:
    intake.mark_after(*NOTE, LATER_SECONDS, "late-look")
    assert taken(intake) == []
    time.pass_(LATER_SECONDS * 0.99)
    assert taken(intake) == []
    time.pass_(LATER_SECONDS * 0.01)
    assert taken(intake) == [(0, "late-look", "note", CLAIM_BATCH)]


def test_many_events_of_other_pods_are_one_late_look(intake: Intake, time: _Time) -> None:
    for _ in range(100):
        intake.mark_after(*NOTE, LATER_SECONDS, "late-look")
    assert time.pending == 1
    time.pass_(LATER_SECONDS)
    assert taken(intake) == [(0, "late-look", "note", CLAIM_BATCH)]
    time.pass_(1)
    assert taken(intake) == []
    assert time.pending == 0


def test_each_queue_has_a_late_look_when_its_own_time_has_passed(intake: Intake, time: _Time) -> None:
    step = LATER_SECONDS / 10
    for tick in range(60):
        intake.mark_after(0, f"p{tick}", LATER_SECONDS, "late-look")
        time.pass_(step)
        waited = [tick + 1 - int(prefix[1:]) for _, _, prefix, _ in taken(intake)]
        assert waited == ([10] if tick >= 9 else [])


def test_late_looks_begin_again_after_a_rest(intake: Intake, time: _Time) -> None:
    for _ in range(3):
        intake.mark_after(*NOTE, LATER_SECONDS, "late-look")
        time.pass_(LATER_SECONDS)
        assert taken(intake) == [(0, "late-look", "note", CLAIM_BATCH)]
        time.pass_(5)


def test_a_queue_whose_rate_is_used_up_is_marked_when_it_allows_the_next(intake: Intake, time: _Time) -> None:
    intake.mark_after(*NOTE, seconds=2.0)
    time.pass_(1.9)
    assert taken(intake) == []
    time.pass_(0.1)
    assert taken(intake) == [(0, "rate", "note", CLAIM_BATCH)]
    intake.mark_after(*NOTE, seconds=1.0)
    time.pass_(1.0)
    assert taken(intake) == [(0, "rate", "note", CLAIM_BATCH)]


def test_of_several_looks_for_one_cause_the_earliest_counts(intake: Intake, time: _Time) -> None:
    """A processor held its queue off for an hour, and the rate allowed the next start in a second."""
    intake.mark_after(*NOTE, seconds=3600)
    intake.mark_after(*NOTE, seconds=1)
    intake.mark_after(*NOTE, seconds=2)
    time.pass_(1)
    assert taken(intake) == [(0, "rate", "note", CLAIM_BATCH)]
    time.pass_(3600)
    assert taken(intake) == []
    assert time.pending == 0


def test_orphans_are_taken_by_shard_and_only_as_many_as_there_is_room_for(intake: Intake) -> None:
    for shard, timer_id in ((0, "a"), (1, "b"), (0, "c")):
        intake.mark_orphan(shard, ("note", timer_id))
    assert intake.take_orphans(0) == {}
    assert intake.take_orphans(-3) == {}
    assert intake.take_orphans(2) == {0: [("note", "a")], 1: [("note", "b")]}
    assert not intake.is_empty
    assert intake.take_orphans(2) == {0: [("note", "c")]}
    assert intake.is_empty


def test_an_orphan_marked_twice_is_rescued_once(intake: Intake) -> None:
    intake.mark_orphan(0, ("note", "a"))
    intake.mark_orphan(0, ("note", "a"))
    assert intake.take_orphans(10) == {0: [("note", "a")]}


def test_orphans_keep_the_claimer_awake_when_the_marks_are_taken(intake: Intake) -> None:
    intake.mark(*NOTE)
    intake.mark_orphan(0, ("note", "a"))
    taken(intake)
    assert not intake.is_empty
    intake.take_orphans(1)
    assert intake.is_empty


def test_a_timer_that_was_due_just_now_waited_behind_twenty_thousand_queues(intake: Intake) -> None:
    for number in range(20_000):
        intake.mark(0, f"p{number}")
    intake.mark(0, "probe")
    assert "probe" in {prefix for _, _, prefix, _ in taken(intake)}


def test_what_waits_has_its_turn_however_much_has_just_become_due(intake: Intake) -> None:
    for number in range(CLAIM_QUEUES):
        intake.mark_all(0, f"late{number}", "sweep")
        intake.mark(0, f"new{number}")
    asked = [prefix for _, _, prefix, _ in taken(intake)]
    assert asked[:100] == [f"new{number}" for number in range(100, 200)]
    assert asked[100:] == [f"late{number}" for number in range(100)]


def test_twenty_thousand_queues_with_one_timer_each_took_a_claim_each(intake: Intake) -> None:
    """Each claim asked for a whole batch, so the room of a pod was enough for five queues."""
    for number in range(20_000):
        intake.mark_all(0, f"p{number}", "sweep")
    (wanted,) = intake.take(1000)
    assert (len(wanted), sum(ask.most for ask in wanted)) == (CLAIM_QUEUES, CLAIM_BATCH)


def test_queues_with_limits_hid_one_without_that_was_marked_before_them(time: _Time) -> None:
    intake = Intake(time.later, limited=lambda prefix: prefix.startswith("limited"))
    intake.mark(0, "free")
    for number in range(2 * CLAIM_QUEUES):
        intake.mark(0, f"limited-{number}")
    assert intake.waiting()[0] == 2 * CLAIM_QUEUES + 1
    assert taken(intake) == [(0, "event", "free", 1)]
    assert not intake.is_empty


def test_a_round_of_limited_queues_kept_the_server_busy_for_30_ms(time: _Time) -> None:
    """It took 200 queues. Timers of other queues that became due meanwhile waited."""
    intake = Intake(time.later, limited=lambda _prefix: True)
    for number in range(2 * CLAIM_QUEUES):
        intake.mark(0, f"limited-{number}")
    (wanted,) = intake.take(1000, limited=True)
    assert (len(wanted), sum(ask.most for ask in wanted)) == (LIMITED_QUEUES, LIMITED_QUEUES)
    assert LIMITED_QUEUES <= CLAIM_QUEUES / 8
