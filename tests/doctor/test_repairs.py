"""The commands that the doctor gives, typed as written, fix the finding."""

import asyncio
import os
import re
import shutil
import sys
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import pytest
from redis.asyncio import Redis
from redis.exceptions import ResponseError

from tests.cli.commands import Process, clean_environment
from tests.doctor.setups import (
    Break,
    alive,
    displace,
    fail_to_save,
    fill_up,
    found,
    lose,
    lose_an_index,
    lose_every_index,
    made,
    miscount,
    opened,
    pause,
    save_again,
    saved,
    setting,
)
from tests.install.environment import ROOT
from tests.rights import USER, as_user, grant
from tests.servers import start_server
from tests.waiting import eventually
from timers.client import open_store
from timers.doctor.checks import Check
from timers.doctor.examining import unreachable
from timers.errors import Unavailable
from timers.store.servers import connect
from timers.store.store import Store

_CLIENT: Final = shutil.which("redis-cli")
NEEDS_CLIENT = pytest.mark.skipif(_CLIENT is None and not os.environ.get("CI"), reason="no redis-cli on this machine")


async def typed(check: Check, url: str, folder: Path) -> None:
    """Run a finding's commands in a shell whose `redis-cli` and `timers` use this server."""
    socket = unquote(urlsplit(url).path)
    programs = {"redis-cli": f"{_CLIENT} -e -s '{socket}'", "timers": f"{sys.executable} -m timers"}
    for name, command in programs.items():
        (folder / name).write_text(f'#!/bin/sh\nexec {command} "$@"\n')
        (folder / name).chmod(0o755)
    path = f"{folder}:{os.environ['PATH']}"
    environment = clean_environment({"PATH": path, "PYTHONPATH": str(ROOT), "TIMERS_REDIS_URL": url})
    commands = re.findall(r"`((?:redis-cli|timers) [^`]*)`", check.repair)
    assert commands, check
    for command in commands:
        process = await asyncio.create_subprocess_exec(
            "sh", "-c", command, env=environment, stdout=DEVNULL, stderr=PIPE
        )
        _, said = await process.communicate()
        assert process.returncode == 0 or "doctor" in command, (command, said.decode())


CASES: Final[Mapping[str, tuple[str, tuple[str, ...], Break | None]]] = {
    "flags": ("flags", ("--notify-keyspace-events", "K$"), None),
    "nothing is kept": ("persistence", ("--appendonly", "no"), None),
    "never flushed": ("persistence", ("--appendfsync", "no"), None),
    "evicts": ("eviction", ("--maxmemory", "1gb", "--maxmemory-policy", "volatile-ttl"), None),
    "nearly full": ("memory", (), fill_up),
    "short buffers": ("buffers", (), setting("client-output-buffer-limit", "pubsub 1mb 512kb 10")),
    "replicas that are away": ("replicas", (), setting("min-replicas-to-write", 1)),
    "a displaced key": ("foreign", (), displace),
    "lost data": ("data", (), lose),
    "a lost index": ("indexes", (), lose_an_index),
    "every index and count lost": ("indexes", (), lose_every_index),
    "wrong counts": ("indexes", (), miscount),
    "a paused prefix": ("paused", (), pause),
}


@NEEDS_CLIENT
@pytest.mark.parametrize("name", CASES)
async def test_typing_in_the_mend_of_a_finding_fixes_it(name: str, tmp_path: Path) -> None:
    check, options, spoil = CASES[name]
    async with await start_server("redis", tmp_path, *options) as server, opened(server.url) as store:
        await made(store)
        await alive(store)
        if spoil is not None:
            await spoil(store)
        wrong = await found(store, wait_seconds=0.2)
        await typed(wrong[check], server.url, tmp_path)
        assert check not in await found(store, wait_seconds=0.2)


@NEEDS_CLIENT
async def test_a_snapshot_that_succeeds_again(tmp_path: Path) -> None:
    async with await start_server("redis", tmp_path) as server, opened(server.url) as store:
        await made(store)
        await fail_to_save(store)
        wrong = (await found(store, wait_seconds=0.2))["persistence"]
        await save_again(store)
        await typed(wrong, server.url, tmp_path)
        await saved(store.connections.commands, "ok")
        assert "persistence" not in await found(store, wait_seconds=0.2)


