"""The doctor finds what is wrong with a set-up, and nothing else: on real servers, each broken in one way."""

import asyncio
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import pytest
import time_machine
from redis.asyncio import Redis

from tests.doctor.setups import (
    SHORT_SECONDS,
    TIMED,
    Break,
    Findings,
    alive,
    assert_named,
    deaf,
    differ,
    displace,
    elsewhere,
    fail_a_call,
    fail_to_save,
    fill_up,
    foreign_keys,
    found,
    hold_back,
    leave_alone,
    leave_waiting,
    lose,
    lose_a_due_index,
    lose_a_lease,
    lose_an_index,
    lose_every_index,
    lose_the_head,
    lose_the_prefixes,
    made,
    miscount,
    opened,
    overwrite_meta,
    pause,
    post_long_ago,
    replicate,
    serve_another,
    setting,
    spoil_a_record,
    strand_a_call,
    write_to_a_folder,
)
from tests.install.environment import ROOT
from tests.rights import as_user, documented, grant
from tests.servers import start_kind, start_server
from tests.store.acts import finished, retrying
from tests.waiting import DEADLINE_SECONDS
from timers.core.durations import format_time
from timers.core.model import Status
from timers.doctor.checks import judge
from timers.doctor.examining import examine
from timers.doctor.proofs import needed_rights
from timers.embedded import Family


@pytest.mark.every_server
async def test_nothing_is_wrong_with_a_server_of_ours(family: Family, tmp_path: Path) -> None:
    async with await start_server(family, tmp_path) as server, opened(server.url) as store:
        await made(store)
        await alive(store)
        assert_named(await found(store), {})
        elsewhere = ("sentinels", "failover", "replicas' flags", "ledger")
        named = [name for name in documented_checks() if name not in elsewhere]
        assert [check.name for check in await examine(store)] == named


def documented_checks() -> list[str]:
    text = (ROOT / "docs" / "reference.md").read_text().partition("## Checks of the doctor")[2].partition("\n## ")[0]
    return re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE)


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
        {"buffers": ("warn", "disconnects a subscriber at 1048576 bytes, or 524288 for a while")},
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
            "replicas": ("fail", "0 of the 1 replicas that min-replicas-to-write requires"),
            "delivery": ("fail", "NOREPLICAS"),
            "data": ("fail", "NOREPLICAS"),
        },
    ),
    "foreign keys": ((), foreign_keys, {"foreign": ("warn", "'session/abc'")}),
    "lost data": ((), lose, {"data": ("fail", "shard 0 lost everything written")}),
    "another's meta": (
        (),
        overwrite_meta,
        {"data": ("fail", "timers:meta is not a hash: another program has written it")},
    ),
    "a lost index": ((), lose_an_index, {"indexes": ("fail", "do not match")}),
    "every index and count lost": ((), lose_every_index, {"indexes": ("fail", "uncounted records: 1")}),
    "an unreadable record": ((), spoil_a_record, {"quarantine": ("warn", "'note:one' (no record)")}),
    "a stuck queue": (
        (),
        leave_waiting,
        {"queues": ("fail", "due for more than a minute: note; the pods have room for 9")},
    ),
    "a prefix that stands at its limit": (
        (),
        hold_back,
        {"queues": ("warn", "a limit holds back timers that have been due for more than five minutes: note")},
    ),
    "a paused prefix": ((), pause, {"paused": ("warn", "paused prefixes are due: note")}),
    "a prefix without pods": ((), serve_another, {"prefixes": ("fail", "these prefixes: push")}),
    "a shard without pods": ((), elsewhere, {"shards": ("fail", "shards without a live pod: 0")}),
    "a deaf pod": ((), deaf, {"pods": ("warn", "a: notifications are deaf")}),
    "snapshots that fail": (
        (),
        fail_to_save,
        {
            "persistence": ("fail", "the last snapshot failed, so the server refuses to write"),
            "delivery": ("fail", "MISCONF"),
            "data": ("fail", "MISCONF"),
        },
    ),
    "a lost head": ((), lose_the_head, {"indexes": ("fail", "heads: 1")}),
    "prefixes that an earlier version has not indexed": (
        (),
        lose_the_prefixes,
        {"indexes": ("warn", "1 prefixes are")},
    ),
    "a lost due index": ((), lose_a_due_index, {"indexes": ("fail", "counts: 1, heads: 1")}),
    "wrong counts": ((), miscount, {"indexes": ("fail", "counts: 2")}),
    "a lost lease": ((), lose_a_lease, {"indexes": ("fail", "counts: 1")}),
    "a displaced key": ((), displace, {"foreign": ("warn", "it is 'timers:{0}:displaced:timers:{0}:nonsense' now")}),
    "an outbox that nobody drains": ((), post_long_ago, {"hooks": ("fail", "1 changes wait, the oldest for 10")}),
    "a receiver that fails": ((), fail_a_call, {"hooks": ("warn", "timers.hook-1:note:a:1:1: 503 from hooks.example")}),
    "a call that no pod makes": (
        (),
        strand_a_call,
        {"hooks": ("warn", "timers.hook-1:note:a:1:1: no live pod serves the prefix")},
    ),
    "no worker": (
        (),
        leave_alone,
        {"shards": ("fail", "no worker is alive"), "prefixes": ("fail", "these prefixes: note")},
    ),
    "pods that send nothing": ((), write_to_a_folder, {"messages": ("warn", "to a folder: a to /tmp/mail")}),
    "pods that differ": ((), differ, {"settings": ("warn", "TIMERS_RETENTION: 1d on a and 7d on b")}),
}


