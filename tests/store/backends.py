"""The back ends of the store's suite: fakeredis, which runs the scripts on a clock that tests set, and real servers."""

import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final, Literal, get_args

from fakeredis import FakeAsyncRedis, FakeServer

from tests.conftest import SharedServers
from tests.conservation import conserved
from tests.servers import Kind
from timers.store.connect import Connections, connect
from timers.store.store import Store

Backend = Literal["fake", "redis", "valkey", "cluster"]
BACKENDS: Final[tuple[Backend, ...]] = get_args(Backend)


def _sha1hex(value: bytes) -> bytes:
    return hashlib.sha1(value, usedforsecurity=False).hexdigest().encode()


class _FlaggedLua:
    """The fake server's Lua, which takes a script whose first line is its flags, as Redis does."""

    def __init__(self, lua: Any) -> None:
        self._lua = lua

    def execute(self, script: Any) -> Any:
        return self._lua.execute(script.partition(b"\n")[2] if script[:2] == b"#!" else script)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lua, name)


async def fake_connections() -> Connections:
    """An empty fake server. It lacks `redis.sha1hex`, which is added to its Lua, and the flags of scripts."""
    server = FakeServer()
    redis = FakeAsyncRedis(server=server)
    await redis.eval("return 1", 0)
    lua: Any = vars(server)["_lua_runtime"]
    lua.eval("function(f) redis.sha1hex = f end")(_sha1hex)
    vars(server)["_lua_runtime"] = _FlaggedLua(lua)
    return Connections(redis, redis, 0)


@asynccontextmanager
async def real_connections(servers: SharedServers, kind: Kind) -> AsyncIterator[Connections]:
    """The shared server of that kind with its db emptied."""
    connections = connect((await servers.of(kind)).url)
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
