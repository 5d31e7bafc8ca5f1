"""The server loses its data at work, some or all of it, and pods die with it: the ledger gives everything back."""

from pathlib import Path

import pytest

from tests.chaos.driver import Plan, run
from tests.chaos.stage import Ledger


@pytest.mark.drill
@pytest.mark.parametrize(("trouble", "ledger", "seed"), [("flushalls", "sqlite", 1), ("older", "postgresql", 1)])
async def test_nothing_that_was_answered_is_lost_with_the_server(
    tmp_path: Path, trouble: str, ledger: Ledger, seed: int
) -> None:
    plan = Plan(trouble=trouble, ledger=ledger, timers=400, times=1, spread_s=4.0, pods=2, seed=seed, lease_ms=4_000)
    result = await run(plan, tmp_path)
    print(result)
    assert result.report.ok, str(result)
    assert result.report.figures.faults_proven >= 2
