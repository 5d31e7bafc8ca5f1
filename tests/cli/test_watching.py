"""The live view of `timers watch`, in a terminal."""

import asyncio
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis import Redis

from tests.cli.commands import CommandLine
from tests.cli.terminal import HOME, Terminal
from tests.members import declare_at
from tests.records import divided
from tests.servers import start_server
from tests.waiting import eventually
from timers import TimerClient
from timers.embedded import EmbeddedServer


async def create(timers: CommandLine, timer_id: str, after: str, prefix: str = "log") -> None:
    assert (await asyncio.to_thread(timers, "create", prefix, timer_id, "--in", after)).code == 0


@pytest.fixture
def terminal(server: EmbeddedServer, redis: Redis) -> Iterator[Terminal]:
    redis.ping()
    made = Terminal("watch", "--prefix", "log", TIMERS_REDIS_URL=server.url)
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
    await terminal.until("paused", "p resumes")
    await create(timers, "sooner", "30m")
    looks = terminal.shown.count(HOME)

    async def more_looks() -> bool:
        return terminal.shown.count(HOME) >= looks + 2

    await eventually(more_looks, "two looks later")
    assert "log:sooner" not in terminal.page
    terminal.press("p")
    await terminal.until("p pauses", "log:sooner")

    terminal.press("q")
    assert terminal.end() == 0
    assert terminal.shown.count(b"\x1b[?1049h") == terminal.shown.count(b"\x1b[?1049l") == 1
    assert terminal.settings == terminal.before


async def test_a_small_terminal_shows_every_part(server: EmbeddedServer, timers: CommandLine, redis: Redis) -> None:
    redis.ping()
    for number in range(3):
        await create(timers, f"a-timer-with-a-name-that-is-too-long-for-it-{number}", f"{number + 1}h")
    terminal = Terminal("watch", rows=22, columns=40, TIMERS_REDIS_URL=server.url)
    try:
        page = await terminal.until("scheduled 3", "cancelled 0", "the last hour", "due next", "log:a-timer", "failed")
        lines = page.replace("\r", "").split("\n")
        assert max(map(len, lines)) <= 40
        assert len(lines) <= 22
        assert [line for line in lines if line.startswith("failed  ")]
        terminal.press("q")
        assert terminal.end() == 0
    finally:
        terminal.close()


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
async def test_signals_end_the_view_too(terminal: Terminal, sent: signal.Signals) -> None:
    await terminal.until("q quits")
    terminal.send(sent)
    assert terminal.end() == 0
    assert terminal.shown.count(b"\x1b[?1049h") == terminal.shown.count(b"\x1b[?1049l") == 1
    assert terminal.settings == terminal.before


async def test_failures_are_shown_with_their_reason(server: EmbeddedServer, timers: CommandLine, redis: Redis) -> None:
    """Text from a processor cannot control the terminal."""
    await create(timers, "broken", "1h")
    error = '{"last_error":{"type":"ValueError","reason":"no \\u001b[2J such user","detail":"","at":1,"attempt":1}}'
    (bucket,) = redis.keys("timers:{0}:rec:*")
    with Redis.from_url(server.url) as binary:
        head, (spec, _, *history) = divided(binary.hget(bucket, "log:broken"))
        failed = head.replace(b"2 s", b"2 f", 1) + b"\n".join([spec, error.encode(), *history])
        binary.hset(bucket, "log:broken", failed)
    redis.zrem("timers:{0}:due:log", "broken")
    redis.zadd("timers:{0}:finished:f:log", {"broken": 1_795_000_000_000})
    redis.hset("timers:{0}:counts", mapping={"f log": 1})
    redis.hdel("timers:{0}:counts", "s log")
    terminal = Terminal("watch", TIMERS_REDIS_URL=server.url)
    try:
        await terminal.until("log:broken", "ValueError: no", "such user")
        assert b"\x1b[2J such" not in terminal.shown
        terminal.press("q")
        assert terminal.end() == 0
    finally:
        terminal.close()


async def test_a_lost_redis_is_reported_while_the_last_look_stays(tmp_path: Path) -> None:
    server = await start_server("redis", tmp_path)
    await declare_at(server.url, "log")
    async with TimerClient(server.url) as client:
        await client.create("log", "a", delay="1h")
    terminal = Terminal("watch", TIMERS_REDIS_URL=server.url)
    try:
        await terminal.until("log:a")
        server.kill()
        await terminal.until("Redis is not available", "log:a")
        terminal.press("q")
        assert terminal.end() == 0
    finally:
        terminal.close()
        server.kill()
