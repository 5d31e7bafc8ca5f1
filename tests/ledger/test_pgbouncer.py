"""Behind a PgBouncer that gives each transaction another connection."""

import asyncio
import os
import shutil
import tempfile
from asyncio.subprocess import DEVNULL
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest
from sqlalchemy import select, text

from tests import postgres
from tests.engine.fleet import Calls, Fleet
from tests.ledger.copies import agreed
from tests.ledger.killed import Pods
from tests.members import declare
from tests.waiting import eventually
from timers.core.model import Status, Timer
from timers.errors import LedgerUnavailable
from timers.ledger import arm, once
from timers.ledger.database import Database
from timers.ledger.schema import effects
from timers.processor import Context

PGBOUNCER = shutil.which("pgbouncer", path=f"{os.environ['PATH']}:/usr/sbin")
SETTINGS = """
[databases]
* = host={server} user=postgres
[pgbouncer]
unix_socket_dir = {folder}
listen_port = 5432
auth_type = any
pool_mode = transaction
default_pool_size = 3
"""
ROWS = 200


@pytest.fixture(params=["asyncpg", "psycopg"])
async def url(request: pytest.FixtureRequest) -> AsyncIterator[str]:
    """The URL of a database with the ledger's tables behind it."""
    if PGBOUNCER is None and "CI" not in os.environ:
        pytest.skip("there is no pgbouncer on this machine; in CI there must be")
    direct, server = postgres.new_database(request.param), postgres.server()
    folder = Path(tempfile.mkdtemp(dir=server))
    (folder / "settings").write_text(SETTINGS.format(server=server, folder=folder))
    os.chown(folder, server.stat().st_uid, server.stat().st_gid)
    process = await asyncio.create_subprocess_exec(
        str(PGBOUNCER), "-q", str(folder / "settings"), stderr=DEVNULL, **postgres.server_user()
    )
    try:
        database = Database(direct.replace(str(server), str(folder)))

        async def answers() -> bool:
            with suppress(LedgerUnavailable):
                await database.state()
                return True
            return False

        await eventually(answers, "it listens")
        await database.upgrade()
        await database.close()
        yield database.engine.url.render_as_string(hide_password=False)
    finally:
        process.kill()
        await process.wait()


async def test_pods_and_transactions_share_its_connections(fleet: Fleet, url: str, tmp_path: Path) -> None:
    await declare(fleet.store, "noted")
    database = Database(url)
    pods = Pods(
        tmp_path,
        TIMERS_REDIS_URL=fleet.url,
        TIMERS_LEDGER_URL=url,
        TIMERS_PROCESSORS="tests.ledger.dying",
        DIES_AT="0",
    )

    async def act(_timer: Timer, context: Context) -> None:
        async with database.engine.begin() as tx, once(tx, context):
            await tx.execute(text("SELECT pg_sleep(0.001)"))

    await fleet.pod(Calls(act=act), ledger=database)
    try:
        for start in range(0, ROWS, 10):
            async with database.transaction() as tx:
                for number in range(start, start + 10):
                    await arm(tx, "note" if number % 2 else "noted", str(number), delay=0)

        async def all_done() -> bool:
            counts = await fleet.client.counts()
            return [counts.get(prefix, {}) for prefix in ("note", "noted")] == [{Status.COMPLETED: ROWS // 2}] * 2

        await eventually(all_done, "all have run")
        rows = await agreed(database, fleet.store)
        assert {(row.status, row.attempt) for row in rows.values()} == {("completed", 1)}
        async with database.transaction() as tx:
            assert len((await tx.execute(select(effects.c.id))).all()) == ROWS // 2
    finally:
        pods.kill()
    said = "".join(log.read_text() for log in tmp_path.rglob("std*"))
    assert "worker started" in said
    assert "waits for the ledger" not in said
    await database.close()
