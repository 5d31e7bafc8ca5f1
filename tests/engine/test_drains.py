"""Draining: the pod starts nothing new, lets runs finish, hands the rest back, and ends in time."""

import asyncio
from typing import Any

from tests.engine.fleet import DAY_MS, Calls, Fleet, Held, Pod, notes, stubbornly, until
from tests.engine.own import OwnServer
from tests.waiting import DEADLINE_SECONDS
from timers.core.model import Status, Timer
from timers.core.spec import NewTimer
from timers.errors import Unavailable
from timers.processor import Context
from timers.store import keys

AT_ONCE: dict[str, Any] = {"drain_timeout_ms": 0}
IMPATIENT: dict[str, Any] = {"hand_back_seconds": 0.1}
"""Redis is given less time than for real once a drain is overdue."""


async def test_a_drain_starts_nothing_new_and_lets_runs_finish(fleet: Fleet) -> None:
    held = Held()
    pod = await fleet.pod(held)
    await fleet.client.create("note", "running", delay=0)
    await until(lambda: len(held) == 1, "it runs")
    draining = asyncio.create_task(fleet.drain(pod))
    await until(lambda: pod.worker.health().services["claimer"] == "stopped", "claiming has stopped")
    await fleet.client.create("note", "new", delay=0)
    assert not pod.worker.health().ready
    assert "draining" in pod.worker.health().problems
    assert not draining.done()
    held.release.set()
    await draining
    assert held.ids == ["running"]
    assert (await fleet.client.get("note", "running")).status is Status.COMPLETED
    new = await fleet.client.get("note", "new")
    assert (new.status, new.attempt, new.version) == (Status.SCHEDULED, 0, 1)


async def test_what_does_not_finish_in_time_goes_back_and_another_pod_runs_it(fleet: Fleet) -> None:
    held, calls = Held(), Calls()
    pod = await fleet.pod(held, name="old", drain_timeout_ms=20)
    await fleet.client.create("note", "x", delay=0)
    await until(lambda: len(held) == 1, "it runs")
    await fleet.drain(pod)
    assert held.cancelled == 1
    back = await fleet.client.get("note", "x")
    assert (back.status, back.attempt, back.failures, back.lease) == (Status.SCHEDULED, 1, 0, None)
    assert notes(back)[-1] == "handed back: the pod drains"
    await fleet.pod(calls, name="new")
    timer = await fleet.completed("x")
    assert calls.attempts == [2]
    assert (timer.attempt, timer.failures, timer.last_error) == (2, 0, None)
    assert calls.contexts[0].idempotency_key == held.contexts[0].idempotency_key


async def test_handing_back_often_never_uses_up_the_attempts(fleet: Fleet) -> None:
    await fleet.client.create("note", "x", delay=0, retry={"max_attempts": 1})
    for number in range(4):
        held = Held()
        pod = await fleet.pod(held, name=f"pod-{number}", **AT_ONCE)
        await until(lambda: len(held) == 1, "it runs")  # noqa: B023 (looked at within this round)
        await fleet.drain(pod)
    calls = Calls()
    await fleet.pod(calls, name="last")
    timer = await fleet.completed("x")
    assert calls.attempts == [5]
    assert timer.failures == 0


async def test_a_full_pod_hands_back_all_it_runs(fleet: Fleet) -> None:
    held = Held()
    pod = await fleet.pod(held, name="old", concurrency=30, **AT_ONCE)
    await fleet.client.batch([NewTimer(prefix="note", id=f"n{i}", delay=0) for i in range(100)])
    await until(lambda: len(held) == 30, "it is full")
    await fleet.drain(pod)
    timers = [await fleet.client.get("note", f"n{i}") for i in range(100)]
    assert {timer.status for timer in timers} == {Status.SCHEDULED}
    assert sum(timer.attempt for timer in timers) == 30
    calls = Calls()
    await fleet.pod(calls, name="new")
    for number in range(100):
        assert (await fleet.completed(f"n{number}")).failures == 0
    assert len(calls) == 100


async def test_a_processor_that_finishes_while_it_is_taken_back_has_finished(fleet: Fleet) -> None:
    async def act(_timer: Timer, _context: Context) -> None:
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            return

    calls = Calls(act=act)
    pod = await fleet.pod(calls, **AT_ONCE)
    await fleet.client.create("note", "x", delay=0)
    await until(lambda: len(calls) == 1, "it runs")
    await fleet.drain(pod)
    assert (await fleet.client.get("note", "x")).status is Status.COMPLETED


