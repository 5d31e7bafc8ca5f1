"""While Redis is away, new timers are accepted by the ledger alone, and armed as soon as it is back."""

from collections.abc import AsyncIterator

import pytest

from tests.engine.fleet import Calls, Fleet, Held
from tests.engine.own import OwnServer
from tests.ledger.copies import agreed, in_ledger
from tests.waiting import eventually
from timers.client import Armed, TimerClient, client_over, open_store
from timers.client.fleet import Declared
from timers.core.spec import NewTimer
from timers.errors import AlreadyExists, Unavailable
from timers.ledger.database import Database
from timers.store.servers.connect import connect

NAMES = ("before", "meanwhile")


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
    with pytest.raises(Unavailable):
        await client.cancel("note", "before")
    await own.up()

    async def ran() -> bool:
        return len(calls) == 1

    await eventually(ran, "the due one runs")
    rows = await agreed(database, fleet.store)
    assert set(rows) == {"note:before", "note:soon", "note:b0", "note:b1", "note:b2"}
    assert rows["note:soon"].status == "completed"
    assert rows["note:soon"].created == made.created_ms
    await fleet.close()


async def test_what_is_replaced_meanwhile_is_replaced_later(
    own: OwnServer, client: TimerClient, database: Database
) -> None:
    fleet = await Fleet.over(own.url)
    held = Held()
    await fleet.pod(held, ledger=database)
    before = await client.create("note", "before", delay="24h", payload=1)
    # A pod that has just found the db may have given the row back before the client armed it: a thousand versions more.
    twice_replaced = before.version + 2
    await client.create("note", "runs", delay="0s")

    async def is_running() -> bool:
        rows = await in_ledger(database)
        return len(held) == 1 and rows["note:runs"].status == "running"

    await eventually(is_running, "the ledger knows that it runs")
    own.down()
    client._declared = Declared(fleet.store, fresh_seconds=0)
    await client.create("note", "before", delay="1h", payload=2, if_exists="replace")
    made = await client.create(
        "note", "before", payload=3, tags=["new"], retry={"backoff": ["2h", "4h"]}, if_exists="replace"
    )
    assert (made.armed, made.durability, made.created_ms) == (False, "ledger", before.created_ms)
    await client.create("note", "meanwhile", delay="24h", payload=4)
    await client.create("note", "meanwhile", delay="48h", payload=5, if_exists="replace")
    with pytest.raises(Unavailable):  # it may have ended by now, and then again not
        await client.create("note", "runs", delay="1h", if_exists="replace")
    await own.up()

    async def replaced() -> bool:
        found = await client.batch([NewTimer(prefix="note", id=name, delay="1h", if_exists="keep") for name in NAMES])
        return [each.timer.payload for each in found if isinstance(each, Armed)] == [3, 5]

    await eventually(replaced, "both are replaced, and by the last")
    timer = await client.get("note", "before")
    assert (timer.version, timer.created_ms, timer.tags) == (twice_replaced, before.created_ms, ["new"])
    assert timer.due_ms - made.due_ms in range(-1000, 1000)
    assert timer.to_json()["retry"] == made.to_json()["retry"]
    held.release.set()
    rows = await agreed(database, fleet.store)
    assert {name: row.version for name, row in rows.items()}["note:before"] == twice_replaced
    await fleet.close()
