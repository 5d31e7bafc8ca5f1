"""The doctor names what is wrong with a set-up, and nothing else: real servers, each broken in one way."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import pytest
import time_machine
from redis.asyncio import Redis

from tests.members import announce, declare
from tests.rights import as_user, documented, grant
from tests.servers import FAMILIES, start_kind, start_server
from tests.store.acts import arming
from tests.waiting import DEADLINE_SECONDS
from timers.client.doctor import examine
from timers.embedded import Family
from timers.store.checkup import Check
from timers.store.connect import connect
from timers.store.membership import FORGET_AFTER_MS
from timers.store.proofs import needed_rights
from timers.store.store import Store

SHORT_SECONDS: Final = 0.2
"""Where no event will come."""

TIMED: Final = {"latency", "clock"}
"""What a busy machine may make worse."""

Break = Callable[[Store], Awaitable[None]]
Findings = Mapping[str, tuple[str, str]]
"""By check its level and a part of what is said."""


@asynccontextmanager
async def opened(url: str, shards: int | None = None) -> AsyncIterator[Store]:
    store = Store(connect(url), shards=shards)
    try:
        yield store
    finally:
        await store.connections.close()


async def alive(store: Store, name: str = "a", **said: Any) -> None:
    """A pod that is alive and well unless it says otherwise, for as long as its sign can last."""
    await announce(
        store, name, **{"processors": ("note",), "notifications": "ok", "concurrency": 10, "running": 1, **said}
    )
    last_ms = await store.now_ms() + FORGET_AFTER_MS - 500
    await store.connections.commands.zadd("timers:{pods}:seen", {name: last_ms})


async def made(store: Store) -> None:
    """A healthy set-up: a db that is ours, with a timer and a pod."""
    await declare(store, "note")
    await store.identity.make()
    await store.arm([arming("later", prefix="note", due="+3600000")])


async def found(store: Store, *, wait_seconds: float = DEADLINE_SECONDS, fix: bool = False) -> dict[str, Check]:
    """What is not fine. Each says what it means and what to do."""
    checks = await examine(store, wait_seconds=wait_seconds, fix=fix)
    wrong = {check.name: check for check in checks if check.level != "ok"}
    assert all(check.means and check.mend for check in wrong.values() if not check.said.startswith("mended"))
    return wrong


def assert_named(wrong: Mapping[str, Check], expected: Findings) -> None:
    told = {name: (check.level, check.said) for name, check in wrong.items() if name not in TIMED - expected.keys()}
    assert told.keys() == expected.keys(), told
    for name, (level, part) in expected.items():
        assert told[name][0] == level, told
        assert part in told[name][1], told


@pytest.mark.parametrize("family", FAMILIES)
async def test_nothing_is_wrong_with_a_server_of_ours(family: Family, tmp_path: Path) -> None:
    async with await start_server(family, tmp_path) as server, opened(server.url) as store:
        await made(store)
        await alive(store)
        assert_named(await found(store), {})


def setting(name: str, value: str | int) -> Break:
    async def change(store: Store) -> None:
        await store.connections.commands.config_set(name, value)

    change.__name__ = f"{name}={value}"
    return change


async def fill_up(store: Store) -> None:
    await store.connections.commands.setrange("timers:ballast", 40 * 2**20, "x")
    used = (await store.connections.commands.info("memory"))["used_memory"]
    await store.connections.commands.config_set("maxmemory", int(used * 1.06))


async def replicate(store: Store) -> None:
    redis: Any = store.connections.commands
    await redis.execute_command("REPLICAOF", "127.0.0.1", "1")


async def strangers(store: Store) -> None:
    await store.connections.commands.set("session/abc", "theirs")


async def lose(store: Store) -> None:
    redis: Any = store.connections.commands
    await redis.hset("timers:meta", "loss:shard:0", "1795000000000 1795000001000 7")


async def overwrite_meta(store: Store) -> None:
    await store.connections.commands.set("timers:meta", "a stranger's")


async def lose_an_index(store: Store) -> None:
    await store.connections.commands.delete("timers:{0}:due:note", "timers:{0}:heads")


async def spoil_a_record(store: Store) -> None:
    redis: Any = store.connections.commands
    await redis.hset("timers:{0}:quarantine", "note:one", "1795000000000 no record\n")


async def leave_waiting(store: Store) -> None:
    await store.arm([arming("old", prefix="note", due=f"@{await store.now_ms() - 120_000}")])


async def pause(store: Store) -> None:
    await leave_waiting(store)
    await store.pause("note", paused=True)


async def serve_another(store: Store) -> None:
    await declare(store, "push")
    await store.arm([arming("x", prefix="push", due="+3600000")])


async def elsewhere(store: Store) -> None:
    await alive(store, shards=(1,))


async def deaf(store: Store) -> None:
    await alive(store, notifications="deaf")


async def differ(store: Store) -> None:
    await alive(store, settings={"TIMERS_RETENTION": "1d", "version": "1"})
    await alive(store, "b", settings={"TIMERS_RETENTION": "7d", "version": "1"})


BROKEN: Final[Mapping[str, tuple[tuple[str, ...], Break | None, Findings]]] = {
    "snapshots only": (
        ("--appendonly", "no", "--save", "3600 1"),
        None,
        {"persistence": ("warn", "snapshots are taken (3600 1)")},
    ),
    "nothing is kept": (("--appendonly", "no"), None, {"persistence": ("fail", "no snapshots are taken")}),
    "never flushed": (("--appendfsync", "no"), None, {"persistence": ("warn", "appendfsync is no")}),
    "evicts": (
        ("--maxmemory", "1gb", "--maxmemory-policy", "volatile-ttl"),
        None,
        {"eviction": ("fail", "volatile-ttl")},
    ),
    "would evict": (("--maxmemory-policy", "allkeys-lru"), None, {"eviction": ("warn", "allkeys-lru")}),
    "full": ((), setting("maxmemory", "600kb"), {"memory": ("fail", "used of 1")}),
    "nearly full": ((), fill_up, {"memory": ("warn", "MiB used of")}),
    "short buffers": (
        (),
        setting("client-output-buffer-limit", "pubsub 1mb 512kb 10"),
        {"buffers": ("warn", "cut off at 1048576 bytes, or 524288 for a while")},
    ),
    "a replica": (
        (),
        replicate,
        {"role": ("fail", "a replica of 127.0.0.1:1"), "delivery": ("fail", "refuses"), "data": ("fail", "read only")},
    ),
    "replicas that are away": (
        (),
        setting("min-replicas-to-write", 1),
        {
            "replicas": ("fail", "0 of 1 that min-replicas-to-write asks for"),
            "delivery": ("fail", "NOREPLICAS"),
            "data": ("fail", "NOREPLICAS"),
        },
    ),
    "strangers": ((), strangers, {"strangers": ("warn", "'session/abc'")}),
    "lost data": ((), lose, {"data": ("fail", "shard 0 lost what was written")}),
    "another's meta": ((), overwrite_meta, {"data": ("fail", "WRONGTYPE")}),
    "a lost index": ((), lose_an_index, {"books": ("fail", "disagree")}),
    "an unreadable record": ((), spoil_a_record, {"quarantine": ("warn", "'note:one' (no record)")}),
    "a stuck queue": ((), leave_waiting, {"queues": ("fail", "of the prefixes note; the pods have room for 9")}),
    "a paused prefix": ((), pause, {"paused": ("warn", "paused prefixes note")}),
    "a prefix without pods": ((), serve_another, {"prefixes": ("fail", "of the prefixes push")}),
    "a shard without pods": ((), elsewhere, {"shards": ("fail", "takes the shards 0")}),
    "a deaf pod": ((), deaf, {"pods": ("warn", "a: notifications are deaf")}),
    "pods that differ": ((), differ, {"settings": ("warn", "TIMERS_RETENTION: 1d on a and 7d on b")}),
}


@pytest.mark.parametrize("name", BROKEN)
async def test_the_doctor_names_what_is_broken(name: str, tmp_path: Path) -> None:
    options, spoil, expected = BROKEN[name]
    async with await start_server("redis", tmp_path, *options) as server, opened(server.url) as store:
        await made(store)
        if spoil not in (elsewhere, deaf, differ):
            await alive(store)
        if spoil is not None:
            await spoil(store)
        assert_named(await found(store), expected)


async def test_a_server_that_announces_nothing(tmp_path: Path) -> None:
    async with (
        await start_server("redis", tmp_path, "--notify-keyspace-events", "K$") as server,
        opened(server.url) as store,
    ):
        await made(store)
        await alive(store)
        expected = {"flags": ("fail", "lacks 'Ex'"), "delivery": ("fail", "no `expired` event")}
        wrong = await found(store, wait_seconds=SHORT_SECONDS)
        assert_named(wrong, expected)
        assert wrong["flags"].mend.endswith(("$KEx", "K$Ex"))


async def test_no_worker_is_alive(tmp_path: Path) -> None:
    async with await start_server("redis", tmp_path) as server, opened(server.url) as store:
        await store.identity.make()
        assert_named(await found(store), {"shards": ("warn", "no worker is alive")})


async def test_a_number_of_shards_that_the_db_has_not(tmp_path: Path) -> None:
    async with await start_server("redis", tmp_path) as server, opened(server.url) as store:
        await made(store)
        async with opened(server.url, shards=8) as disagreeing:
            await alive(store)
            assert_named(await found(disagreeing), {"data": ("fail", "TIMERS_SHARDS is 8, but this db has 1")})


async def test_a_node_of_a_cluster_without_its_slots(tmp_path: Path) -> None:
    async with await start_kind("cluster", tmp_path) as server, opened(server.url) as store:
        redis: Any = store.connections.commands
        await redis.execute_command("CLUSTER", "DELSLOTSRANGE", 0, 16383)
        wrong = await found(store)
        assert (wrong["role"].level, wrong["role"].said) == ("fail", "a node of a cluster whose state is fail")
        assert wrong["data"].level == "fail"


async def test_connections_that_run_out(tmp_path: Path) -> None:
    async with await start_server("redis", tmp_path) as server, opened(server.url) as store, AsyncExitStack() as held:
        await made(store)
        for _ in range(60):
            client = await held.enter_async_context(Redis.from_url(server.url))
            await client.ping()
        await store.connections.commands.config_set("maxclients", 66)
        await alive(store)
        assert_named(await found(store), {"clients": ("warn", "connections of at most 66")})


@pytest.mark.parametrize(
    ("prefixes", "without", "expected"),
    [
        (("note",), (), {}),
        (("note",), ("zadd",), {"rights": ("fail", "may not: zadd timers:x")}),
        (("mail",), (), {"rights": ("fail", "may not: set note:x -")}),
        (("note",), ("scan",), {"rights": ("warn", "may not SCAN")}),
        (("note",), ("info", "publish"), {"rights": ("fail", "info, publish timers:wake:0 -")}),
    ],
    ids=["just enough", "a command", "a prefix", "no scan", "no info"],
)
@pytest.mark.parametrize("family", FAMILIES)
async def test_a_user_with_too_few_rights(
    family: Family, prefixes: tuple[str, ...], without: tuple[str, ...], expected: Findings, tmp_path: Path
) -> None:
    """CONFIG is denied to all of them; that events are announced is told from a key."""
    async with await start_server(family, tmp_path) as server, opened(server.url) as store:
        await made(store)
        await grant(store.connections.commands, 0, prefixes, without=without)
        async with opened(as_user(server.url)) as limited:
            await alive(store)
            assert_named(await found(limited), expected)
            checks = await examine(limited, wait_seconds=DEADLINE_SECONDS)
        flags = next(check for check in checks if check.name == "flags")
        assert (flags.level, flags.said) == ("ok", "the server denies CONFIG, but the event of a key came")


async def test_a_user_who_may_run_no_scripts(tmp_path: Path) -> None:
    async with await start_server("redis", tmp_path) as server, opened(server.url) as store:
        await made(store)
        await grant(store.connections.commands, 0, ("note",), without=("eval", "evalsha"))
        async with opened(as_user(server.url)) as limited:
            wrong = await found(limited)
        assert {name: wrong[name].level for name in ("rights", "delivery", "data")} == dict.fromkeys(
            ("rights", "delivery", "data"), "fail"
        )
        assert "may run no scripts" in wrong["rights"].said


async def test_a_server_that_denies_config_and_announces_nothing(tmp_path: Path) -> None:
    async with (
        await start_server("redis", tmp_path, "--notify-keyspace-events", "") as server,
        opened(server.url) as store,
    ):
        await made(store)
        await grant(store.connections.commands, 0, ("note",))
        async with opened(as_user(server.url)) as limited:
            await alive(store)
            wrong = await found(limited, wait_seconds=SHORT_SECONDS, fix=True)
        expected = {"flags": ("fail", "denies CONFIG, and no event"), "delivery": ("fail", "no `expired` event")}
        assert_named(wrong, expected)
        assert wrong["flags"].mend == "redis-cli CONFIG SET notify-keyspace-events Ex, as a user who may"


async def test_a_server_that_is_far_away(tmp_path: Path) -> None:
    async with await start_server("redis", tmp_path) as server, opened(server.url) as near, slowed(server.url) as url:
        await made(near)
        async with opened(url) as store:
            await alive(near)
            assert_named(await found(store), {"latency": ("warn", "a call takes")})


@asynccontextmanager
async def slowed(url: str) -> AsyncIterator[str]:
    """The server behind a road on which each answer takes 30 ms longer."""
    path = unquote(urlsplit(url).path)
    roads = set[asyncio.Task[None]]()

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, seconds: float) -> None:
        while data := await reader.read(65536):
            await asyncio.sleep(seconds)
            writer.write(data)
        writer.close()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        back, on = await asyncio.open_unix_connection(path)
        roads.add(asyncio.create_task(carry(reader, on, 0)))
        roads.add(asyncio.create_task(carry(back, writer, 0.03)))

    listening = await asyncio.start_server(accept, "127.0.0.1", 0)
    try:
        yield f"redis://127.0.0.1:{listening.sockets[0].getsockname()[1]}/0"
    finally:
        listening.close()
        with suppress(asyncio.CancelledError):
            await asyncio.gather(*roads)
        await listening.wait_closed()


async def test_a_clock_that_is_wrong(tmp_path: Path) -> None:
    async with await start_server("redis", tmp_path) as server, opened(server.url) as store:
        await made(store)
        await alive(store)
        with time_machine.travel(timedelta(hours=1)):
            wrong = await found(store)
        assert_named(wrong, {"clock": ("warn", "differ by 3")})


async def test_fix_changes_nothing_of_the_server_but_the_flags(tmp_path: Path) -> None:
    options = ("--appendonly", "no", "--maxmemory-policy", "allkeys-lru", "--notify-keyspace-events", "K$")
    async with await start_server("redis", tmp_path, *options) as server, opened(server.url) as store:
        await made(store)
        await alive(store)
        redis: Any = store.connections.commands
        before = await redis.config_get("*")
        wrong = await found(store, fix=True)
        after = await redis.config_get("*")
        assert set(wrong) - TIMED == {"persistence", "eviction"}
        assert {name for name in after if after[name] != before[name]} == {"notify-keyspace-events"}


def test_the_doctor_knows_every_right_that_the_document_lists() -> None:
    listed = {word[1:] for word in documented() if word.startswith("+")}
    assert {command.split()[0] for command in needed_rights(0, ())} == listed
