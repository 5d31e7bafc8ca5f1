"""The fixtures of the engine's tests: Redis and Valkey servers, and a fleet whose books must balance after a test."""

from collections.abc import AsyncIterator

import pytest

from tests.engine.conftest import _short_logs, family, fleet, server
from tests.engine.fleet import Fleet
from tests.rights import as_user
from tests.servers import ServerHandle

__all__ = ["_short_logs", "family", "fleet", "server", "sharded"]


@pytest.fixture
async def sharded(server: ServerHandle) -> AsyncIterator[Fleet]:
    """A fleet on a db with four shards."""
    made = await Fleet.over(server.url, shards=4, pods_url=as_user(server.url))
    yield made
    await made.close()
