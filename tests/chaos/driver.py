"""The chaos run: many timers on several pods under one kind of trouble, then healed, drained and judged."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from tests.chaos import endings
from tests.chaos.findings import Finding, Property, Report
from tests.chaos.stage import Ledger, Stage, stage
from tests.chaos.troubles import TROUBLES, Trouble
from tests.chaos.workload import Workload
from timers.embedded import Family

_ARMED_PER_S: Final = 8_000
"""A cautious guess, so that a large number of timers is armed before the first of them is due."""

NOT_COVERED: Final = "other faults than those of its trouble, clock steps"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a run does. `seed` decides everything random except how the processes interleave.

    `trouble` is the kind of fault. It happens `times` times while the timers become due, over `spread_s` seconds.
    """

    trouble: str = "kills"
    timers: int
    times: int
    spread_s: float
    pods: int = 3
    seed: int = 1
    family: Family = "redis"
    ledger: Ledger = ""
    once: Ledger = ""
    lease_ms: int = 4_000
    drain_s: float = 60.0

    @property
    def command(self) -> str:
        """The command that repeats the run."""
        beside = {"ledger": self.ledger, "once": self.once}
        return (
            f"python -m tests.chaos --trouble {self.trouble} --timers {self.timers} --times {self.times} "
            f"--spread-s {self.spread_s:g} --pods {self.pods} --seed {self.seed} --family {self.family} "
            f"--lease-ms {self.lease_ms} --drain-s {self.drain_s:g}"
            + "".join(f" --{option} {value}" for option, value in beside.items() if value)
        )


@dataclass(frozen=True, slots=True)
class Result:
    """A run's verdict, and what else is reported."""

    plan: Plan
    server: str
    took_s: float
    report: Report

    def __str__(self) -> str:
        return "\n".join(
            (
                f"$ {self.plan.command}",
                f"seed {self.plan.seed}, {self.server}, N = {self.plan.timers}, took {self.took_s:.1f} s",
                f"not covered: {NOT_COVERED}",
                str(self.report),
            )
        )


async def run(plan: Plan, directory: Path) -> Result:
    """Does a whole run in `directory`, which must be empty. Raises the same errors as `Stage.judge`."""
    begin = time.monotonic()
    trouble = TROUBLES[plan.trouble]
    needs = replace(trouble.needs, ledger=plan.ledger, once=plan.once)
    async with stage(directory, family=plan.family, pods=plan.pods, lease_ms=plan.lease_ms, needs=needs) as on:
        ids = await _live_through(plan, trouble, on)
        disagreed = await _disagreement(on, plan)
        report = await on.judge(ids, drain_s=plan.drain_s)
        report = replace(report, findings=[*_meant(report.findings, trouble), *disagreed])
        return Result(plan, on.server.name, time.monotonic() - begin, report)


def _meant(findings: Sequence[Finding], trouble: Trouble) -> Iterator[Finding]:
    """Without what is known of the earlier version: its idempotency keys are others, and it leaves finished timers in
    the index of those that are retrying, which it does not know. The audit takes them out."""
    return (each for each in findings if not (trouble.needs.past and _is_of_the_past(each)))


def _is_of_the_past(finding: Finding) -> bool:
    return finding.property is Property.KEYS or (
        finding.property is Property.CONSERVATION and ":retrying" in finding.explanation
    )


async def _disagreement(on: Stage, plan: Plan) -> list[Finding]:
    """P15: once nothing changes any more, the ledger has what Redis has."""
    try:
        if on.ledger is not None:
            await endings.same_in(on.ledger, on.redis, on.server.url, timeout_s=plan.drain_s)
    except AssertionError as error:
        return [Finding(Property.COPIED, "all", str(error).splitlines()[0])]
    return []


async def _live_through(plan: Plan, trouble: Trouble, on: Stage) -> list[str]:
    """Arms everything, then makes faults and changes from the first due time to the last. Returns all ids."""
    rng = random.Random(plan.seed)
    head_start_s = 1.0 + plan.timers / _ARMED_PER_S
    begin_ms = int((time.time() + head_start_s) * 1000)
    some: dict[str, Any] = {"one_in": 10} if plan.ledger else {}
    keeps = not (plan.ledger or trouble.loses)
    some |= {"bare": keeps, "capped": keeps, "lease_ms": plan.lease_ms, "once": bool(plan.once)}
    workload = Workload.drawn(plan.timers, begin_ms, plan.spread_s, rng, **some)
    changes = workload.changes(on.calls, on.by_http, begin_ms, plan.spread_s, rng)
    moments = trouble.moments(plan.times, plan.spread_s, rng)
    await on.calls.create_all(workload.timers)
    await asyncio.sleep(begin_ms / 1000 - time.time())
    async with asyncio.TaskGroup() as group:
        group.create_task(trouble.do(on, moments, rng))
        late = workload.late_changes(on.by_http, begin_ms, plan.spread_s)
        for at_s, change in (*changes, *workload.bare_keys(on.calls), *workload.capped_creates(on.capped), *late):
            group.create_task(_make(at_s, change))
    return workload.ids


async def _make(at_s: float, change: Callable[[], Awaitable[object]]) -> None:
    """Make a change at its time. It waits for no other: a call to a pod that hangs takes seconds."""
    await asyncio.sleep(at_s)
    await change()
