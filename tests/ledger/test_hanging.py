"""A database that hangs: its connections stay open, and nothing comes."""

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import closing, suppress
from pathlib import Path

import pytest
from sqlalchemy import text

from tests import postgres
from tests.api.conftest import done
from tests.api.harness import running_api
from tests.engine.fleet import until
from tests.engine.own import OwnServer
from tests.waiting import DEADLINE_SECONDS, eventually
from timers.errors import LedgerUnavailable
from timers.ledger.database import CONNECTIONS, Database

TIMER = {"prefix": "test", "delay": "1h"}


class Way:
    """The way to PostgreSQL, which can be cut without a sign."""

    def __init__(self, url: str) -> None:
        self._url, _, self._server = url.partition("?host=")
        self._folder = tempfile.mkdtemp()
        self.open = asyncio.Event()
        self.open.set()
        self._links = set[asyncio.Task[None]]()
        self.opened = 0
        self.held = 0
        """How many connections were accepted, and how many pieces had to wait."""

    @property
    def url(self) -> str:
        return f"{self._url}?host={self._folder}"

    async def __aenter__(self) -> "Way":
        self._listening = await asyncio.start_unix_server(self._accept, Path(self._folder, ".s.PGSQL.5432"))
        return self

    async def __aexit__(self, *_: object) -> None:
        self._listening.close()
        for link in self._links:
            link.cancel()
        await asyncio.gather(*self._links, return_exceptions=True)
        shutil.rmtree(self._folder)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.opened += 1
        back, on = await asyncio.open_unix_connection(Path(self._server, ".s.PGSQL.5432"))
        for way in (self._pass(reader, on), self._pass(back, writer)):
            link = asyncio.create_task(way)
            self._links.add(link)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError), closing(writer):
            while data := await reader.read(1 << 16):
                self.held += not self.open.is_set()
                await self.open.wait()
                writer.write(data)


@pytest.fixture(params=["asyncpg", "psycopg"])
async def way(request: pytest.FixtureRequest) -> AsyncIterator[Way]:
    url = postgres.new_database(request.param)
    database = Database(url)
    await database.upgrade()
    await database.close()
    async with Way(url) as way:
        yield way


async def test_a_request_that_waits_for_the_ledger_is_told_so(own: OwnServer, way: Way) -> None:
    async with running_api(own.url, [done], ledger=way.url, request_seconds=1.0) as api:
        assert (await api.create("before")).status == 201
        way.open.clear()
        calls = (
            *(("POST", "/v1/timers", {**TIMER, "id": str(number)}) for number in range(3)),  # they share an access
            ("POST", "/v1/timers/batch", {"timers": [{**TIMER, "id": "batch"}]}),
            ("DELETE", "/v1/timers/test/before", None),
        )
        for reply in await asyncio.gather(*(api.call(*call) for call in calls)):
            assert reply.problem(503, "ledger-unavailable")["detail"] == "the ledger did not answer within 1 seconds"
        assert (await api.call("GET", "/v1/timers/test/before")).status == 200
        own.hang()
        (await api.call("GET", "/v1/timers")).problem(503, "unavailable")
        own.go_on()
        way.open.set()

        async def serves() -> bool:
            return (await api.create("after")).status in (201, 409)

        await eventually(serves, "it serves again")


@pytest.mark.parametrize("connected", [False, True])
async def test_a_call_that_gets_no_answer_ends_and_the_next_one_works(
    way: Way, connected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = Database(way.url)
    if connected:
        await asyncio.gather(*(database.ping() for _ in range(CONNECTIONS)))
    way.open.clear()
    with monkeypatch.context() as hurried:  # the server itself may take longer on a busy machine
        hurried.setattr("timers.ledger.database.LONGEST_SECONDS", 0.2)
        calls = [asyncio.create_task(database.ping()) for _ in range(CONNECTIONS)]
        await until(lambda: all(call.done() for call in calls), "they end")
    assert {str(call.exception()) for call in calls} == {"the ledger is not available: no answer for 0.2 s"}
    way.open.set()
    await database.ping()
    await database.close()


async def test_a_call_that_is_cancelled_ends_although_the_server_is_asked_in_vain(
    way: Way, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("timers.ledger.database.END_SECONDS", 0.2)
    database = Database(way.url)
    await database.ping()
    way.open.clear()
    call = asyncio.create_task(database.ping())
    await until(lambda: way.held > 0, "it waits")
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    assert way.opened == 2
    way.open.set()
    await database.ping()
    await database.close()


@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
async def test_a_call_that_is_given_up_does_not_go_on_waiting_for_a_lock(
    driver: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each left a connection of the server behind, until it accepted no others."""
    database = Database(postgres.new_database(driver))
    await database.upgrade()
    async with database.transaction() as application:
        await application.execute(text("LOCK TABLE timers_timers"))
        with monkeypatch.context() as hurried:
            hurried.setattr("timers.ledger.database.LONGEST_SECONDS", 0.2)
            hurried.setattr("timers.ledger.database.END_SECONDS", DEADLINE_SECONDS)
            with pytest.raises(LedgerUnavailable, match=r"no answer for 0\.2 s"):
                await database.ping()
        waiting = text("SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'timers_timers'::regclass")
        assert await application.scalar(waiting) == 0
    await database.ping()
    await database.close()
