"""Receivers of hooks that are dead: their calls wait, bounded in number, and hold up nothing else."""

import json
from collections.abc import Sequence
from functools import partial

import pytest
from aiohttp import web

from tests.engine.fleet import Calls, Fleet, until
from tests.hooks.test_hooks import pod_of
from tests.waiting import eventually
from tests.webhooks.receivers import Received, receiving, settings
from timers import Fail, Retry
from timers.engine import hooks as engine_hooks
from timers.store import outbox
from timers_processors import hooks
from timers_processors.hooks import AT_ONCE
from timers_processors.targets import Target, Targets

NUMBER = 60


async def calls_wait(fleet: Fleet, prefix: str, number: int) -> None:
    """Wait until so many calls of a target are armed."""

    async def look() -> bool:
        return (await outbox.armed(fleet.store, [prefix]))[prefix] == number

    await eventually(look, f"{number} calls wait")


async def create(fleet: Fleet, name: str) -> None:
    """Make changes that hooks hear of."""
    await fleet.client.batch([{"prefix": "note", "id": f"{name}-{n}", "delay": "1h"} for n in range(NUMBER)])


async def test_calls_to_a_dead_receiver_wait_instead_of_being_tried_one_by_one(fleet: Fleet) -> None:
    async with receiving(web.Response(status=503)) as receiver:
        given = settings(hooks=f"armed@note={receiver.url}")
        pod = await pod_of(fleet, given, Calls("other"))
        prefix = given.requested_hooks[0].prefix
        await create(fleet, "first")
        await until(lambda: pod.worker.runner.held_off_ms(prefix), "the pod holds off")
        await create(fleet, "second")
        await calls_wait(fleet, prefix, 2 * NUMBER)
        await fleet.client.create("other", "x", delay=0)
        await fleet.completed("x", "other")
        assert len(receiver.received) <= Targets.failures + AT_ONCE
        failed = [t async for t in fleet.client.iterate(prefix=prefix) if t.last_error and "other calls" in str(t)]
        assert any("; other calls wait for 10 s" in timer.history[0].note for timer in failed)


async def test_waiting_calls_are_made_once_their_receiver_is_back(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hooks, "Targets", partial(Targets, pause_seconds=0.2, longest_pause_seconds=0.2))
    async with receiving(web.Response(status=503)) as receiver:
        given = settings(hooks=f"armed@note={receiver.url}")
        pod = await pod_of(fleet, given)
        await create(fleet, "n")
        await until(lambda: pod.worker.runner.held_off_ms(given.requested_hooks[0].prefix), "the pod holds off")
        before = len(receiver.received)
        receiver.answers[:] = [web.Response()]
        await until(lambda: told(receiver.received[before:]) >= {f"n-{n}" for n in range(NUMBER)}, "all is told")


def told(received: Sequence[Received]) -> set[str]:
    return {json.loads(request.body)["data"]["id"] for request in received}


async def test_an_unlimited_number_of_calls_was_armed_for_a_dead_receiver(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_hooks, "CALLS_LIMIT", 5)
    async with receiving() as away, receiving() as quick:
        given = settings(hooks=f"armed@note={away.url},armed@note={quick.url}/")
        prefix = given.requested_hooks[0].prefix
        await fleet.store.pause(prefix, paused=True)
        pod = await pod_of(fleet, given)
        for number in range(20):
            await fleet.client.create("note", f"n-{number}", delay="1h")
            await until(lambda: len(quick.received) == number + 1, "the other is told")  # noqa: B023 (within the round)
        await calls_wait(fleet, prefix, 5)
        assert pod.seen.left_out == 15
        await fleet.store.pause(prefix, paused=False)
        await until(lambda: len(away.received) == 5, "those that were armed are made")
        await fleet.client.create("note", "later", delay="1h")
        await until(lambda: len(away.received) == 6, "there is room again")


class _Calls:
    """Calls to one target on a clock that the test moves."""

    def __init__(self) -> None:
        self.now = 100.0
        self.targets, self.target = Targets(clock=lambda: self.now), Target()

    def pause(self, error: Exception) -> float | None:
        """The pause that a call starts which fails so, in seconds."""
        with pytest.raises(Exception) as caught, self.targets.holding_off(self.target):  # noqa: PT011 (one of any kind)
            raise error
        if caught.value is error:
            return None
        assert isinstance(caught.value, Retry)
        assert caught.value.hold_off_ms is not None
        return caught.value.hold_off_ms / 1000

    def pauses(self, number: int) -> list[float | None]:
        """Of so many failed calls, one after the other."""
        return [self.pause(ConnectionError("no")) for _ in range(number)]


def test_failures_in_a_row_cause_one_pause_and_each_failure_after_it_one_twice_as_long() -> None:
    calls = _Calls()
    assert calls.pauses(8) == [None] * 4 + [10] + [None] * 3
    found = []
    for _ in range(7):
        calls.now += 1000
        found += calls.pauses(2)
    assert found[::2] == [20, 40, 80, 160, 160, 160, 160]
    assert set(found[1::2]) == {None}


@pytest.mark.parametrize("answer", [None, Fail("410 Gone")])
def test_an_answer_ends_a_row_of_failures(answer: Exception | None) -> None:
    calls = _Calls()
    calls.pauses(5)
    if answer is None:
        with calls.targets.holding_off(calls.target):
            pass
    else:
        assert calls.pause(answer) is None
    calls.now += 1000
    assert calls.pauses(5) == [None] * 4 + [10]


def test_a_call_that_finds_no_room_is_no_failure() -> None:
    calls = _Calls()
    assert [calls.pause(Retry("busy", snooze=True)) for _ in range(2 * Targets.failures)] == [
        None
    ] * 2 * Targets.failures
