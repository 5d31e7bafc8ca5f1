"""Pods behind Sentinels go on with the next primary; the old one, awake again, starts nothing."""

import random
import time
from pathlib import Path

from tests.chaos.primaries import Watched
from tests.chaos.stage import Needs, stage
from tests.waiting import DEADLINE_SECONDS


async def test_every_timer_runs_although_the_primary_changes_twice(tmp_path: Path) -> None:
    async with stage(tmp_path, family="redis", pods=2, lease_ms=4_000, needs=Needs(server=Watched)) as on:
        assert isinstance(on.server, Watched)
        ids, due_ms = [f"t{number}" for number in range(400)], int(time.time() * 1000)
        await on.calls.create_all([(timer_id, due_ms + 20 * place, {}) for place, timer_id in enumerate(ids)])
        for how in ("planned", "pause"):
            await on.server.fail(on.witness, how, random.Random(1))
            await on.calls.create_surely(how, int(time.time() * 1000), {})
        report = await on.judge([*ids, "planned", "pause"], drain_s=DEADLINE_SECONDS)
    assert report.ok, str(report)
    assert report.figures.faults_proven == 6
