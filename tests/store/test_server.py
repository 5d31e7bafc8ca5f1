"""What the service needs from the server: notification flags, the fixed number of shards, its clock, the canary."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from redis.asyncio import Redis

from tests.chaos.proxy import Proxy
from tests.conftest import SharedServers
from tests.servers import FAMILIES, Kind
from tests.store.acts import PREFIX, armed, claim
from tests.waiting import DEADLINE_SECONDS, eventually
from timers.errors import ConfigurationError, Unavailable
from timers.store import notifications
from timers.store.scripts import digest
from timers.store.servers import connect
from timers.store.store import Store

FLAGS = "notify-keyspace-events"


@pytest.fixture
async def redis(real: Store) -> AsyncIterator[Redis]:
    """A real server whose flags the test may set."""
    client = real.connections.commands
    yield client
    await client.config_set(FLAGS, "Ex")


async def flags(redis: Redis) -> set[str]:
    """The flags in force, including those that `A` stands for."""
    answer: Any = await redis.config_get(FLAGS)
    found = set(answer[FLAGS])
    return found | set("g$lshzxetd") if "A" in found else found


@pytest.mark.parametrize(
    ("before", "added"),
    [
        ("", "Ex"),
        ("gx", "E"),
        ("Kx", "E"),
        ("E", "x"),
        ("Kg$", "Ex"),
        ("KEA", ""),
        ("KA", "E"),
        ("xE", ""),
        ("KEgx", ""),
    ],
)
async def test_missing_flags_are_added_and_none_is_turned_off(redis: Redis, before: str, added: str) -> None:
    await redis.config_set(FLAGS, before)
    had = await flags(redis)
    is_on, said = await notifications.ensure_notifications(redis)
    assert is_on
    assert await flags(redis) == had | set(added)
    assert (f"added {added!r}" in said) == bool(added)
    assert (await notifications.ensure_notifications(redis))[1].startswith(f"{FLAGS} is ")


@pytest.mark.parametrize(
    ("current", "missing"),
    [("", "Ex"), ("AKE", ""), ("A", "E"), ("xE", ""), ("Ex", ""), ("K$g", "Ex"), ("EKn", "x"), ("Kx", "E")],
)
def test_flags_are_recognised_in_any_order(current: str, missing: str) -> None:
    assert notifications.missing_flags(current) == missing


@pytest.mark.one_server
@pytest.mark.parametrize(
    ("rules", "known"),
    [
        (["-config"], False),
        (["-config", "+config|get"], True),
        (["-config|set"], True),
    ],
)
async def test_a_user_without_config_learns_what_to_set(
    real: Store, redis: Redis, rules: list[str], known: bool
) -> None:
    async with limited_user(real, rules) as limited:
        assert (await notifications.ensure_notifications(limited))[0] is known
        await redis.config_set(FLAGS, "")
        is_on, said = await notifications.ensure_notifications(limited)
        assert not is_on
        assert "set notify-keyspace-events to at least Ex" in said
        assert await flags(redis) == set()


@asynccontextmanager
async def limited_user(store: Store, rules: list[str]) -> AsyncIterator[Redis]:
    """A client that may do everything except what the rules forbid."""
    redis: Any = store.connections.commands
    await redis.execute_command("ACL", "SETUSER", "limited", "reset", "on", ">secret", "~*", "&*", "+@all", *rules)
    path = redis.connection_pool.connection_kwargs["path"]
    async with Redis(unix_socket_path=path, username="limited", password="secret", protocol=2) as limited:
        yield limited
    await redis.acl_deluser("limited")


async def test_a_canary_key_exists_until_it_is_due(real: Store) -> None:
    redis = real.connections.commands
    key = await notifications.set_canary(redis, "{0}pod-1", 60_000)
    assert await notifications.touch_canary(redis, key)
    key = await notifications.set_canary(redis, "{0}pod-1", 1)
    while await notifications.touch_canary(redis, key):
        pass


async def test_a_server_that_forgot_the_scripts_is_given_them_again(real: Store) -> None:
    redis = real.connections.commands
    await armed(real)
    await redis.script_flush()
    assert await redis.script_exists(digest("claim"), digest("arm")) == [False, False]
    assert len(await claim(real)) == 1
    await redis.script_flush()
    await armed(real, "b")


async def test_every_script_is_known_by_its_own_digest(real: Store) -> None:
    """After EVAL, EVALSHA finds the script by that digest."""
    await real.connections.commands.script_flush()
    await claim(real)
    assert await real.connections.commands.script_exists(digest("claim")) == [True]


async def test_a_server_that_is_away_is_unavailable(tmp_path: Any) -> None:
    connections = connect(f"unix://{tmp_path}/nobody.sock")
    store = Store(connections)
    for call in (store.now_ms(), armed(store), store.touch(0), store.identity.refresh(), store.identity.make()):
        with pytest.raises(Unavailable):
            await call
    await connections.close()


@pytest.mark.one_server
@pytest.mark.parametrize("kind", FAMILIES)
async def test_a_busy_server_is_unavailable(real: Store) -> None:
    """For example a replica, a server that loads, or one whose disk is full: the command may succeed later."""
    redis: Any = real.connections.commands
    await redis.execute_command("REPLICAOF", "127.0.0.1", "1")
    try:
        with pytest.raises(Unavailable, match=r"READONLY|MASTERDOWN|read only"):
            await armed(real)
    finally:
        await redis.execute_command("REPLICAOF", "NO", "ONE")
    await armed(real, due="+3600000")


@pytest.mark.parametrize(
    "url",
    [
        *("", "http://127.0.0.1", "redis://", "redis://127.0.0.1/abc", "redis://127.0.0.1/3/4", "redis://127.0.0.1/٣"),
        "redis://127.0.0.1/3?db=abc",
    ],
)
def test_a_url_that_cannot_be_used_is_refused_before_the_first_call(url: str) -> None:
    """redis-py would use db 0 for `/abc`, and db 34 for `/3/4`."""
    with pytest.raises(ConfigurationError, match="TIMERS_REDIS_URL cannot be used"):
        connect(url)


@pytest.mark.one_server
@pytest.mark.parametrize("option", ["", "decode_responses=true", "protocol=3"])
@pytest.mark.parametrize("kind", FAMILIES)
async def test_a_connection_that_the_server_has_closed_is_replaced_whatever_the_url_asks_for(
    real: Store, servers: SharedServers, kind: Kind, option: str
) -> None:
    """Through a proxy, because redis-py checks connections over TCP in another way."""
    async with Proxy((await servers.of(kind)).url) as proxy:
        connections = connect(
            f"{proxy.url}{'&' if '?' in proxy.url else '?'}{option}", answer_timeout_seconds=DEADLINE_SECONDS
        )
        store = Store(connections)
        await store.identity.make()
        (idle,) = connections.commands.connection_pool._available_connections
        await real.connections.commands.client_kill_filter(_id=str(await connections.commands.client_id()))
        await eventually(idle.can_read, "the end has arrived here")
        await store.identity.make()
        await connections.commands.flushdb()
        await connections.close()


async def test_every_answer_sets_the_clock(store: Store) -> None:
    before = store.clock.known
    await armed(store, due="+3600000")
    assert [before, store.clock.known] == [False, True]
    assert abs(store.clock.now_ms() - await store.now_ms()) < 1000


@pytest.mark.one_server
@pytest.mark.parametrize("kind", FAMILIES)
async def test_the_db_number_is_that_of_the_url(real: Store) -> None:
    path = real.connections.commands.connection_pool.connection_kwargs["path"]
    connections = connect(f"unix://{path}?db=3")
    assert connections.db == 3
    other = Store(connections)
    await armed(other, due="+3600000")
    assert await real.get([(PREFIX, "a")]) == [None]
    await connections.commands.flushdb()
    await connections.close()