async def test_a_processor_that_ignores_the_drain_is_left_behind_and_its_result_refused(fleet: Fleet) -> None:
    let_go, over = asyncio.Event(), asyncio.Event()

    async def act(_timer: Timer, _context: Context) -> None:
        await stubbornly(let_go)
        over.set()

    stubborn = Calls(act=act)
    pod = await fleet.pod(stubborn, name="old", **AT_ONCE)
    await fleet.client.create("note", "x", delay=0)
    await until(lambda: len(stubborn) == 1, "it runs")
    await fleet.drain(pod)
    back = await fleet.client.get("note", "x")
    assert (back.status, back.failures) == (Status.SCHEDULED, 0)
    let_go.set()
    await over.wait()
    assert (await fleet.client.get("note", "x")).version == back.version


async def test_a_claim_that_is_answered_during_the_drain_is_not_left_leased(fleet: Fleet) -> None:
    held = Held()
    pod = await fleet.pod(held, name="old", **AT_ONCE)
    claimed, answer = _hold_answers(pod, "claim")
    await fleet.client.create("note", "x", delay=0)
    await claimed.wait()
    assert (await fleet.client.get("note", "x")).status is Status.RUNNING
    draining = asyncio.create_task(fleet.drain(pod))
    await until(lambda: pod.worker.health().services["claimer"] == "stopped", "claiming has stopped")
    answer.set()
    await draining
    back = await fleet.client.get("note", "x")
    assert (back.status, back.failures, back.lease) == (Status.SCHEDULED, 0, None)


async def test_a_rescue_that_is_answered_during_the_drain_is_not_left_leased(fleet: Fleet) -> None:
    lost = Held()
    dying = await fleet.pod(lost, name="dying")
    await fleet.client.create("note", "x", delay=0)
    await until(lambda: len(lost) == 1, "it runs")
    await fleet.kill(dying)
    pod = await fleet.pod(Held(), name="rescuer", **AT_ONCE)
    rescued, answer = _hold_answers(pod, "rescue")
    await fleet.expire_lease("x")
    await rescued.wait()
    draining = asyncio.create_task(fleet.drain(pod))
    await until(lambda: pod.worker.health().services["claimer"] == "stopped", "claiming has stopped")
    answer.set()
    await draining
    back = await fleet.client.get("note", "x")
    assert (back.status, back.failures, back.lease) == (Status.SCHEDULED, 1, None)


def _hold_answers(pod: Pod, name: str) -> tuple[asyncio.Event, asyncio.Event]:
    """Delay a script's answers to the pod until the second event is set. The first event tells that one has come."""
    came, go_on = asyncio.Event(), asyncio.Event()
    call = getattr(pod.store, name)

    async def slow(*args: Any, **named: Any) -> Any:
        answer = await call(*args, **named)
        came.set()
        await go_on.wait()
        return answer

    setattr(pod.store, name, slow)
    return came, go_on


async def test_a_drained_pod_has_signed_off(fleet: Fleet) -> None:
    pod = await fleet.pod(Calls(), name="leaves")
    assert [member.pod for member in await fleet.client.pods()] == ["leaves"]
    await fleet.drain(pod)
    assert await fleet.client.pods() == []


async def test_a_pod_that_cannot_sign_off_lets_its_runs_finish_meanwhile(fleet: Fleet) -> None:
    held = Held()
    pod = await fleet.pod(held)
    leaving = asyncio.Event()
    run = pod.store.run

    async def never_answered(name: str, where: int | str, *rest: Any, **options: Any) -> Any:
        if where != keys.PODS_ROOT or pod.worker.health().services["peers"] != "stopped":
            return await run(name, where, *rest, **options)
        await leaving.wait()
        raise RuntimeError("the db is not what it was")

    pod.store.run = never_answered  # type: ignore[method-assign]
    await fleet.client.create("note", "x", delay=0)
    await until(lambda: len(held) == 1, "it runs")
    draining = asyncio.create_task(fleet.drain(pod))
    await until(lambda: pod.worker.health().services["claimer"] == "stopped", "claiming has stopped")
    held.release.set()
    await fleet.completed("x")
    assert not draining.done()
    leaving.set()
    await draining


