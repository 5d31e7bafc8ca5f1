"""The live view of `timers watch`, in a terminal of its own."""

import asyncio
import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from redis import Redis

from tests.cli.commands import END_SECONDS, CommandLine, clean_environment
from tests.members import declare_at
from tests.servers import start_server
from tests.waiting import eventually
from timers import TimerClient
from timers.embedded import EmbeddedServer

ROWS, COLUMNS = 40, 110
_ESCAPES: Final = re.compile(rb"\x1b\[[0-9;?]*[A-Za-z]")
_HOME: Final = b"\x1b[H"


class Terminal:
    """`timers watch` in a terminal: what it shows, and a keyboard."""

    def __init__(self, *arguments: str, **settings: str) -> None:
        self._ours, self._theirs = pty.openpty()
        fcntl.ioctl(self._theirs, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        os.set_blocking(self._ours, False)
        self.before = termios.tcgetattr(self._theirs)
        self._shown = b""
        environment = {"PYTHONPATH": str(Path(__file__).parents[2]), "TERM": "xterm-256color", **settings}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "timers", "watch", *arguments],
            env=clean_environment(environment),
            stdin=self._theirs,
            stdout=self._theirs,
            stderr=self._theirs,
        )

    @property
    def shown(self) -> bytes:
        """All that was written, with what moves the cursor."""
        while True:
            try:
                self._shown += os.read(self._ours, 65536)
            except BlockingIOError:
                return self._shown

    @property
    def page(self) -> str:
        """The newest whole look."""
        looks = self.shown.split(_HOME)
        return _ESCAPES.sub(b"", looks[-2] if len(looks) > 2 else looks[-1]).decode(errors="replace")

    async def until(self, *words: str) -> str:
        async def look() -> str | None:
            page = self.page
            return page if all(word in page for word in words) else None

        try:
            return await eventually(look, f"{words} are shown")
        except AssertionError:
            raise AssertionError(self.page) from None

    def press(self, key: str) -> None:
        os.write(self._ours, key.encode())

    def interrupt(self) -> None:
        self._process.send_signal(signal.SIGINT)

    def end(self) -> int:
        code = self._process.wait(END_SECONDS)
        assert self.shown is not None
        return code

    @property
    def settings(self) -> list[Any]:
        """How the terminal treats what is typed."""
        return termios.tcgetattr(self._theirs)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._ours)
        os.close(self._theirs)


async def create(timers: CommandLine, timer_id: str, after: str, prefix: str = "log") -> None:
    assert (await asyncio.to_thread(timers, "create", prefix, timer_id, "--in", after)).code == 0


@pytest.fixture
def terminal(server: EmbeddedServer, redis: Redis) -> Iterator[Terminal]:
    redis.ping()
    made = Terminal("--prefix", "log", TIMERS_REDIS_URL=server.url)
    yield made
    made.close()


async def test_the_view_shows_what_is_due_and_failed_pauses_and_leaves_the_terminal_as_it_was(
    terminal: Terminal, timers: CommandLine, redis: Redis
) -> None:
    await create(timers, "in-an-hour", "1h")
    await create(timers, "of-another-prefix", "1m", prefix="test")
    page = await terminal.until("No worker is alive", "log:in-an-hour", "in 59 m", "fired a minute", "notifications")
    assert "of-another-prefix" not in page
    assert "scheduled" in page

    terminal.press("p")
    await terminal.until("paused", "p goes on")
    await create(timers, "sooner", "30m")
    looks = terminal.shown.count(_HOME)

    async def more_looks() -> bool:
        return terminal.shown.count(_HOME) >= looks + 2

    await eventually(more_looks, "two looks later")
    assert "log:sooner" not in terminal.page
    terminal.press("p")
    await terminal.until("p pauses", "log:sooner")

    terminal.press("q")
    assert terminal.end() == 0
    assert terminal.shown.count(b"\x1b[?1049h") == terminal.shown.count(b"\x1b[?1049l") == 1
    assert terminal.settings == terminal.before


async def test_ctrl_c_ends_the_view_too(terminal: Terminal) -> None:
    await terminal.until("q quits")
    terminal.interrupt()
    assert terminal.end() == 0
    assert terminal.settings == terminal.before


async def test_failures_are_shown_with_their_reason(server: EmbeddedServer, timers: CommandLine, redis: Redis) -> None:
    """Nothing that a processor said can steer the terminal."""
    await create(timers, "broken", "1h")
    error = '{"last_error":{"type":"ValueError","reason":"no \\u001b[2J such user","detail":"","at":1,"attempt":1}}'
    (bucket,) = redis.keys("timers:{0}:rec:*")
    head, spec, _, *history = str(redis.hget(bucket, "log:broken")).split("\n")
    redis.hset(bucket, "log:broken", "\n".join([head.replace("1 s ", "1 f ", 1), spec, error, *history]))
    redis.zrem("timers:{0}:due:log", "broken")
    redis.zadd("timers:{0}:finished:f:log", {"broken": 1_795_000_000_000})
    redis.hset("timers:{0}:counts", mapping={"f log": 1})
    redis.hdel("timers:{0}:counts", "s log")
    terminal = Terminal(TIMERS_REDIS_URL=server.url)
    try:
        await terminal.until("log:broken", "ValueError: no", "such user")
        assert b"\x1b[2J such" not in terminal.shown
        terminal.press("q")
        assert terminal.end() == 0
    finally:
        terminal.close()


async def test_a_redis_that_goes_away_is_told_while_the_last_look_stays(tmp_path: Path) -> None:
    server = await start_server("redis", tmp_path)
    await declare_at(server.url, "log")
    async with TimerClient(server.url) as client:
        await client.create("log", "a", delay="1h")
    terminal = Terminal(TIMERS_REDIS_URL=server.url)
    try:
        await terminal.until("log:a")
        server.kill()
        await terminal.until("Redis is not available", "log:a")
        terminal.press("q")
        assert terminal.end() == 0
    finally:
        terminal.close()
        server.kill()