@pytest.mark.parametrize("name", BROKEN)
async def test_the_doctor_reports_exactly_the_fault_that_was_planted(name: str, tmp_path: Path) -> None:
    options, spoil, expected = BROKEN[name]
    async with await start_server("redis", tmp_path, *options) as server, opened(server.url) as store:
        await made(store)
        if spoil not in (elsewhere, deaf, differ, leave_alone, write_to_a_folder):
            await alive(store)
        if spoil is not None:
            await spoil(store)
        assert_named(await found(store), expected)


@pytest.mark.parametrize(("flags", "lacks"), [("K$", "Ex"), ("Kx", "E"), ("KA", "E"), ("Eg", "x")])
async def test_a_server_that_announces_no_expired_keys(flags: str, lacks: str, tmp_path: Path) -> None:
    async with await start_server("redis", tmp_path) as server, opened(server.url) as store:
        await made(store)
        await alive(store)
        await store.connections.commands.config_set("notify-keyspace-events", flags)
        expected = {"flags": ("fail", f"lacks {lacks!r}"), "delivery": ("fail", "no `expired` event")}
        assert_named(await found(store, wait_seconds=SHORT_SECONDS), expected)


FACTS: Final = {"redis_version": "7.2.4", "aof_enabled": 1, "maxmemory_policy": "noeviction"}


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ({"redis_version": "6.2.14"}, ("server", "fail", "redis 6.2.14")),
        ({"dragonfly_version": "df-v1.20.1"}, ("server", "warn", "dragonfly df-v1.20.1")),
        ({"aof_last_write_status": "err"}, ("persistence", "fail", "the last write of the append-only file: err")),
        ({"aof_last_bgrewrite_status": "err"}, ("persistence", "warn", "the last rewrite of the append-only file")),
        (
            {"maxmemory_policy": "allkeys-lru", "evicted_keys": 3121},
            ("eviction", "fail", "maxmemory-policy is allkeys-lru; keys evicted since the server's start: 3121"),
        ),
        ({"cluster_size": "3"}, ("role", "fail", "one of 3 masters")),
        (
            {"connected_slaves": 1, "slave0": {"ip": "10.0.0.9", "port": 6379, "state": "online", "lag": 17}},
            ("replicas", "warn", "10.0.0.9:6379 is online, 17 s behind"),
        ),
        (
            {"connected_slaves": 1, "slave0": {"ip": "10.0.0.9", "port": 6379, "state": "wait_bgsave", "lag": 0}},
            ("replicas", "warn", "10.0.0.9:6379 is wait_bgsave, 0 s behind"),
        ),
    ],
    ids=[
        *("an old server", "another family", "a full disk", "a rewrite that fails", "evicted keys"),
        *("a cluster", "a slow replica", "a replica that is being filled"),
    ],
)
def test_what_a_server_says_of_itself(told: Mapping[str, Any], expected: tuple[str, str, str]) -> None:
    assert [check for check in judge(FACTS, {}) if check.level != "ok"] == []
    (check,) = [check for check in judge({**FACTS, **told}, {}) if check.level != "ok"]
    assert (check.name, check.level) == expected[:2]
    assert expected[2] in check.said
    assert check.means
    assert check.repair


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
        (
            ("note",),
            ("zadd",),
            {"rights": ("fail", "permission for: zadd timers:x"), "data": ("fail", "may not ZADD timers:")},
        ),
        (("mail",), (), {"rights": ("fail", "permission for: set note:x -")}),
        (("note",), ("scan",), {"rights": ("warn", "permission for SCAN")}),
        (
            ("note",),
            ("info", "publish"),
            {"rights": ("fail", "info, publish timers:wake:0 -"), "server": ("warn", "denies INFO")},
        ),
    ],
    ids=["just enough", "a command", "a prefix", "no scan", "no info"],
)
@pytest.mark.every_server
async def test_a_user_with_too_few_rights(
    family: Family, prefixes: tuple[str, ...], without: tuple[str, ...], expected: Findings, tmp_path: Path
) -> None:
    """CONFIG is denied to all of them, so the doctor proves with a key that notifications arrive."""
    async with await start_server(family, tmp_path) as server, opened(server.url) as store:
        await made(store)
        await grant(store.connections.commands, 0, prefixes, without=without)
        async with opened(as_user(server.url)) as limited:
            await alive(store)
            assert_named(await found(limited), expected)
            checks = await examine(limited, wait_seconds=DEADLINE_SECONDS)
        flags = next(check for check in checks if check.name == "flags")
        assert (flags.level, flags.said) == ("ok", "the server denies CONFIG, but the event of a test key arrived")