async def test_a_claim_that_is_not_answered_does_not_hold_up_a_drain(fleet: Fleet) -> None:
    pod = await fleet.pod(Calls(), name="old", drain_timeout_ms=20, **IMPATIENT)
    claimed, _ = _hold_answers(pod, "claim")
    await fleet.client.create("note", "x", delay=0)
    await claimed.wait()
    async with asyncio.timeout(DEADLINE_SECONDS):
        await fleet.drain(pod)
    assert (await fleet.client.get("note", "x")).status is Status.RUNNING
    await fleet.expire_lease("x")
    await fleet.pod(Calls(), name="new")
    assert (await fleet.completed("x")).attempt == 2


async def test_a_drain_that_is_hurried_waits_no_longer_for_runs_nor_for_redis(fleet: Fleet) -> None:
    held = Held()
    pod = await fleet.pod(held, drain_timeout_ms=DAY_MS)
    asked, _ = _hold_answers(pod, "settle")
    await fleet.client.create("note", "x", delay=0)
    await until(lambda: len(held) == 1, "it runs")
    draining = asyncio.create_task(fleet.drain(pod))
    await until(lambda: pod.worker.health().services["claimer"] == "stopped", "claiming has stopped")
    pod.worker.shorten_drain()
    async with asyncio.timeout(DEADLINE_SECONDS):
        await draining
    assert asked.is_set()
    assert (await fleet.client.get("note", "x")).status is Status.SCHEDULED


async def test_a_second_drain_beside_the_first_changes_nothing(fleet: Fleet) -> None:
    held = Held()
    pod = await fleet.pod(held)
    await fleet.client.create("note", "x", delay=0)
    await until(lambda: len(held) == 1, "it runs")
    drains = [asyncio.create_task(pod.worker.drain()) for _ in range(2)]
    await until(lambda: pod.worker.health().services["claimer"] == "stopped", "claiming has stopped")
    held.release.set()
    await asyncio.gather(*drains)
    assert (await fleet.client.get("note", "x")).status is Status.COMPLETED
    await fleet.drain(pod)


async def test_ends_that_wait_for_redis_are_written_before_the_drain_is_over(fleet: Fleet) -> None:
    calls = Calls()
    pod = await fleet.pod(calls)
    fail = True
    settle = pod.store.settle

    async def away_once(*args: Any, **named: Any) -> Any:
        nonlocal fail
        if fail:
            fail = False
            raise Unavailable("away for a moment")
        return await settle(*args, **named)

    pod.store.settle = away_once  # type: ignore[method-assign]
    await fleet.client.create("note", "x", delay=0)
    await until(lambda: len(calls) == 1, "it has run")
    await fleet.drain(pod)
    assert not fail
    assert (await fleet.client.get("note", "x")).status is Status.COMPLETED


async def test_a_drain_ends_while_redis_is_down_and_another_pod_continues(own: OwnServer) -> None:
    fleet = await Fleet.over(own.url)
    held, calls = Held(), Calls()
    pod = await fleet.pod(held, name="old", **AT_ONCE, **IMPATIENT)
    await fleet.client.create("note", "x", delay=0)
    await until(lambda: len(held) == 1, "it runs")
    own.down()
    await fleet.drain(pod)
    await own.up()
    await fleet.expire_lease("x")
    await fleet.pod(calls, name="new")
    assert (await fleet.completed("x")).attempt == 2
    await fleet.close()


async def test_ends_are_written_by_a_drain_when_redis_is_back_within_its_timeout(own: OwnServer) -> None:
    fleet = await Fleet.over(own.url)
    held = Held()
    pod = await fleet.pod(held, **IMPATIENT)
    await fleet.client.create("note", "x", delay=0)
    await until(lambda: len(held) == 1, "it runs")
    own.down()
    draining = asyncio.create_task(fleet.drain(pod))
    held.release.set()
    await until(lambda: "restarting" in pod.worker.health().services["settler"], "the end cannot be written")
    await own.up()
    await draining
    assert (await fleet.client.get("note", "x")).status is Status.COMPLETED
    await fleet.close()


async def test_a_drain_ends_while_redis_does_not_answer(own: OwnServer) -> None:
    fleet = await Fleet.over(own.url)
    fleet.answer_timeout_seconds = 3_600.0
    held = Held()
    pod = await fleet.pod(held, name="old", **AT_ONCE, **IMPATIENT)
    await fleet.client.create("note", "x", delay=0)
    await until(lambda: len(held) == 1, "it runs")
    own.hang()
    async with asyncio.timeout(DEADLINE_SECONDS):
        await fleet.drain(pod)
    own.go_on()
    assert held.cancelled == 1
    await fleet.close()
