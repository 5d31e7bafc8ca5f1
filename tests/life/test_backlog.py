"""After an outage: pods work through the backlog, and timers due now do not wait for its end."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.engine.fleet import Calls, Fleet, until
from timers.core.model import Timer
from timers.processor import Context
from timers.store.store import Arming

HOUR_MS = 3_600_000
OVERDUE = 5_000


class Slow(Calls):
    """A processor that completes one run per millisecond, so that a backlog lasts until the test has seen enough."""

    def __init__(self, prefix: str = "note", **options: Any) -> None:
        super().__init__(prefix, self._wait, **options)
        self._turns = asyncio.Semaphore(0)
        self._going = asyncio.create_task(self._go())

    async def _wait(self, _timer: Timer, _context: Context) -> None:
        await self._turns.acquire()

    async def _go(self) -> None:
        while True:
            self._turns.release()
            await asyncio.sleep(0.001)

    def let_all(self) -> None:
        """Let all runs complete at once."""
        self._going.cancel()
        for _ in range(OVERDUE):
            self._turns.release()

    def has_run(self, start: str) -> bool:
        return any(timer_id.startswith(start) for timer_id in self.ids)


@pytest.fixture
async def slow() -> AsyncIterator[Slow]:
    made = Slow()
    yield made
    made.let_all()


async def arm_overdue(fleet: Fleet, count: int, prefix: str = "note") -> None:
    """Arm timers that were due within the last hour, in the order of their ids."""
    now_ms = await fleet.store.now_ms()
    late = [Arming(prefix, f"late-{number:04}", f"@{now_ms - HOUR_MS + number}", {}) for number in range(count)]
    for start in range(0, count, 250):
        await fleet.store.arm(late[start : start + 250])


@pytest.mark.parametrize("concurrency", [1, 50])
async def test_a_timer_due_now_runs_in_the_middle_of_a_backlog(fleet: Fleet, slow: Slow, concurrency: int) -> None:
    """Even on a full pod with room for one at a time, which took the oldest each time."""
    await fleet.store.pause("note", paused=True)
    await arm_overdue(fleet, OVERDUE)
    await fleet.pod(slow, concurrency=concurrency)
    await fleet.store.pause("note", paused=False)
    punctual = 0
    while len(slow) < OVERDUE // 2 and not slow.has_run("now-"):
        punctual += 1
        await fleet.client.create("note", f"now-{punctual}", delay=0)
    slow.let_all()
    assert slow.has_run("now-")


async def test_a_full_pod_takes_turns_with_its_prefixes(fleet: Fleet, slow: Slow) -> None:
    """The queue marked first got all the room until its backlog was done."""
    await arm_overdue(fleet, OVERDUE)
    others = Calls("mail")
    await fleet.pod(slow, others, concurrency=500)
    await until(lambda: len(slow) > 600, "the backlog is being run")
    await fleet.client.create("mail", "x", delay=0)
    await fleet.completed("x", "mail")
    slow.let_all()
    assert len(slow) < OVERDUE // 2


async def test_a_queue_in_order_stays_in_order_behind_a_backlog(fleet: Fleet) -> None:
    calls = Calls(concurrency=1)
    await arm_overdue(fleet, 100)
    await fleet.client.create("note", "now", delay=0)
    for name in ("a", "b"):
        await fleet.pod(calls, name=name)
    await fleet.completed("now")
    assert calls.ids == [*[f"late-{number:04}" for number in range(100)], "now"]


async def test_a_backlog_is_caught_up_with_once(fleet: Fleet) -> None:
    calls = Calls()
    await arm_overdue(fleet, OVERDUE)
    for name in ("a", "b"):
        await fleet.pod(calls, name=name, concurrency=200)
    await until(lambda: len(calls) >= OVERDUE, "all have run")
    assert len(set(calls.ids)) == len(calls) == OVERDUE
