"""Fixtures of the engine's tests: the same tests on both families of servers."""

import logging
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import structlog
from redis.asyncio import Redis

from tests.conftest import SharedServers
from tests.engine.fleet import Fleet
from tests.engine.own import OwnServer
from tests.rights import as_user, grant, refused
from tests.servers import FAMILIES, ServerHandle
from timers.embedded import Family


@pytest.fixture(autouse=True)
def _short_logs() -> Iterator[None]:
    """What a failed test shows: warnings, and tracebacks without frames of source and locals."""
    before = structlog.get_config()
    renderer = structlog.dev.ConsoleRenderer(colors=False, exception_formatter=structlog.dev.plain_traceback)
    structlog.configure(
        processors=[structlog.processors.add_log_level, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
    )
    yield
    structlog.configure(**before)


@pytest.fixture(params=FAMILIES)
def family(request: pytest.FixtureRequest) -> Family:
    found: Family = request.param
    return found


@pytest.fixture
async def server(servers: SharedServers, family: Family) -> AsyncIterator[ServerHandle]:
    """A server for tests that leave it alive: empty, and its settings are put back afterwards."""
    shared = await servers.of(family)
    async with Redis.from_url(shared.url) as redis:
        await redis.flushdb()
        await redis.config_set("notify-keyspace-events", "Ex")
        await grant(redis, 0)
        yield shared
        await redis.config_set("notify-keyspace-events", "Ex")
        assert await refused(redis) == set()


@pytest.fixture
async def fleet(server: ServerHandle) -> AsyncIterator[Fleet]:
    """A fleet of pods that have the least rights; after the test they are drained and the db's books must balance."""
    made = await Fleet.over(server.url, pods_url=as_user(server.url))
    yield made
    await made.close()


@pytest.fixture
async def own(family: Family, tmp_path: Path) -> AsyncIterator[OwnServer]:
    """A server that the test may crash."""
    server = OwnServer(family, tmp_path)
    await server.up()
    yield server
    server.down()
