"""The store suite's backends: fakeredis, which runs the scripts on a clock that tests set, and real servers."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Literal

from tests.conftest import SharedServers
from tests.conservation import conserved
from tests.servers import Kind
from tests.waiting import DEADLINE_SECONDS
from timers.store.servers import connect
from timers.store.servers.connections import Connections
from timers.store.store import Store
from timers.testing.fake import fake_connections

Backend = Literal["fake", "redis", "valkey", "cluster"]


@asynccontextmanager
async def real_connections(servers: SharedServers, kind: Kind) -> AsyncIterator[Connections]:
    """Connections to the shared server of this kind, emptied."""
    connections = connect((await servers.place(kind)).url, answer_timeout_seconds=DEADLINE_SECONDS)
    try:
        yield connections
    finally:
        await connections.close()


@asynccontextmanager
async def open_store(servers: SharedServers, backend: Backend, *, shards: int = 1) -> AsyncIterator[Store]:
    """An empty store. After the test, its content must be conserved."""
    if backend == "fake":
        store = Store(fake_connections(), shards=shards)
        yield store
        await conserved(store)
    else:
        async with real_connections(servers, backend) as connections:
            store = Store(connections, shards=shards)
            yield store
            await conserved(store)
