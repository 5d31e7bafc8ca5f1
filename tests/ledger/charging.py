"""A processor that takes money, for pods that are killed: each run commits charges, and some die or fail just after."""

import os
import signal
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from timers import Context, Done, Rearm, Timer, processor
from timers.ledger import once

CHARGE: Final = text("INSERT INTO charges VALUES (:id, :occurrence, :what, :cents)")
LEVELS: Final = ("READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE")
"""Isolation levels of PostgreSQL; one occurrence after the other has another. SQLite has only the last."""

KILLS: Final = 3
"""Timers whose fifth run kills its pod between the commit and the end of the run."""

FAILS_PERCENT: Final = 5
"""Runs that fail after their commit."""


@asynccontextmanager
async def database() -> AsyncIterator[AsyncEngine]:
    engine = create_async_engine(os.environ["CHARGES_URL"], pool_size=int(os.environ["CHARGES_POOL"]), max_overflow=0)
    yield engine
    await engine.dispose()


@processor("charge", lifespan=database, retry={"base": "10ms", "max_attempts": 1000})
async def charge(timer: Timer, context: Context[AsyncEngine]) -> Rearm | Done:
    left, number = timer.payload, timer.occurrence
    level = "SERIALIZABLE" if context.state.dialect.name == "sqlite" else LEVELS[number % len(LEVELS)]
    engine = context.state.execution_options(isolation_level=level)
    async with engine.begin() as tx, once(tx, context) as effects:
        await tx.execute(CHARGE, charges(timer.id, number))
        ended = effects.ends(Rearm(after=0, payload=left - 1) if left > 1 else Done("all paid"))
    if timer.attempt == 1:
        if number == 5 and int(timer.id) < KILLS:
            os.kill(os.getpid(), signal.SIGKILL)
        if charges(timer.id, number)[0]["cents"] % 100 < FAILS_PERCENT:
            raise RuntimeError("after the commit")
    return ended


def charges(id: str, occurrence: int) -> list[dict[str, Any]]:
    """The price and a fee."""
    price = zlib.crc32(f"{id}:{occurrence}".encode()) % 10_000
    named = {"id": id, "occurrence": occurrence}
    return [{**named, "what": "price", "cents": price}, {**named, "what": "fee", "cents": 1 + price // 100}]
