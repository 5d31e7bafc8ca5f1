"""What a write waits for is judged by the primary of its shard, whatever the others lack."""

from collections.abc import AsyncIterator

import pytest

from tests.clusters import Cluster, Node
from tests.members import declare
from tests.waiting import eventually, patient
from timers.client import Armed, TimerClient, client_over, open_store
from timers.client.opening import check_setting
from timers.errors import ConfigurationError, InvalidInput, Unavailable
from timers.store import keys
from timers.store.servers import connect
from timers.store.servers.durability import ReplicasProof

NUMBER = 30
SHARDS = 12


@pytest.fixture
async def client(cluster: Cluster) -> AsyncIterator[TimerClient]:
    """A client that has reached all replicas."""
    for node in cluster.nodes:
        await node.ask("CONFIG", "SET", "cluster-require-full-coverage", "no")
    made = await opened(cluster)
    assert made._store is not None
    await declare(made._store, "note")

    async def reached() -> bool:
        return {await replicated(made, name) for name in names("first")} == {"replicated"}

    await eventually(reached, "all replicas answer")
    yield made
    await made.close()
    await cluster.heal()


async def opened(cluster: Cluster) -> TimerClient:
    return client_over(await open_store(connect(patient(cluster.url)), shards=SHARDS))


def names(of: str) -> list[str]:
    return [f"{of}-{number}" for number in range(NUMBER)]


async def replicated(client: TimerClient, name: str) -> str:
    """What a create reaches that asks for all replicas; the error that refuses it."""
    try:
        timer = await client.create("note", name, delay="1h", if_exists="replace", durability="replicated")
    except (InvalidInput, Unavailable) as error:
        return type(error).__name__
    return timer.durability


async def in_batch(client: TimerClient, some: list[str]) -> list[str]:
    """As `replicated`, in one batch."""
    results = await client.batch({"prefix": "note", "id": n, "delay": "1h", "durability": "replicated"} for n in some)
    return [each.timer.durability if isinstance(each, Armed) else type(each).__name__ for each in results]


async def shards_on(cluster: Cluster, node: Node) -> set[int]:
    return {shard for shard in range(SHARDS) if await cluster.owner(keys.root(shard)) is node}


def expected(client: TimerClient, some: list[str], here: set[int], said: str) -> list[str]:
    """`said` for what lies in these shards."""
    store = client._store
    assert store is not None
    return [said if store.shard_of("note", name) in here else "replicated" for name in some]


async def test_a_promoted_replica_answers_fast_and_the_others_go_on(cluster: Cluster, client: TimerClient) -> None:
    """It has replaced its primary, which may come back. A process that starts then knows of no replica."""
    lost = await cluster.owner(keys.root(0))
    here, successor = await shards_on(cluster, lost), await cluster.replica_of(lost)
    lost.down()

    async def are_answered() -> bool:
        return "Unavailable" not in {await replicated(client, name) for name in names("meanwhile")}

    await eventually(are_answered, "the replica has taken over")
    assert (await successor.ask("ROLE"))[0] == "master"
    assert [await replicated(client, name) for name in names("a")] == expected(client, names("a"), here, "fast")
    assert await in_batch(client, names("b")) == expected(client, names("b"), here, "fast")

    async with await opened(cluster) as new:
        refused = expected(new, names("c"), here, "InvalidInput")
        assert [await replicated(new, name) for name in names("c")] == refused
        assert await in_batch(new, names("d")) == expected(new, names("d"), here, "InvalidInput")


async def test_a_primary_that_is_away_fails_only_what_it_has(cluster: Cluster, client: TimerClient) -> None:
    needed = [await cluster.owner(name) for name in (keys.META, keys.PODS_ROOT)]
    lost = next(node for node in await cluster.primaries() if node not in needed)
    here = await shards_on(cluster, lost)
    (await cluster.replica_of(lost)).down()
    lost.down()
    assert [await replicated(client, name) for name in names("a")] == expected(client, names("a"), here, "Unavailable")
    there = [name for name, said in zip(names("b"), expected(client, names("b"), here, ""), strict=True) if said]
    assert there
    assert await in_batch(client, there) == ["replicated"] * len(there)


async def test_a_pod_that_waits_for_disks_starts_while_a_primary_is_away(cluster: Cluster, client: TimerClient) -> None:
    """Those that answer are asked."""
    assert client._store is not None
    (lost, *others), appendfsync = await cluster.primaries(), ("CONFIG", "SET", "appendfsync")
    (await cluster.replica_of(lost)).down()
    lost.down()
    for node in others:
        with pytest.raises(ConfigurationError, match="appendfsync is no"):
            await check_setting(client._store, "fsync")
        await node.ask(*appendfsync, "always")
    await check_setting(client._store, "fsync")
    for node in others:
        await node.ask(*appendfsync, "no")


def test_a_server_that_is_a_replica_now_does_not_lack_replicas() -> None:
    proof = ReplicasProof(lambda: 0)
    assert proof.judged([0, b"role:slave\r\nconnected_slaves:0\r\n"]) == (False, "the server is a replica now", "")
