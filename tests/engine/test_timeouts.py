"""Runs that take too long, and threads that cannot be stopped."""

import asyncio
import threading

import pytest

from tests.engine.fleet import Calls, Fleet, notes, stubbornly, until
from tests.engine.test_outcomes import ONE_TRY, TWO_QUICK_TRIES
from timers.core.model import Status, Timer
from timers.core.outcome import Done
from timers.processor import Context, processor


async def test_a_run_past_its_timeout_is_cancelled_and_fails_its_attempt(fleet: Fleet) -> None:
    cancelled = asyncio.Event()

    async def act(_timer: Timer, _context: Context) -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            cancelled.set()

    await fleet.pod(Calls(act=act, timeout="30ms", retry=ONE_TRY))
    await fleet.client.create("note", "x", delay=0)
    timer = await fleet.failed("x")
    assert cancelled.is_set()
    assert timer.last_error is not None
    assert timer.last_error["type"] == "Timeout"
    assert "30 ms" in timer.last_error["reason"]


async def test_the_timers_own_timeout_overrides_the_processors(fleet: Fleet) -> None:
    calls = Calls(act=_never, timeout="1h", retry=ONE_TRY)
    await fleet.pod(calls)
    await fleet.client.create("note", "x", delay=0, timeout="20ms")
    timer = await fleet.failed("x")
    assert timer.last_error is not None
    assert "20 ms" in timer.last_error["reason"]


async def _never(_timer: Timer, _context: Context) -> None:
    await asyncio.get_running_loop().create_future()


@pytest.mark.parametrize("answer", [Done("too late"), ValueError("too late")], ids=["done", "raises"])
async def test_a_result_after_the_timeout_does_not_count(fleet: Fleet, answer: Done | Exception) -> None:
    """The processor swallows its cancellation: its slot is freed, its timer goes on, and its late result is refused."""
    let_go = asyncio.Event()
    over = asyncio.Event()

    async def act(timer: Timer, _context: Context) -> Done:
        if timer.attempt == 2:
            return Done("second try")
        await stubbornly(let_go)
        over.set()
        if isinstance(answer, Exception):
            raise answer
        return answer

    calls = Calls(act=act, timeout="20ms", retry=TWO_QUICK_TRIES)
    pod = await fleet.pod(calls, concurrency=1)
    await fleet.client.create("note", "x", delay=0)
    timer = await fleet.completed("x")
    assert calls.attempts == [1, 2]
    let_go.set()
    await over.wait()
    await fleet.drain(pod)
    after = await fleet.client.get("note", "x")
    assert (after.version, after.status, notes(after)[-1]) == (timer.version, Status.COMPLETED, "second try")


async def test_a_thread_that_cannot_be_stopped_does_not_hold_its_timer(fleet: Fleet) -> None:
    let_go = threading.Event()

    @processor("stuck", timeout="20ms", retry=ONE_TRY)
    def stuck(_timer: Timer, _context: Context) -> None:
        let_go.wait()

    pod = await fleet.pod(stuck)
    try:
        await fleet.client.create("stuck", "x", delay=0)
        timer = await fleet.failed("x", "stuck")
        assert timer.last_error is not None
        assert timer.last_error["type"] == "Timeout"
        await fleet.drain(pod)
    finally:
        let_go.set()


async def test_a_pod_whose_room_hanging_threads_have_used_up_says_so(fleet: Fleet) -> None:
    let_go = threading.Event()

    @processor("stuck", timeout="20ms", retry=ONE_TRY)
    def stuck(_timer: Timer, _context: Context) -> None:
        let_go.wait()

    pod = await fleet.pod(stuck, concurrency=1)
    try:
        await fleet.client.create("stuck", "x", delay=0)
        await fleet.failed("x", "stuck")
        health = pod.worker.health()
        assert health.abandoned == 1
        assert "no room: 1 functions keep running after their runs timed out or were lost" in health.problems
    finally:
        let_go.set()
    await until(lambda: pod.worker.health().abandoned == 0, "the thread is free")


async def test_a_run_that_finished_in_time_is_not_stopped_by_its_timeout(fleet: Fleet) -> None:
    calls = Calls(timeout="40ms", retry=ONE_TRY)
    await fleet.pod(calls)
    await fleet.client.create("note", "x", delay=0)
    timer = await fleet.completed("x")
    later = await fleet.client.create("note", "y", due_at=timer.updated_ms + 60)
    await fleet.completed(later.id)
    assert (await fleet.client.get("note", "x")).version == timer.version
