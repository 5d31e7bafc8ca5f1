"""One pod, from arming to the record: timers fire once, on time, never early, and the record tells what happened."""

import asyncio
import threading
from typing import Any

import pytest

from tests.engine.fleet import Calls, Fleet, notes, until
from tests.members import declare
from timers.core.model import Status, Timer
from timers.core.outcome import Done
from timers.core.spec import NewTimer
from timers.errors import AlreadyExists, InvalidInput
from timers.processor import BlockingContext, Context, processor

pytestmark = pytest.mark.every_server


async def test_a_timer_fires_once_and_its_record_shows_it(fleet: Fleet) -> None:
    calls = Calls()
    await fleet.pod(calls, name="pod-a")
    await fleet.client.create("note", "once", delay="50ms", payload={"n": 1})
    timer = await fleet.completed("once")
    assert calls.ids == ["once"]
    assert calls.timers[0].payload == {"n": 1}
    assert (timer.attempt, timer.failures, timer.occurrence, timer.lease) == (1, 0, 1, None)
    ended, started, created = timer.history
    assert (created.status, created.note) == (Status.SCHEDULED, "created")
    assert (started.status, started.attempt, started.pod) == (Status.RUNNING, 1, "pod-a")
    assert (ended.status, ended.note, ended.pod) == (Status.COMPLETED, "completed", "pod-a")
    assert started.lateness_ms == started.at_ms - timer.due_ms >= 0
    assert timer.token == calls.contexts[0].token > 0


async def test_a_run_sees_itself_as_running_under_a_lease(fleet: Fleet) -> None:
    seen: list[Timer] = []

    async def look(timer: Timer, context: Context) -> None:
        seen.append(await context.timers.get(timer.prefix, timer.id))

    calls = Calls(act=look)
    await fleet.pod(calls, name="pod-a")
    await fleet.client.create("note", "x", delay=0)
    await fleet.completed("x")
    (given,), (stored,) = calls.timers, seen
    assert given.status is stored.status is Status.RUNNING
    assert given.lease is not None
    assert stored.lease is not None
    assert given.lease.pod == stored.lease.pod == "pod-a"
    assert given.token == stored.token


async def test_no_run_starts_before_its_due_time_by_the_servers_clock(fleet: Fleet) -> None:
    started_ms: dict[str, int] = {}

    async def note_start(timer: Timer, _context: Context) -> None:
        started_ms[timer.id] = await fleet.store.now_ms()

    calls = Calls(act=note_start)
    await fleet.pod(calls)
    now_ms = await fleet.store.now_ms()
    news = [NewTimer(prefix="note", id=f"n{i}", due_at=now_ms + 50 + i) for i in range(300)]
    await fleet.client.batch(news)
    for new in news:
        await fleet.completed(str(new.id))
    early = {t.id: started_ms[t.id] - t.due_ms for t in calls.timers if started_ms[t.id] < t.due_ms}
    assert not early
    assert all((entry.lateness_ms or 0) >= 0 for timer in calls.timers for entry in timer.history)
    assert len(calls) == len(started_ms) == 300


async def test_a_due_time_in_the_past_fires_at_once_as_a_first_attempt(fleet: Fleet) -> None:
    calls = Calls()
    await fleet.pod(calls)
    now_ms = await fleet.store.now_ms()
    await fleet.client.create("note", "late", due_at=now_ms - 3_600_000)
    timer = await fleet.completed("late")
    assert calls.ids == ["late"]
    assert timer.history[-2].lateness_ms is not None
    assert timer.history[-2].lateness_ms >= 3_600_000


async def test_timers_that_were_due_before_the_pod_came_fire_when_it_comes(fleet: Fleet) -> None:
    for number in range(5):
        await fleet.client.create("note", f"n{number}", delay=0)
    calls = Calls()
    await fleet.pod(calls)
    for number in range(5):
        await fleet.completed(f"n{number}")
    assert sorted(calls.ids) == [f"n{number}" for number in range(5)]


