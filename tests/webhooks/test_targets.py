"""How often a target is called: its room, waiting in turn, retrying later, and pauses if it does not answer."""

import asyncio
from contextlib import AsyncExitStack

import pytest

from tests.engine.fleet import until
from timers import Retry
from timers_processors.targets import TARGETS_KEPT, Targets, Unanswered


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def after(sent_away: pytest.ExceptionInfo[Retry]) -> float:
    """The seconds after which a call may be retried."""
    assert isinstance(sent_away.value.after, float | int)
    return float(sent_away.value.after)


async def call(targets: Targets, name: str = "a", *, answered: bool = True) -> None:
    async with targets.turn(name):
        if not answered:
            raise Unanswered("no answer")


async def unanswered(targets: Targets, times: int = 1) -> None:
    for _ in range(times):
        with pytest.raises(Retry, match="no answer"):
            await call(targets, answered=False)


async def test_a_call_to_a_full_target_is_postponed_and_others_have_room(clock: Clock) -> None:
    targets = Targets(at_once=2, waiting=0, clock=clock)
    async with targets.turn("a"), targets.turn("a"):
        waits = []
        for _ in range(3):
            with pytest.raises(Retry, match="already makes as many calls") as busy:
                await call(targets)
            waits.append(after(busy))
        await call(targets, "b")
    assert waits == sorted(set(waits)), "each comes back after the one before"
    assert waits[0] >= 1.0
    await call(targets)


async def test_calls_to_all_targets_together_are_bounded(clock: Clock) -> None:
    targets = Targets(in_all=2, clock=clock)
    async with targets.turn("a"):
        async with targets.turn("b"):
            with pytest.raises(Retry, match="already makes as many calls to all targets") as busy:
                await call(targets, "c")
            assert 1.0 <= after(busy) <= 1.1
            assert "c" not in targets.known
        await call(targets, "c")


async def test_a_slow_target_is_called_again_no_sooner_than_its_calls_take(clock: Clock) -> None:
    targets = Targets(at_once=1, waiting=0, clock=clock)
    for _ in range(50):
        async with targets.turn("a"):
            clock.now += 30
            with pytest.raises(Retry, match="already makes as many calls"):
                await call(targets)
    async with targets.turn("a"):
        with pytest.raises(Retry, match="already makes as many calls") as first:
            await call(targets)
        with pytest.raises(Retry, match="already makes as many calls") as second:
            await call(targets)
    assert after(second) - after(first) == pytest.approx(30, rel=0.05)


async def test_no_call_is_postponed_for_longer_than_the_longest_wait() -> None:
    targets = Targets(at_once=1, waiting=0, wait_seconds=1000, longest_busy_seconds=7)
    async with targets.turn("a"):
        with pytest.raises(Retry, match="already makes as many calls") as busy:
            await call(targets)
    assert after(busy) == 7


async def test_calls_wait_for_room_and_continue() -> None:
    targets = Targets(at_once=1, waiting=1, wait_seconds=30)
    async with AsyncExitStack() as held:
        await held.enter_async_context(targets.turn("a"))
        waiting = asyncio.create_task(call(targets))
        await until(lambda: targets.known["a"].calls == 2, "it waits")
        with pytest.raises(Retry, match="already makes as many calls"):
            await call(targets)
        assert not waiting.done()
    await waiting


async def test_a_caller_that_waits_too_long_is_refused() -> None:
    targets = Targets(at_once=1, waiting=1, wait_seconds=0.01)
    async with targets.turn("a"):
        with pytest.raises(Retry, match="already makes as many calls"):
            await call(targets)


async def test_after_failures_in_a_row_there_is_a_pause_and_others_have_none(clock: Clock) -> None:
    targets = Targets(failures=3, pause_seconds=10, clock=clock)
    await unanswered(targets, 2)
    await call(targets)
    await unanswered(targets, 3)
    with pytest.raises(Retry, match=r"not tried: recent calls to .* failed") as broken:
        await call(targets)
    assert after(broken) == pytest.approx(10, rel=0.1)
    await call(targets, "b")


async def test_after_a_pause_one_call_goes_and_its_answer_ends_the_pauses(clock: Clock) -> None:
    targets = Targets(failures=1, pause_seconds=10, clock=clock)
    await unanswered(targets)
    clock.now += 10
    async with targets.turn("a"):
        with pytest.raises(Retry, match=r"not tried: recent calls to .* failed"):
            await call(targets)
    await call(targets)
    assert targets.known == {}


async def test_each_pause_is_twice_as_long_up_to_the_longest(clock: Clock) -> None:
    targets = Targets(failures=1, pause_seconds=10, longest_pause_seconds=35, clock=clock)
    pauses: list[float] = []
    for _ in range(4):
        await unanswered(targets)
        with pytest.raises(Retry, match=r"not tried: recent calls to .* failed") as broken:
            await call(targets)
        pauses.append(after(broken))
        clock.now += after(broken)
    assert pauses == pytest.approx([10, 20, 35, 35], rel=0.1)


async def test_calls_that_hang_together_are_one_reason_for_one_pause(clock: Clock) -> None:
    targets = Targets(failures=2, pause_seconds=10, clock=clock)
    release = asyncio.Event()

    async def hang() -> None:
        async with targets.turn("a"):
            await release.wait()
            raise Unanswered("no answer")

    hanging = [asyncio.create_task(hang()) for _ in range(6)]
    await until(lambda: "a" in targets.known and targets.known["a"].calls == 6, "all hang")
    release.set()
    await asyncio.gather(*hanging, return_exceptions=True)
    with pytest.raises(Retry, match=r"not tried: recent calls to .* failed") as broken:
        await call(targets)
    assert after(broken) == pytest.approx(10, rel=0.1)


async def test_a_cancelled_call_says_nothing_of_the_target() -> None:
    targets = Targets(failures=1)

    async def hang() -> None:
        async with targets.turn("a"):
            await asyncio.Event().wait()

    hanging = asyncio.create_task(hang())
    await until(lambda: "a" in targets.known, "it hangs")
    hanging.cancel()
    await asyncio.gather(hanging, return_exceptions=True)
    await call(targets)
    assert targets.known == {}


async def test_the_number_of_remembered_targets_is_bounded(clock: Clock) -> None:
    targets = Targets(failures=1, clock=clock)
    async with targets.turn("held"):
        for number in range(TARGETS_KEPT + 10):
            with pytest.raises(Retry, match="no answer"):
                await call(targets, f"gone-{number}", answered=False)
        assert "held" in targets.known
    assert len(targets.known) <= TARGETS_KEPT
