"""Pods whose event loop is blocked for longer than a lease: they keep what they hold, up to each run's timeout, and
never take it over from themselves."""

import asyncio
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable, MutableMapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
from structlog.testing import capture_logs

from tests.engine.fleet import Calls, Fleet, Held, Pod, until
from tests.waiting import eventually
from timers.core.model import Status, Timer
from timers.engine import leases, runner
from timers.processor import Context

LEASE_MS = 300
LONGER_LEASE_MS = 900
STANDSTILL_LEASE_MS = 1_500
STANDSTILL_SECONDS = 0.5
NUMBER = 60


async def block(timer: Timer, _context: Context) -> None:
    """Some runs block the event loop for longer than a lease, the others do not."""
    if int(timer.id) % 20 == 0:
        time.sleep(STANDSTILL_SECONDS)  # noqa: ASYNC251 (the fault)
    await asyncio.sleep(0)


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


async def test_a_pod_that_froze_does_not_say_that_a_cancelled_processor_goes_on(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The processor had no turn in which it could end."""
    monkeypatch.setattr(runner, "IGNORED_CANCEL_SECONDS", 0.8 * STANDSTILL_SECONDS)

    async def act(_timer: Timer, _context: Context) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            time.sleep(STANDSTILL_SECONDS)  # noqa: ASYNC251 (the fault)
            for _turn in range(5):
                await asyncio.sleep(0)

    calls = Calls(act=act)
    pod = await fleet.pod(calls, drain_timeout_ms=0)
    await fleet.client.create("note", "x", delay=0)
    await until(lambda: len(calls) == 1, "it runs")
    with capture_logs() as logs:
        await fleet.drain(pod)
    assert "processor ignores its cancellation" not in {log["event"] for log in logs}
    assert (await fleet.client.get("note", "x")).status is Status.SCHEDULED


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


class Blocking(Calls):
    """A processor that blocks the event loop with its timer `block`, until the test lets it go; others wait for that
    too, but leave the loop alone."""

    def __init__(self, **options: Any) -> None:
        super().__init__(act=self._block, **options)
        self.go_on = threading.Event()

    async def _block(self, timer: Timer, _context: Context) -> None:
        if timer.id == "block":
            self.go_on.wait()
        await until(self.go_on.is_set, "it is let go")


@asynccontextmanager
async def blocked(fleet: Fleet, calls: Blocking, *others: str, **options: Any) -> AsyncIterator[Pod]:
    """A pod on an event loop of its own, which stands still in the run of `block` while the block lasts. `others` run
    on it too."""
    started, ended = asyncio.Event(), asyncio.Event()
    ours, theirs = asyncio.get_running_loop(), asyncio.new_event_loop()
    pods: list[Pod] = []

    async def live() -> None:
        beside = await Fleet.over(fleet.url, pods_url=fleet.pods_url)
        pods.append(await beside.pod(calls, name="blocked", **options))
        ours.call_soon_threadsafe(started.set)
        await ended.wait()
        await until(lambda: not pods[0].worker.runner.held, "the ends are written")
        await beside.drain(pods[0])
        await beside.store.connections.close()

    running = asyncio.create_task(asyncio.to_thread(theirs.run_until_complete, live()))
    await started.wait()
    try:
        for timer_id in (*others, "block"):
            await fleet.client.create("note", timer_id, delay=0)
            await until(lambda: timer_id in calls.ids, "it runs")  # noqa: B023 (within this round)
        yield pods[0]
    finally:
        calls.go_on.set()
        theirs.call_soon_threadsafe(ended.set)
        await running
        theirs.close()


async def leases_pass(fleet: Fleet, number: float, lease_ms: int) -> None:
    """Wait until the server's clock has gone on by so many leases."""
    since_ms = await fleet.store.now_ms()

    async def passed() -> bool:
        return await fleet.store.now_ms() > since_ms + number * lease_ms

    await eventually(passed, f"{number} leases have passed")


async def test_a_pod_whose_event_loop_stands_still_for_three_leases_loses_no_run(fleet: Fleet) -> None:
    calls, steady = Blocking(), Calls()
    async with blocked(fleet, calls, "beside", lease_ms=STANDSTILL_LEASE_MS) as pod:
        other = await fleet.pod(steady, name="steady", lease_ms=STANDSTILL_LEASE_MS)
        await leases_pass(fleet, 3, STANDSTILL_LEASE_MS)
        for timer_id in ("beside", "block"):
            running = await fleet.client.get("note", timer_id)
            assert running.lease is not None
            assert (running.status, running.attempt, running.lease.pod) == (Status.RUNNING, 1, "blocked")
        await fleet.client.create("note", "new", delay=0)
        await fleet.completed("new")
    assert steady.ids == ["new"]
    assert [timer.attempt for timer in await completed(fleet, ["beside", "block"])] == [1, 1]
    assert (pod.seen.refusals, other.seen.rescues) == ([], [])


async def test_a_blockade_is_reported_once_with_its_timer_and_place_while_it_lasts(fleet: Fleet) -> None:
    def reports(event: str) -> list[MutableMapping[str, Any]]:
        return [line for line in lines if line["event"] == event]

    with capture_logs() as lines:
        async with blocked(fleet, Blocking(), lease_ms=STANDSTILL_LEASE_MS):
            await until(lambda: reports("event loop blocked"), "it is reported")
            await leases_pass(fleet, 1, STANDSTILL_LEASE_MS)
            assert reports("event loop was blocked") == []
        (report,) = reports("event loop blocked")
        assert report["timer"] == "note:block"
        assert any("_block" in place for place in report["where"])
        assert len(reports("event loop was blocked")) == 1


async def test_a_run_past_its_timeout_is_let_go_while_the_event_loop_stands_still(fleet: Fleet) -> None:
    calls, steady = Blocking(timeout="200ms"), Calls()
    async with blocked(fleet, calls, lease_ms=LEASE_MS) as pod:
        await fleet.pod(steady, name="steady", lease_ms=LEASE_MS)
        rescued = await fleet.completed("block")
    assert (steady.ids, rescued.attempt) == (["block"], 2)
    assert pod.seen.refusals == ["note"]
    assert await fleet.client.get("note", "block") == rescued


async def test_a_run_without_a_timeout_is_not_kept_for_ever_by_a_loop_that_hangs(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "STANDSTILL_SECONDS", 0.2)
    calls, steady = Blocking(), Calls()
    async with blocked(fleet, calls, lease_ms=LEASE_MS):
        await fleet.pod(steady, name="steady", lease_ms=LEASE_MS)
        assert (await fleet.completed("block")).attempt == 2


async def test_a_pod_whose_event_loop_stands_still_keeps_its_permits(fleet: Fleet) -> None:
    calls, steady = Blocking(concurrency=1), Calls(concurrency=1)
    async with blocked(fleet, calls, lease_ms=STANDSTILL_LEASE_MS):
        await fleet.pod(steady, name="steady", lease_ms=STANDSTILL_LEASE_MS)
        await fleet.client.create("note", "next", delay=0)
        await leases_pass(fleet, 3, STANDSTILL_LEASE_MS)
        assert (await fleet.client.get("note", "next")).status is Status.SCHEDULED
    assert (await fleet.completed("next")).attempt == 1
    assert (await fleet.completed("block")).attempt == 1


async def test_a_pod_without_runs_extends_nothing(fleet: Fleet) -> None:
    held = Held()
    pod = await fleet.pod(held, lease_ms=LEASE_MS)
    called = Counter[str]()
    pod.store.called = lambda script, _seconds: called.update([script])
    await leases_pass(fleet, 2, LEASE_MS)
    assert (called["extend"], called["keep"]) == (0, 0)
    await fleet.client.create("note", "x", delay=0)
    await until(lambda: called["extend"] > 1, "its lease is extended")
    held.release.set()
    await fleet.completed("x")


async def test_a_drained_pod_leaves_no_thread(fleet: Fleet) -> None:
    pod = await fleet.pod(Calls())
    assert "timers.apart" in {thread.name for thread in threading.enumerate()}
    await fleet.drain(pod)
    await until(lambda: "timers.apart" not in {thread.name for thread in threading.enumerate()}, "it has ended")
