"""A node of a cluster that is away: what lies on the others goes on."""

import asyncio
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.clusters import Cluster
from tests.engine.fleet import Calls, Fleet, Pod, until
from tests.ledger.copies import in_ledger, whole
from tests.waiting import eventually
from timers.client.fleet import Declared
from timers.engine import peers
from timers.engine.following import claim_ledger
from timers.errors import Unavailable
from timers.ledger import arm
from timers.ledger.database import Database
from timers.store import keys
from timers.store.store import Arming

NUMBER = 60


async def test_timers_on_the_other_nodes_fire_on_while_one_is_away(cluster: Cluster) -> None:
    """Also those with the pods' registry and the db's own key. What was due on the lost node fires once it is back."""
    fleet = await Fleet.over(cluster.url, shards=64)
    calls = Calls()
    pod = await fleet.pod(calls)
    shard_of = fleet.store.shard_of
    for lost in {await cluster.owner(name) for name in (keys.META, keys.PODS_ROOT)}:
        for node in cluster.nodes:
            await node.ask("CONFIG", "SET", "cluster-require-full-coverage", "no")
        here = {shard for shard in range(64) if await cluster.owner(keys.root(shard)) is lost}
        calls.timers.clear()
        names = [f"{lost.port}-{number}" for number in range(NUMBER)]
        there = [name for name in names if shard_of("note", name) not in here]
        await fleet.store.arm([Arming("note", name, "+60000", {}) for name in names])
        replica = await cluster.replica_of(lost)
        replica.down()
        lost.down()

        for name in there:
            await fleet.store.reschedule("note", name, due="+0")
        await until(partial(_have_fired, calls, there), "the timers of the other nodes fire")
        assert set(calls.ids) == set(there)
        await until(lambda: _is_told(pod), "the pod says what is out of reach")
        await until(lambda: pod.worker.health().ready, "the pod is ready")

        await lost.up()
        await replica.up()
        await cluster.heal()
        for name in set(names) - set(there):
            await fleet.store.reschedule("note", name, due="+0")
        await until(partial(_have_fired, calls, names), "the others fire too")
        assert len(calls) == NUMBER
        await until(lambda: not pod.worker.health().warnings, "nothing is out of reach")
    await fleet.close()


async def test_new_timers_of_the_other_nodes_are_taken_while_the_registry_is_away(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Declared.__init__, "__kwdefaults__", {"fresh_seconds": 0.0})  # each create asks again
    fleet = await Fleet.over(cluster.url, shards=16)
    for node in cluster.nodes:
        await node.ask("CONFIG", "SET", "cluster-require-full-coverage", "no")
    lost = await cluster.owner(keys.PODS_ROOT)
    owners = [await cluster.owner(keys.root(shard)) for shard in range(16)]
    await asyncio.gather(*(fleet.client.create("note", f"before-{number}", delay="1h") for number in range(NUMBER)))
    replica = await cluster.replica_of(lost)
    replica.down()
    lost.down()

    names = [str(number) for number in range(NUMBER)]
    there = [name for name in names if owners[fleet.store.shard_of("note", name)] is not lost]
    for name in there:
        assert (await fleet.client.create("note", name, delay="1h")).status == "scheduled"
    with pytest.raises(Unavailable):
        await fleet.client.create("unknown", "a", delay="1h")
    await lost.up()
    await replica.up()
    await cluster.heal()
    await fleet.close()


@pytest.mark.parametrize("has_ledger", [False, True])
async def test_a_pod_starts_while_a_node_is_away(cluster: Cluster, tmp_path: Path, *, has_ledger: bool) -> None:
    database = Database(f"sqlite+aiosqlite:///{tmp_path}/ledger.db")
    await database.upgrade()
    fleet = await Fleet.over(cluster.url, shards=16)
    needed = [await cluster.owner(name) for name in (keys.META, keys.PODS_ROOT)]
    owners = [await cluster.owner(keys.root(shard)) for shard in range(16)]
    lost = next(node for node in owners if node not in needed)
    for node in cluster.nodes:
        await node.ask("CONFIG", "SET", "cluster-require-full-coverage", "no")
    names = [str(number) for number in range(NUMBER)]
    await fleet.store.arm([Arming("note", name, "+60000", {}) for name in names])
    replica = await cluster.replica_of(lost)
    replica.down()
    lost.down()

    if has_ledger:
        await claim_ledger(fleet.store, database)
    calls = Calls()
    await fleet.pod(calls, ledger=database if has_ledger else None)
    there = [name for name in names if owners[fleet.store.shard_of("note", name)] is not lost]
    for name in there:
        await fleet.store.reschedule("note", name, due="+0")
    await until(partial(_have_fired, calls, there), "the timers of the other nodes fire")

    await lost.up()
    await replica.up()
    await cluster.heal()
    await fleet.close()
    await database.close()


