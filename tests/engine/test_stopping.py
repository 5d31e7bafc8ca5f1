"""Stopping: every service ends when told to, at any moment."""

import asyncio
from random import Random

import pytest

from tests.engine.fleet import Calls, Fleet, until
from timers.errors import Unavailable
from timers.store.scripts import reachable

ROUNDS = 40


async def _drops_cancellation(failure: Exception | None, began: asyncio.Event | None = None) -> None:
    """Drops a cancellation that comes as its awaitable ends, as `asyncio.wait_for` of Python 3.11 does."""
    if began is not None:
        began.set()
    try:
        await asyncio.get_running_loop().create_future()
    except asyncio.CancelledError:
        if failure is not None:
            raise failure from None


@pytest.mark.parametrize("failure", [None, ConnectionError("gone"), ValueError("odd")])
async def test_a_service_whose_cancellation_got_lost_in_a_redis_call_ends(failure: Exception | None) -> None:
    began = asyncio.Event()

    async def service() -> None:
        while True:
            with reachable():
                await _drops_cancellation(failure, began)

    running = asyncio.create_task(service())
    await began.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_a_redis_call_under_its_callers_timeout_raises_in_the_caller() -> None:
    async def call() -> None:
        async with asyncio.timeout(0):
            with reachable():
                await _drops_cancellation(None)

    with pytest.raises(TimeoutError):
        await call()


async def test_a_redis_call_in_the_clean_up_after_a_cancellation_goes_through() -> None:
    cleaned, began = False, asyncio.Event()

    async def service() -> None:
        nonlocal cleaned
        began.set()
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            with reachable():
                await asyncio.sleep(0)
            cleaned = True

    running = asyncio.create_task(service())
    await began.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert cleaned


async def test_a_cancellation_in_the_midst_of_a_redis_call_arrives_once() -> None:
    """Ctrl-C cancels the task of `asyncio.run` while it runs. Its clean-up was cancelled as well."""
    cleaned = False

    async def command() -> None:
        nonlocal cleaned
        try:
            with reachable():
                await asyncio.sleep(0)
                running.cancel()
            await asyncio.sleep(0)
        finally:
            await asyncio.sleep(0)
            cleaned = True

    running = asyncio.create_task(command())
    with pytest.raises(asyncio.CancelledError):
        await running
    assert cleaned


async def test_a_redis_that_is_away_is_unavailable() -> None:
    with pytest.raises(Unavailable, match="gone"), reachable():
        raise ConnectionError("gone")


async def test_a_pod_drains_at_whatever_moment_of_its_start(fleet: Fleet) -> None:
    for turns in range(ROUNDS):
        pod = await fleet.pod(Calls())
        for _ in range(turns):
            await asyncio.sleep(0)
        await fleet.drain(pod)


async def test_a_pod_drains_in_the_middle_of_its_work(fleet: Fleet) -> None:
    chance = Random(11)
    calls = Calls()
    number = 0
    for _ in range(ROUNDS // 2):
        pod = await fleet.pod(calls)
        for _ in range(5):
            await fleet.client.create("note", f"n{number}", delay=0)
            number += 1
        for _ in range(chance.randrange(30)):
            await asyncio.sleep(0)
        await fleet.drain(pod)
    await fleet.pod(calls)
    await until(lambda: len(set(calls.ids)) == number, "all have fired")
    assert sorted(calls.ids) == sorted(f"n{i}" for i in range(number))
