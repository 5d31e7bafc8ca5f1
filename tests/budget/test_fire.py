"""What a timer that fires, or that is copied to the ledger, costs its pod in calls of our functions, which no machine
changes.

A bound is what was measured last. Lower it when less is used. Raise it only for something that is worth it, and say in
the commit what that is.
"""

import asyncio
import gc
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from types import CodeType, FrameType, SimpleNamespace
from typing import Any, Final, cast

import pytest
from redis.asyncio import Redis

import timers
from tests.conftest import SharedServers
from tests.engine.fleet import Act, Calls, Fleet, until
from timers.core.outcome import Fail
from timers.engine.following import Following
from timers.engine.runs import Run
from timers.ledger.database import Database
from timers.processor import Context
from timers.store.store import ARM_LIMIT, Arming

OURS: Final = str(Path(timers.__file__).parent)

FIRED: Final = 1000
"""Enough that what is called for each claim, each batch of ends or each start of a pod is rounded away."""

CALLS: Final = 24
COPY_CALLS: Final = 6


@contextmanager
def counted() -> Iterator[Counter[CodeType]]:
    """The calls of our functions within the block."""
    calls = Counter[CodeType]()

    def count(frame: FrameType, event: str, _called: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(OURS):
            calls[frame.f_code] += 1

    sys.setprofile(count)
    try:
        yield calls
    finally:
        sys.setprofile(None)


def each_of(calls: Counter[CodeType]) -> dict[str, int]:
    """The calls for each timer."""
    return {code.co_qualname: round(n / FIRED) for code, n in calls.items() if n >= FIRED / 2}


@asynccontextmanager
async def armed(servers: SharedServers) -> AsyncIterator[Fleet]:
    """A fleet without pods, and so many timers that are due."""
    server = await servers.of("redis")
    async with Redis.from_url(server.url) as redis:
        await redis.flushdb()
    fleet = await Fleet.over(server.url)
    for start in range(0, FIRED, ARM_LIMIT):
        await fleet.store.arm([Arming("note", f"user-{start + i}", "+0", {"payload": i}) for i in range(ARM_LIMIT)])
    try:
        yield fleet
    finally:
        await fleet.close()


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="comprehensions are no calls from Python 3.12 on")
async def test_a_fired_timer_takes_few_calls(servers: SharedServers) -> None:
    """From the claim to its end, without the event, of a timer that has only a payload."""
    runs = Calls()
    async with armed(servers) as fleet:
        with counted() as calls:
            pod = await fleet.pod(runs, concurrency=FIRED)
            await until(lambda: len(runs) == FIRED and not pod.worker.runner.held, "all have ended")
    # On a busy machine Redis expires the trigger keys by itself, and the pod hears of each.
    each = each_of(Counter({code: n for code, n in calls.items() if not code.co_filename.endswith("notifications.py")}))
    assert sum(each.values()) <= CALLS, each


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="comprehensions are no calls from Python 3.12 on")
async def test_a_timer_that_is_copied_to_the_ledger_takes_few_calls(servers: SharedServers, tmp_path: Path) -> None:
    database = Database(f"sqlite+aiosqlite:///{tmp_path}/ledger.db")
    await database.upgrade()
    async with armed(servers) as fleet:
        pod: Any = SimpleNamespace(store=fleet.store)
        following = Following(pod, cast("Any", None), database)
        while await following._follow(0):  # copies all, by their records
            pass
        for number in range(FIRED):
            await fleet.client.cancel("note", f"user-{number}")
        with counted() as calls:
            await following._follow(0)
    await database.close()
    assert sum(each_of(calls).values()) <= COPY_CALLS, each_of(calls)


async def wait(_timer: timers.Timer, _context: Context) -> None:
    async with asyncio.timeout(60):
        await asyncio.sleep(0)


async def fail(_timer: timers.Timer, _context: Context) -> None:
    raise Fail


@pytest.mark.parametrize("act", [wait, fail])
async def test_a_run_that_has_ended_is_freed_without_the_collector(servers: SharedServers, act: Act) -> None:
    """A circle for each run took the collector an eighth of a burst."""
    runs = Calls(act=act, timeout="1m")
    gc.collect()
    before = {id(each) for each in gc.get_objects() if isinstance(each, Run)}

    def left() -> list[Run]:
        return [each for each in gc.get_objects() if isinstance(each, Run) and id(each) not in before]

    async with armed(servers) as fleet:
        gc.disable()
        try:
            pod = await fleet.pod(runs, concurrency=FIRED)
            await until(lambda: len(runs) == FIRED and not pod.worker.runner.held, "all have ended")
            await until(lambda: not left(), "all are freed")
        finally:
            gc.enable()
