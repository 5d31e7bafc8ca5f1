"""Fixtures of the engine's tests: the same tests on both families of servers."""

import logging
from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio
import structlog
from redis.asyncio import Redis

from tests.engine.fleet import Fleet
from tests.servers import FAMILIES, ServerHandle, binary_for, start_server
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
    """For tests that start and kill servers of their own."""
    binary_for(request.param)
    found: Family = request.param
    return found


@pytest_asyncio.fixture(scope="session", loop_scope="session", params=FAMILIES)
async def running_server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[ServerHandle]:
    """One server for all tests that leave it alive."""
    async with await start_server(request.param, tmp_path_factory.mktemp(request.param)) as server:
        yield server


@pytest.fixture
async def server(running_server: ServerHandle) -> ServerHandle:
    """That server, empty and with its settings as they were."""
    async with Redis.from_url(running_server.url) as redis:
        await redis.flushall()
        await redis.config_set("notify-keyspace-events", "Ex")
    return running_server


@pytest.fixture
async def fleet(server: ServerHandle) -> AsyncIterator[Fleet]:
    """A fleet of pods; after the test they are drained and the db's books must balance."""
    made = await Fleet.over(server.url)
    yield made
    await made.close()
