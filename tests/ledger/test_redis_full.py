"""While Redis is full, nothing new is accepted."""

from collections.abc import AsyncIterator

import pytest

from tests.engine.fleet import Fleet
from tests.ledger.copies import in_ledger
from tests.store.test_memory_full import full
from timers.client import TimerClient, client_over, open_store
from timers.errors import Full
from timers.ledger.database import Database
from timers.store.servers import connect


@pytest.fixture
async def client(fleet: Fleet, database: Database, ledger_url: str) -> AsyncIterator[TimerClient]:
    client = client_over(await open_store(connect(fleet.url)), ledger=ledger_url)
    yield client
    await client.close()


async def test_a_create_is_refused_and_leaves_nothing_in_the_ledger(
    fleet: Fleet, client: TimerClient, database: Database
) -> None:
    """It was answered 202, as while Redis is away, and then nobody could read or cancel it."""
    async with full(fleet.store):
        with pytest.raises(Full) as refused:
            await client.create("note", "new", delay="24h")
        with pytest.raises(Full):
            await client.batch([{"prefix": "note", "id": f"b{n}", "delay": "24h"} for n in range(3)])
    assert refused.value.nothing_done
    assert await in_ledger(database) == {}
    assert (await client.create("note", "new", delay="24h")).version == 1
