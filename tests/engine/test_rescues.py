"""Leases: kept while a run lasts, taken over when its pod is gone; without its lease a pod's result does not count."""

from tests.engine.fleet import Calls, Fleet, Held, notes, until
from tests.store.acts import lease_ended
from tests.waiting import eventually
from timers.core.model import Status, Timer
from timers.engine.intake import CLAIM_BATCH
from timers.engine.pod import taken_lease_ms
from timers.processor import Context
from timers.store import keys
from timers.store.store import TOUCH_LIMIT, Arming

SHORT_LEASE_MS = 1_000


async def test_a_killed_pods_run_is_taken_over_after_its_lease(fleet: Fleet) -> None:
    held, calls = Held(), Calls()
    dying = await fleet.pod(held, name="dying", lease_ms=SHORT_LEASE_MS)
    await fleet.client.create("note", "x", delay=0, payload="kept")
    await until(lambda: len(held) == 1, "the run has started")
    await fleet.kill(dying)
    rescuer = await fleet.pod(calls, name="rescuer")
    timer = await fleet.completed("x")
    assert calls.attempts == [2]
    assert calls.timers[0].payload == "kept"
    assert calls.contexts[0].token > held.contexts[0].token
    assert calls.contexts[0].idempotency_key == held.contexts[0].idempotency_key
    assert (timer.attempt, timer.failures) == (2, 1)
    rescued, started = (entry for entry in timer.history if entry.status is Status.RUNNING)
    assert (started.pod, rescued.pod, rescued.note) == ("dying", "rescuer", "rescue")
    assert rescued.at_ms - started.at_ms >= taken_lease_ms(SHORT_LEASE_MS)
    assert rescuer.seen.rescues == ["note"]


async def test_all_runs_of_a_killed_pod_are_taken_over_once_each(fleet: Fleet) -> None:
    held = Held()
    dying = await fleet.pod(held, name="dying", lease_ms=SHORT_LEASE_MS)
    ids = [f"n{number}" for number in range(50)]
    for timer_id in ids:
        await fleet.client.create("note", timer_id, delay=0)
    await until(lambda: len(held) == 50, "all have started")
    rescuers = [Calls(), Calls()]
    for number, calls in enumerate(rescuers):
        await fleet.pod(calls, name=f"rescuer-{number}")
    await fleet.kill(dying)
    for timer_id in ids:
        assert (await fleet.completed(timer_id)).attempt == 2
    assert sorted(timer_id for calls in rescuers for timer_id in calls.ids) == sorted(ids)


async def test_a_timer_that_kills_its_pod_every_time_ends_after_exactly_its_attempts(fleet: Fleet) -> None:
    for number in range(3):
        held = Held(retry={"max_attempts": 3})
        pod = await fleet.pod(held, name=f"pod-{number}")
        if number == 0:
            await fleet.client.create("note", "x", delay=0)
        await until(lambda: len(held) == 1, f"attempt {number + 1}")  # noqa: B023 (looked at within this round)
        assert held.attempts == [number + 1]
        await fleet.kill(pod)
        await fleet.expire_lease("x")
    survivor = Calls(retry={"max_attempts": 3})
    await fleet.pod(survivor, name="survivor")
    timer = await fleet.failed("x")
    assert len(survivor) == 0
    assert (timer.attempt, timer.failures) == (3, 3)
    assert timer.last_error is not None
    assert (timer.last_error["type"], timer.last_error["attempt"]) == ("Lost", 3)
    assert [entry.attempt for entry in timer.history] == [3, 4, 3, 2, 1, 0]


async def test_crashes_and_failures_count_together(fleet: Fleet) -> None:
    held = Held(retry={"max_attempts": 2})
    dying = await fleet.pod(held, name="dying")
    await fleet.client.create("note", "x", delay=0)
    await until(lambda: len(held) == 1, "the run has started")
    await fleet.kill(dying)
    await fleet.expire_lease("x")

    async def fail(_timer: Timer, _context: Context) -> None:
        raise ValueError("and now this")

    calls = Calls(act=fail, retry={"max_attempts": 2})
    await fleet.pod(calls, name="rescuer")
    timer = await fleet.failed("x")
    assert calls.attempts == [2]
    assert (timer.attempt, timer.failures) == (2, 2)


