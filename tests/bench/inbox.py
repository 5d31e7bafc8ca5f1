"""Measures how long a row of the ledger's inbox takes from its commit until its timer is armed."""

import asyncio
import time
from functools import partial
from typing import Final

from tests import postgres
from tests.bench.report import Benchmark, Column, Row, worst
from tests.bench.stage import Stage
from tests.bench.starts import Lateness
from tests.bench.usage import Usage
from timers.app import collect_garbage_rarely
from timers.engine.inbox import Inbox
from timers.engine.pod import Pod, WorkerOptions
from timers.engine.supervisor import Supervisor
from timers.ledger import arm
from timers.ledger.database import Database
from timers.processor import Registry

RATE_PER_S: Final = 300
_COLUMNS: Final = (
    Column("way"),
    Column("commits/s"),
    Column("p50 ms", 1),
    Column("p99", 1),
    worst("max", 1),
    Column("server µs/row", 1),
)


def benchmark(seconds: float) -> Benchmark:
    """The benchmark for so long."""
    return Benchmark(
        "inbox",
        f"from commit to armed: {RATE_PER_S} transactions/s for {seconds:g} s, in the process that drains",
        _COLUMNS,
        partial(_measure, seconds),
        "other work of the database, PgBouncer, several pods",
    )


async def _measure(seconds: float, stage: Stage) -> list[Row]:
    collect_garbage_rarely()  # as in a pod
    return [
        await _row(stage, "PostgreSQL, NOTIFY", postgres.new_database(), seconds, notify=True),
        await _row(stage, "PostgreSQL, polled", postgres.new_database(), seconds, notify=False),
        await _row(stage, "SQLite", f"sqlite+aiosqlite:///{stage.folder}/ledger.db", seconds, notify=False),
    ]


async def _row(stage: Stage, way: str, url: str, seconds: float, *, notify: bool) -> Row:
    database, application, prefix = Database(url), Database(url), stage.fresh("noop")
    await database.upgrade(notify=notify)
    options = WorkerOptions("bench", concurrency=1, lease_ms=10_000, retention_ms=1, drain_timeout_ms=1)
    services = Supervisor(Inbox(Pod(stage.store, Registry([]), options), database, stage.client).services)
    services.start()
    committed: dict[str, float] = {}
    begin, used = time.monotonic(), await Usage.so_far(stage.redis)

    async def commit(number: int) -> None:
        await asyncio.sleep(begin + number / RATE_PER_S - time.monotonic())
        async with application.transaction() as tx:
            timer_id = await arm(tx, prefix, delay="1d")
        committed[timer_id] = time.time() * 1000

    count = round(seconds * RATE_PER_S)
    await asyncio.gather(*(commit(number) for number in range(count)))
    took = time.monotonic() - begin
    await stage.scheduled(prefix, count)
    server_s = (await Usage.so_far(stage.redis)).since(used).server_s
    await services.stop()
    for each in (database, application):
        await each.close()
    timers = [timer async for timer in stage.client.iterate(prefix=prefix)]
    late = Lateness.of((timer.created_ms - committed[timer.id] for timer in timers), count)
    return way, count / took, late.p50_ms, late.p99_ms, late.max_ms, server_s / count * 1e6
