"""Effects in SQL that must happen once for each occurrence: the processor that makes them, and what must be there."""

import os
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Final

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from tests.chaos.findings import Finding, Property
from tests.chaos.processors import ONCE, RETRY, run
from tests.chaos.timeline import SUCCEEDED
from tests.chaos.witness import Event, Kind
from timers import Context, Timer, processor
from timers.core.outcome import AlreadyDone
from timers.ledger import once
from timers.ledger.database import Database

URL_VARIABLE: Final = "CHAOS_EFFECTS_URL"

_INSERT: Final = text("INSERT INTO chaos_effects VALUES (:key)")


@asynccontextmanager
async def _database() -> AsyncIterator[AsyncEngine]:
    database = Database(os.environ[URL_VARIABLE])
    yield database.engine
    await database.close()


@processor(ONCE, retry=RETRY, lifespan=_database)
async def chaos_once(timer: Timer, context: Context[AsyncEngine]) -> None:
    """Commits its effect, and only then does what the payload says: fails, takes time, dies with its pod."""
    await run(timer, context, ONCE, partial(_take_effect, context), (AlreadyDone,))


async def _take_effect(context: Context[AsyncEngine]) -> None:
    async with context.state.begin() as tx, once(tx, context):
        await tx.execute(_INSERT, {"key": context.idempotency_key})


async def prepare(database: Database) -> None:
    """Makes the tables."""
    await database.upgrade()
    async with database.transaction() as tx:
        await tx.execute(text("CREATE TABLE chaos_effects (key TEXT)"))


async def findings(database: Database, history: Iterable[Event]) -> list[Finding]:
    """P17: no occurrence has two effects, and each that was seen to succeed has one."""
    async with database.transaction(writes=False) as tx:
        made = Counter((await tx.execute(text("SELECT key FROM chaos_effects"))).scalars())
    return list(judged(made, history))


def judged(made: Mapping[str, int], history: Iterable[Event]) -> Iterator[Finding]:
    """The verdict on the number of effects by idempotency key, and a history in order."""
    keys: dict[tuple[str, int], str] = {}
    done = set[str]()
    for event in history:
        run_of = event.timer, event.token
        if event.kind is Kind.START:
            keys[run_of] = event.key
        elif event.kind is Kind.END and event.outcome in SUCCEEDED and event.timer.startswith(f"{ONCE}/"):
            done.add(keys[run_of])
    for key, number in made.items():
        if number > 1:
            yield Finding(Property.ONCE, key, f"it had its effect {number} times")
    for key in done - made.keys():
        yield Finding(Property.ONCE, key, "it was seen to succeed, but has no effect")
