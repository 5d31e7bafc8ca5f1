"""What the primaries of a cluster announce: each its own part, heard once, wherever the parts are by now."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Collection

import pytest

from tests.clusters import Cluster, Node
from tests.engine.fleet import Calls, Fleet, until
from tests.store.acts import armed, arming
from tests.store.listening import SUBSCRIBED, Heard
from tests.waiting import eventually
from timers.engine.sweeper import ShardSweep
from timers.errors import Unavailable
from timers.store import keys
from timers.store.notifications import FLAGS, Change, changes, current_parts, listen

pytestmark = pytest.mark.every_server

SHARDS = 12


@pytest.fixture
async def fleet(cluster: Cluster) -> AsyncIterator[Fleet]:
    made = await Fleet.over(cluster.url, shards=SHARDS)
    yield made
    await made.close()


async def subscribers(node: Node) -> int:
    """How many connections of a server are subscribed to anything."""
    return len((await node.ask("CLIENT", "LIST", "TYPE", "pubsub")).splitlines())


async def test_each_timer_of_each_primary_is_announced_once(fleet: Fleet) -> None:
    found = await current_parts(fleet.store.connections, SHARDS)
    assert len(found) == 3
    heard = Heard()
    streams = [asyncio.create_task(listen(part, heard)) for part in found]
    await until(lambda: heard.all.count(SUBSCRIBED) == 3, "all subscriptions are confirmed")
    timers = [await armed(fleet.store, f"t{number}", due="+5") for number in range(3 * SHARDS)]
    assert {fleet.store.shard_of(timer.prefix, timer.id) for timer in timers} == set(range(SHARDS))

    async def all_heard() -> bool:
        for shard in range(SHARDS):
            await fleet.store.touch(shard)
        return sum(len(said[-1]) for said in heard.all if said[0] == "triggers") >= len(timers)

    await eventually(all_heard, "all are announced")
    ids = Counter(timer_id.decode() for said in heard.all if said[0] == "triggers" for timer_id in said[-1])
    assert ids == Counter({timer.id: 1 for timer in timers})
    assert sum(said[0] == "wake" for said in heard.all) == len(timers)
    for stream in streams:
        stream.cancel()
    await asyncio.gather(*streams, return_exceptions=True)
    for timer in timers:
        await fleet.store.cancel(timer.prefix, timer.id)


async def test_every_change_of_a_script_is_published(fleet: Fleet) -> None:
    """In a cluster PUBLISH counts the subscribers of its own node only, so scripts gave up after the first change."""
    heard: list[Change | None] = []
    stream = asyncio.create_task(changes(fleet.store, heard.append))
    await until(lambda: heard, "the subscription is confirmed")
    wanted = {f"t{number}" for number in range(10 * SHARDS)}
    await fleet.store.arm([arming(timer_id, due="+3600000") for timer_id in wanted])
    await until(lambda: len(heard) > len(wanted), "all changes are heard")
    assert heard[0] is None
    assert Counter(change.id for change in heard[1:] if change) == Counter(wanted)
    stream.cancel()
    await asyncio.gather(stream, return_exceptions=True)


async def test_changes_that_nobody_listens_to_are_sent_to_no_other_node(cluster: Cluster, fleet: Fleet) -> None:
    async def sent() -> int:
        infos = [await node.ask("CLUSTER INFO") for node in await cluster.primaries()]
        return sum(int(info.get("cluster_stats_messages_publish_sent", 0)) for info in infos)

    before = await sent()
    await fleet.store.arm([arming(f"t{number}", due="+3600000") for number in range(100)])
    assert await sent() == before


async def test_a_moved_shard_ends_the_stream_of_changes(cluster: Cluster, fleet: Fleet) -> None:
    """Its listeners are told of a gap, and hear the new primary."""
    heard: list[Change | None] = []
    stream = asyncio.create_task(changes(fleet.store, heard.append))
    await until(lambda: heard, "the subscription is confirmed")
    await cluster.move(keys.root(3))
    with pytest.raises(Unavailable):
        await stream


async def test_a_pod_hears_each_primary_over_one_subscription(cluster: Cluster, fleet: Fleet) -> None:
    pod = await fleet.pod(Calls())
    await until(lambda: pod.worker.health().ready, "the pod is ready")
    assert [await subscribers(node) for node in await cluster.primaries()] == [1, 1, 1]
    assert pod.seen.subscriptions == 3


async def test_a_cut_at_one_primary_sweeps_its_shards_only(
    cluster: Cluster, fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    pod = await fleet.pod(Calls())
    await until(lambda: pod.worker.health().ready, "the pod is ready")
    swept, sweep = set[int](), ShardSweep.poll_everything

    def note(self: ShardSweep) -> None:
        swept.add(self._shard)
        sweep(self)

    monkeypatch.setattr(ShardSweep, "poll_everything", note)
    owner = await cluster.owner(keys.root(0))
    await owner.ask("CLIENT", "KILL", "TYPE", "pubsub")
    await until(lambda: pod.seen.subscriptions == 4, "it has subscribed again")
    assert swept == await shards_of(cluster, owner)


async def shards_of(cluster: Cluster, node: Node) -> set[int]:
    """The shards that a primary has."""
    return {shard for shard in range(SHARDS) if await cluster.owner(keys.root(shard)) is node}


async def test_subscriptions_follow_a_primary_that_is_demoted(cluster: Cluster, fleet: Fleet) -> None:
    """It keeps its subscribers without an error, and says nothing."""
    calls = Calls()
    pod = await fleet.pod(calls)
    await until(lambda: pod.worker.health().ready, "the pod is ready")
    demoted = await cluster.owner(keys.root(0))
    promoted = await cluster.fail_over(demoted)

    async def moved() -> bool:
        return [await subscribers(node) for node in (demoted, promoted)] == [0, 1]

    await eventually(moved, "the subscription has moved")
    await until(lambda: pod.worker.health().ready, "the pod is ready again")
    id_there = next(f"t{n}" for n in range(1000) if fleet.store.shard_of("note", f"t{n}") == 0)
    await fleet.client.create("note", id_there, delay="50ms")
    await fleet.completed(id_there)
    assert calls.ids == [id_there]


async def test_subscriptions_follow_a_shard_that_moves(cluster: Cluster, fleet: Fleet) -> None:
    pod = await fleet.pod(Calls())
    await until(lambda: pod.worker.health().ready, "the pod is ready")
    now = await cluster.move(keys.root(3))

    async def heard_there() -> bool:
        return keys.root(3) + keys.OWN_WAKE in await now.ask("PUBSUB", "SHARDCHANNELS")

    await eventually(heard_there, "the new primary is heard")
    await until(lambda: pod.worker.health().ready, "the pod is ready again")
    assert [await subscribers(node) for node in await cluster.primaries()] == [1, 1, 1]


async def test_all_nodes_announce_expired_keys(cluster: Cluster, fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """A replica that is promoted without the flags says nothing."""
    monkeypatch.setattr("timers.engine.listener.REPLICAS_SECONDS", 0.05)
    await forget_flags(cluster.nodes)
    await fleet.pod(Calls())
    await eventually(lambda: announce_all(cluster.nodes), "all have the flags")
    replicas = [node for node in cluster.nodes if node not in await cluster.primaries()]
    await forget_flags(replicas)  # as a restart does
    await eventually(lambda: announce_all(cluster.nodes), "the replicas have them again")


async def forget_flags(nodes: Collection[Node]) -> None:
    """Turn all notifications off."""
    for node in nodes:
        await node.ask("CONFIG", "SET", FLAGS, "")


async def announce_all(nodes: Collection[Node]) -> bool:
    """Whether all these servers announce expired keys."""
    said = [(await node.ask("CONFIG GET", FLAGS))[FLAGS] for node in nodes]
    return all({"E", "x"} <= set(each) for each in said)


async def test_a_primary_that_announces_nothing_makes_the_pod_deaf(
    cluster: Cluster, fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others have their own canaries, and do not hide it."""

    async def leave(_redis: object) -> tuple[bool, str]:
        return True, "not looked at"

    monkeypatch.setattr("timers.store.notifications.ensure_notifications", leave)
    monkeypatch.setattr("timers.engine.listener.ensure_notifications", leave)
    quiet = await cluster.owner(keys.root(0))
    await forget_flags([quiet])
    pod = await fleet.pod(Calls(), canary_every_seconds=0.05, deaf_seconds=1.0)
    canaries = pod.worker._canaries.by_node

    def found() -> bool:
        deaf = {node.address for node, each in canaries.items() if each.delivery == "deaf"}
        return deaf == {quiet.name} and pod.worker.health().notifications == "deaf"

    await until(found, "it hears all but this one")
    silent = await shards_of(cluster, quiet)
    await until(
        lambda: {s for s in range(SHARDS) if not pod.worker._sweeper.receives_events(s)} == silent,
        "it waits for events of the other shards only",
    )
    await quiet.ask("CONFIG", "SET", FLAGS, "Ex")
