"""The chaos run: many timers over several pods, which are killed at random and replaced; healed, drained and judged."""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from tests.chaos.calls import Calls
from tests.chaos.faults import Kills, cut_subscribers
from tests.chaos.findings import Report
from tests.chaos.processors import MAX_ATTEMPTS, Behaviour
from tests.chaos.stage import Stage, stage
from timers.embedded import Family

_ARMED_PER_S: Final = 5_000
"""A cautious guess, so that a large number of timers is armed before the first of them is due."""

NOT_COVERED: Final = (
    "loss of the server or its data, pauses and partitions of pods, clock steps, Sentinel and cluster, repeats, "
    "several shards, lateness beyond its figures"
)

Change = tuple[float, Callable[[], Awaitable[None]]]
"""Seconds since the begin, and what the driver does then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a run does. Everything random comes from `seed`, except how the processes interleave.

    `spread_s` is the span in which the timers are due and the pods are killed. `cut_every_s` cuts all subscriptions
    that often; 0: never.
    """

    timers: int = 20_000
    pods: int = 3
    kills: int = 12
    seed: int = 1
    family: Family = "redis"
    lease_ms: int = 2_000
    spread_s: float = 18.0
    cut_every_s: float = 0.0
    drain_s: float = 60.0

    @property
    def command(self) -> str:
        """The command line that repeats the run."""
        return (
            f"python -m tests.chaos --timers {self.timers} --pods {self.pods} --kills {self.kills} --seed {self.seed} "
            f"--family {self.family} --lease-ms {self.lease_ms} --spread-s {self.spread_s:g} "
            f"--cut-every-s {self.cut_every_s:g} --drain-s {self.drain_s:g}"
        )


@dataclass(frozen=True, slots=True)
class Result:
    """A run's verdict, and what has to be said beside it."""

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


@dataclass(frozen=True, slots=True)
class Workload:
    """The timers of a run (id, due in epoch ms, behaviour), and the changes that are made to some on the way."""

    timers: list[tuple[str, int, Behaviour]]
    cancelled: list[str]
    moved: list[str]
    created_again: list[str]

    @classmethod
    def drawn(cls, plan: Plan, begin_ms: int, rng: random.Random) -> "Workload":
        """Due times spread evenly; one in a hundred is cancelled, another moved, another created a second time."""
        ids = [f"t{index}" for index in range(plan.timers)]
        timers = [(id_, begin_ms + rng.randrange(int(plan.spread_s * 1000)), _behaviour(rng)) for id_ in ids]
        some = max(1, plan.timers // 100)
        return cls(timers, rng.sample(ids, some), rng.sample(ids, some), rng.sample(ids, some))

    def changes(self, calls: Calls, begin_ms: int, within_s: float, rng: random.Random) -> list[Change]:
        """What the driver does during the run, by time. Half of what it cancels it arms again a little later."""
        late_ms = begin_ms + int(within_s * 1000)
        actions = [
            *(partial(calls.cancel, id_) for id_ in self.cancelled),
            *(partial(calls.retry, id_) for id_ in self.cancelled[::2]),
            *(partial(calls.reschedule, id_, late_ms) for id_ in self.moved),
            *(partial(calls.create, id_, late_ms, {}) for id_ in self.created_again),
        ]
        return sorted(((rng.uniform(0, within_s), action) for action in actions), key=lambda change: change[0])


def _behaviour(rng: random.Random) -> Behaviour:
    """Mostly short runs; one in twenty fails at first, one in two hundred always, one in ten is long enough to hit."""
    luck = rng.random()
    if luck < 0.005:
        return {"run_ms": rng.randrange(5), "fail_first": MAX_ATTEMPTS}
    if luck < 0.05:
        return {"run_ms": rng.randrange(5), "fail_first": rng.randrange(1, 3)}
    return {"run_ms": rng.randrange(300) if luck < 0.15 else rng.randrange(10)}


async def run(plan: Plan, directory: Path) -> Result:
    """Does a whole run in `directory`, which has to be empty. Raises as `Stage.judge`."""
    begin = time.monotonic()
    async with stage(directory, family=plan.family, pods=plan.pods, lease_ms=plan.lease_ms) as on:
        await _break(plan, on)
        report = await on.judge([f"t{index}" for index in range(plan.timers)], drain_s=plan.drain_s)
        return Result(plan, on.server, time.monotonic() - begin, report)


async def _break(plan: Plan, on: Stage) -> None:
    """Arms everything; then, from the first due time to the last, kills pods and makes changes."""
    rng = random.Random(plan.seed)
    head_start_s = 1.0 + plan.timers / _ARMED_PER_S
    begin_ms = int((time.time() + head_start_s) * 1000)
    workload = Workload.drawn(plan, begin_ms, rng)
    changes = workload.changes(on.calls, begin_ms, plan.spread_s, rng)
    kills = Kills.drawn(plan.kills, plan.spread_s, rng)
    await on.calls.create_all(workload.timers)
    await asyncio.sleep(begin_ms / 1000 - time.time())
    async with _cutting(on, plan.cut_every_s), asyncio.TaskGroup() as group:
        group.create_task(kills.do(on.witness, on.pods))
        group.create_task(_make(changes))


async def _make(changes: list[Change]) -> None:
    loop = asyncio.get_running_loop()
    begin = loop.time()
    for at_s, change in changes:
        await asyncio.sleep(begin + at_s - loop.time())
        await change()


@asynccontextmanager
async def _cutting(on: Stage, every_s: float) -> AsyncIterator[None]:
    """Cuts all subscriptions again and again while the block lasts."""
    if not every_s:
        yield
        return
    cutting = asyncio.create_task(cut_subscribers(on.witness, on.redis, every_s=every_s))
    try:
        yield
    finally:
        cutting.cancel()
        await asyncio.wait([cutting])
