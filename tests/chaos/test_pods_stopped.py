"""Pods paused for longer than their lease, or stopped: a late result does not count, another pod finishes the run."""

import time
from functools import partial
from pathlib import Path

import pytest
from redis.asyncio import Redis

from tests.chaos import endings
from tests.chaos.faults import paused, stop, throttled
from tests.chaos.pods import until
from tests.chaos.stage import Needs, stage
from tests.waiting import DEADLINE_SECONDS
from timers import Status


async def test_late_result_of_a_pod_that_was_paused_past_its_lease_is_refused(tmp_path: Path) -> None:
    async with stage(tmp_path, family="redis", pods=2, lease_ms=4_000) as on:
        await on.calls.create("once", int(time.time() * 1000) + 100, {"run_ms": 250})
        first = await on.started(attempt=1)
        async with paused(on.witness, on.pods.named(first.pod)):
            second = await on.started(attempt=2)
        report = await on.judge(["once"], drain_s=DEADLINE_SECONDS)
        timer = await on.client.get("chaos", "once")
    assert report.ok, str(report)
    assert report.figures.duplicates == 1
    assert second.pod != first.pod
    assert timer.token == second.token
    assert [entry.pod for entry in timer.history if entry.status is Status.COMPLETED] == [second.pod]


@pytest.mark.drill
async def test_a_processor_that_blocks_its_pod_for_three_leases_runs_once(tmp_path: Path) -> None:
    async with stage(tmp_path, family="redis", pods=2, lease_ms=3_000) as on:
        await on.calls.create("once", int(time.time() * 1000) + 100, {"block_ms": 9_000})
        report = await on.judge(["once"], drain_s=DEADLINE_SECONDS)
    assert report.ok, str(report)
    assert report.figures.starts == 1


@pytest.mark.drill
async def test_pods_with_a_tenth_of_a_core_run_each_timer_once(tmp_path: Path) -> None:
    ids = [f"t{number}" for number in range(20)]
    async with stage(tmp_path, family="redis", pods=2, lease_ms=4_000) as on:
        async with throttled(on.witness, on.pods.live[0]), throttled(on.witness, on.pods.live[1]):
            for timer_id in ids:
                await on.calls.create(timer_id, int(time.time() * 1000) + 100, {"run_ms": 9_000})
            await endings.drained(on.redis, timeout_s=DEADLINE_SECONDS)
        report = await on.judge(ids, drain_s=DEADLINE_SECONDS)
    assert report.ok, str(report)
    assert report.figures.starts == len(ids)


async def test_a_run_of_a_stopping_pod_is_handed_back_and_done_by_another(tmp_path: Path) -> None:
    needs = Needs(drain_timeout_ms=100)
    async with stage(tmp_path, family="redis", pods=2, lease_ms=30_000, needs=needs) as on:
        await on.calls.create("once", int(time.time() * 1000) + 100, {"hang_first": 1})
        first = await on.started(attempt=1)
        leaving = on.pods.named(first.pod)
        code = await stop(on.witness, leaving)
        on.pods.live.remove(leaving)
        second = await on.started(attempt=2)
        report = await on.judge(["once"], drain_s=DEADLINE_SECONDS)
        timer = await on.client.get("chaos", "once")
    assert report.ok, str(report)
    assert code == 0
    assert second.pod != first.pod
    assert timer.failures == 0


@pytest.mark.parametrize("life_ms", [300, 2_500])
async def test_bare_key_that_expired_while_a_pod_was_paused_fires_once(tmp_path: Path, life_ms: int) -> None:
    """300 ms: mostly before a pod adopts it; 2,500 ms: afterwards."""
    async with stage(tmp_path, family="redis", pods=2, lease_ms=4_000) as on:
        async with paused(on.witness, on.pods.live[0]):
            await on.calls.set_bare("bare", life_ms, {})
            seconds, _ = await on.redis.time()
            await until(
                partial(_counted_no_more, on.redis, seconds),
                timeout_s=DEADLINE_SECONDS,
                what="the counts are forgotten",
            )
        for _ in range(2):  # the pod reports what it found together with its first sign of life
            await on.pods.healed()
        report = await on.judge(["bare"], drain_s=DEADLINE_SECONDS)
    assert report.ok, str(report)
    assert report.figures.starts == 1


async def _counted_no_more(redis: Redis, since: int) -> bool:
    """True if an expiry that was answered at this time was answered more than 5 s ago (bare/lua/resolve.lua)."""
    seconds, _ = await redis.time()
    return int(seconds) > since + 6
