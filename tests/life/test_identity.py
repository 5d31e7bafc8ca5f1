"""One identity, one timer: when callers arm the same timer at once, and when a duplicate comes between two tries."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

from tests.engine.fleet import Calls, Fleet
from tests.waiting import eventually
from timers.client import TimerClient
from timers.core.model import Status, Timer
from timers.errors import AlreadyExists
from timers.processor import Context

CALLERS = 8


@pytest.fixture
async def callers(fleet: Fleet) -> AsyncIterator[list[TimerClient]]:
    """Clients with their own connections."""
    async with AsyncExitStack() as ends:
        yield [await ends.enter_async_context(TimerClient(fleet.url)) for _ in range(CALLERS)]


async def test_many_concurrent_creates_arm_one_timer_that_runs_once(fleet: Fleet, callers: list[TimerClient]) -> None:
    arming = [caller.create("note", "x", delay="50ms", payload=n) for n, caller in enumerate(callers)]
    answers = await asyncio.gather(*arming, return_exceptions=True)
    armed = [answer for answer in answers if isinstance(answer, Timer)]
    assert len(armed) == 1
    assert sum(isinstance(answer, AlreadyExists) for answer in answers) == CALLERS - 1
    calls = Calls()
    for name in ("a", "b"):
        await fleet.pod(calls, name=name)
    await fleet.completed("x")
    assert [timer.payload for timer in calls.timers] == [armed[0].payload]


async def test_all_creates_with_keep_get_the_same_timer(fleet: Fleet, callers: list[TimerClient]) -> None:
    arming = [caller.create("note", "x", delay="1h", payload=n, if_exists="keep") for n, caller in enumerate(callers)]
    answers = await asyncio.gather(*arming)
    assert {(timer.payload, timer.due_ms, timer.version) for timer in answers} == {
        (answers[0].payload, answers[0].due_ms, 1)
    }


async def test_a_duplicate_between_two_tries_neither_starts_another_nor_stops_the_retry(fleet: Fleet) -> None:
    async def fail_once(timer: Timer, _context: Context) -> None:
        if timer.attempt == 1:
            raise ValueError("not yet")

    calls = Calls(act=fail_once, retry={"base": "1h", "jitter": False})
    await fleet.pod(calls)
    await fleet.client.create("note", "x", delay=0, payload="first")

    async def failed_once() -> Timer | None:
        timer = await fleet.client.get("note", "x")
        return timer if (timer.status, timer.failures) == (Status.SCHEDULED, 1) else None

    waiting = await eventually(failed_once, "it waits for its second try")
    assert waiting is not None
    kept = await fleet.client.create("note", "x", delay=0, payload="again", if_exists="keep")
    assert (kept.status, kept.version, kept.due_ms) == (Status.SCHEDULED, waiting.version, waiting.due_ms)
    await fleet.client.fire("note", "x")
    await fleet.completed("x")
    assert [(timer.attempt, timer.payload) for timer in calls.timers] == [(1, "first"), (2, "first")]
