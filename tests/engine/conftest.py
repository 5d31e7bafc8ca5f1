"""Fixtures of the engine's tests, which run on Redis and on Valkey."""

import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import structlog
from redis.asyncio import Redis

from tests.conftest import SharedServers
from tests.engine.fleet import Fleet
from tests.engine.own import OwnServer
from tests.rights import as_user, grant, refused
from tests.topologies import Place, servers_of
from timers.embedded import Family


@pytest.fixture(autouse=True)
def _short_logs() -> Iterator[None]:
    """Keeps the log of a failed test short: warnings and errors, and tracebacks without source and locals."""
    before = structlog.get_config()
    renderer = structlog.dev.ConsoleRenderer(colors=False, exception_formatter=structlog.dev.plain_traceback)
    structlog.configure(
        processors=[structlog.processors.add_log_level, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
    )
    yield
    structlog.configure(**before)


@pytest.fixture
async def server(servers: SharedServers, family: Family) -> AsyncIterator[Place]:
    """Something shared and empty for tests that leave it alive. Its settings are restored afterwards."""
    place = await servers.place(family)
    async with AsyncExitStack() as ends:
        each = [await ends.enter_async_context(Redis.from_url(url)) for url in servers_of(place)]
        for redis in each:
            await redis.config_set("notify-keyspace-events", "Ex")
            await grant(redis, 0)
        yield place
        for redis in each:
            await redis.config_set("notify-keyspace-events", "Ex")
            assert await refused(redis) == set()


@pytest.fixture
async def fleet(server: Place) -> AsyncIterator[Fleet]:
    """A fleet whose pods have the least rights. After the test it drains them and checks conservation."""
    made = await Fleet.over(server.url, pods_url=as_user(server.url))
    yield made
    await made.close()


@pytest.fixture
async def sharded(server: Place) -> AsyncIterator[Fleet]:
    """A fleet on a db with four shards."""
    made = await Fleet.over(server.url, shards=4, pods_url=as_user(server.url))
    yield made
    await made.close()


@pytest.fixture
async def own(family: Family, tmp_path: Path) -> AsyncIterator[OwnServer]:
    """A server that the test may crash."""
    server = OwnServer(family, tmp_path)
    await server.up()
    yield server
    server.down()
