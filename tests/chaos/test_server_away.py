"""The server dies and returns, or its answers are lost: promises are kept, and unknown outcomes stay unknown."""

import asyncio
import time
from pathlib import Path

from tests.chaos.driver import Plan, run
from tests.chaos.server_faults import lose_reply
from tests.chaos.stage import Needs, stage
from tests.chaos.witness import Kind, Made, read_history
from tests.waiting import DEADLINE_SECONDS

ANSWERS = frozenset({Kind.OK, Kind.FAIL, Kind.INFO})


async def test_timers_due_while_the_server_is_down_fire_when_it_is_back_without_its_notifications(
    tmp_path: Path,
) -> None:
    result = await run(Plan(trouble="restarts", timers=2_000, times=1, spread_s=3.0, pods=2, lease_ms=4_000), tmp_path)
    print(result)
    assert result.report.ok, str(result)
    assert result.report.figures.faults_proven == 1
    assert result.report.figures.backlog_max_ms is not None


A_TIMER = 60
"""Bytes. The answer to a claim that finds nothing is shorter, one that brings a timer is longer."""


async def test_lost_answers_make_a_create_unknown_and_a_claim_a_rescue_but_nothing_double(tmp_path: Path) -> None:
    async with stage(tmp_path, family="redis", pods=1, lease_ms=4_000, needs=Needs(proxy=True)) as on:
        assert on.proxy is not None
        await on.calls.create("first", int(time.time() * 1000), {})
        await on.started(attempt=1)  # the server knows the scripts now; a first reply might only ask for them
        async with asyncio.TaskGroup() as group:
            for script, at_least in (("arm", 0), ("claim", A_TIMER)):
                losing = lose_reply(on.witness, on.proxy, script, at_least=at_least, patience_s=DEADLINE_SECONDS)
                group.create_task(losing)
            group.create_task(on.calls.create_surely("once", int(time.time() * 1000) + 100, {}))
        report = await on.judge(["first", "once"], drain_s=DEADLINE_SECONDS)
        timer = await on.client.get("chaos", "once")
    assert report.ok, str(report)
    answers = [line for line in read_history(on.lines) if line.timer == "chaos/once" and line.kind in ANSWERS]
    assert answers[0].kind is Kind.INFO
    assert (answers[-1].kind, answers[-1].outcome) == (Kind.FAIL, Made.EXISTS)
    assert report.figures.hidden_attempts == 1
    assert [entry.note for entry in timer.history if entry.attempt == 2] == ["completed", "rescue"]
