"""The deadlines of requests: each is independent of the others and leaves nothing behind."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from timers.api.requests import Deadlines, not_counting
from timers.errors import Unavailable


@pytest.fixture
def deadlines(monkeypatch: pytest.MonkeyPatch) -> Deadlines:
    monkeypatch.setattr("timers.api.requests.operation_of", lambda _request: None)
    return Deadlines(seconds=0.02)


def this_task() -> asyncio.Task[Any]:
    task: asyncio.Task[Any] | None = asyncio.current_task()
    assert task is not None
    return task


async def answered(deadlines: Deadlines, act: Callable[[web.Request], Awaitable[object]]) -> None:
    """A request of this task, whose handler does nothing but this."""

    async def handler(request: web.Request) -> web.Response:
        await act(request)
        return web.Response()

    request = make_mocked_request("GET", "/x")
    request._task = this_task()
    await deadlines.answer_in_time(request, handler)


async def never(_request: web.Request) -> None:
    await asyncio.Event().wait()


async def waiting(deadlines: Deadlines, until: asyncio.Event) -> str:
    """Wait under a deadline and return how that ended. No cancellation of the task may be pending afterwards."""
    try:
        await answered(deadlines, lambda _: until.wait())
    except Unavailable:
        assert this_task().cancelling() == 0
        return "too late"
    return "done"


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
    begun = asyncio.Event()

    async def handle(request: web.Request) -> None:
        begun.set()
        try:
            await never(request)
        except asyncio.CancelledError:
            if expired:  # others cancel it while its own cancellation is on its way
                this_task().cancel()
                await asyncio.sleep(0)
            raise

    task = asyncio.create_task(answered(deadlines, handle))
    await begun.wait()
    if not expired:
        task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert task.cancelled()


async def test_an_error_of_the_task_itself_is_kept(deadlines: Deadlines) -> None:
    """A handler may turn the cancellation into another error. That error comes out, not one of the deadline."""

    async def handle(request: web.Request) -> None:
        try:
            await never(request)
        except asyncio.CancelledError:
            raise KeyError from None

    with pytest.raises(KeyError):
        await answered(deadlines, handle)
    assert this_task().cancelling() == 0


async def test_an_answer_that_comes_despite_the_cancellation_is_kept(deadlines: Deadlines) -> None:
    async def handle(request: web.Request) -> None:
        with suppress(asyncio.CancelledError):
            await never(request)

    await answered(deadlines, handle)
    assert this_task().cancelling() == 0


async def test_a_paused_deadline_does_not_expire_and_restarts(deadlines: Deadlines) -> None:
    paused = asyncio.Event()

    async def handle(request: web.Request) -> None:
        with not_counting(request):
            assert await asyncio.create_task(waiting(deadlines, asyncio.Event())) == "too late"  # began after ours
            paused.set()
        await never(request)

    with pytest.raises(Unavailable):
        await answered(deadlines, handle)
    assert paused.is_set()
