"""Another program overwrites the service's keys: no service of the pods stops, and what is left runs."""

from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from tests.engine.fleet import Calls, Fleet, until
from timers.core.model import Status

pytestmark = pytest.mark.every_server

ROOT = "timers:{0}:"
INDEXES = ("heads", "held", "blocked", "leases", "paused", "counts", "adopted", "finished:c:note", "quarantine")


async def put_text(redis: Any, *keys: str) -> None:
    for key in keys:
        await redis.set(key, b"\xff foreign")


async def put_scores(redis: Any, score: str) -> None:
    strange = {b"\xff\xfe": score, "no member": score}
    await redis.zadd(f"{ROOT}due:note", {"gone": score, **strange})
    await redis.zadd(f"{ROOT}heads", {"note": score, "gone": score, **strange})
    await redis.zadd(f"{ROOT}leases", {"note:gone": score, **strange})
    await redis.zadd(f"{ROOT}finished:c:note", {"gone": score, **strange})


def acts(fleet: Fleet) -> list[Callable[[], Awaitable[object]]]:
    """What the other program does, in order."""
    counts = {"s note": "garbage", "c note": "garbage", "r note": "-5"}
    return [
        lambda: put_text(fleet.redis, *(f"{ROOT}{name}" for name in INDEXES)),
        lambda: put_scores(fleet.redis, "inf"),
        lambda: put_scores(fleet.redis, "-inf"),
        lambda: cast("Any", fleet.redis).hset(f"{ROOT}counts", mapping=counts),
        lambda: cast("Any", fleet.redis).set(f"{ROOT}token", str(2**63 - 1)),
        lambda: put_text(fleet.redis, *[f"{ROOT}rec:{bucket:02x}" for bucket in range(256)]),
    ]


async def test_values_of_other_types_and_scores_that_no_time_has_stopped_the_services_of_a_pod(fleet: Fleet) -> None:
    calls = Calls()
    with capture_logs() as logs:
        await fleet.pod(calls, retention_ms=1)
        for number, act in enumerate(acts(fleet)):
            await act()
            await fleet.client.create("note", str(number), delay="20ms", if_exists="replace")
            await until(lambda: str(number) in calls.ids, f"round {number} runs")  # noqa: B023 (within this round)
            await fleet.client.stats()
    assert [entry for entry in logs if entry["log_level"] == "error" and "service" in entry] == []
    await fleet.redis.flushdb()


async def test_a_timer_behind_a_score_that_no_time_has_still_runs(fleet: Fleet) -> None:
    calls = Calls()
    await fleet.client.create("note", "x", delay="200ms")
    await fleet.redis.zadd(f"{ROOT}due:note", {"x": "-inf"})
    await fleet.redis.zadd(f"{ROOT}heads", {"note": "-inf"})
    await fleet.pod(calls)
    timer = await fleet.reached(Status.COMPLETED, "x")
    started = next(entry for entry in timer.history if entry.status is Status.RUNNING)
    assert started.at_ms >= timer.due_ms