async def test_a_user_who_may_not_run_scripts(tmp_path: Path) -> None:
    async with await start_server("redis", tmp_path) as server, opened(server.url) as store:
        await made(store)
        await grant(store.connections.commands, 0, ("note",), without=("eval", "evalsha"))
        async with opened(as_user(server.url)) as limited:
            wrong = await found(limited)
        assert {name: wrong[name].level for name in ("rights", "delivery", "data")} == dict.fromkeys(
            ("rights", "delivery", "data"), "fail"
        )
        assert "may not run scripts" in wrong["rights"].said


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
        assert "`redis-cli CONFIG SET notify-keyspace-events Ex`" in wrong["flags"].repair


async def test_a_server_without_info_and_scan(tmp_path: Path) -> None:
    without = ("--rename-command", "INFO", "", "--rename-command", "SCAN", "")
    async with await start_server("redis", tmp_path, *without) as server, opened(server.url) as store:
        await made(store)
        await alive(store)
        expected = {
            "server": ("warn", "denies INFO: unknown command"),
            "rights": ("fail", "permission for: info, scan 0"),
        }
        assert_named(await found(store), expected)


async def test_a_server_that_is_far_away(tmp_path: Path) -> None:
    async with await start_server("redis", tmp_path) as server, opened(server.url) as near, slowed(server.url) as url:
        await made(near)
        async with opened(url) as store:
            await alive(near)
            assert_named(await found(store), {"latency": ("warn", "a call takes")})


@asynccontextmanager
async def slowed(url: str) -> AsyncIterator[str]:
    """The URL of a proxy to the server that delays each answer by 30 ms."""
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


async def test_a_client_whose_clock_is_wrong(tmp_path: Path) -> None:
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
    assert {command.split()[0] for command in needed_rights(0, ())} == listed - {"acl|dryrun", "wait"}


@pytest.mark.parametrize(
    ("rules", "without", "expected"),
    [
        ((), (), {"replay": ("fail", "the default user lacks permission for: set timers:x -, pexpireat timers:x 1")}),
        (("allcommands", "~timers:*"), (), {"replay": ("fail", "the default user lacks permission for: set note:x -")}),
        (("resetpass", "~*", "&*", "+@all"), (), {}),
        ((), ("acl|dryrun",), {"replay": ("warn", "cannot tell whether the default user may write")}),
    ],
    ids=["off", "lacks a prefix", "off, with its rights", "cannot tell"],
)
@pytest.mark.every_server
async def test_a_default_user_as_whom_the_server_cannot_replay_its_append_only_file(
    family: Family, rules: tuple[str, ...], without: tuple[str, ...], expected: Findings, tmp_path: Path
) -> None:
    async with await start_server(family, tmp_path) as server, opened(server.url) as store:
        await made(store)
        await grant(store.connections.commands, 0, ("note",), without=without)
        async with opened(as_user(server.url)) as limited:
            await alive(limited)
            redis: Any = store.connections.commands
            await redis.execute_command("ACL SETUSER", "default", "off", "resetkeys", "-@all", *rules)
            assert_named(await found(limited), expected)


async def test_many_failed_timers_are_reported_with_their_prefix_and_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with await start_server("redis", tmp_path) as server, opened(server.url) as store:
        await made(store)
        await alive(store)
        for timer_id, status in (("a", Status.FAILED), ("b", Status.UNHANDLED)):
            await finished(store, timer_id, status, prefix="note")
        checks = {check.name: check for check in await examine(store)}
        assert (checks["failed"].level, checks["failed"].said) == ("ok", "2 failed and unhandled timers are kept")
        monkeypatch.setattr("timers.doctor.examining.MANY_KEPT", 1)
        said = "2 failed and unhandled timers are kept, most of them of 'note'"
        assert_named(await found(store), {"failed": ("warn", said)})


async def test_timers_that_keep_failing_are_reported_by_prefix_with_their_commonest_error(tmp_path: Path) -> None:
    async with await start_server("redis", tmp_path) as server, opened(server.url) as store:
        await made(store)
        await alive(store)
        await retrying(store, "now", prefix="note", since=format_time(await store.now_ms()))
        assert_named(await found(store), {})
        since = format_time(await store.now_ms() - 600_000)
        for timer_id in ("a", "b"):
            await retrying(store, timer_id, prefix="note", since=since, reason=f"mail-{timer_id} is down")
        await retrying(store, "c", prefix="note", since=since, reason="mail-b is down")
        said = f"4 of note, the first since {since}, most of them by 'OSError: mail-b is down'"
        assert_named(await found(store), {"retrying": ("warn", said)})
