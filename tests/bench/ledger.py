"""Measures what the ledger costs: arming, HTTP and a burst beside the same without it, and how long a restore takes."""

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from statistics import median
from typing import Final

from sqlalchemy import text

from tests import postgres
from tests.bench.arming import PAYLOAD
from tests.bench.http import _pod, _request, _singles, _timed
from tests.bench.pod import LEDGER
from tests.bench.report import Benchmark, Column, Row
from tests.bench.stage import DAY_MS, Stage, Stopwatch
from tests.bench.usage import Usage
from tests.chaos.pods import until
from tests.members import declare
from timers import NewTimer
from timers.client import client_over, open_store
from timers.core.model import Status
from timers.ledger import rows
from timers.ledger.database import Database
from timers.ledger.rows import Row as LedgerRow
from timers.store.servers import connect
from timers.store.store import Store

CALLERS: Final = 64
ROUNDS: Final = 3
"""In each, everything is measured with and without a ledger, one right after the other: within minutes, neighbours on
the machine make it half as fast."""

WARM: Final = 5_000
"""Timers that are armed before batches are measured: a new connection to PostgreSQL plans its first statements anew."""

_DIALECTS: Final = ("", "sqlite", "postgresql")

CHANGED: Final = "timers:{0}:changed"
HOOKS: Final = "timers:{0}:hooks"

_COLUMNS: Final = (
    Column("what"),
    Column("ledger"),
    Column("timers/s"),
    Column("of those without", 2),
    Column("server µs/timer", 1),
    Column("times those without", 2),
    Column("seconds until the ledger had all", 2),
)

_Measure = Callable[[Stage, str], Awaitable[tuple[float, float, float]]]
"""Timers per second, the server's µs for each, and seconds until the ledger had all."""


def benchmark(batched: int, single: int, burst: int, restored: int) -> Benchmark:
    """The benchmark for so many timers in batches, one a request, due at once, and given back."""
    return Benchmark(
        "ledger",
        f"medians of {ROUNDS} rounds of {batched:,} timers in batches of 1,000; {single:,} creates over HTTP by "
        f"{CALLERS} callers; a burst of {burst:,} with a pod that follows; and a restore of {restored:,}, half of them "
        "finished",
        _COLUMNS,
        partial(_measure, batched, single, burst, restored),
        "a database on another machine; PostgreSQL's fsync, which is off here (SQLite's is on); several shards",
    )


async def _measure(batched: int, single: int, burst: int, restored: int, stage: Stage) -> Sequence[Row]:
    kinds: list[tuple[str, _Measure]] = [
        ("client.batch", partial(_batches, batched)),
        ("POST /v1/timers", partial(_creates, single)),
        ("burst", partial(_burst, burst)),
    ]
    found: list[Row] = []
    for what, measure in kinds:
        rounds = [[await _measured(what, measure, dialect, stage) for dialect in _DIALECTS] for _ in range(ROUNDS)]
        for place, dialect in enumerate(_DIALECTS):
            cells = [
                (per_s, per_s / base[0], server_us, server_us / base[1], lag_s)
                for base, (per_s, server_us, lag_s) in ((each[0], each[place]) for each in rounds)
            ]
            found.append((what, dialect or "none", *map(median, zip(*cells, strict=True))))
    for dialect in _DIALECTS[1:]:
        per_s, server_us, seconds = await _measured("restore", partial(_restore, restored), dialect, stage)
        found.append(("restore", dialect, per_s, 1.0, server_us, 1.0, seconds))
    return found


async def _measured(what: str, measure: _Measure, dialect: str, stage: Stage) -> tuple[float, float, float]:
    async with _fresh(stage, dialect) as (on, url):
        per_s, server_us, lag_s = await measure(on, url)
    print(f"{what} {dialect or 'none'}: {per_s:,.0f}/s {server_us:.1f} µs, {lag_s:.2f} s", file=sys.stderr)
    return per_s, server_us, lag_s


@asynccontextmanager
async def _fresh(stage: Stage, dialect: str) -> AsyncIterator[tuple[Stage, str]]:
    """The server without data, and the URL of a ledger without rows; empty if there is none."""
    await stage.redis.flushall()
    store = await open_store(connect(stage.server.url))
    await declare(store, "bench-noop")
    url = ""
    if dialect:
        path = stage.folder / f"ledger-{time.monotonic_ns()}.db"
        url = f"sqlite+aiosqlite:///{path}" if dialect == "sqlite" else postgres.new_database()
        database = Database(url)
        await database.upgrade()
        await database.close()
    client = client_over(store, ledger=url or None)
    os.environ[LEDGER] = url
    try:
        yield replace(stage, store=store, client=client), url
    finally:
        os.environ[LEDGER] = ""
        await client.close()