async def test_the_ledger_and_its_inbox_go_on_with_the_other_nodes(cluster: Cluster, tmp_path: Path) -> None:
    database = Database(f"sqlite+aiosqlite:///{tmp_path}/ledger.db")
    await database.upgrade()
    fleet = await Fleet.over(cluster.url, shards=16)
    calls = Calls()
    await fleet.pod(calls, ledger=database)
    await whole(fleet.store)
    needed = [await cluster.owner(name) for name in (keys.META, keys.PODS_ROOT)]
    owners = [await cluster.owner(keys.root(shard)) for shard in range(16)]
    lost = next(node for node in owners if node not in needed)
    for node in cluster.nodes:
        await node.ask("CONFIG", "SET", "cluster-require-full-coverage", "no")
    replica = await cluster.replica_of(lost)
    replica.down()
    lost.down()
    names = [str(number) for number in range(NUMBER)]
    async with database.transaction() as tx:
        for name in names:
            await arm(tx, "note", name, delay=0)
    there = [name for name in names if owners[fleet.store.shard_of("note", name)] is not lost]

    async def are_completed(some: Iterable[str]) -> bool:
        rows = await in_ledger(database)
        return all(f"note:{name}" in rows and rows[f"note:{name}"].status == "completed" for name in some)

    await until(partial(_have_fired, calls, there), "those of the other nodes fire")
    await eventually(partial(are_completed, there), "the ledger knows")
    assert set(calls.ids) == set(there)
    await lost.up()
    await replica.up()
    await cluster.heal()
    await eventually(partial(are_completed, names), "the others follow")
    assert len(calls) == NUMBER
    await fleet.close()
    await database.close()


async def test_a_node_that_goes_away_before_it_has_told_of_a_canary_leaves_the_pod_ready(cluster: Cluster) -> None:
    fleet = await Fleet.over(cluster.url, shards=16)
    for node in cluster.nodes:
        await node.ask("CONFIG", "SET", "cluster-require-full-coverage", "no")
    lost = await cluster.owner(keys.root(0))
    pod = await fleet.pod(Calls(), canary_every_seconds=0.05, deaf_seconds=0.2)
    health = pod.worker.health
    await until(lambda: health().ready, "the pod is ready")
    await lost.ask("CONFIG", "SET", "notify-keyspace-events", "")
    await until(lambda: not health().ready, "the node tells of no canary")

    replica = await cluster.replica_of(lost)
    replica.down()
    lost.down()
    await until(lambda: _is_told(pod), "the pod says what is out of reach")
    await until(lambda: health().ready, "the pod is ready")
    await lost.up()
    await replica.up()
    await cluster.heal()
    await fleet.close()


async def test_a_node_that_hangs_leaves_the_pod_ready_before_all_its_shards_are_known_to_be_away(
    cluster: Cluster,
) -> None:
    """As where it hangs: a pod waits for each answer, and one after the other is not given in time."""
    fleet = await Fleet.over(cluster.url, shards=16)
    pod = await fleet.pod(Calls())
    health = pod.worker.health
    await until(lambda: health().ready, "the pod is ready")
    states: Any = pod.worker.peers.beating.states
    states["peers"] = "restarting: Redis is not available: it hangs"
    assert health().ready, "no shard is known to be away yet, or none any more"
    canary = pod.worker._canaries.of_shard(0)
    assert canary is not None
    assert len(canary.part.shards) > 1
    canary.subscribed = False
    assert not health().ready
    pod.worker._pod.away.shards[0] = "it hangs"
    assert health().ready
    canary.subscribed = True
    await fleet.close()


async def test_all_shards_that_a_node_lost_are_reported_while_another_is_away(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers, "ALL_BEATS", 1_000_000)
    for node in cluster.nodes:
        await node.ask("CONFIG", "SET", "cluster-require-full-coverage", "no")
    fleet = await Fleet.over(cluster.url, shards=16)
    pod = await fleet.pod(Calls(), beat_ms=50)
    identity = pod.store.identity
    await until(lambda: pod.worker.peers._checks > 16, "each shard has had its turn for long")
    needed = [await cluster.owner(name) for name in (keys.META, keys.PODS_ROOT)]
    away = next(node for node in await cluster.primaries() if node not in needed)
    emptied = next(node for node in await cluster.primaries() if node not in (away, needed[0]))
    lost = {f"shard:{shard}" for shard in range(16) if await cluster.owner(keys.root(shard)) is emptied}
    (await cluster.replica_of(away)).down()
    away.down()
    await until(lambda: not pod.worker.health().services["peers"].startswith("running"), "the pod has noticed")
    await emptied.empty(replicas=1)
    await until(lambda: {name.removeprefix("loss:") for name in identity.losses} >= lost, "all are reported")
    await cluster.heal()
    await fleet.close()


def _have_fired(calls: Calls, names: Iterable[str]) -> bool:
    return set(calls.ids) >= set(names)


def _is_told(pod: Pod) -> bool:
    return any("out of reach" in said for said in pod.worker.health().warnings)
