"""Shared by the command line's tests: one server per file, emptied before each test, and a clean environment."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from redis import Redis

from tests.api.conftest import server
from tests.cli.commands import CommandLine, Process
from timers.embedded import EmbeddedServer

__all__ = ["server"]


@pytest.fixture
def redis(server: EmbeddedServer) -> Iterator[Redis]:
    with Redis.from_url(server.url, decode_responses=True) as connection:
        connection.flushall()
        yield connection


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> CommandLine:
    """The command without any setting, in an empty folder."""
    for name in os.environ:
        if name.startswith("TIMERS_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("TIMERS_REDIS_URL", "")  # so that what --url sets there is undone after the test
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setenv("COLUMNS", "200")
    return CommandLine(monkeypatch, capsys)


@pytest.fixture
def timers(bare: CommandLine, server: EmbeddedServer, redis: Redis) -> CommandLine:
    """The command against the file's server, in which the tests' prefixes are declared."""
    redis.hset("timers:{pods}:declared", mapping=dict.fromkeys(("test", "log"), "1 before"))
    bare.monkeypatch.setenv("TIMERS_REDIS_URL", server.url)
    return bare


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Process]]:
    """Starts the command as a process. Kills what still runs when the test ends."""
    started: list[Process] = []

    def begin(*arguments: str, **settings: str) -> Process:
        folder = tmp_path / f"process-{len(started)}"
        folder.mkdir()
        started.append(Process(folder, *arguments, **settings))
        return started[-1]

    yield begin
    for process in started:
        process.kill()
