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
        self._rung = asyncio.Event()
        self.hearing: asyncio.Future[None] | None = None
        """Done once nothing is heard any more; None if nothing ever is."""

    def ring(self, *_: object) -> None:
        """There are rows, or nothing is heard any more."""
        self._rung.set()

    async def wait(self, seconds: float) -> None:
        """Wait until it rings, for so long at most. Raises LedgerUnavailable if it cannot ring any more."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._rung.wait()
        self._rung.clear()
        if self.hearing is not None and self.hearing.done():
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
            listen = _asyncpg if hasattr(driver, "add_listener") else _psycopg
            try:
                async with asyncio.timeout(LONGEST_SECONDS):
                    bell.hearing = await listen(driver, bell)
                bell.hearing.add_done_callback(bell.ring)
                yield bell
            finally:
                if bell.hearing is not None:
                    bell.hearing.cancel()
                    await asyncio.gather(bell.hearing, return_exceptions=True)
                await connection.invalidate()  # it is not as a connection of the pool has to be


async def _asyncpg(driver: Any, bell: Bell) -> asyncio.Future[None]:
    from asyncpg import InterfaceError, PostgresError  # noqa: PLC0415 (with SQLite nobody needs it)

    with translated(InterfaceError, PostgresError):
        await driver.add_listener(CHANNEL, bell.ring)
    hearing = asyncio.get_running_loop().create_future()
    driver.add_termination_listener(lambda _: hearing.cancel())
    return hearing


async def _psycopg(driver: Any, bell: Bell) -> asyncio.Future[None]:
    from psycopg import Error  # noqa: PLC0415 (not every ledger has this driver)

    async def hear() -> None:
        async for _ in driver.notifies():
            bell.ring()

    with translated(Error):
        await driver.execute(f"LISTEN {CHANNEL}")
    return asyncio.create_task(hear())
