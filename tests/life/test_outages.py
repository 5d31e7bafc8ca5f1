"""Timers that became due while no pod was alive, under each `missed` policy, and repeats whose pods die."""

import asyncio
from collections.abc import Mapping
from itertools import pairwise
from typing import Any, ClassVar

import pytest

from tests.engine.fleet import Calls, Fleet, Held, Pod, notes, until
from tests.life.past import make_older
from tests.waiting import eventually
from timers.core.calls import Missed, RepeatFields
from timers.core.model import Status, Timer
from timers.core.outcome import Rearm
from timers.store.store import Settlement

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS


async def missed(fleet: Fleet, policy: Missed, *, ago_ms: int = HOUR_MS, **fields: Any) -> Timer:
    """A timer that was due an hour ago, armed half an hour before that, with no pod alive."""
    await fleet.client.create("note", "x", delay="30m", missed=policy, **fields)
    await make_older(fleet, "note", "x", ago_ms + 30 * MINUTE_MS)
    return await fleet.client.get("note", "x")


async def occurrence(fleet: Fleet, number: int, timer_id: str = "x") -> Timer:
    """The timer, once it is scheduled for this occurrence."""

    async def look() -> Timer | None:
        (timer,) = await fleet.store.get([("note", timer_id)])
        reached = timer is not None and timer.status is Status.SCHEDULED and timer.occurrence == number
        return timer if reached else None

    found = await eventually(look, f"occurrence {number} of {timer_id} is scheduled")
    assert found is not None
    return found


class TestOnce:
    @pytest.mark.parametrize("policy", ["fire", {"grace": "90m"}])
    async def test_runs_late_where_that_is_allowed(self, fleet: Fleet, policy: Missed) -> None:
        await missed(fleet, policy)
        calls = Calls()
        await fleet.pod(calls)
        timer = await fleet.completed("x")
        assert calls.ids == ["x"]
        assert timer.history[-2].lateness_ms is not None
        assert timer.history[-2].lateness_ms >= HOUR_MS

    @pytest.mark.parametrize("policy", ["skip", {"grace": "59m"}])
    async def test_is_skipped_if_it_is_too_late_and_says_so(self, fleet: Fleet, policy: Missed) -> None:
        await missed(fleet, policy)
        calls = Calls()
        await fleet.pod(calls)
        timer = await fleet.completed("x")
        assert (len(calls), timer.attempt, timer.failures) == (0, 0, 0)
        assert notes(timer)[-1].startswith("skipped: 36")


class TestRepeats:
    """Due every 20 minutes, first 65 minutes ago: four slots have passed, the newest 5 minutes ago."""

    EVERY_MS = 20 * MINUTE_MS
    AGO_MS = 65 * MINUTE_MS

    @pytest.mark.parametrize(("policy", "runs"), [("fire", 1), ("latest", 1), ("all", 4), ("skip", 0)])
    async def test_after_an_outage(self, fleet: Fleet, policy: Missed, runs: int) -> None:
        armed = await missed(fleet, policy, ago_ms=self.AGO_MS, repeat={"every": "20m"})
        calls = Calls()
        await fleet.pod(calls)
        timer = await occurrence(fleet, 1 + max(runs, 1))
        slots = [armed.due_ms + n * self.EVERY_MS for n in range(5)]
        assert [run.due_ms for run in calls.timers] == slots[:runs]
        assert timer.due_ms == slots[4]
        left_out = any("skipped what was missed before" in note for note in notes(timer))
        assert left_out is (policy != "all")

    async def test_after_an_outage_the_newest_slot_runs_within_its_grace(self, fleet: Fleet) -> None:
        armed = await missed(fleet, {"grace": "10m"}, ago_ms=self.AGO_MS, repeat={"every": "20m"})
        calls = Calls()
        await fleet.pod(calls)
        timer = await occurrence(fleet, 3)
        assert [run.due_ms for run in calls.timers] == [armed.due_ms + 3 * self.EVERY_MS]
        assert timer.due_ms == armed.due_ms + 4 * self.EVERY_MS

    async def test_making_up_for_missed_runs_never_exceeds_the_count(self, fleet: Fleet) -> None:
        await missed(fleet, "all", repeat={"every": "20m", "count": 3})
        calls = Calls()
        await fleet.pod(calls)
        timer = await fleet.completed("x")
        assert (len(calls), timer.occurrence) == (3, 3)

    async def test_slots_after_until_are_not_made_up_for(self, fleet: Fleet) -> None:
        now_ms = await fleet.store.now_ms()
        repeat: RepeatFields = {"every": "20m", "until": now_ms - 39 * MINUTE_MS}
        await fleet.client.create("note", "x", due_at=now_ms - HOUR_MS, missed="all", repeat=repeat)
        calls = Calls()
        await fleet.pod(calls)
        timer = await fleet.completed("x")
        assert (len(calls), timer.occurrence) == (2, 2)

    async def test_a_cron_continues_with_its_next_time(self, fleet: Fleet) -> None:
        """Armed without a due time of its own, then fired by hand for the coming slot."""
        armed = await fleet.client.create("note", "x", repeat={"cron": "*/20 * * * *", "timezone": "Europe/Berlin"})
        calls = Calls()
        await fleet.pod(calls)
        await fleet.client.fire("note", "x")
        timer = await occurrence(fleet, 2)
        assert (armed.due_ms % self.EVERY_MS, timer.due_ms) == (0, armed.due_ms + self.EVERY_MS)

    async def test_a_fixed_delay_counts_from_the_end_of_the_run(self, fleet: Fleet) -> None:
        """At a fixed rate the next run would be due in a quarter of an hour."""
        await missed(fleet, "fire", repeat={"every": "25m", "mode": "fixed_delay"})
        before_ms = await fleet.store.now_ms()
        await fleet.pod(Calls())
        timer = await occurrence(fleet, 2)
        assert timer.due_ms >= before_ms + 24 * MINUTE_MS

    async def test_a_fixed_rate_keeps_its_slots_however_long_a_run_takes(self, fleet: Fleet) -> None:
        async def act(_timer: Timer, _context: object) -> None:
            await asyncio.sleep(0.015)

        calls = Calls(act=act)
        await fleet.client.create("note", "x", delay="20ms", repeat={"every": "10ms", "count": 8}, missed="all")
        await fleet.pod(calls)
        await fleet.completed("x")
        assert {later.due_ms - earlier.due_ms for earlier, later in pairwise(calls.timers)} == {10}
        assert len(calls) == 8