async def test_the_late_result_of_a_pod_that_was_frozen_is_refused(fleet: Fleet) -> None:
    held, calls = Held(), Calls()
    frozen = await fleet.pod(held, name="frozen")
    await fleet.client.create("note", "x", delay=0)
    await until(lambda: len(held) == 1, "the run has started")
    await frozen.freeze()
    await fleet.expire_lease("x")
    await fleet.pod(calls, name="rescuer")
    timer = await fleet.completed("x")
    held.release.set()
    await until(lambda: frozen.worker.runner.executing == 0, "the frozen pod's run has ended")
    frozen.thaw()
    await until(lambda: not frozen.worker.runner.held, "its result was written or refused")
    assert frozen.seen.refusals == ["note"]
    after = await fleet.client.get("note", "x")
    assert (after.version, after.attempt, after.history[0].pod) == (timer.version, 2, "rescuer")


async def test_the_late_result_of_an_earlier_occurrence_is_refused(fleet: Fleet) -> None:
    """It comes from yesterday's run, during today's."""
    held, calls = Held(), Held()
    frozen = await fleet.pod(held, name="frozen")
    await fleet.client.create("note", "x", delay=0, repeat={"every": "10ms"})
    await until(lambda: len(held) == 1, "the first occurrence has started")
    await frozen.freeze()
    await fleet.expire_lease("x")
    rescuer = await fleet.pod(Calls(), name="rescuer")
    await until(lambda: rescuer.seen.rescues, "the first occurrence was taken over")

    async def repeated() -> bool:
        return (await fleet.client.get("note", "x")).occurrence > 1

    await eventually(repeated, "the next occurrence has come")
    await fleet.drain(rescuer)
    await fleet.pod(calls, name="today")
    await until(lambda: len(calls) == 1, "today's run is under way")
    held.release.set()
    frozen.thaw()
    await until(lambda: frozen.worker.runner.executing == 0, "the frozen pod's run has ended")
    await until(lambda: not frozen.worker.runner.held, "its result was written or refused")
    running = await fleet.client.get("note", "x")
    assert running.status is Status.RUNNING
    assert running.token == calls.contexts[0].token
    calls.release.set()
    await until(lambda: len(calls) > 1, "the cycle goes on")
    await fleet.reached(Status.SCHEDULED, "x")


async def test_a_run_whose_lease_was_lost_is_cancelled_and_writes_nothing(fleet: Fleet) -> None:
    first, second = Held(), Held()
    loser = await fleet.pod(first, name="loser")
    await fleet.client.create("note", "x", delay=0)
    await until(lambda: len(first) == 1, "the run has started")
    await loser.freeze()
    await fleet.expire_lease("x")
    await fleet.pod(second, name="winner")
    await until(lambda: len(second) == 1, "it was taken over")
    loser.thaw()
    await until(lambda: first.cancelled == 1, "the loser's run is cancelled")
    await until(lambda: loser.worker.runner.executing == 0, "its slot is free")
    assert not loser.worker.runner.held
    running = await fleet.client.get("note", "x")
    assert (running.status, running.attempt) == (Status.RUNNING, 2)
    assert second.cancelled == 0
    second.release.set()
    assert notes(await fleet.completed("x"))[-1] == "completed"
    assert loser.seen.refusals == []


async def test_a_run_longer_than_its_lease_stays_with_its_pod(fleet: Fleet) -> None:
    held = Held()
    await fleet.pod(held, name="a", lease_ms=1_500)
    others = Calls()
    await fleet.pod(others, name="b", lease_ms=1_500)
    started = await _started_on(fleet, held, others)

    async def twice_its_length() -> bool:
        return await fleet.store.now_ms() > started.updated_ms + 3_200

    await eventually(twice_its_length, "the run is twice as long as its lease")
    running = await fleet.client.get("note", started.id)
    assert (running.status, running.token) == (Status.RUNNING, started.token)
    assert running.lease is not None
    assert running.lease.expires_ms > started.updated_ms + 3_000
    held.release.set()
    timer = await fleet.completed(started.id)
    assert (timer.attempt, timer.failures) == (1, 0)
    assert started.id not in others.ids