async def test_a_plain_function_runs_in_a_thread_and_its_answer_counts(fleet: Fleet) -> None:
    threads: list[threading.Thread] = []

    @processor("plain")
    def plain(timer: Timer, context: Context) -> Done:
        threads.append(threading.current_thread())
        return Done(f"seen {timer.id} under {context.token}")

    await fleet.pod(plain)
    await fleet.client.create("plain", "x", delay=0)
    timer = await fleet.completed("x", "plain")
    assert notes(timer)[-1] == f"seen x under {timer.token}"
    assert threads[0] is not threading.main_thread()


async def test_what_a_plain_function_found_nothing_of_was_an_error_of_the_service(fleet: Fleet) -> None:
    """`next` raises StopIteration, which came out of a coroutine as RuntimeError without a place."""

    @processor("plain", retry={"max_attempts": 1})
    def plain(_timer: Timer, _context: Context) -> None:
        next(iter(()))

    await fleet.pod(plain)
    await fleet.client.create("plain", "x", delay=0)
    error = (await fleet.failed("x", "plain")).last_error or {}
    assert error["type"] == "StopIteration"
    assert str(error["where"]).endswith(" in plain")


async def test_none_of_many_plain_functions_times_out_before_it_has_begun(fleet: Fleet) -> None:
    """More than a hundred are due at once. Each is called; no timeout runs while its function waits for a thread."""
    ids = [f"n{number}" for number in range(150)]
    begun: list[str] = []
    all_begun = threading.Event()

    @processor("plain", timeout="1m", retry={"max_attempts": 1})
    def plain(timer: Timer, _context: Context) -> None:
        begun.append(timer.id)
        all_begun.wait()

    await declare(fleet.store, "plain")
    await fleet.client.batch([NewTimer.parse({"prefix": "plain", "id": id, "delay": 0}) for id in ids])
    await fleet.pod(plain, concurrency=200)
    try:
        await until(lambda: len(begun) == len(ids), "all are called")
    finally:
        all_begun.set()
    for timer_id in ids:
        assert (await fleet.completed(timer_id, "plain")).attempt == 1
    assert sorted(begun) == sorted(ids)


async def test_a_plain_function_arms_reads_and_cancels_other_timers(fleet: Fleet) -> None:
    """The methods wait for their results, and raise errors."""
    seen: list[Timer] = []

    @processor("plain")
    def plain(timer: Timer, context: BlockingContext) -> Done:
        seen.append(context.timers.create("note", "created", delay="1h", payload=timer.id))
        seen.append(context.timers.create("note", "armed", delay="1h"))
        seen.append(context.timers.get("note", "there"))
        seen.append(context.timers.cancel("note", "there"))
        with pytest.raises(AlreadyExists):
            context.timers.create("note", "created", delay="1h")
        with pytest.raises(InvalidInput, match="delay"):
            context.timers.create("note", delay="soon")
        return Done("all done")

    await fleet.client.create("note", "there", delay="1h")
    await fleet.pod(plain)
    await fleet.client.create("plain", "x", delay=0)
    timer = await fleet.completed("x", "plain")
    assert notes(timer)[-1] == "all done"
    assert [(timer.id, timer.status) for timer in seen] == [
        ("created", Status.SCHEDULED),
        ("armed", Status.SCHEDULED),
        ("there", Status.SCHEDULED),
        ("there", Status.CANCELLED),
    ]
    assert (await fleet.client.get("note", "created")).payload == "x"
    assert (await fleet.client.get("note", "armed")).status is Status.SCHEDULED
    assert (await fleet.client.get("note", "there")).status is Status.CANCELLED


async def test_a_plain_function_that_blocks_does_not_hold_up_the_others(fleet: Fleet) -> None:
    go_on = threading.Event()

    @processor("blocks")
    def blocks(_timer: Timer, _context: Context) -> None:
        go_on.wait()

    await fleet.pod(blocks, Calls())
    try:
        await fleet.client.create("blocks", "x", delay=0)
        await fleet.reached(Status.RUNNING, "x", "blocks")
        await fleet.client.create("note", "y", delay=0)
        await fleet.completed("y")
    finally:
        go_on.set()
    await fleet.completed("x", "blocks")


