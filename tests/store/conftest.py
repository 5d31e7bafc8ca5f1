"""The store suite's fixtures: `store` on every backend, `real` on real servers, `frozen` on a clock that tests set."""

from collections.abc import AsyncIterator, Iterator

import pytest
import time_machine

from tests.conftest import SharedServers
from tests.servers import Kind
from tests.store.backends import Backend, open_store
from timers.store.store import Store


@pytest.fixture
async def store(servers: SharedServers, backend: Backend) -> AsyncIterator[Store]:
    """An empty store of one shard, on each backend."""
    async with open_store(servers, backend) as opened:
        yield opened


@pytest.fixture
async def real(servers: SharedServers, kind: Kind) -> AsyncIterator[Store]:
    """An empty store of one shard, on each real server."""
    async with open_store(servers, kind) as opened:
        yield opened


@pytest.fixture
def clock() -> Iterator[time_machine.Traveller]:
    """A clock that only the test moves: `clock.shift(seconds)`. Real servers do not see it."""
    with time_machine.travel(1_795_000_000, tick=False) as traveller:
        yield traveller


@pytest.fixture
async def frozen(servers: SharedServers, clock: time_machine.Traveller) -> AsyncIterator[Store]:
    """An empty store on the fake server, whose time is that of `clock`."""
    async with open_store(servers, "fake") as opened:
        yield opened
