"""Shared by the API tests: one server per file, emptied before each test, and an API on top of it."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from redis.asyncio import Redis

from tests.api.harness import Api, running_api
from tests.servers import start_server
from tests.topologies import ONE_SERVER, Place, commands, empty
from tests.waiting import patient
from timers.client import open_store
from timers.core.model import Timer
from timers.embedded import EmbeddedServer
from timers.processor import Context, processor
from timers.store.servers import connect
from timers.store.store import Store


@processor("test")
async def done(_timer: Timer, _context: Context) -> None:
    """Do nothing."""


@pytest.fixture(scope="module")
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    if request.config.getoption("on") != ONE_SERVER:
        yield asyncio.run(request.getfixturevalue("servers").place("redis"))
        return
    started = asyncio.run(start_server("redis", tmp_path_factory.mktemp("server")))
    yield started
    asyncio.run(started.stop())


@pytest.fixture
async def own_server(tmp_path: Path) -> AsyncIterator[EmbeddedServer]:
    """A server that one test may freeze with SIGSTOP."""
    server = await start_server("redis", tmp_path)
    yield server
    os.kill(server.pid, signal.SIGCONT)
    await server.stop()


@pytest.fixture
async def redis(server: Place) -> AsyncIterator[Redis]:
    await empty(server)
    async with commands(server.url) as redis:
        yield redis


@pytest.fixture
async def store(server: Place, redis: Redis) -> AsyncIterator[Store]:
    """A store of the test's own."""
    await redis.ping()
    opened = await open_store(connect(patient(server.url)))
    yield opened
    await opened.connections.close()


@pytest.fixture
async def api(server: Place, redis: Redis) -> AsyncIterator[Api]:
    async with running_api(server.url, [done]) as running:
        yield running