async def _started_on(fleet: Fleet, held: Held, others: Calls) -> Timer:
    """A timer that runs on the pod with the held calls. The other pod completes those that it took first."""
    for number in range(1_000):
        await fleet.client.create("note", f"n{number}", delay=0)
        await until(lambda: len(held) + len(others) > number, "somebody runs it")  # noqa: B023 (within this round)
        if len(held):
            return held.timers[0]
    raise AssertionError("the pod never ran any")


async def test_a_lease_that_vanished_is_taken_again_by_the_pod_that_still_runs(fleet: Fleet) -> None:
    held = Held()
    await fleet.pod(held, lease_ms=3 * SHORT_LEASE_MS)
    await fleet.client.create("note", "x", delay=0)
    await until(lambda: len(held) == 1, "the run has started")
    lease = f"{keys.root(0)}lease:note:x"
    await fleet.redis.delete(lease)

    async def there() -> bool:
        return bool(await fleet.redis.exists(lease))

    await eventually(there, "the heartbeat has set it again")
    held.release.set()
    assert (await fleet.completed("x")).attempt == 1


async def test_an_orphan_of_an_unserved_prefix_is_left_to_a_pod_that_serves_it(fleet: Fleet) -> None:
    held = Held()
    dying = await fleet.pod(held, name="dying")
    await fleet.client.create("note", "x", delay=0)
    await until(lambda: len(held) == 1, "the run has started")
    await fleet.kill(dying)
    await fleet.pod(Calls("mail"), name="mails")
    await fleet.expire_lease("x")
    await fleet.client.create("mail", "y", delay="20ms")
    await fleet.completed("y", "mail")
    assert (await fleet.client.get("note", "x")).attempt == 1
    calls = Calls()
    await fleet.pod(calls, name="notes")
    await fleet.completed("x")
    assert calls.attempts == [2]


async def test_a_pod_takes_over_its_own_orphan_whose_claim_was_answered_into_the_void(fleet: Fleet) -> None:
    """The script ran but its answer was lost, so the pod does not know of the lease. The timer runs after the lease."""
    calls = Calls()
    await fleet.client.create("note", "x", delay=0)
    claimed = await fleet.store.claim(0, [("note", 1)], pod="a", lease_ms=SHORT_LEASE_MS, cause="event")
    assert [timer.id for timer in claimed.timers] == ["x"]
    await fleet.pod(calls, name="a")
    await fleet.completed("x")
    assert calls.attempts == [2]


async def _lose_runs(fleet: Fleet, prefix: str, *timer_ids: str) -> None:
    """Make runs whose pod died with a lease of 1 ms. Later listeners hear nothing of the leases' ends."""
    await fleet.store.arm([Arming(prefix, timer_id, "+0", {}) for timer_id in timer_ids])
    lost: list[Timer] = []
    while len(lost) < len(timer_ids):
        claimed = await fleet.store.claim(0, [(prefix, CLAIM_BATCH)], pod="gone", lease_ms=1, cause="event")
        lost += claimed.timers
    for timer in lost:
        await lease_ended(fleet.store, timer)


async def test_more_lost_runs_of_a_paused_prefix_than_one_look_takes_hide_no_others(fleet: Fleet) -> None:
    await _lose_runs(fleet, "mail", *map(str, range(2 * TOUCH_LIMIT)))
    await _lose_runs(fleet, "note", "served")
    await _lose_runs(fleet, "unserved", "x")
    await fleet.store.pause("mail", paused=True)
    mails = Calls("mail")
    await fleet.pod(mails, Calls(), unhandled_after_ms=200)
    assert (await fleet.completed("served")).attempt == 2
    await fleet.reached(Status.UNHANDLED, "x", "unserved")
    assert len(mails) == 0
    await fleet.store.pause("mail", paused=False)
    await until(lambda: len(mails) == 2 * TOUCH_LIMIT, "those that were paused are taken over")
