"""A processor that blocks the event loop past its pod's leases: what has not started yet does not start without one."""

import time

from tests.engine.fleet import Calls, Fleet, until
from timers.core.model import Timer
from timers.processor import Context

LEASE_MS = 300


async def test_runs_that_waited_behind_a_blocked_loop_started_when_others_had_taken_them_over(fleet: Fleet) -> None:
    async def act(_timer: Timer, _context: Context) -> None:
        if len(calls) == 1:
            time.sleep(1.5 * LEASE_MS / 1000)  # noqa: ASYNC251 (this is the fault)

    calls = Calls(act=act)
    for number in range(4):
        await fleet.client.create("note", f"n{number}", delay=0)
    await fleet.pod(calls, lease_ms=LEASE_MS)
    for number in range(4):
        await fleet.completed(f"n{number}")
    assert calls.ids[0] == "n0"
    waited = [timer for timer in calls.timers if timer.id != "n0"]
    assert {timer.id for timer in waited} == {"n1", "n2", "n3"}
    assert all(timer.attempt > 1 for timer in waited)


async def test_a_lease_that_is_extended_lets_runs_start_later(fleet: Fleet) -> None:
    """A run that waits for its start longer than the lease it was claimed with, and is extended meanwhile."""
    calls = Calls()
    pod = await fleet.pod(calls, lease_ms=3 * LEASE_MS)
    start_some = pod.worker.runner._start_some
    pod.worker.runner._start_some = lambda: None  # type: ignore[method-assign]
    await fleet.client.create("note", "x", delay=0)
    clock = fleet.store.clock
    claimed_ms = clock.now_ms()
    await until(lambda: clock.now_ms() > claimed_ms + 4 * LEASE_MS, "the first lease would be over")
    start_some()
    assert (await fleet.completed("x")).attempt == 1
