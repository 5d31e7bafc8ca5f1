"""The back ends of the store's suite: fakeredis, which runs the scripts on a clock that tests set, and real servers."""

import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final, Literal, get_args

from fakeredis import FakeAsyncRedis, FakeServer

from tests.conftest import SharedServers
from tests.conservation import conserved
from timers.embedded import Family
from timers.store.connect import Connections, connect
from timers.store.store import Store

Backend = Literal["fake", "redis", "valkey"]
BACKENDS: Final[tuple[Backend, ...]] = get_args(Backend)


def _sha1hex(value: bytes) -> bytes:
    return hashlib.sha1(value, usedforsecurity=False).hexdigest().encode()


async def fake_connections() -> Connections:
    """An empty fake server. It lacks `redis.sha1hex`, which is added to its Lua."""
    server = FakeServer()
    redis = FakeAsyncRedis(server=server)
    await redis.eval("return 1", 0)
    lua: Any = vars(server)["_lua_runtime"]
    lua.eval("function(f) redis.sha1hex = f end")(_sha1hex)
    return Connections(redis, redis, 0)


@asynccontextmanager
async def real_connections(servers: SharedServers, family: Family) -> AsyncIterator[Connections]:
    """The family's shared server with its db emptied."""
    connections = connect((await servers.of(family)).url)
    try:
        await connections.commands.flushdb()
        yield connections
    finally:
        await connections.close()


@asynccontextmanager
async def open_store(servers: SharedServers, backend: Backend, *, shards: int = 1) -> AsyncIterator[Store]:
    """An empty store; what the test leaves in it must be conserved."""
    if backend == "fake":
        store = Store(await fake_connections(), shards=shards)
        yield store
        await conserved(store)
    else:
        async with real_connections(servers, backend) as connections:
            store = Store(connections, shards=shards)
            yield store
            await conserved(store)
