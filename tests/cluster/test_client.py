"""The client of a cluster: where commands go, and what is sent again."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import pytest
from redis.exceptions import ConnectionError, NoPermissionError, TryAgainError
from redis.exceptions import TimeoutError as RedisTimeoutError
from structlog.testing import capture_logs

from tests.clusters import Cluster
from tests.servers import free_port, start_server
from tests.waiting import DEADLINE_SECONDS, eventually, patient
from timers.client.opening import open_store
from timers.core.model import Status
from timers.errors import ConfigurationError, Unavailable
from timers.store import keys, queries
from timers.store.servers import connect
from timers.store.servers.slots import slot_of
from timers.store.store import Arming, Store

ROOT: Final = keys.root(7)
COUNT_SLOWLY: Final = """
local times, began = redis.call('INCR', KEYS[1] .. 'times'), redis.call('TIME')
repeat
  local now = redis.call('TIME')
until (now[1] - began[1]) * 1000000 + now[2] - began[2] > 300000
return times"""
COUNT: Final = "return redis.call('INCR', KEYS[1] .. 'times')"


@pytest.fixture
async def store(cluster: Cluster) -> AsyncIterator[Store]:
    """A store over the cluster."""
    connections = connect(patient(cluster.url))
    yield await open_store(connections)
    await connections.close()


def armings(number: int) -> list[Arming]:
    """Timers of all shards."""
    return [Arming("log", f"user-{place}", "+60000", {"payload": place}) for place in range(number)]


async def test_a_db_on_a_cluster_has_64_shards_on_all_primaries(store: Store) -> None:
    assert store.shards == 64
    assert {reply.code for reply in await store.arm(armings(500))} == {"created"}
    assert (await queries.counts(store))["log"][Status.SCHEDULED] == 500
    timer = await store.get_one("log", "user-3")
    assert timer is not None
    assert timer.spec["payload"] == 3

    nodes = store.connections.nodes
    assert len(nodes) == 3
    for shard in range(64):
        epoch = f"{keys.root(shard)}epoch"
        assert await store.connections.node_of(epoch).commands.get(epoch) == store.identity.stamp.encode()
    assert {store.connections.node_of(keys.root(shard)) for shard in range(64)} == set(nodes)


async def test_keys_of_all_primaries_are_scanned_and_counted(store: Store) -> None:
    await store.arm(armings(500))
    redis = store.connections.commands
    triggers = [name async for name in redis.scan_iter(match="log:*", count=10)]
    assert len(triggers) == len(set(triggers)) == 500
    assert await redis.exists(*triggers, "log:{0}:nobody") == 500


async def test_a_pipeline_is_answered_in_order(store: Store) -> None:
    async with store.connections.commands.pipeline(transaction=False) as asked:
        for shard in range(64):
            name = f"{keys.root(shard)}x"
            asked.set(name, shard)
            asked.get(name)
            asked.hget(name, "a")
        answers = await asked.execute(raise_on_error=False)
    assert answers[1::3] == [str(shard).encode() for shard in range(64)]
    assert all("WRONGTYPE" in str(answer) for answer in answers[2::3])


async def test_a_moved_slot_is_found(store: Store, cluster: Cluster) -> None:
    scripts, redis = store.connections.scripts, store.connections.commands
    elsewhere = store.connections.dial_scripts(answer_s=100)
    assert [await each.execute_command("EVAL", COUNT, 1, ROOT) for each in (scripts, redis, elsewhere)] == [1, 2, 3]
    await redis.delete(f"{ROOT}times")
    await cluster.move(ROOT)
    assert [await each.execute_command("EVAL", COUNT, 1, ROOT) for each in (scripts, redis, elsewhere)] == [1, 2, 3]
    await redis.delete(f"{ROOT}times")
    await cluster.move(ROOT)
    async with redis.pipeline(transaction=False) as asked:
        asked.eval(COUNT, 1, ROOT)
        asked.get(f"{ROOT}times")
        asked.incr(f"{ROOT}times")
        asked.time()
        assert (await asked.execute())[:3] == [1, b"1", 2]
    await redis.delete(f"{ROOT}times")
    await elsewhere.aclose()


async def test_where_a_node_refuses_to_say_who_has_what_others_are_asked(cluster: Cluster) -> None:
    """Users are not replicated: a new node may lack them, and be asked when the one asked before has gone."""
    refusing, other, _ = await cluster.primaries()
    await refusing.ask("ACL", "SETUSER", "default", "-cluster|slots")
    connections = connect(patient(f"redis+cluster://{refusing.name},{other.name}"))
    try:
        with capture_logs() as lines:
            assert await connections.commands.get(ROOT) is None
            await connections.refresh()
        assert len(connections.nodes) == 3
        await other.ask("ACL", "SETUSER", "default", "-cluster|slots")
        lone = connect(patient(f"redis+cluster://{refusing.name},{other.name}"))
        with pytest.raises(NoPermissionError, match=r"cluster\|slots"):
            await lone.commands.get(ROOT)
        await lone.close()
    finally:
        for node in (refusing, other):
            await node.ask("ACL", "SETUSER", "default", "+@all")
        await connections.close()
    said = [(line["node"], "cluster|slots" in line["reason"]) for line in lines if "refuses" in line["event"]]
    assert said == [(refusing.name, True)]


async def test_a_script_whose_answer_was_lost_is_not_sent_again(store: Store, cluster: Cluster) -> None:
    impatient = connect(f"{cluster.url}?socket_timeout=0.1")
    await impatient.commands.get(ROOT)
    for scripts in (impatient.scripts, impatient.commands):
        with pytest.raises((TimeoutError, RedisTimeoutError)):
            await scripts.execute_command("EVAL", COUNT_SLOWLY, 1, ROOT)
    await impatient.close()
    assert await store.connections.scripts.execute_command("EVAL", COUNT, 1, ROOT) == 3


async def test_a_slot_that_is_moved_key_by_key_is_waited_for(store: Store, cluster: Cluster) -> None:
    """A script never sees a part of a shard: it is refused before its first command, and tried again."""
    await store.arm([Arming("log", "a", "+60000", {})])
    shard = store.shard_of("log", "a")
    slot = slot_of(keys.root(shard))
    was = await cluster.owner(keys.root(shard))
    now = next(node for node in await cluster.primaries() if node is not was)
    await now.ask("CLUSTER SETSLOT", slot, "IMPORTING", await was.ask("CLUSTER MYID"))
    await was.ask("CLUSTER SETSLOT", slot, "MIGRATING", await now.ask("CLUSTER MYID"))

    with pytest.raises(Unavailable, match="is being moved") as refused:
        await store.cancel("log", "a")
    assert refused.value.nothing_done
    with pytest.raises(Unavailable, match="is being moved"):
        await store.run_all("get", [(keys.root(each), ["log", "a"]) for each in (shard, shard + 1)])
    root = keys.root(shard)
    with pytest.raises(TryAgainError, match="is being moved"):
        await store.connections.commands.exists(f"{root}a", f"{root}b", f"{keys.root(shard + 1)}a")
    # Commands on one key go where it is.
    name = f"{keys.root(shard)}heads"
    assert await store.connections.commands.zcard(name) == 1
    asked = await was.ask("CLUSTER GETKEYSINSLOT", slot, 100)
    await was.ask("MIGRATE", now.name.partition(":")[0], now.port, "", 0, 10_000, "KEYS", *asked)
    assert await store.connections.commands.zcard(name) == 1
    assert await store.connections.commands.hset(f"{keys.root(shard)}hooks", "a", 1) == 1
    await store.connections.commands.delete(f"{keys.root(shard)}hooks")

    waiting = asyncio.create_task(store.cancel("log", "a"))
    for node in (now, was):
        await node.ask("CLUSTER SETSLOT", slot, "NODE", await now.ask("CLUSTER MYID"))
    assert (await waiting).code == "cancelled"


async def test_a_node_that_is_away_fails_only_what_it_has(store: Store, cluster: Cluster) -> None:
    await store.arm(armings(200))
    owner = await cluster.owner(ROOT)
    here = {shard for shard in range(64) if await cluster.owner(keys.root(shard)) is owner}
    owner.down()
    calls = (store.run("get", shard, ["log", "x"]) for shard in range(64))
    answers = await asyncio.gather(*calls, return_exceptions=True)
    assert {shard for shard, answer in enumerate(answers) if isinstance(answer, Unavailable)} == here
    with pytest.raises(Unavailable):
        await queries.counts(store)

    async def is_back() -> bool:
        with suppress(Unavailable):
            return bool(await queries.counts(store))
        return False

    await eventually(is_back, "the replica has taken over")
    assert (await queries.counts(store))["log"][Status.SCHEDULED] == 200


async def test_nobody_waits_for_a_primary_that_another_has_replaced(cluster: Cluster) -> None:
    """Not even for the first one of the URL. When it wakes it carries out what it was sent, as if nothing had been."""
    hung = await cluster.owner(ROOT)
    url = f"redis+cluster://{','.join([hung.name, *(node.name for node in cluster.nodes if node is not hung)])}"
    connections = connect(url, answer_timeout_seconds=DEADLINE_SECONDS)
    await connections.commands.get(ROOT)
    replica = await cluster.replica_of(hung)
    hung.hang()
    pipeline = connections.commands.pipeline(transaction=False)
    pipeline.incr(f"{ROOT}times")
    waiting = (
        connections.scripts.execute_command("EVAL", COUNT, 1, ROOT),
        connections.commands.eval(COUNT, 1, ROOT),
        pipeline.execute(),
        connections.durable("replicated")([("EVAL", COUNT, 1, ROOT)]),
    )
    answers = await asyncio.gather(*waiting, return_exceptions=True)
    assert [isinstance(answer, ConnectionError) for answer in answers] == [True] * 4
    assert (await replica.ask("ROLE"))[0] == "master"
    hung.go_on()
    assert await connections.scripts.execute_command("EVAL", COUNT, 1, ROOT) == 1
    await connections.close()


async def test_the_form_of_the_url_is_said_where_it_does_not_fit(cluster: Cluster, tmp_path: Path) -> None:
    node = (await cluster.primaries())[0]
    plain = connect(patient(node.url))
    with pytest.raises(ConfigurationError, match=r"redis\+cluster://"):
        await open_store(plain)
    await plain.close()

    port = free_port()
    single, address = await start_server("redis", tmp_path, "--port", str(port)), f"127.0.0.1:{port}"
    clustered = connect(f"redis+cluster://{address}")
    with pytest.raises(ConfigurationError, match=f"{address} is not a node of a cluster; .* redis://{address}"):
        await open_store(clustered)
    await clustered.close()
    await single.stop()
    with pytest.raises(ConfigurationError, match="db 5 cannot be used: a cluster has only db 0"):
        connect("redis+cluster://127.0.0.1:7000,127.0.0.1:7001/5")
