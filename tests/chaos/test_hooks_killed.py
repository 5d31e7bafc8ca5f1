"""Pods are killed while they tell hooks of what happens, and the receiver dies too: each change is told, in order."""

from pathlib import Path

import pytest

from tests.chaos.driver import Plan, run


@pytest.mark.drill
async def test_pods_killed_between_a_change_and_its_call_lose_none(tmp_path: Path) -> None:
    plan = Plan(trouble="hooks", timers=150, times=2, spread_s=3.0, pods=2, seed=20_261_122, lease_ms=1_500)
    result = await run(plan, tmp_path)
    print(result)
    assert result.report.ok, str(result)
    assert result.report.figures.faults_proven >= 2
