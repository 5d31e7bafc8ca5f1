"""Timers that fire again: re-armed by their processor, repeating, or later than they allow."""

from tests.engine.fleet import Act, Calls, Fleet, notes, until
from tests.waiting import eventually
from timers.core.calls import Missed
from timers.core.model import Status, Timer
from timers.core.outcome import Done, Rearm
from timers.processor import Context


def rearms(times: int) -> Act:
    async def act(timer: Timer, _context: Context) -> Rearm | None:
        return Rearm(after="1ms") if timer.occurrence < times else None

    return act


async def test_a_processor_sets_its_own_key_again_and_again(fleet: Fleet) -> None:
    calls = Calls(act=rearms(5))
    await fleet.pod(calls)
    await fleet.client.create("note", "x", delay=0, payload="kept")
    timer = await fleet.completed("x")
    assert [run.occurrence for run in calls.timers] == [1, 2, 3, 4, 5]
    assert calls.attempts == [1, 1, 1, 1, 1]
    assert {run.payload for run in calls.timers} == {"kept"}
    assert [context.idempotency_key for context in calls.contexts] == [
        f"note:x:{timer.created_ms}:{n}" for n in range(1, 6)
    ]
    tokens = [context.token for context in calls.contexts]
    assert tokens == sorted(set(tokens))
    assert notes(timer).count("re-armed") == 4


async def test_a_rearm_may_bring_another_payload(fleet: Fleet) -> None:
    async def act(timer: Timer, _context: Context) -> Rearm | None:
        return Rearm(after=0, payload=[*timer.payload, timer.occurrence]) if timer.occurrence < 3 else None

    calls = Calls(act=act)
    await fleet.pod(calls)
    await fleet.client.create("note", "x", delay=0, payload=[])
    await fleet.completed("x")
    assert [run.payload for run in calls.timers] == [[], [1], [1, 2]]


async def test_a_rearm_at_a_time_runs_then_and_not_before(fleet: Fleet) -> None:
    at_ms = await fleet.store.now_ms() + 150

    async def act(timer: Timer, _context: Context) -> Rearm | None:
        return Rearm(at=at_ms) if timer.occurrence == 1 else None

    calls = Calls(act=act)
    await fleet.pod(calls)
    await fleet.client.create("note", "x", delay=0)
    timer = await fleet.completed("x")
    assert timer.due_ms == at_ms
    started = [entry for entry in timer.history if entry.status is Status.RUNNING]
    assert started[0].at_ms >= at_ms


async def test_the_failures_of_one_occurrence_do_not_count_against_the_next(fleet: Fleet) -> None:
    async def act(timer: Timer, _context: Context) -> Rearm | None:
        if timer.attempt == 1:
            raise ValueError("the first try of each")
        return Rearm(after=0) if timer.occurrence < 4 else None

    calls = Calls(act=act, retry={"max_attempts": 2, "base": "1ms"})
    await fleet.pod(calls)
    await fleet.client.create("note", "x", delay=0)
    timer = await fleet.completed("x")
    assert [(run.occurrence, run.attempt, run.failures) for run in calls.timers] == [
        (occurrence, attempt, attempt - 1) for occurrence in (1, 2, 3, 4) for attempt in (1, 2)
    ]
    assert (timer.attempt, timer.failures) == (2, 1)


async def test_a_repeat_at_a_fixed_rate_does_not_drift(fleet: Fleet) -> None:
    calls = Calls()
    await fleet.pod(calls)
    created = await fleet.client.create("note", "x", delay="20ms", repeat={"every": "40ms", "count": 6})
    timer = await fleet.completed("x")
    assert [run.occurrence for run in calls.timers] == [1, 2, 3, 4, 5, 6]
    due = [run.due_ms for run in calls.timers]
    assert due[0] == created.due_ms
    assert all((slot_ms - created.due_ms) % 40 == 0 for slot_ms in due)
    assert due == sorted(set(due))
    assert all(run.updated_ms >= run.due_ms for run in calls.timers)
    assert timer.status is Status.COMPLETED


async def test_the_retries_of_a_repeat_do_not_shift_its_slots(fleet: Fleet) -> None:
    async def act(timer: Timer, _context: Context) -> None:
        if timer.attempt == 1:
            raise ValueError("the first try of each")

    calls = Calls(act=act, retry={"max_attempts": 3, "base": "7ms", "jitter": False})
    await fleet.pod(calls)
    created = await fleet.client.create("note", "x", delay=0, repeat={"every": "50ms", "count": 3})
    await fleet.completed("x")
    first_tries = [run for run in calls.timers if run.attempt == 1]
    assert [run.occurrence for run in first_tries] == [1, 2, 3]
    assert all((run.due_ms - created.due_ms) % 50 == 0 for run in first_tries)