def hang_at_settle(pod: Pod, *, written: bool) -> asyncio.Event:
    """Stop the pod for ever between a run and the writing of its end, or right after that but before the pod knows.
    The event tells when. The pod claims nothing more."""
    original, called = pod.store.settle, asyncio.Event()

    async def stand_still(*_: Any, **_options: Any) -> None:
        await asyncio.Event().wait()

    async def die(shard: int, settlements: list[Settlement], **options: Any) -> list[str]:
        pod.store.claim = stand_still  # type: ignore[method-assign, assignment]
        if written:
            await original(shard, settlements, **options)
        called.set()
        await asyncio.Event().wait()
        raise AssertionError("this pod is dead")

    pod.store.settle = die  # type: ignore[method-assign, assignment]
    return called


def slots(calls: Calls, armed: Timer) -> list[tuple[int, int, int]]:
    """For each call, the occurrence, the attempt, and the milliseconds from the first slot to its own."""
    return [(run.occurrence, run.attempt, run.due_ms - armed.due_ms) for run in calls.timers]


class TestDeath:
    """The pod that runs a repeating timer dies, at each step of a run."""

    FIVE: ClassVar[Mapping[str, Any]] = {"delay": "20ms", "repeat": {"every": "10ms", "count": 5}, "missed": "all"}

    async def test_after_the_claim_runs_the_slot_on_another_pod(self, fleet: Fleet) -> None:
        """The claim's script ran, but nobody got its answer."""
        armed = await fleet.client.create("note", "x", **self.FIVE)

        async def claimed() -> bool:
            claim = await fleet.store.claim(0, [("note", 1)], pod="a", lease_ms=HOUR_MS, cause="event")
            return bool(claim.timers)

        await eventually(claimed, "the timer is due and claimed")
        await fleet.expire_lease("x")
        calls = Calls()
        await fleet.pod(calls, name="b")
        await fleet.completed("x")
        assert slots(calls, armed) == [(1, 2, 0), (2, 1, 10), (3, 1, 20), (4, 1, 30), (5, 1, 40)]

    async def test_during_the_run_repeats_that_slot_alone(self, fleet: Fleet) -> None:
        held, calls = Held(), Calls()
        first = await fleet.pod(held, name="a")
        armed = await fleet.client.create("note", "x", **self.FIVE)
        await until(lambda: len(held) == 1, "the first slot is being run")
        await fleet.kill(first)
        await fleet.pod(calls, name="b")
        await fleet.expire_lease("x")
        await fleet.completed("x")
        assert slots(held, armed) == [(1, 1, 0)]
        assert slots(calls, armed) == [(1, 2, 0), (2, 1, 10), (3, 1, 20), (4, 1, 30), (5, 1, 40)]

    async def test_between_run_and_settle_neither_ends_a_cycle_nor_doubles_a_slot(self, fleet: Fleet) -> None:
        calls = Calls()
        first = await fleet.pod(calls, name="a")
        hangs = hang_at_settle(first, written=False)
        armed = await fleet.client.create("note", "x", **self.FIVE)
        await hangs.wait()
        await fleet.kill(first)
        await fleet.pod(calls, name="b")
        await fleet.expire_lease("x")
        timer = await fleet.completed("x")
        assert slots(calls, armed) == [(1, 1, 0), (1, 2, 0), (2, 1, 10), (3, 1, 20), (4, 1, 30), (5, 1, 40)]
        assert timer.failures == 0
        assert notes(timer)[2] == "rescue"

    async def test_between_run_and_re_arm_does_not_end_the_cycle(self, fleet: Fleet) -> None:
        """The processor re-arms itself."""

        async def act(timer: Timer, _context: object) -> Rearm | None:
            return Rearm(after="1ms") if timer.occurrence < 3 else None

        calls = Calls(act=act)
        first = await fleet.pod(calls, name="a")
        hangs = hang_at_settle(first, written=False)
        await fleet.client.create("note", "x", delay=0)
        await hangs.wait()
        await fleet.kill(first)
        await fleet.pod(calls, name="b")
        await fleet.expire_lease("x")
        await fleet.completed("x")
        assert [(run.occurrence, run.attempt) for run in calls.timers] == [(1, 1), (1, 2), (2, 1), (3, 1)]

    async def test_after_settle_leaves_the_next_slot_armed_once(self, fleet: Fleet) -> None:
        calls = Calls()
        first = await fleet.pod(calls, name="a")
        hangs = hang_at_settle(first, written=True)
        armed = await fleet.client.create(
            "note", "x", delay="20ms", repeat={"every": "100ms", "count": 3}, missed="all"
        )
        await hangs.wait()
        await fleet.kill(first)
        await fleet.pod(calls, name="b")
        await fleet.completed("x")
        assert slots(calls, armed) == [(1, 1, 0), (2, 1, 100), (3, 1, 200)]
