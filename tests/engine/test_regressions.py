"""Faults of the published design from which this service grew. Each test is named after the symptom."""

import asyncio

import pytest

from tests.engine.fleet import Calls, Fleet, Held, until
from timers.core.model import Status
from timers.processor import processor
from timers.store.keys import root

ODD_IDS = [
    "user-42",
    "a-b-c",
    "m-a-n-y--",
    "2026-11-21T10:00:00.000Z",
    "a:b:c",
    "note:x",
    "lease:note:x",
    "x@example.org",
    "x~+=.-_:",
    "1",
    "x" * 200,
]


async def test_two_instances_ran_the_same_timer_because_the_lock_was_gone_right_after_it_was_taken(
    fleet: Fleet,
) -> None:
    first, second = Held(), Held()
    await fleet.pod(first, name="a")
    await fleet.pod(second, name="b")
    await fleet.client.create("note", "x", delay="20ms")
    await until(lambda: len(first) + len(second), "somebody runs it")
    lease = f"{root(0)}lease:note:x"
    assert await fleet.redis.pttl(lease) > 0
    await fleet.redis.publish("__keyevent@0__:expired", "note:{0}:x")
    claimed = await fleet.store.claim(0, [("note", 10)], pod="c", lease_ms=1_000, cause="event")
    assert claimed.timers == []
    await fleet.client.create("note", "after", delay="20ms")
    await until(lambda: len(first) + len(second) == 2, "the next one runs")
    assert sorted(first.ids + second.ids) == ["after", "x"]
    first.release.set()
    second.release.set()
    await fleet.completed("x")
    await fleet.completed("after")
    assert not await fleet.redis.exists(lease)


async def test_every_processor_was_called_for_every_key(fleet: Fleet) -> None:
    short, longer, longest, other = (Calls(prefix) for prefix in ("re", "reminder", "reminder.mail", "other"))
    await fleet.pod(short, longer, longest, other)
    for prefix in ("re", "re-st", "reminder", "reminder-x", "reminder.mail", "reminder.mail.late", "other"):
        await fleet.client.create(prefix, prefix, delay=0)
        await fleet.completed(prefix, prefix)
    assert short.ids == ["re", "re-st"]
    assert longer.ids == ["reminder", "reminder-x"]
    assert longest.ids == ["reminder.mail", "reminder.mail.late"]
    assert other.ids == ["other"]


async def test_a_processor_was_not_waited_for(fleet: Fleet) -> None:
    held = Held()
    await fleet.pod(held)
    await fleet.client.create("note", "x", delay=0)
    await until(lambda: len(held) == 1, "it runs")
    assert (await fleet.client.get("note", "x")).status is Status.RUNNING
    held.release.set()
    await fleet.completed("x")


async def test_the_failure_of_a_processor_that_was_not_waited_for_was_lost(fleet: Fleet) -> None:
    @processor("note", retry={"max_attempts": 1})
    async def fails_late(_timer: object, _context: object) -> None:
        await asyncio.sleep(0)
        raise ValueError("late")

    await fleet.pod(fails_late)
    await fleet.client.create("note", "x", delay=0)
    timer = await fleet.failed("x")
    assert timer.last_error is not None
    assert timer.last_error["reason"] == "late"


@pytest.mark.parametrize("prefix", ["note", "send-message-24h-after-signup", "a.b_c-d"])
async def test_an_id_with_a_dash_was_cut_off_at_it(fleet: Fleet, prefix: str) -> None:
    calls = Calls(prefix)
    await fleet.pod(calls)
    for timer_id in ODD_IDS:
        await fleet.client.create(prefix, timer_id, delay="10ms", payload=timer_id)
    for timer_id in ODD_IDS:
        await fleet.completed(timer_id, prefix)
    assert {(timer.prefix, timer.id, timer.payload) for timer in calls.timers} == {(prefix, i, i) for i in ODD_IDS}
    assert len(calls) == len(ODD_IDS)


async def test_each_reconnect_made_every_processor_run_once_more(fleet: Fleet) -> None:
    calls = Calls()
    pod = await fleet.pod(calls)
    for cut in range(5):
        await until(lambda: pod.seen.subscriptions > cut, f"subscription {cut}")  # noqa: B023 (within this round)
        await fleet.redis.client_kill_filter(_type="pubsub")
    await until(lambda: pod.seen.subscriptions == 6, "the last subscription")
    for number in range(5):
        await fleet.client.create("note", f"n{number}", delay="10ms")
        await fleet.completed(f"n{number}")
    assert calls.ids == [f"n{number}" for number in range(5)]
    assert calls.attempts == [1] * 5


async def test_the_expiry_of_a_lock_was_taken_for_a_timer(fleet: Fleet) -> None:
    """A processor whose prefix matches the beginning of the service's own key names gets no timer from their expiry."""
    held, calls, greedy = Held(), Calls(), Calls("t")
    dying = await fleet.pod(held, name="dying")
    await fleet.client.create("note", "x", delay=0)
    await until(lambda: len(held) == 1, "it runs")
    await fleet.kill(dying)
    await fleet.pod(calls, greedy, name="alive")
    await fleet.expire_lease("x")
    await fleet.completed("x")
    await fleet.redis.set("timers:rate:note", "1", px=1)
    await fleet.client.create("t", "real", delay="20ms")
    await fleet.completed("real", "t")
    assert calls.attempts == [2]
    assert greedy.ids == ["real"]
