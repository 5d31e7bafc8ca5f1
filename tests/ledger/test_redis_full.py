"""While Redis is full, nothing new is accepted, and the ledger follows everything else."""

from collections.abc import AsyncIterator
from functools import partial
from typing import NoReturn

import pytest

from tests.engine.fleet import Calls, Fleet
from tests.ledger.copies import agreed, in_ledger, whole
from tests.ledger.test_inbox import _are_left, ask, problems
from tests.store.test_memory_full import full
from tests.waiting import eventually
from timers.client import TimerClient, client_over, open_store
from timers.core.model import Status
from timers.errors import Full, Unavailable
from timers.ledger.database import Database
from timers.store.callers import Quotas
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


async def test_what_waits_for_room_keeps_no_change_from_the_ledger(
    fleet: Fleet, client: TimerClient, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What had ended meanwhile ran again after a loss."""

    async def away(*_args: object) -> NoReturn:
        raise Unavailable("away")

    calls = Calls()
    await fleet.pod(calls, ledger=database)
    await whole(fleet.store)
    await client.create("note", "runs", delay="24h")
    async with full(fleet.store):
        with monkeypatch.context() as patch:
            patch.setattr(Quotas, "arm", away)
            assert not (await client.create("note", "waits", delay="24h")).armed
        await client.fire("note", "runs")

        async def followed() -> bool:
            return (await in_ledger(database))["note:runs"].status == Status.COMPLETED

        await eventually(followed, "the ledger has its end")
    assert set(await agreed(database, fleet.store)) == {"note:runs", "note:waits"}


async def test_rows_of_the_inbox_that_need_no_room_are_carried_out(
    fleet: Fleet, client: TimerClient, database: Database
) -> None:
    await fleet.pod(Calls(), ledger=database)
    await whole(fleet.store)
    await client.create("note", "there", delay="24h")
    async with full(fleet.store):
        await ask(database, "new", delay="24h")
        await ask(database, "there", "cancel")

        await eventually(partial(_are_left, database, 1), "the cancel is carried out")
        assert (await client.get("note", "there")).status is Status.CANCELLED
    await eventually(partial(_are_left, database, 0), "the create is carried out, too")
    assert (await client.get("note", "new")).status is Status.SCHEDULED
    assert await problems(database) == {}
