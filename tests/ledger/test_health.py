"""A pod says at `/metrics` and `/readyz` how the ledger is and how far it is behind, and stays ready."""

import re
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager

import pytest
from sqlalchemy import text

from tests.api.conftest import done
from tests.api.harness import Api, running_api
from tests.engine.fleet import Calls, Fleet
from tests.engine.own import OwnServer
from tests.ledger.copies import full_disk, in_ledger, read_only, say
from tests.ledger.hurry import hurried
from tests.waiting import eventually
from timers.ledger import database as database_module
from timers.ledger.database import Database
from timers.ledger.schema import inbox

GAUGES = (
    "timers_ledger_up",
    "timers_inbox_seconds",
    "timers_ledger_waiting",
    "timers_ledger_lag_seconds",
    "timers_inbox_refused",
    "timers_ledger_share",
)
AWAY = {"sqlite": "sqlite+aiosqlite:////nowhere/ledger.db", "postgresql": "postgresql+asyncpg://u@127.0.0.1:1/x"}


async def told(api: Api) -> dict[str, float]:
    found = re.findall(r"^(timers_\w+) (\S+)$", await api.text("/metrics"), re.MULTILINE)
    return {name: float(value) for name, value in found if name in GAUGES}


async def warnings(api: Api) -> list[str]:
    reply = await api.call("GET", "/readyz")
    return [said for said in reply.body["warnings"] if "ledger" in said] if reply.status == 200 else ["unready"]


async def all_is_well(api: Api) -> None:
    async def look() -> bool:
        return await told(api) == dict(zip(GAUGES, (1, 0, 0, 0, 0, 1), strict=True)) and not await warnings(api)

    await eventually(look, "the ledger has all")


@contextmanager
def away(database: Database | None) -> Iterator[None]:
    """No connection of this pod can be opened."""
    assert database is not None
    engine, database.engine = database.engine, Database(AWAY[database.dialect]).engine
    try:
        yield
    finally:
        database.engine = engine


@pytest.fixture
async def api(fleet: Fleet, database: Database, ledger_url: str) -> AsyncIterator[Api]:
    assert database.dialect
    async with running_api(fleet.url, [done], works=True, ledger=ledger_url, options={"beat_ms": 50}) as api:
        yield api


async def test_a_pod_tells_how_far_a_ledger_that_is_away_is_behind(api: Api, fleet: Fleet) -> None:
    await all_is_well(api)
    with hurried(), away(api.client.ledger):
        await fleet.client.create("test", "x", delay="1h")

        async def behind() -> bool:
            now = await told(api)
            said = await warnings(api)
            return (
                (now["timers_ledger_up"], now["timers_ledger_waiting"]) == (0, 1)
                and now["timers_ledger_lag_seconds"] > 60
                and said[0].startswith("the ledger is not available: ")
                and said[1].endswith("s behind; 1 changes wait for this pod")
            )

        await eventually(behind, "the pod tells it and is ready")
    await all_is_well(api)


async def test_the_overview_says_that_the_ledger_is_away(fleet: Fleet, database: Database, ledger_url: str) -> None:
    assert database.dialect
    async with running_api(fleet.url, [done], ledger=ledger_url) as api:

        async def said() -> bool:
            async with api.session.get(api.server.url, headers={"Accept": "text/html"}) as shown:
                return "What has to be in the ledger is refused, such as new timers" in await shown.text()

        assert not await said()
        with away(api.client.ledger):
            await eventually(said, "the page says it though nobody asks the pod for anything")


async def test_a_pod_that_leads_no_shard_lacks_nothing(fleet: Fleet, database: Database) -> None:
    pods = [await fleet.pod(Calls(), name=name, ledger=database) for name in ("a", "b")]

    async def told() -> bool:
        leading = [pod for pod in pods if list(pod.worker.peers.led([0]))]
        shares = [pod.worker.health().ledger for pod in pods]
        return len(leading) == 1 and [known.share for known in shares if known is not None] == [1, 1]

    await eventually(told, "one pod leads the only shard, and no share is missing")


async def test_a_pod_without_a_worker_tells_whether_it_can_use_the_ledger(
    fleet: Fleet, database: Database, ledger_url: str
) -> None:
    assert database.dialect
    async with running_api(fleet.url, [done], ledger=ledger_url) as api:
        assert (await told(api), await warnings(api)) == ({"timers_ledger_up": 1, "timers_inbox_seconds": 0}, [])
        with away(api.client.ledger):

            async def noticed() -> bool:
                said = await warnings(api)
                return bool(said) and await told(api) == {"timers_ledger_up": 0}

            await eventually(noticed, "it tells though nobody asks it for anything")

        async def well() -> bool:
            return not await warnings(api) and (await told(api))["timers_ledger_up"] == 1

        await eventually(well, "it is well again")


