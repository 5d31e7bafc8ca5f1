"""Real servers for the tests: which programs there are, and starting one that a test may kill and start again.

A server's data lie in the test's own folder, so that the same folder given twice is a restart.
"""

import os
from functools import cache
from pathlib import Path

import pytest

from timers.embedded import EmbeddedServer, Family, usable_binaries

FAMILIES: tuple[Family, ...] = ("redis", "valkey")

ServerHandle = EmbeddedServer
"""`url`, `family`, `version`, `pid`; `await stop()` ends it in order, `kill()` as a crash would."""


@cache
def _found() -> dict[Family, Path]:
    best_last = reversed(list(usable_binaries()))
    return {binary.family: binary.path for binary in best_last}


def binary_for(family: Family) -> Path:
    """The server program of that family. Without one the test fails where CI is set, and elsewhere is skipped."""
    path = _found().get(family)
    if path is None:
        reason = f"no {family}-server 7 or newer on this machine"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    return path


async def start_server(family: Family, data_dir: Path, *options: str) -> ServerHandle:
    """A server of that family with the embedded server's settings, then `options` (`"--port", "7001"`)."""
    return await EmbeddedServer.start(data_dir, binary_for(family), options)
