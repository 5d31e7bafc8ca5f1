"""The deadlines of requests: each is independent of the others and leaves nothing behind."""

import asyncio
from contextlib import suppress
from typing import Any

import pytest

from timers.api.middleware import Deadline, Deadlines


@pytest.fixture
def deadlines() -> Deadlines:
    return Deadlines(seconds=0.02)


def this_task() -> asyncio.Task[Any]:
    task: asyncio.Task[Any] | None = asyncio.current_task()
    assert task is not None
    return task


async def waiting(deadlines: Deadlines, until: asyncio.Event) -> str:
    """Wait under a deadline and return how that ended. No cancellation of the task may be pending afterwards."""
    try:
        with Deadline(deadlines, this_task()):
            await until.wait()
            return "done"
    except TimeoutError:
        assert this_task().cancelling() == 0
        return "too late"


async def test_a_request_that_takes_too_long_is_cancelled(deadlines: Deadlines) -> None:
    assert await waiting(deadlines, asyncio.Event()) == "too late"
    assert await waiting(deadlines, asyncio.Event()) == "too late"


async def test_each_request_has_its_own_deadline(deadlines: Deadlines) -> None:
    done, never = asyncio.Event(), asyncio.Event()
    done.set()
    first = [asyncio.create_task(waiting(deadlines, event)) for event in (never, done, never)]
    assert await first[1] == "done"
    later = asyncio.create_task(waiting(deadlines, never))
    assert [await task for task in (first[0], first[2], later)] == ["too late"] * 3


async def test_a_request_that_ends_in_time_is_not_cancelled(deadlines: Deadlines) -> None:
    """The loop's timer is still set after the last request, and the task may be doing something else by then."""
    done = asyncio.Event()
    done.set()
    assert await waiting(deadlines, done) == "done"
    assert await waiting(deadlines, asyncio.Event()) == "too late"  # so the timer of the earlier one has gone off


@pytest.mark.parametrize("expired", [False, True])
async def test_a_task_that_others_cancel_stays_cancelled(deadlines: Deadlines, expired: bool) -> None:
    begun: asyncio.Future[Deadline] = asyncio.get_running_loop().create_future()

    async def run() -> None:
        with Deadline(deadlines, this_task()) as deadline:
            begun.set_result(deadline)
            await asyncio.Event().wait()

    task = asyncio.create_task(run())
    deadline = await begun
    if expired:
        deadline.expire()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert task.cancelled()


async def test_an_error_of_the_task_itself_is_kept(deadlines: Deadlines) -> None:
    """A handler may turn the cancellation into another error. That error comes out, not TimeoutError."""
    with suppress(KeyError), Deadline(deadlines, this_task()):
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise KeyError from None
    assert this_task().cancelling() == 0


async def test_an_answer_that_comes_despite_the_cancellation_is_kept(deadlines: Deadlines) -> None:
    with Deadline(deadlines, this_task()), suppress(asyncio.CancelledError):
        await asyncio.Event().wait()
    assert this_task().cancelling() == 0


async def test_a_paused_deadline_does_not_expire_and_restarts(deadlines: Deadlines) -> None:
    async def run() -> None:
        with Deadline(deadlines, this_task()) as deadline:
            with deadline.paused():
                assert await asyncio.create_task(waiting(deadlines, asyncio.Event())) == "too late"  # began after ours
            await asyncio.Event().wait()

    with pytest.raises(TimeoutError):
        await run()