@pytest.mark.parametrize("cut", [read_only, full_disk])
async def test_a_database_that_lets_nothing_be_written_is_told(
    fleet: Fleet,
    database: Database,
    ledger_url: str,
    cut: Callable[[Database], AbstractAsyncContextManager[None]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert database.dialect
    monkeypatch.setattr(database_module, "ROOM_SECONDS", 0.0)
    async with running_api(fleet.url, [done], ledger=ledger_url) as api:
        assert api.client.ledger is not None
        async with cut(api.client.ledger):

            async def noticed() -> bool:
                said = await warnings(api)
                return bool(said) and await told(api) == {"timers_ledger_up": 0, "timers_inbox_seconds": 0}

            await eventually(noticed, "it tells though it can read the inbox")

        async def well() -> bool:
            return not await warnings(api) and (await told(api))["timers_ledger_up"] == 1

        await eventually(well, "it is well again")


async def test_rows_of_the_inbox_that_no_worker_takes_are_told(
    fleet: Fleet, database: Database, ledger_url: str
) -> None:
    async with running_api(fleet.url, [done], ledger=ledger_url) as api:
        async with database.transaction() as connection:
            await connection.execute(inbox.insert(), {"prefix": "test", "id": "x", "action": "cancel", "at": 1000})

        async def waits() -> bool:
            return (await told(api))["timers_inbox_seconds"] > 60

        await eventually(waits, "the row waits")


async def test_a_pod_without_a_worker_takes_creates_and_stays_ready_while_redis_is_away(
    own: OwnServer, database: Database, ledger_url: str
) -> None:
    async with running_api(own.url, [done], ledger=ledger_url) as api:
        timer = {"prefix": "test", "id": "a", "delay": "1h"}
        assert (await api.call("POST", "/v1/timers", timer)).status == 201
        own.down()
        reply = await api.call("GET", "/readyz")
        assert (reply.status, reply.body["problems"]) == (200, [])
        assert reply.body["warnings"][0].endswith("; only new timers are taken, for the ledger")
        assert "timers_ready 1.0" in await api.text("/metrics")
        made = await api.call("POST", "/v1/timers", {**timer, "id": "b"})
        assert (made.status, made.body["armed"]) == (202, False)
        with away(api.client.ledger):
            assert (await api.call("GET", "/readyz")).status == 503
            assert "timers_ready 0.0" in await api.text("/metrics")
        await own.up()
    assert set(await in_ledger(database)) == {"test:a", "test:b"}


async def test_without_a_ledger_nothing_is_told_of_it(fleet: Fleet) -> None:
    async with running_api(fleet.url, [done], works=True) as api:
        assert await told(api) == {}
        assert await warnings(api) == []


async def test_the_lag_rises_in_every_shard_while_the_first_one_fails(
    sharded: Fleet, database: Database, ledger_url: str
) -> None:
    with hurried():
        async with running_api(sharded.url, [done], works=True, ledger=ledger_url, options={"beat_ms": 50}) as api:
            await all_is_well(api)
            async with database.transaction() as connection:
                await connection.execute(text("ALTER TABLE timers_timers RENAME TO away"))
            for number in range(30):
                await sharded.client.create("test", str(number), delay="1h")

            async def lags() -> bool:
                return (await told(api))["timers_ledger_lag_seconds"] > 600

            await eventually(lags, "it lags")
            async with database.transaction() as connection:
                await connection.execute(text("ALTER TABLE away RENAME TO timers_timers"))
            await all_is_well(api)


async def test_a_shard_that_is_not_copied_yet_counts_as_behind(api: Api, fleet: Fleet) -> None:
    await all_is_well(api)
    with hurried(), away(api.client.ledger):
        await say(fleet.store, 0, "restore -")

        async def lags() -> bool:
            return (await told(api))["timers_ledger_lag_seconds"] > 60

        await eventually(lags, "it lags though no change waits")
    await all_is_well(api)


async def test_a_database_that_never_answers_is_noticed(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database_module, "BUSY_SECONDS", -1)
    said = [database.trouble]
    async with database.transaction():
        said.append(database.trouble)
    said.append(database.trouble)
    assert said == [None, "the ledger is not available: no answer for 0 s", None]


async def test_a_refused_create_is_looked_into_at_once(
    fleet: Fleet, database: Database, ledger_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database_module, "ROOM_SECONDS", 3600.0)
    async with running_api(fleet.url, [done], ledger=ledger_url) as api:
        assert api.client.ledger is not None
        await api.client.ledger.ping()
        async with full_disk(api.client.ledger):
            (await api.create("x", payload="x" * 60_000)).problem(503, "ledger-unavailable")

            async def noticed() -> bool:
                return bool(await warnings(api)) and (await told(api))["timers_ledger_up"] == 0

            await eventually(noticed, "it tells, and goes on telling")
            assert await noticed()
    assert database.dialect
