"""Ten thousand charges over both databases, in transactions of every isolation level, by pods that are killed, stopped
and made to fail: the sums are exact. `CHARGES=100000` makes as many, half of them on each database."""

import os
import signal
from pathlib import Path
from typing import Final

import pytest
from sqlalchemy import select, text
from sqlalchemy.ext.asyncio import create_async_engine

from tests.engine.fleet import Fleet
from tests.ledger.charging import charges
from tests.ledger.killed import Pods
from tests.members import declare
from tests.waiting import DEADLINE_SECONDS, eventually
from timers import NewTimer
from timers.client import BATCH_LIMIT
from timers.core.model import Status
from timers.core.shapes import IfExists
from timers.ledger import arm
from timers.ledger.database import Database
from timers.ledger.schema import inbox, refused

OCCURRENCES: Final = 10
"""Of each timer. In each it takes two charges."""

TIMERS: Final = int(os.environ.get("CHARGES", "10000")) // (2 * 2 * OCCURRENCES)

PAID_SECONDS: Final = DEADLINE_SECONDS * max(4, TIMERS / 250)
"""Half a minute of work for SQLite on a machine that does nothing else, and it starts beside the dearest tests."""

LEASE_MS: Final = 1500
IF_EXISTS: Final[tuple[IfExists, ...]] = ("error", "replace", "keep")


@pytest.mark.timeout(2 * PAID_SECONDS)
async def test_charges_are_exact_whatever_happens_to_the_pods(
    database: Database, fleet: Fleet, ledger_url: str, tmp_path: Path
) -> None:
    engine = create_async_engine(ledger_url)
    async with engine.begin() as tx:
        await tx.execute(text("CREATE TABLE charges (id TEXT, occurrence INTEGER, what TEXT, cents INTEGER)"))
    await declare(fleet.store, "charge")
    pods = Pods(
        tmp_path,
        TIMERS_REDIS_URL=fleet.url,
        TIMERS_PROCESSORS="tests.ledger.charging",
        TIMERS_LEASE=f"{LEASE_MS}ms",
        TIMERS_CONCURRENCY="20",
        CHARGES_URL=ledger_url,
        CHARGES_POOL="1" if database.dialect == "sqlite" else "20",
    )
    try:
        for start in range(0, TIMERS, BATCH_LIMIT):
            ids = map(str, range(start, min(start + BATCH_LIMIT, TIMERS)))
            await fleet.client.batch([NewTimer(prefix="charge", id=id, delay=0, payload=OCCURRENCES) for id in ids])

        async def done() -> int:
            pods.revive()
            counts = (await fleet.client.counts()).get("charge", {})
            return counts.get(Status.COMPLETED, 0)

        async def leases_ended() -> bool:
            return await fleet.store.now_ms() > stopped_ms + 2 * LEASE_MS

        async def one_died() -> bool:
            await done()
            return pods.started > 2

        async def all_done() -> bool:
            return await done() == TIMERS

        await eventually(one_died, "a pod has died")
        pods.send(signal.SIGSTOP)
        stopped_ms = await fleet.store.now_ms()
        await eventually(leases_ended, "another pod has taken over")
        pods.send(signal.SIGCONT)
        await eventually(all_done, "all is paid", seconds=PAID_SECONDS)
    finally:
        pods.kill()
    async with engine.connect() as tx:
        found = (await tx.execute(text("SELECT * FROM charges"))).mappings().all()
    expected = [each for n in range(TIMERS) for turn in range(1, OCCURRENCES + 1) for each in charges(str(n), turn)]
    assert sum(each["cents"] for each in found) == sum(each["cents"] for each in expected)
    assert sorted(tuple(each.values()) for each in found) == sorted(tuple(each.values()) for each in expected)
    assert pods.started > 2
    ends = [timer async for timer in fleet.client.iterate(prefix="charge")]
    assert {(timer.occurrence, timer.history[0].note) for timer in ends} == {(OCCURRENCES, "all paid")}
    await engine.dispose()


async def test_rows_of_the_inbox_arm_their_timers_once_although_pods_die(
    database: Database, fleet: Fleet, ledger_url: str, tmp_path: Path
) -> None:
    """Each of the first pods dies after it has armed what it took, before it commits."""
    rows = 600
    await declare(fleet.store, "noted")
    pods = Pods(
        tmp_path,
        TIMERS_REDIS_URL=fleet.url,
        TIMERS_LEDGER_URL=ledger_url,
        TIMERS_PROCESSORS="tests.ledger.dying",
        TIMERS_LEASE=f"{LEASE_MS}ms",
        DIES_AT="1",
    )
    try:
        for start in range(0, rows, 20):
            async with database.transaction() as tx:
                for number in range(start, start + 20):
                    await arm(tx, "noted", str(number), delay=0, if_exists=IF_EXISTS[number % 3])

        async def some_died() -> bool:
            pods.revive()
            return pods.started > 5

        await eventually(some_died, "pods have died")
        pods.set(DIES_AT="0")

        async def all_done() -> bool:
            pods.revive()
            async with database.transaction(writes=False) as tx:
                left = (await tx.execute(select(inbox.c.seq).limit(1))).first()
            counts = (await fleet.client.counts()).get("noted", {})
            return left is None and counts == {Status.COMPLETED: rows}

        await eventually(all_done, "all have run, and their rows are gone")
    finally:
        pods.kill()
    ends = [timer async for timer in fleet.client.iterate(prefix="noted")]
    assert {timer.occurrence for timer in ends} == {1}, "none was armed again"
    async with database.transaction() as tx:
        assert (await tx.execute(select(refused.c.problem))).all() == []
