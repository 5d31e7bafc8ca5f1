"""Pods are killed at work: nothing is lost, nothing is early, and a fault explains every duplicate."""

import asyncio
import time
from pathlib import Path

import pytest

from tests.chaos.driver import Plan, run
from tests.chaos.faults import kill
from tests.chaos.stage import stage
from tests.servers import FAMILIES
from tests.waiting import DEADLINE_SECONDS
from timers.embedded import Family

LEASE_MS = 4_000


@pytest.mark.drill
async def test_three_thousand_timers_over_three_pods_that_are_killed_at_random(tmp_path: Path) -> None:
    plan = Plan(trouble="kills", timers=3_000, times=8, spread_s=6.0, pods=3, seed=20_261_121, lease_ms=LEASE_MS)
    result = await run(plan, tmp_path)
    print(result)
    figures = result.report.figures
    assert result.report.ok, str(result)
    assert figures.timers == 3_000
    assert (figures.faults_proven, figures.faults_unproven) == (8, 0)


@pytest.mark.drill
async def test_two_thousand_timers_while_every_subscription_is_cut_ten_times_a_second(tmp_path: Path) -> None:
    plan = Plan(trouble="cuts", timers=2_000, times=30, spread_s=3.0, pods=2, seed=20_261_121, lease_ms=LEASE_MS)
    result = await run(plan, tmp_path)
    print(result)
    assert result.report.ok, str(result)
    assert result.report.figures.faults_proven > 0
    assert result.report.figures.duplicates == 0


async def test_another_pod_takes_over_from_one_that_is_killed_in_mid_run(tmp_path: Path) -> None:
    """On both servers at once, because most of the test is waiting for a lease to end."""
    async with asyncio.TaskGroup() as group:
        for family in FAMILIES:
            group.create_task(_take_over(tmp_path / family, family))


async def _take_over(directory: Path, family: Family) -> None:
    directory.mkdir()
    async with stage(directory, family=family, pods=2, lease_ms=LEASE_MS) as on:
        await on.calls.create("once", int(time.time() * 1000) + 100, {"hang_first": 1})
        first = await on.started(attempt=1)
        winner = on.pods.named(first.pod)
        await kill(on.witness, winner)
        on.pods.live.remove(winner)
        second = await on.started(attempt=2)
        report = await on.judge(["once"], drain_s=DEADLINE_SECONDS)
        timer = await on.client.get("chaos", "once")
    print(f"{family}: taken over {report.figures.takeover_max_ms} ms after the kill, lease {LEASE_MS} ms")
    assert report.ok, str(report)
    assert second.pod != first.pod
    assert [entry.note for entry in timer.history if entry.attempt == 2] == ["completed", "rescue"]
    assert timer.failures == 1
