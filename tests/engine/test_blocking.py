"""`context.timers` of a plain function: how long it can be used, and its errors afterwards."""

import asyncio
import threading
from typing import Any

import pytest

from tests.engine.fleet import Fleet, until
from tests.unit.samples import NoTimers, a_timer
from timers.core.model import Status, Timer
from timers.engine.threads import ThreadTimers
from timers.errors import NotFound, RunOver
from timers.processor import BlockingContext, processor

ONE_TRY = {"max_attempts": 1}


class _Slow(NoTimers):
    """A client that answers when the test says so."""

    def __init__(self) -> None:
        self.answer = asyncio.Event()
        self.asked, self.cancelled = 0, 0

    async def get(self, prefix: str, id: str) -> Timer:
        self.asked += 1
        try:
            await self.answer.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return a_timer(prefix=prefix, id=id)


def in_thread(timers: ThreadTimers) -> asyncio.Future[Timer]:
    return asyncio.ensure_future(asyncio.to_thread(timers.get, "note", "x"))


async def test_a_call_waits_for_its_result() -> None:
    slow = _Slow()
    asking = in_thread(ThreadTimers(slow))
    await until(lambda: slow.asked, "it has asked")
    assert not asking.done()
    slow.answer.set()
    assert (await asking).id == "x"


async def test_the_end_of_the_run_ends_a_call_that_waits() -> None:
    slow = _Slow()
    timers = ThreadTimers(slow)
    asking = in_thread(timers)
    await until(lambda: slow.asked, "it has asked")
    timers.close("the run of note:x is over")
    with pytest.raises(RunOver, match="the run of note:x is over"):
        await asking
    await until(lambda: slow.cancelled, "what it asked for is cancelled")


async def test_a_call_after_the_end_of_the_run_is_refused() -> None:
    slow = _Slow()
    timers = ThreadTimers(slow)
    timers.close("the run of note:x is over")
    with pytest.raises(RunOver, match="the run of note:x is over"):
        await in_thread(timers)
    assert slow.asked == 0


def test_a_call_after_the_end_of_the_loop_is_refused() -> None:
    async def make() -> ThreadTimers:
        return ThreadTimers(NoTimers())

    errors: list[RunOver] = []

    def ask() -> None:
        with pytest.raises(RunOver) as caught:
            timers.get("note", "x")
        errors.append(caught.value)

    timers = asyncio.run(make())
    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    assert str(errors[0]) == "the pod has stopped, so context.timers no longer works"


async def test_a_call_on_the_event_loop_is_refused() -> None:
    """It would wait for itself for ever."""
    with pytest.raises(RuntimeError, match="make the processor an async def"):
        ThreadTimers(NoTimers()).get("note", "x")


class _GoesOn:
    """A plain function that continues after the end of its run and then reads a timer."""

    def __init__(self, **options: Any) -> None:
        self.called = threading.Event()
        self.go_on = threading.Event()
        self.errors: list[Exception] = []
        self.processor = processor("plain", retry=ONE_TRY, **options)(self._call)

    def _call(self, _timer: Timer, context: BlockingContext) -> None:
        self.called.set()
        self.go_on.wait()
        try:
            context.timers.create("note", "late", delay=0)
        except RunOver as error:
            self.errors.append(error)


async def test_a_function_whose_run_has_timed_out_arms_nothing(fleet: Fleet) -> None:
    goes_on = _GoesOn(timeout="20ms")
    await fleet.pod(goes_on.processor)
    try:
        await fleet.client.create("plain", "x", delay=0)
        await fleet.failed("x", "plain")
    finally:
        goes_on.go_on.set()
    await until(lambda: goes_on.errors, "it has asked")
    said = "the run of plain:x is over (the run took longer than its timeout of 20 ms)"
    assert said in str(goes_on.errors[0])
    with pytest.raises(NotFound):
        await fleet.client.get("note", "late")


async def test_a_function_whose_pod_has_drained_arms_nothing(fleet: Fleet) -> None:
    goes_on = _GoesOn()
    pod = await fleet.pod(goes_on.processor, drain_timeout_ms=1)
    try:
        await fleet.client.create("plain", "x", delay=0)
        await until(goes_on.called.is_set, "it is being called")
        await fleet.drain(pod)
    finally:
        goes_on.go_on.set()
    await until(lambda: goes_on.errors, "it has asked")
    assert "the run of plain:x is over (the pod drains)" in str(goes_on.errors[0])
    assert (await fleet.client.get("plain", "x")).status is Status.SCHEDULED
    with pytest.raises(NotFound):
        await fleet.client.get("note", "late")