@NEEDS_CLIENT
@pytest.mark.parametrize(
    ("prefixes", "without", "rules"),
    [
        (("mail",), ("zadd", "hset", "info"), ()),
        (("note",), (), ("resetchannels",)),
        (("note",), ("eval", "evalsha"), ()),
        (("note",), ("time",), ()),
        (("note",), ("scan",), ()),
    ],
    ids=["a prefix and commands", "channels", "scripts", "the time", "scan"],
)
async def test_a_user_who_is_given_the_rights(
    prefixes: tuple[str, ...], without: tuple[str, ...], rules: tuple[str, ...], tmp_path: Path
) -> None:
    async with await start_server("redis", tmp_path) as server, opened(server.url) as store:
        await made(store)
        await alive(store)
        redis: Any = store.connections.commands
        await grant(redis, 0, prefixes, without=without)
        await redis.execute_command("ACL", "SETUSER", USER, *rules)
        async with opened(as_user(server.url)) as limited:
            wrong = await found(limited, wait_seconds=0.2)
            await typed(wrong["rights"], server.url, tmp_path)
            assert not {"rights", "server"} & (await found(limited, wait_seconds=0.2)).keys()


@pytest.mark.parametrize(
    ("change", "said", "repair"),
    [
        (lambda url: f"{url.partition('?')[0]}?db=99", "DB index is out of range", "the number of the db"),
        (as_user, "invalid username-password", "the user and the password"),
        (lambda _url: "redis://127.0.0.1:1/0", "Connect call failed", "start it"),
    ],
    ids=["a db that it has not", "a wrong password", "nobody there"],
)
async def test_a_server_that_does_not_answer_is_a_finding_too(
    change: Callable[[str], str], said: str, repair: str, tmp_path: Path
) -> None:
    async with await start_server("redis", tmp_path) as server:
        shown = Process(tmp_path, "doctor", "-o", "json", TIMERS_REDIS_URL=change(server.url)).end()
        (check,) = shown.json
        assert (shown.code, shown.err) == (1, "")
        assert (check["check"], check["level"], check["means"]) == ("server", "fail", "nothing is armed or run")
        assert said in check["said"]
        assert repair in check["repair"]


async def test_a_server_that_is_loading_its_data(tmp_path: Path) -> None:
    """It says meanwhile that it has no append-only file, and that is no finding."""
    async with await start_server("redis", tmp_path) as server:
        async with Redis.from_url(server.url) as redis:
            await redis.mset({f"key-{number}": "value" for number in range(4000)})
            await redis.bgrewriteaof()
            await eventually(partial(_has_rewritten, redis), "the file has a key for each step")
        await server.stop()
        slowly = ("--key-load-delay", "2000", "--loading-process-events-interval-bytes", "1024")
        starting = asyncio.create_task(start_server("redis", tmp_path, *slowly))
        async with opened(server.url) as store:

            async def look() -> Check | None:
                try:
                    await found(store, wait_seconds=0)
                except Unavailable as error:
                    (check,) = await unreachable(store, error)
                    return check if "% so far" in check.said else None
                raise AssertionError("it was examined")

            assert "wait until the server has read its data" in ((await eventually(look, "it loads")).repair or "")
            await store.connections.commands.config_set("key-load-delay", 0)
        await (await starting).stop()


async def _has_rewritten(redis: Redis) -> bool:
    said = await redis.info("persistence")
    return not said["aof_rewrite_in_progress"] and not said["aof_rewrite_scheduled"]


@NEEDS_CLIENT
async def test_a_server_that_is_busy_with_somebodys_script(tmp_path: Path) -> None:
    async with await start_server("redis", tmp_path) as server, opened(server.url) as store:
        await store.connections.commands.config_set("busy-reply-threshold", 1)
        async with Redis.from_url(server.url) as stranger:
            running = asyncio.create_task(_spin(stranger))
            busy = await _refused(store)
            assert "BUSY" in busy.said
            await typed(busy, server.url, tmp_path)
            with pytest.raises(ResponseError, match="killed"):
                await running
        assert "server" not in await found(store)


async def test_a_server_that_has_no_connection_left(tmp_path: Path) -> None:
    async with await start_server("redis", tmp_path) as server, opened(server.url) as store:
        await store.connections.commands.config_set("maxclients", 1)

        async def said() -> bool:
            """A connection may be closed before what the server says has been read."""
            with pytest.raises(Unavailable) as refused:
                await open_store(connect(server.url))
            return "raise maxclients" in ((await unreachable(store, refused.value))[0].repair or "")

        await eventually(said, "the doctor says what to do about it")


async def _spin(stranger: Redis) -> None:
    running: Any = stranger.eval("while true do end", 0)
    await running


async def _refused(store: Store) -> Check:
    async def look() -> Check | None:
        try:
            await found(store, wait_seconds=0.2)
        except Unavailable as error:
            return (await unreachable(store, error))[0]
        return None

    return await eventually(look, "the server is busy")
