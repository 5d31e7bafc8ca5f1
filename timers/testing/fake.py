"""Owns the fake server: fakeredis, which runs the service's own scripts on a clock that the test moves.

It publishes no `expired` event, so the lab itself looks for what is due. Servers with different clocks may be used side
by side, in one thread or several.
"""

import asyncio
import hashlib
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any, Final, cast
from unittest.mock import patch

from fakeredis import FakeAsyncRedis, FakeRedis, FakeServer

from timers.store.servers.connections import Connections, Scripts
from timers.store.servers.durability import Command, WaitLevel, Write, Written

_CLOCKS: Final = (
    "fakeredis._helpers.time",
    "fakeredis.commands_mixins.server_mixin.time",
    "fakeredis._socket._base.time",
)
"""The places where fakeredis asks for the time."""


class _Now(threading.local):
    """What the time is for the fake server whose command this thread executes. None between commands."""

    clock: Callable[[], float] | None = None


_now: Final = _Now()


def _time() -> float:
    return time.time() if _now.clock is None else _now.clock()


class _Clocked:
    """A fake server's lock, which it holds for each command. Meanwhile the thread has the server's clock."""

    def __init__(self, lock: threading.Lock, now_s: Callable[[], float]) -> None:
        self._lock, self._now_s = lock, now_s

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        taken = self._lock.acquire(blocking, timeout)
        if taken:
            _now.clock = self._now_s
        return taken

    def release(self) -> None:
        _now.clock = None
        self._lock.release()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


def server_on_clock(now_s: Callable[[], float]) -> FakeServer:
    """An empty fake server with this clock, in seconds since the epoch, while `clocks` are there."""
    server: Any = FakeServer()
    server.lock = _Clocked(server.lock, now_s)
    return cast("FakeServer", server)


@contextmanager
def clocks() -> Iterator[None]:
    """Have fakeredis ask each server's own clock. Those without one have the machine's."""
    module = SimpleNamespace(**{**vars(time), "time": _time})
    with ExitStack() as patches:
        for name in _CLOCKS:
            patches.enter_context(patch(name, module))
        yield


class _FlaggedLua:
    """The fake server's Lua. Like Redis, it accepts a script whose first line holds its flags, compiles it once, and
    does not free all that the script left before it answers."""

    def __init__(self, lua: Any) -> None:
        self._lua = lua
        self._compiled: dict[bytes, Callable[[], Any]] = {}

    def execute(self, script: bytes | str) -> Any:
        if isinstance(script, str):  # `collectgarbage()`, which fakeredis adds to each script
            return None
        compiled = self._compiled.get(script)
        if compiled is None:
            text = script.partition(b"\n")[2] if script[:2] == b"#!" else script
            compiled = self._compiled[script] = self._lua.eval(b"function() " + text + b"\nend")
        return compiled()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lua, name)


def _sha1hex(value: bytes) -> bytes:
    return hashlib.sha1(value, usedforsecurity=False).hexdigest().encode()


def _pack(form: bytes, *numbers: float) -> bytes:
    return struct.pack(_python(form), *map(int, numbers))


def _unpack(form: bytes, data: bytes, start: int) -> tuple[float, ...]:
    return tuple(map(float, struct.unpack_from(_python(form), data, start - 1)))


def _python(form: bytes) -> str:
    """The form of a struct as Python writes it."""
    return form.decode().replace("I4", "I").replace("I8", "Q")


def fake_connections(server: FakeServer | None = None) -> Connections:
    """Connections to a fake server, by default an empty one. Its Lua lacks `redis.sha1hex`, `redis.acl_check_cmd`,
    `struct` and the flags of scripts, so this adds them. Its user may do everything."""
    server = server or FakeServer()
    FakeRedis(server=server).eval("return 1", 0)
    lua: Any = vars(server)["_lua_runtime"]
    lua.eval("function(f) redis.sha1hex = f end")(_sha1hex)
    lua.execute("redis.acl_check_cmd = function() return true end; struct = {}")
    lua.eval("function(pack, unpack) struct.pack, struct.unpack = pack, unpack end")(_pack, _unpack)
    vars(server)["_lua_expected_globals"].add(b"struct")
    vars(server)["_lua_runtime"] = _FlaggedLua(lua)
    redis = FakeAsyncRedis(server=server)
    # It has no socket that a connection of scripts could take over, and neither disk nor replicas.
    return _FakeConnections(redis, 0, cast("Scripts", redis))


class _FakeConnections(Connections):
    """Those to a server whose disk and replicas have everything at once."""

    def durable(self, level: WaitLevel) -> Write:
        return self._write

    async def _write(self, commands: Sequence[Command]) -> list[Written]:
        redis: Any = self.commands
        asked = (redis.execute_command(*command) for command in commands)
        return [(answer, True) for answer in await asyncio.gather(*asked, return_exceptions=True)]

    async def lacks(self, level: WaitLevel, root: str = "") -> str:
        return ""
