"""In a cluster and behind Sentinels, a write waits for the replicas of the server that it went to."""

import asyncio
from contextlib import suppress

from tests.clusters import Cluster
from tests.members import declare
from tests.sentinels import Sentinels
from tests.waiting import eventually
from timers.client import Armed, TimerClient, client_over, open_store
from timers.core.model import Timer
from timers.errors import Unavailable
from timers.store.servers import connect
from timers.store.servers.durability import ReplicasProof


async def batch_of(client: TimerClient, number: int) -> list[Timer]:
    """Timers armed in one batch, replicated; again until all replicas answer."""

    async def armed() -> list[Timer]:
        results = await client.batch(
            {"prefix": "note", "delay": "1h", "durability": "replicated"} for _ in range(number)
        )
        timers = [result.timer for result in results if isinstance(result, Armed)]
        return timers if {timer.durability for timer in timers} == {"replicated"} else []

    return await eventually(armed, "all replicas answer")


async def test_in_a_cluster_each_primary_waits_for_its_replicas(cluster: Cluster) -> None:
    async with client_over(await open_store(connect(cluster.url))) as client:
        store = client._store
        assert store is not None
        await declare(store, "note")
        made = await batch_of(client, 100)
        victim = (await cluster.primaries())[0]
        replica = await cluster.replica_of(victim)
        replica.hang()
        told = await asyncio.gather(
            *(client.create("note", f"t{n}", delay="1h", durability="replicated") for n in range(30))
        )
        owners = [await cluster.owner(f"timers:{{{store.shard_of('note', timer.id)}}}:") for timer in told]
        assert [timer.durability == "fast" for timer in told] == [owner is victim for owner in owners]
        assert {timer.durability for timer in told} == {"fast", "replicated"}
        replica.go_on()
        assert None not in await store.get([(timer.prefix, timer.id) for timer in (*made, *told)])


def test_a_replica_that_only_sentinels_know_counts() -> None:
    info = b"role:master\r\nconnected_slaves:1\r\nslave0:ip=::1,port=6379,state=online,offset=1,lag=0\r\n"
    proof = ReplicasProof(lambda: 2)
    assert proof.judged([1, info]) == (False, "1 of 2 replicas had it", "")
    assert proof.judged([2, info]).reached


async def test_a_failover_by_sentinels_loses_nothing_that_was_replicated(sentinels: Sentinels) -> None:
    """The old primary takes writes for some seconds more, and all of them are lost."""
    async with client_over(await open_store(connect(sentinels.url))) as client:
        assert client._store is not None
        await declare(client._store, "note")
        told, failed_over = await batch_of(client, 10), asyncio.Event()

        async def arm() -> None:
            while not failed_over.is_set():
                with suppress(Unavailable):
                    timer = await client.create("note", delay="1h", durability="replicated")
                    told.extend([timer] * (timer.durability == "replicated"))

        callers = [asyncio.create_task(arm()) for _ in range(8)]
        await sentinels.fail_over()
        told += await batch_of(client, 10)
        failed_over.set()
        await asyncio.gather(*callers)
        assert None not in await client._store.get([(timer.prefix, timer.id) for timer in told])
