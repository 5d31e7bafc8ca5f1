"""A database that was set back, such as a restored backup, has timers that were removed since. It gives none of them
back, and everybody is told."""

from typing import Any, Self

import pytest
from sqlalchemy import delete, insert, select, text, update

from tests.engine.fleet import Calls, Fleet
from tests.ledger.copies import agreed, failed, in_ledger, in_redis
from tests.ledger.test_comparing import compared
from tests.ledger.test_doctor import check_of
from tests.ledger.test_following import changes_left
from tests.waiting import eventually
from timers.engine import following
from timers.engine.following import claim_ledger
from timers.errors import LedgerUnavailable
from timers.ledger.database import Database
from timers.ledger.facts import OLDER_MS
from timers.ledger.schema import epochs, facts, metadata
from timers.store.following import notes, server_of

LATER = "24h"
OLDER = "its database is {} minutes older than what Redis has agreed with"


class Backup:
    """The rows of a database, to put it back there."""

    def __init__(self, database: Database, rows: dict[str, list[dict[str, Any]]]) -> None:
        self._database, self._rows = database, rows

    @classmethod
    async def of(cls, database: Database) -> Self:
        async with database.transaction() as connection:
            found = {
                name: [dict(row._mapping) for row in await connection.execute(select(table))]
                for name, table in metadata.tables.items()
            }
        return cls(database, found)

    async def put_back(self, *, older_ms: int) -> None:
        """As if it had been made so long ago."""
        async with self._database.transaction(looks=True) as connection:
            await emptied(connection)
            for name, rows in self._rows.items():
                if rows:
                    await connection.execute(insert(metadata.tables[name]), rows)
            if older_ms:
                said = (await connection.execute(select(facts.c.value).where(facts.c.kind == "agreed"))).scalar()
                new = str(int(said or older_ms) - older_ms)
                await connection.execute(update(facts).where(facts.c.kind == "agreed").values(value=new))


async def emptied(connection: Any) -> None:
    for table in sorted(metadata.tables.values(), key=lambda table: table is not epochs):  # as pods lock them
        await connection.execute(delete(table))


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "HOLD_SECONDS", 0.05)


async def told(fleet: Fleet) -> int:
    return (await server_of(fleet.store))[1] or 0


async def rises(fleet: Fleet) -> None:
    """Wait until pods have told Redis of a later time."""
    before = await told(fleet)

    async def later() -> bool:
        return await told(fleet) > before

    await eventually(later, "pods follow")


async def removed_since_the_backup(fleet: Fleet, database: Database) -> Backup:
    """The backup of a database with a timer that was cancelled and purged since."""
    await fleet.client.create("note", "a", delay=LATER)
    await agreed(database, fleet.store)
    backup = await Backup.of(database)
    await fleet.client.cancel("note", "a", purge=True)
    await rises(fleet)
    assert await agreed(database, fleet.store) == {}
    return backup


async def test_it_gives_nothing_back_under_running_pods_until_it_is_emptied(fleet: Fleet, database: Database) -> None:
    pod = await fleet.pod(Calls(), ledger=database)
    assert pod.ledger is not None
    backup = await removed_since_the_backup(fleet, database)
    await backup.put_back(older_ms=3 * OLDER_MS)

    async def refused() -> bool:
        return OLDER.format(3) in pod.worker.health().services["ledger"]

    await eventually(refused, "the pod says so")
    with pytest.raises(LedgerUnavailable, match=OLDER.format(3)):
        await compared(fleet, pod.ledger)
    assert await in_redis(fleet.store) == {}
    assert OLDER.format(3) in (pod.ledger.trouble or "")
    await fleet.client.create("note", "b", delay=LATER)
    async with database.transaction(looks=True) as connection:
        await emptied(connection)
    assert set(await agreed(database, fleet.store)) == {"note:b"}
    assert pod.ledger.trouble is None


async def test_a_pod_does_not_start_with_it_and_the_doctor_tells(
    fleet: Fleet, database: Database, ledger_url: str
) -> None:
    pod = await fleet.pod(Calls(), ledger=database)
    backup = await removed_since_the_backup(fleet, database)
    await fleet.drain(pod)
    await backup.put_back(older_ms=2 * OLDER_MS)
    starting = Database(ledger_url)
    with pytest.raises(LedgerUnavailable, match=OLDER.format(2)):
        await claim_ledger(fleet.store, starting)
    check = await check_of(fleet, starting)
    assert (check.level, OLDER.format(2) in check.said) == ("fail", True)
    async with starting.transaction(looks=True) as connection:
        await emptied(connection)
    await claim_ledger(fleet.store, starting)
    assert starting.trouble is None
    await starting.close()


async def test_one_that_lags_a_little_or_knows_nothing_of_it_is_used(fleet: Fleet, database: Database) -> None:
    """Such as a promoted standby, or one that only pods of an earlier version have used since."""
    pod = await fleet.pod(Calls(), ledger=database)
    backup = await removed_since_the_backup(fleet, database)
    await fleet.drain(pod)
    await backup.put_back(older_ms=OLDER_MS // 2)
    await claim_ledger(fleet.store, database)
    async with database.transaction() as connection:
        await connection.execute(text("DELETE FROM timers_facts WHERE kind = 'agreed'"))
    await claim_ledger(fleet.store, database)
    assert database.trouble is None


async def test_a_standby_that_lacks_the_last_removals_gives_nothing_back(fleet: Fleet, database: Database) -> None:
    """Its lag may be too short for a time to tell."""
    pod = await fleet.pod(Calls(), ledger=database)
    assert pod.ledger is not None
    backup = await removed_since_the_backup(fleet, database)
    await backup.put_back(older_ms=0)
    await failed(pod.ledger)
    assert await agreed(database, fleet.store) == {}
    assert await compared(fleet, pod.ledger) == (0, 0)


async def test_a_pod_keeps_few_removals_in_mind(
    fleet: Fleet, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "REMEMBERED", 1)
    pod = await fleet.pod(Calls(), ledger=database)
    assert pod.ledger is not None
    for name in ("a", "b"):
        await fleet.client.create("note", name, delay=LATER)
    await agreed(database, fleet.store)
    backup = await Backup.of(database)
    for name in ("a", "b"):
        await fleet.client.cancel("note", name, purge=True)
        await changes_left(fleet)
    await backup.put_back(older_ms=0)
    await failed(pod.ledger)

    async def some_gone() -> bool:
        return set(await in_ledger(database)) == {"note:a"}

    await eventually(some_gone, "the last one is removed again")
    assert await compared(fleet, pod.ledger) == (1, 0)


async def test_the_time_in_redis_never_goes_back_nor_ahead_of_the_database(
    fleet: Fleet, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pod that was stopped tells an old time, and the server's clock may be set back."""
    pod = await fleet.pod(Calls(), ledger=database)
    await rises(fleet)
    await fleet.drain(pod)
    before = await told(fleet)
    await notes(fleet.store, 0, 0, (), before - 1)
    assert await told(fleet) == before
    monkeypatch.setattr(fleet.store.clock, "now_ms", lambda: before - 3_600_000.0)
    assert await claim_ledger(fleet.store, database) > before
    assert await told(fleet) == before
