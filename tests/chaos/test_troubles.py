"""A short round of the troubles that no other test makes."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.chaos.driver import Plan, run

_ONCE = ("versions", "partitions", "throttles", "slow", "full", "refusals")
TROUBLES = {"steps": 2, "wipes": 2, "power": 2, **dict.fromkeys(_ONCE, 1)}
"""How many faults each proves at least."""
IN_SUITE = ("steps", "wipes", "versions")


@pytest.mark.parametrize(
    "trouble", [*IN_SUITE, *(pytest.param(name, marks=pytest.mark.drill) for name in TROUBLES if name not in IN_SUITE)]
)
async def test_no_promise_is_broken(tmp_path: Path, trouble: str) -> None:
    times = 2 if trouble == "steps" else 1
    plan = Plan(trouble=trouble, timers=300, times=times, spread_s=4.0, pods=2, seed=3)
    result = await run(replace(plan, once="sqlite") if trouble == "steps" else plan, tmp_path)
    print(result)
    assert result.report.ok, str(result)
    assert result.report.figures.faults_proven >= TROUBLES[trouble]
