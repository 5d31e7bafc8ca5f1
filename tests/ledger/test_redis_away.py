"""While Redis is away, new timers are accepted by the ledger alone, and armed as soon as it is back."""

from collections.abc import AsyncIterator

import pytest

from tests.engine.fleet import Calls, Fleet
from tests.engine.own import OwnServer
from tests.ledger.copies import agreed
from tests.waiting import eventually
from timers.client import Armed, TimerClient, client_over, open_store
from timers.client.fleet import Declared
from timers.errors import AlreadyExists, Unavailable
from timers.ledger.database import Database
from timers.store.connect import connect


@pytest.fixture
async def client(own: OwnServer, database: Database, ledger_url: str) -> AsyncIterator[TimerClient]:
    client = client_over(await open_store(connect(own.url)), ledger=ledger_url)
    yield client
    await client.close()


async def test_creates_are_accepted_and_armed_later(own: OwnServer, client: TimerClient, database: Database) -> None:
    fleet = await Fleet.over(own.url)
    calls = Calls()
    await fleet.pod(calls, ledger=database)
    await client.create("note", "before", delay="24h", payload=1)
    await agreed(database, fleet.store)
    own.down()
    client._declared = Declared(fleet.store, fresh_seconds=0)
    made = await client.create("note", "soon", delay="0s", payload=2)
    assert (made.armed, made.durability, made.to_json().get("armed")) == (False, "ledger", False)
    results = await client.batch([{"prefix": "note", "id": f"b{n}", "delay": "24h"} for n in range(3)])
    assert [result.timer.armed for result in results if isinstance(result, Armed)] == [False] * 3
    with pytest.raises(AlreadyExists):
        await client.create("note", "before", delay="48h")
    with pytest.raises(AlreadyExists):
        await client.create("note", "soon", delay="48h")
    assert (await client.create("note", "before", delay="48h", if_exists="keep")).payload == 1
    for refused in (client.cancel("note", "before"), client.create("note", "before", delay="1h", if_exists="replace")):
        with pytest.raises(Unavailable):
            await refused
    await own.up()

    async def ran() -> bool:
        return len(calls) == 1

    await eventually(ran, "the due one runs")
    rows = await agreed(database, fleet.store)
    assert set(rows) == {"note:before", "note:soon", "note:b0", "note:b1", "note:b2"}
    assert rows["note:soon"].status == "completed"
    assert rows["note:soon"].created == made.created_ms
    await fleet.close()