async def test_a_context_carries_what_a_receiver_needs(fleet: Fleet) -> None:
    calls = Calls(timeout="1m")
    await fleet.pod(calls)
    await fleet.client.create("note", "x", delay=0)
    await fleet.completed("x")
    (context,), (timer,) = calls.contexts, calls.timers
    assert context.idempotency_key == f"note:x:{timer.created_ms}:1"
    assert context.token == timer.token
    assert context.deadline is not None
    assert (context.deadline - timer.due_at).total_seconds() - 60 > 0


async def test_a_processor_arms_and_cancels_other_timers(fleet: Fleet) -> None:
    async def act(timer: Timer, context: Context) -> None:
        if timer.id == "first":
            await context.timers.create("note", "second", delay=0, payload=timer.id)
            await context.timers.cancel("note", "never")

    calls = Calls(act=act)
    await fleet.pod(calls)
    await fleet.client.create("note", "never", delay="1h")
    await fleet.client.create("note", "first", delay=0)
    await fleet.completed("second")
    assert (await fleet.client.get("note", "never")).status is Status.CANCELLED
    assert calls.ids == ["first", "second"]


async def test_a_cancelled_timer_does_not_start(fleet: Fleet) -> None:
    calls = Calls()
    await fleet.pod(calls)
    await fleet.client.create("note", "gone", delay="100ms")
    cancelled = await fleet.client.cancel("note", "gone")
    await fleet.client.create("note", "after", due_at=cancelled.due_ms + 50)
    await fleet.completed("after")
    assert calls.ids == ["after"]


async def test_fire_makes_a_timer_due_now(fleet: Fleet) -> None:
    calls = Calls()
    await fleet.pod(calls)
    await fleet.client.create("note", "x", delay="7d")
    await fleet.client.fire("note", "x")
    timer = await fleet.completed("x")
    assert "fired on request" in notes(timer)
    assert calls.ids == ["x"]


async def test_a_nearer_due_time_wakes_a_pod_that_sleeps_to_a_later_one(fleet: Fleet) -> None:
    """The sweeper sleeps until the next due time; arming an earlier timer wakes it."""
    calls = Calls()
    await fleet.pod(calls)
    await fleet.client.create("note", "later", delay="1h")
    for number in range(10):
        await fleet.client.create("note", f"sooner-{number}", delay="5ms")
        await fleet.completed(f"sooner-{number}")
    assert calls.ids == [f"sooner-{number}" for number in range(10)]


async def test_a_processor_may_arm_thousands_at_once_and_each_fires_once(fleet: Fleet) -> None:
    calls = Calls()
    await fleet.pod(calls, concurrency=50)
    due_ms = await fleet.store.now_ms() + 200
    news = [NewTimer(prefix="note", id=f"n{i}", due_at=due_ms) for i in range(3000)]
    await asyncio.gather(*[fleet.client.batch(news[i : i + 1000]) for i in range(0, 3000, 1000)])
    for new in news:
        await fleet.completed(str(new.id))
    assert sorted(calls.ids) == sorted(str(new.id) for new in news)


async def test_no_more_run_at_once_than_the_pod_may(fleet: Fleet) -> None:
    running, most = 0, 0

    async def act(_timer: Timer, _context: Context) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        for _ in range(5):
            await asyncio.sleep(0)
        running -= 1

    calls = Calls(act=act)
    await fleet.pod(calls, concurrency=7)
    await fleet.client.batch([NewTimer(prefix="note", id=f"n{i}", delay=0) for i in range(100)])
    for number in range(100):
        await fleet.completed(f"n{number}")
    assert most == 7
    assert len(calls) == 100


async def test_payloads_arrive_as_they_were_given(fleet: Fleet) -> None:
    payloads: list[Any] = [
        None,
        True,
        0,
        -1.5,
        "",
        "two\nlines \u2028 ünïcode \U0001f600",
        [],
        {},
        {"a": [1, {"b": None}]},
    ]
    calls = Calls()
    await fleet.pod(calls)
    for number, payload in enumerate(payloads):
        await fleet.client.create("note", f"n{number}", delay=0, payload=payload)
        await fleet.completed(f"n{number}")
    assert [timer.payload for timer in calls.timers] == payloads