async def test_a_repeat_continues_after_an_occurrence_that_failed_for_good(fleet: Fleet) -> None:
    async def act(timer: Timer, _context: Context) -> None:
        if timer.occurrence == 1:
            raise ValueError("only the first")

    calls = Calls(act=act, retry={"max_attempts": 1})
    await fleet.pod(calls)
    await fleet.client.create("note", "x", delay=0, repeat={"every": "10ms", "count": 2})
    timer = await fleet.completed("x")
    assert [run.occurrence for run in calls.timers] == [1, 2]
    assert "gave up after ValueError: only the first" in notes(timer)[2]


async def test_a_repeating_timer_is_cancelled_between_two_runs(fleet: Fleet) -> None:
    calls = Calls()
    await fleet.pod(calls)
    await fleet.client.create("note", "x", delay=0, repeat={"every": "1h"})
    await until(lambda: len(calls) == 1, "the first run")
    await fleet.reached(Status.SCHEDULED, "x")
    cancelled = await fleet.client.cancel("note", "x")
    assert cancelled.status is Status.CANCELLED
    assert cancelled.occurrence == 2
    await fleet.client.create("note", "after", delay=0)
    await fleet.completed("after")
    assert calls.ids == ["x", "after"]


async def test_a_repeat_makes_one_run_for_all_that_an_outage_missed(fleet: Fleet) -> None:
    now_ms = await fleet.store.now_ms()
    await fleet.client.create("note", "x", due_at=now_ms - 3_630_000, repeat={"every": "1m"})
    calls = Calls()
    await fleet.pod(calls)
    await until(lambda: len(calls) == 1, "the run for all")
    timer = await fleet.reached(Status.SCHEDULED, "x")
    assert timer.occurrence == 2
    assert timer.due_ms == now_ms + 30_000


async def test_with_all_each_missed_slot_is_made_up_for(fleet: Fleet) -> None:
    now_ms = await fleet.store.now_ms()
    await fleet.client.create("note", "x", due_at=now_ms - 200_000, repeat={"every": "1m"}, missed="all")
    calls = Calls()
    await fleet.pod(calls)
    await until(lambda: len(calls) == 4, "the four missed slots")
    assert [run.due_ms - now_ms for run in calls.timers] == [-200_000, -140_000, -80_000, -20_000]
    assert (await fleet.reached(Status.SCHEDULED, "x")).due_ms == now_ms + 40_000


MISSED: dict[str, Missed] = {
    "skip": "skip",
    "changed": "skip",
    "moved": "skip",
    "graceless": {"grace": "1s"},
    "fire": "fire",
    "gracious": {"grace": "1h"},
}


async def test_a_timer_that_no_pod_could_run_in_time_is_skipped_where_it_says_so(fleet: Fleet) -> None:
    """They were armed in time. A timer counts as missed from one second late. Only another due time forgives that."""
    for timer_id, missed in MISSED.items():
        await fleet.client.create("note", timer_id, delay="20ms", missed=missed)
    repeating = await fleet.client.create("note", "repeats", delay="20ms", missed="skip", repeat={"every": "1h"})

    async def late_enough() -> bool:
        return await fleet.store.now_ms() > repeating.due_ms + 1_100

    await eventually(late_enough, "they are late enough")
    await fleet.client.change("note", "changed", payload="late")
    await fleet.client.reschedule("note", "moved", delay=0)
    await fleet.client.change("note", "moved", payload="late")
    calls = Calls()
    await fleet.pod(calls)
    timers = {timer_id: await fleet.completed(timer_id) for timer_id in MISSED}
    assert sorted(calls.ids) == ["fire", "gracious", "moved"]
    for timer_id in ("skip", "graceless"):
        assert notes(timers[timer_id])[-1].startswith("skipped: ")
        assert timers[timer_id].attempt == 0
        assert [entry.attempt for entry in timers[timer_id].history] == [0, 1, 0]

    async def skipped() -> Timer | None:
        (timer,) = await fleet.store.get([("note", "repeats")])
        return timer if timer is not None and timer.occurrence == 2 else None

    following = await eventually(skipped, "the occurrence of the repeat was skipped")
    assert following is not None
    assert following.due_ms == repeating.due_ms + 3_600_000


async def test_a_timer_armed_in_the_past_was_not_missed(fleet: Fleet) -> None:
    now_ms = await fleet.store.now_ms()
    calls = Calls()
    await fleet.pod(calls)
    await fleet.client.create("note", "x", due_at=now_ms - 3_600_000, missed="skip")
    await fleet.completed("x")
    assert calls.ids == ["x"]


async def test_done_ends_a_repeat_only_when_its_count_is_reached(fleet: Fleet) -> None:
    async def act(_timer: Timer, _context: Context) -> Done:
        return Done("one more")

    calls = Calls(act=act)
    await fleet.pod(calls)
    await fleet.client.create("note", "x", delay=0, repeat={"every": "5ms", "count": 3, "mode": "fixed_delay"})
    timer = await fleet.completed("x")
    assert [run.occurrence for run in calls.timers] == [1, 2, 3]
    assert notes(timer).count("one more") == 3