async def _batches(number: int, stage: Stage, _url: str) -> tuple[float, float, float]:
    prefix, now_ms = stage.fresh("noop"), await stage.store.now_ms()
    await stage.arm_all([NewTimer(prefix=prefix, id=f"warm-{i}", due_at=now_ms + DAY_MS) for i in range(WARM)])
    begin, watch = await Usage.so_far(stage.redis), Stopwatch()
    for start in range(0, number, 1000):
        numbers = range(start, min(start + 1000, number))
        news = [
            NewTimer(prefix=prefix, id=f"user-{i:07}", due_at=now_ms + DAY_MS + i, payload=PAYLOAD) for i in numbers
        ]
        await stage.arm_all(news)
    seconds = watch.seconds()
    used = (await Usage.so_far(stage.redis)).since(begin)
    return number / seconds, used.server_s / number * 1e6, 0.0


async def _creates(number: int, stage: Stage, _url: str) -> tuple[float, float, float]:
    async with _pod(stage.server.url) as pod:
        warm = [_request("/v1/timers", "application/json", body) for body in _singles(stage.fresh("noop"), 500)]
        await _timed(pod, pod.api, warm, CALLERS)
        requests = [_request("/v1/timers", "application/json", body) for body in _singles(stage.fresh("noop"), number)]
        begin = await Usage.so_far(stage.redis)
        seconds, _ = await _timed(pod, pod.api, requests, CALLERS)
        used = (await Usage.so_far(stage.redis)).since(begin)
    return number / seconds, used.server_s / number * 1e6, 0.0


async def _burst(number: int, stage: Stage, url: str) -> tuple[float, float, float]:
    fast = client_over(stage.store)  # what is measured comes afterwards
    stage = replace(stage, client=fast)
    async with stage.pods(1):
        if url:
            await _whole(stage)
        await _drained(stage, 2_000)
        return await _drained(stage, number)


async def _drained(stage: Stage, number: int) -> tuple[float, float, float]:
    prefix = stage.fresh("noop")
    due_ms = await stage.arm_ahead(prefix, number, 1)
    await asyncio.sleep(stage.store.clock.seconds_until(due_ms) - 0.05)
    begin = await Usage.so_far(stage.redis)
    if not await stage.completed(prefix, number, timeout_s=120):
        raise RuntimeError(f"{number} timers were not drained within 120 s")
    watch = Stopwatch()
    await until(lambda: _none_left(stage), timeout_s=120, what="the end of the notes")
    lag_s = watch.seconds()
    used = (await Usage.so_far(stage.redis)).since(begin)
    finished = f"timers:{{0}}:finished:c:{prefix}"
    (newest,) = await stage.redis.zrange(finished, -1, -1)
    last_ms = float(await stage.redis.zscore(finished, str(newest)) or 0)
    return number / ((last_ms - due_ms) / 1000), used.server_s / number * 1e6, lag_s


async def _none_left(stage: Stage) -> bool:
    return not await stage.redis.exists(CHANGED)


async def _whole(stage: Stage) -> None:
    async def agreed() -> bool:
        return str(await stage.redis.hget(HOOKS, "@ledger")).startswith("whole")

    await until(agreed, timeout_s=600, what="the agreement of the ledger and Redis")


async def _restore(number: int, stage: Stage, url: str) -> tuple[float, float, float]:
    database = Database(url)
    await _filled(stage.store, database, number)
    await database.close()
    begin, watch = await Usage.so_far(stage.redis), Stopwatch()
    async with stage.pods(1):
        await until(lambda: _restoring(stage), timeout_s=60, what="the begin of the restore")
        watch = Stopwatch()
        await _whole(stage)
        seconds = watch.seconds()
    used = (await Usage.so_far(stage.redis)).since(begin)
    return number / seconds, used.server_s / number * 1e6, seconds


async def _restoring(stage: Stage) -> bool:
    return await stage.redis.hget(HOOKS, "@ledger") is not None


async def _filled(store: Store, database: Database, number: int) -> None:
    now_ms = await store.now_ms()
    for start in range(0, number, 1000):
        some = [_row(store, i, now_ms) for i in range(start, min(start + 1000, number))]
        async with database.transaction() as connection:
            await rows.save(connection, some)
    # PostgreSQL plans by statistics, which it makes by itself within minutes.
    await database.do(lambda connection: connection.execute(text("ANALYZE")))


_SPEC: Final = '{"payload":{"email":"someone@example.org","plan":"trial-1","source":"web"}}'


def _row(store: Store, i: int, now_ms: int) -> LedgerRow:
    done = i % 2
    status = (Status.COMPLETED if done else Status.SCHEDULED).value
    history = f"{now_ms} c 1 pod-1 1.1.1 bench-noop completed" if done else ""
    due, timer_id = now_ms + DAY_MS + i, f"user-{i:07}"
    token = now_ms * 1000 if done else 0
    shard = store.shard_of("bench-noop-r", timer_id)
    counts = (1 + done, token, done, 0, 1, due, now_ms, now_ms)
    return LedgerRow("bench-noop-r", timer_id, shard, status, *counts, _SPEC, "", history)
