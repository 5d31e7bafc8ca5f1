"""What PostgreSQL lets the ledger's users do: what docs/ledger.md grants is enough, and a right that is missing is
told."""

import re
from collections.abc import AsyncIterator
from itertools import product
from typing import Any, Final
from uuid import uuid4

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine

from tests import postgres
from tests.engine.fleet import Fleet, until
from tests.ledger.copies import agreed
from tests.nursery import ROOT
from timers.core.model import Timer
from timers.core.outcome import Done
from timers.doctor.ledger import check_ledger
from timers.errors import LedgerUnavailable
from timers.ledger import arm, cancel, effects, once
from timers.ledger.database import Database
from timers.ledger.schema import metadata
from timers.processor import Context, processor

GRANTS: Final = re.findall(
    r"^ *(GRANT .*) TO (pods|application);", (ROOT / "docs" / "ledger.md").read_text(), re.MULTILINE
)


class Users:
    """An owner of the ledger's tables, and two users with what the document grants them."""

    def __init__(self) -> None:
        self._owners = postgres.new_database()
        self._names = {name: f"{name}_{uuid4().hex[:8]}" for name in ("pods", "application")}

    def url_of(self, name: str) -> str:
        return self._owners.replace("postgres@", f"{self._names[name]}@", 1)

    async def make(self) -> None:
        database = Database(self._owners)
        await database.upgrade()
        await database.close()
        await self.run(*(f"CREATE ROLE {role} LOGIN" for role in self._names.values()))
        await self.run(*(f"{grant} TO {self._names[name]}" for grant, name in GRANTS))

    async def revoke(self, right: str, table: str) -> None:
        await self.run(f"REVOKE {right} ON {table} FROM {self._names['pods']}")

    async def give_back(self, right: str, table: str) -> None:
        await self.run(f"GRANT {right} ON {table} TO {self._names['pods']}")

    async def drop(self) -> None:
        for role in self._names.values():
            await self.run(f"DROP OWNED BY {role}", f"DROP ROLE {role}")

    async def run(self, *statements: str) -> None:
        """Run statements as the owner."""
        engine = create_async_engine(self._owners)
        async with engine.begin() as tx:
            for statement in statements:
                await tx.execute(text(statement))
        await engine.dispose()


@pytest.fixture
async def users() -> AsyncIterator[Users]:
    made = Users()
    await made.make()
    yield made
    await made.drop()


async def test_what_the_document_grants_is_enough(users: Users, fleet: Fleet) -> None:
    database, application = Database(users.url_of("pods")), create_async_engine(users.url_of("application"))

    @processor("note")
    async def note(_timer: Timer, context: Context[Any]) -> Done:
        async with application.begin() as tx, once(tx, context) as done:
            return done.ends(Done("charged"))

    pod = await fleet.pod(note, ledger=database)
    async with application.begin() as tx:
        await arm(tx, "note", "runs", delay=0)
        await arm(tx, "note", "waits", delay="1h")
        await cancel(tx, "note", "nobody")
    assert (await fleet.completed("runs")).attempt == 1
    async with application.begin() as tx:
        await cancel(tx, "note", "waits")
    await until(lambda: pod.seen.inbox["done"] == 3 and pod.seen.inbox["refused"] == 1, "all rows are taken")
    await effects.clean(database)
    assert set(await agreed(database, fleet.store)) == {"note:runs", "note:waits"}
    await database.ping()
    await fleet.drain(pod)
    await application.dispose()
    await database.close()


async def test_a_right_that_is_missing_is_told(users: Users, fleet: Fleet) -> None:
    database = Database(users.url_of("pods"))
    for right, table in product(("SELECT", "INSERT", "UPDATE", "DELETE"), metadata.tables):
        await users.revoke(right, table)
        with pytest.raises(LedgerUnavailable, match=f"its user lacks {right} on {table}$"):
            await database.ping()
        check = await check_ledger(fleet.store, database)
        assert (check.level, check.said) == ("fail", database.trouble)
        await users.give_back(right, table)
        await database.ping()
        assert (await check_ledger(fleet.store, database)).level != "fail"
    await database.close()
