"""Pods whose event loop is blocked until their leases are over: they extend or settle what they hold, and only other
pods may take it over."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from itertools import pairwise

from tests.engine.fleet import Calls, Fleet, until
from timers.core.model import HistoryEntry, Status, Timer
from timers.processor import Context

LEASE_MS = 300
LONGER_LEASE_MS = 900
STANDSTILL_SECONDS = 0.5
NUMBER = 60


async def block(timer: Timer, _context: Context) -> None:
    """Some runs block the event loop for longer than a lease, the others do not."""
    if int(timer.id) % 20 == 0:
        time.sleep(STANDSTILL_SECONDS)  # noqa: ASYNC251 (the fault)
    await asyncio.sleep(0)


def taken_from_itself(timer: Timer) -> list[tuple[HistoryEntry, HistoryEntry]]:
    """Pairs of starts of a timer that followed each other on the same pod."""
    starts = [entry for entry in timer.history if entry.status is Status.RUNNING]
    return [(one, next_) for one, next_ in pairwise(starts) if next_.pod == one.pod]


async def arm(fleet: Fleet) -> list[str]:
    ids = [str(number) for number in range(NUMBER)]
    await asyncio.gather(*[fleet.client.create("note", timer_id, delay="50ms") for timer_id in ids])
    return ids


async def completed(fleet: Fleet, ids: Iterable[str]) -> list[Timer]:
    return [await fleet.completed(timer_id) for timer_id in ids]


async def test_a_pod_that_stood_still_took_its_own_runs_for_lost(fleet: Fleet) -> None:
    calls = Calls(act=block)
    pod = await fleet.pod(calls, lease_ms=LEASE_MS)
    timers = await completed(fleet, await arm(fleet))
    assert sorted(calls.ids) == sorted(timer.id for timer in timers)
    assert [(timer.attempt, timer.failures) for timer in timers] == [(1, 0)] * NUMBER
    assert pod.seen.rescues == []


async def test_a_pod_that_froze_starts_the_timers_of_a_claim_answered_meanwhile(fleet: Fleet) -> None:
    """The answer arrives while the loop is blocked. When the pod reads it, the leases are over."""
    calls = Calls()
    pod = await fleet.pod(calls, lease_ms=LEASE_MS)
    claim = pod.store.claim

    async def stand_still_before_the_answer_is_read(*given: object, **named: object) -> object:
        answer = await claim(*given, **named)  # type: ignore[arg-type]  # handed on as they are
        time.sleep(STANDSTILL_SECONDS)  # noqa: ASYNC251 (the fault)
        return answer

    pod.store.claim = stand_still_before_the_answer_is_read  # type: ignore[method-assign,assignment]  # the fault
    await fleet.client.create("note", "1", delay=0)
    timer = await fleet.completed("1")
    assert (calls.attempts, timer.attempt, timer.failures) == ([1], 1, 0)
    assert pod.seen.rescues == []


async def test_a_lease_that_is_extended_lets_runs_start_later(fleet: Fleet) -> None:
    """A run waits for its start for longer than the lease of its claim, which is extended meanwhile."""
    calls = Calls()
    pod = await fleet.pod(calls, lease_ms=LONGER_LEASE_MS)
    start_some = pod.worker.runner._start_some
    pod.worker.runner._start_some = lambda: None  # type: ignore[method-assign]
    await fleet.client.create("note", "x", delay=0)
    clock = fleet.store.clock
    claimed_ms = clock.now_ms()
    await until(lambda: clock.now_ms() > claimed_ms + 1.3 * LONGER_LEASE_MS, "the first lease would be over")
    start_some()
    assert (await fleet.completed("x")).attempt == 1


@asynccontextmanager
async def on_a_loop_of_its_own(fleet: Fleet, calls: Calls, name: str) -> AsyncIterator[None]:
    """Runs a pod on its own event loop, so that blocking it does not block the test."""
    started, ended = asyncio.Event(), asyncio.Event()
    ours, theirs = asyncio.get_running_loop(), asyncio.new_event_loop()

    async def live() -> None:
        beside = await Fleet.over(fleet.url, pods_url=fleet.pods_url)
        pod = await beside.pod(calls, name=name, lease_ms=LEASE_MS)
        ours.call_soon_threadsafe(started.set)
        await ended.wait()
        await beside.drain(pod)
        await beside.store.connections.close()

    running = asyncio.create_task(asyncio.to_thread(theirs.run_until_complete, live()))
    await started.wait()
    try:
        yield
    finally:
        theirs.call_soon_threadsafe(ended.set)
        await running
        theirs.close()


async def test_a_second_pod_alone_takes_over_what_the_first_held(fleet: Fleet) -> None:
    blocked, steady = Calls(act=block), Calls()
    async with on_a_loop_of_its_own(fleet, blocked, "blocked"):
        await fleet.pod(steady, name="steady", lease_ms=LEASE_MS)
        timers = await completed(fleet, await arm(fleet))
    assert [taken_from_itself(timer) for timer in timers] == [[]] * NUMBER
    assert blocked.ids
    for timer in timers:
        tokens = [context.token for calls in (blocked, steady) for context in of(calls, timer)]
        assert max(tokens) == timer.token


def of(calls: Calls, timer: Timer) -> list[Context]:
    """The contexts that the timer's runs got."""
    return [context for run, context in zip(calls.timers, calls.contexts, strict=True) if run.id == timer.id]
