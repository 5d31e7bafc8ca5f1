"""Thousands of prefixes: queues that may not run hide no others, and each queue gets its turn."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from tests.engine.fleet import Calls, Fleet, Pod, until
from tests.waiting import eventually
from timers.engine import worker
from timers.store.scripts import Call
from timers.store.store import TOUCH_LIMIT, Arming

MANY = 2 * TOUCH_LIMIT
MINUTE_MS = 60_000


async def arm_in_many(fleet: Fleet, count: int, due: str = "+0") -> None:
    """Arm a timer in each of `count` prefixes."""
    news = [Arming(f"note-{number}", "x", due, {}) for number in range(count)]
    for start in range(0, count, 250):
        await fleet.store.arm(news[start : start + 250])


async def test_a_thousand_paused_queues_hid_all_timers_from_a_deaf_pod(fleet: Fleet) -> None:
    for number in range(MANY):
        await fleet.store.pause(f"note-{number}", paused=True)
    await arm_in_many(fleet, MANY, f"@{await fleet.store.now_ms() - MINUTE_MS}")
    calls = Calls()
    pod = await fleet.pod(calls, canary_every_seconds=0.1, deaf_seconds=0.3)
    await fleet.redis.config_set("notify-keyspace-events", "")
    await until(lambda: "do not arrive" in " ".join(pod.worker.health().problems), "the pod is deaf")
    for number in range(50):
        await fleet.client.create("note", str(number), delay="50ms")
    await until(lambda: len(calls) == 50, "all that may run has run")
    assert {timer.prefix for timer in calls.timers} == {"note"}


async def test_a_thousand_queues_at_their_rate_hid_all_later_ones(fleet: Fleet) -> None:
    limited, others = Calls("note", rate="1/h"), Calls("mail")
    await arm_in_many(fleet, 300)
    for number in range(300):
        await fleet.client.create(f"note-{number}", "y", delay=0)
    await fleet.pod(limited, others)
    await until(lambda: len(limited) == 300, "each of the limited has had its start of the hour")
    await fleet.client.create("mail", "x", delay="10ms")
    await fleet.completed("x", "mail")
    assert len(limited) == 300

    async def are_left_alone() -> bool:
        return int(await fleet.redis.zcard("timers:{0}:held")) == 300

    await eventually(are_left_alone, "those at their limit leave what is looked at")


async def test_a_probe_ran_after_twenty_thousand_others_that_were_due_before_it(fleet: Fleet) -> None:
    """Each queue had its own claim, in the order of the marks. Now about a hundred share one."""
    calls = Calls()
    pod = await fleet.pod(calls, concurrency=200)
    claims: list[str] = []
    pod.store.called = lambda script, _seconds: claims.append(script) if script == "claim" else None
    due_ms = await fleet.store.now_ms() + 5_000
    await arm_in_many(fleet, 3_000, f"@{due_ms}")
    await fleet.client.create("note-probe", "probe", due_at=due_ms + 1)
    await until(lambda: len(calls) == 3_001, "all have run")
    assert len(claims) < 1_000
    assert pod.worker.runner.executing == 0


class Reserving:
    """Counts how a pod reserves starts of limited queues; while `free` is not set, no answer comes."""

    def __init__(self, pod: Pod) -> None:
        self.trips, self.prefixes = 0, 0
        self.free = asyncio.Event()
        self._run_all = pod.store.run_all
        pod.store.run_all = self._hold  # type: ignore[method-assign]

    async def _hold(self, name: str, calls: Sequence[Call], *rest: Any, **options: Any) -> list[Any]:
        if calls and name == "reserve":
            self.trips += 1
            self.prefixes += len(calls)
            await self.free.wait()
        return await self._run_all(name, calls, *rest, **options)


async def test_queues_with_limits_held_up_all_others_for_their_round_trips(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "LONG_WAIT_SECONDS", 1e-9)
    limited, others = Calls("note", rate="1/h"), Calls("mail")
    pod = await fleet.pod(limited, others, concurrency=2_000)  # its room must not divide the queues into more claims
    reserving = Reserving(pod)
    await arm_in_many(fleet, 600)
    await until(lambda: pod.worker.health().queues_waiting >= 200, "more queues wait than two claims take")
    (warning,) = pod.worker.health().warnings
    assert "queues with due timers wait for a claim of this pod" in warning
    assert pod.worker.health().claim_wait_seconds > 0
    for number in range(20):
        await fleet.client.create("mail", f"n{number}", delay="10ms")
    await until(lambda: len(others) == 20, "the others do not wait for the limited ones")
    assert len(limited) == 0
    reserving.free.set()
    await until(lambda: len(limited) == 600, "each of the limited has had its start of the hour")
    assert reserving.prefixes >= 600
    assert reserving.trips < 100
    await until(lambda: pod.worker.health().queues_waiting == 0, "no queue waits")
    assert pod.worker.health().warnings == []
