"""Owns waking the pods when rows of the inbox are committed, on PostgreSQL by LISTEN and NOTIFY.

It only makes pods look sooner. PgBouncer lets no notification through when it shares connections between transactions,
and the trigger may be left out, because commits that notify wait for each other.
"""

import asyncio
from collections.abc import Callable
from typing import Any

from timers.errors import LedgerUnavailable
from timers.ledger.database import LONGEST_SECONDS, Database, translated
from timers.ledger.inbox import CHANNEL


async def listen(database: Database, ring: Callable[[], object]) -> None:
    """Ring for each commit that the database tells of. Returns at once on SQLite, which tells of none; raises
    LedgerUnavailable if nothing is heard any more."""
    if database.dialect != "postgresql":
        return
    options = {"isolation_level": "AUTOCOMMIT"}
    with translated():
        async with database.place(), database.engine.execution_options(**options).connect() as connection:
            driver: Any = (await connection.get_raw_connection()).driver_connection
            try:
                await (_asyncpg if hasattr(driver, "add_listener") else _psycopg)(driver, ring)
            finally:
                await connection.invalidate()  # it is not as a connection of the pool has to be
    raise LedgerUnavailable("the ledger is not available: the connection that listens was closed")


async def _asyncpg(driver: Any, ring: Callable[[], object]) -> None:
    from asyncpg import InterfaceError, PostgresError  # noqa: PLC0415 (with SQLite nobody needs it)

    closed = asyncio.Event()
    with translated(InterfaceError, PostgresError):
        async with asyncio.timeout(LONGEST_SECONDS):
            await driver.add_listener(CHANNEL, lambda *_: ring())
    driver.add_termination_listener(lambda _: closed.set())
    await closed.wait()


async def _psycopg(driver: Any, ring: Callable[[], object]) -> None:
    from psycopg import Error  # noqa: PLC0415 (not every ledger has this driver)

    with translated(Error):
        async with asyncio.timeout(LONGEST_SECONDS):
            await driver.execute(f"LISTEN {CHANNEL}")
        async for _ in driver.notifies():
            ring()
