"""Real servers for the tests: finds the programs, and starts servers that a test may kill and restart.

A server's data is in the test's own folder, so starting with the same folder again is a restart.
"""

import os
import socket
from collections import deque
from contextlib import suppress
from functools import cache
from pathlib import Path
from random import SystemRandom
from typing import Any, Final, Literal, get_args

import pytest
from redis.asyncio import Redis

from tests.waiting import eventually
from timers.embedded import EmbeddedServer, Family, usable_binaries

FAMILIES: tuple[Family, ...] = ("redis", "valkey")

Kind = Literal["redis", "valkey", "cluster"]
"""A server of a family, or the one node of a cluster, which refuses a script a second hash slot."""
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)

FORGETFUL: Final = ("--appendonly", "no")
"""Arguments of a server that no test restarts: writing down each command takes a fifth of a test's time."""

_CHANCE: Final = SystemRandom()
"""Not the generator that tests seed, or all would try the same ports."""

_given: Final = deque[int](maxlen=500)
"""Ports that this process had last: whoever gets one may not listen yet, and a cluster asks for twelve at once."""

ServerHandle = EmbeddedServer
"""`url`, `family`, `version`, `pid`; `await stop()` ends it in order, `kill()` as a crash would."""


@cache
def _found() -> dict[Family, Path]:
    best_last = reversed(list(usable_binaries()))
    return {binary.family: binary.path for binary in best_last}


def binary_for(family: Family) -> Path:
    """The server program of this family. Without one the test is skipped, or fails if CI is set."""
    path = _found().get(family)
    if path is None:
        reason = f"no {family}-server 7 or newer on this machine"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    return path


async def start_server(family: Family, data_dir: Path, *options: str, **timeouts: float) -> ServerHandle:
    """Start a server of this family with the embedded server's settings and then `options` (`"--port", "7001"`)."""
    return await EmbeddedServer.start(data_dir, binary_for(family), options, **timeouts)


async def start_kind(kind: Kind, data_dir: Path, *options: str) -> ServerHandle:
    """As `start_server`. The only node of a cluster gets all hash slots."""
    if kind != "cluster":
        return await start_server(kind, data_dir, *options)
    bus = ("--cluster-port", str(free_port()))
    server = await start_server("redis", data_dir, "--cluster-enabled", "yes", *bus, *options)
    redis: Any = Redis.from_url(server.url)

    async def is_ok() -> bool:
        return bool((await redis.execute_command("CLUSTER INFO"))["cluster_state"] == "ok")

    async with redis:
        await redis.execute_command("CLUSTER ADDSLOTSRANGE", 0, 16383)
        await eventually(is_ok, "the cluster takes commands")
    return server


def free_port() -> int:
    """A port that nobody uses, from below those that the system hands out by itself: one of these might be taken again
    before the server listens. Each worker of pytest-xdist has its own two thousand."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw10").removeprefix("gw")) % 11
    first = 10_000 + 2_000 * worker
    while True:
        port = _CHANCE.choice([each for each in range(first, first + 2_000) if each not in _given])
        _given.append(port)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
