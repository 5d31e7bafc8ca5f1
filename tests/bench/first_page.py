"""Measures the dashboard's first page beside many timers in many prefixes: the first after a start, and later ones."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Final

from aiohttp import ClientSession

from tests.bench.pods import ROOT
from tests.bench.report import Benchmark, Column, Row
from tests.bench.stage import DAY_MS, Stage, Stopwatch
from timers.client import BATCH_LIMIT
from timers.core.spec import NewTimer

LOOK_SECONDS: Final = 1.0
"""An open page looks again as often as this at most."""

LATER_LOOKS: Final = 25
"""So many that the coming load is counted again meanwhile."""


def benchmark(prefixes: int, others: int) -> Benchmark:
    """The benchmark for so many timers in so many prefixes."""
    return Benchmark(
        "dashboard",
        f"the dashboard's first page beside {others:,} timers in {prefixes:,} prefixes, read over HTTP from one pod "
        "without a worker: as soon as it is ready, then once a second",
        (Column("page"), Column("ms", 1), Column("max ms", 1, max), Column("KB", 1)),
        partial(_measure, prefixes, others),
        "the browser",
    )


async def _measure(prefixes: int, others: int, stage: Stage) -> list[Row]:
    beginning, now_ms = stage.fresh("noop"), await stage.store.now_ms()
    for start in range(0, others, BATCH_LIMIT):
        some = range(start, min(start + BATCH_LIMIT, others))
        due = [(i, now_ms + DAY_MS // 24 + stage.rng.randrange(DAY_MS)) for i in some]
        await stage.arm_all(
            [NewTimer(prefix=f"{beginning}-{i % prefixes}", id=f"t-{i}", due_at=due_ms) for i, due_ms in due]
        )
    async with _pod(stage.server.url) as url, ClientSession(headers={"Accept": "text/html"}) as session:
        looks = [await _look(session, url)]
        for _ in range(LATER_LOOKS):
            await asyncio.sleep(LOOK_SECONDS)
            looks.append(await _look(session, url))
    later = sorted(ms for ms, _ in looks[1:])
    return [
        ("the first after the start", looks[0][0], looks[0][0], looks[0][1] / 1000),
        ("once a second", later[len(later) // 2], later[-1], looks[-1][1] / 1000),
    ]


async def _look(session: ClientSession, url: str) -> tuple[float, int]:
    watch = Stopwatch()
    async with session.get(url) as response:
        size = len(await response.read())
        response.raise_for_status()
    return watch.seconds() * 1000, size


@asynccontextmanager
async def _pod(redis_url: str) -> AsyncIterator[str]:
    """A pod with the API alone; gives its URL as soon as it says that it is ready."""
    settings = {"TIMERS_REDIS_URL": redis_url, "TIMERS_HTTP_PORT": "0", "TIMERS_LOG_FORMAT": "json"}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "timers", "serve", "--roles", "api"),
        cwd=ROOT,
        env={**os.environ, **settings},
        stderr=asyncio.subprocess.PIPE,
    )
    if process.stderr is None:
        raise ValueError("a pod is started with pipes")
    try:
        yield str(json.loads(await process.stderr.readline())["api"])
    finally:
        process.terminate()
        await process.communicate()
