"""Owns waking the pods when rows of the inbox are committed, on PostgreSQL by LISTEN and NOTIFY.

It only makes pods look sooner. PgBouncer lets no notification through when it shares connections between transactions,
and the trigger may be left out, because commits that notify wait for each other.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from timers.errors import LedgerUnavailable
from timers.ledger.database import LONGEST_SECONDS, Database, translated
from timers.ledger.inbox import CHANNEL


class Bell:
    """Rings when rows were committed, as far as the database tells."""

    def __init__(self) -> None:
        self._rung, self._lost = asyncio.Event(), False

    def ring(self, *_: object) -> None:
        """There are rows."""
        self._rung.set()

    def lose(self, *_: object) -> None:
        """Nothing is heard any more."""
        self._lost = True
        self._rung.set()

    async def wait(self, seconds: float) -> None:
        """Wait until it rings, for so long at most. Raises LedgerUnavailable if it cannot ring any more."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._rung.wait()
        self._rung.clear()
        if self._lost:
            raise LedgerUnavailable("the ledger is not available: the connection that listens was closed")


@asynccontextmanager
async def listening(database: Database) -> AsyncIterator[Bell]:
    """A bell that hears the commits from now on; on SQLite it never rings."""
    bell = Bell()
    if database.dialect != "postgresql":
        yield bell
        return
    options = {"isolation_level": "AUTOCOMMIT"}
    with translated():
        async with database.place(), database.engine.execution_options(**options).connect() as connection:
            driver: Any = (await connection.get_raw_connection()).driver_connection
            hearing = _asyncpg(driver, bell) if hasattr(driver, "add_listener") else _psycopg(driver, bell)
            try:
                async with hearing:
                    yield bell
            finally:
                await connection.invalidate()  # it is not as a connection of the pool has to be


@asynccontextmanager
async def _asyncpg(driver: Any, bell: Bell) -> AsyncIterator[None]:
    from asyncpg import InterfaceError, PostgresError  # noqa: PLC0415 (with SQLite nobody needs it)

    with translated(InterfaceError, PostgresError):
        async with asyncio.timeout(LONGEST_SECONDS):
            await driver.add_listener(CHANNEL, bell.ring)
    driver.add_termination_listener(bell.lose)
    try:
        yield
    finally:
        driver.remove_termination_listener(bell.lose)


@asynccontextmanager
async def _psycopg(driver: Any, bell: Bell) -> AsyncIterator[None]:
    from psycopg import Error  # noqa: PLC0415 (not every ledger has this driver)

    with translated(Error):
        async with asyncio.timeout(LONGEST_SECONDS):
            await driver.execute(f"LISTEN {CHANNEL}")
    hearing = asyncio.create_task(_hear(driver, bell))
    try:
        yield
    finally:
        hearing.cancel()
        await asyncio.gather(hearing, return_exceptions=True)


async def _hear(driver: Any, bell: Bell) -> None:
    try:
        async for _ in driver.notifies():
            bell.ring()
    finally:
        bell.lose()
