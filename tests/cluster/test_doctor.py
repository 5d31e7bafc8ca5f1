"""What the doctor and the probes say of a cluster: each primary is looked at."""

import pytest

from tests.api.conftest import done
from tests.api.harness import running_api
from tests.clusters import Cluster, held_open
from tests.dashboard.conftest import Visitor, reading_each_time
from tests.dashboard.test_away import present
from tests.doctor.setups import TIMED, alive, found, made, opened
from tests.rights import for_clusters
from tests.waiting import DEADLINE_SECONDS, eventually
from timers.api.health import HealthRoutes
from timers.client import client_over
from timers.client.fleet import ALL_SERVED
from timers.client.opening import refusal_of
from timers.doctor.checks import Check, any_full, away_from
from timers.doctor.examining import examine
from timers.doctor.failover import durability_check
from timers.doctor.proofs import _ON_CLUSTERS
from timers.errors import Unavailable
from timers.metrics import Metrics
from timers.store import keys
from timers.store.servers.slots import slot_of
from timers.store.store import Store


async def knows_replicas(store: Store) -> None:
    """Wait until the cluster names all its replicas, which takes one that has just started a moment."""

    async def are_named() -> bool:
        await store.connections.refresh()
        return len(store.connections.replicas) == len(store.connections.nodes)

    await eventually(are_named, "the cluster names all replicas")


async def test_each_primary_is_examined(cluster: Cluster) -> None:
    primaries = await cluster.primaries()
    for node in cluster.nodes:
        await node.ask("CONFIG", "SET", "cluster-require-full-coverage", "no", "notify-keyspace-events", "Ex")
    async with opened(cluster.url, shards=64) as store:
        await made(store)
        await alive(store)
        assert (await found(store)).keys() <= {*TIMED, "persistence"}
        checks = {check.name: check for check in await examine(store, wait_seconds=1)}
        assert all(node.name in checks["clients"].said for node in primaries)

        await primaries[1].ask("CONFIG", "SET", "maxmemory-policy", "volatile-ttl", "maxmemory", "1")
        try:
            wrong = await found(store, wait_seconds=0.2)
            assert wrong["eviction"].said.startswith(f"{primaries[1].name}: maxmemory-policy is volatile-ttl")
            assert wrong["memory"].level == "fail"
            assert await any_full(store.connections)
        finally:
            await primaries[1].ask("CONFIG", "SET", "maxmemory", "0", "maxmemory-policy", "noeviction")

        await primaries[2].ask("CONFIG", "SET", "cluster-require-full-coverage", "yes")
        assert "cluster-require-full-coverage is yes" in (await found(store, wait_seconds=0.2))["role"].said
        await primaries[2].ask("CONFIG", "SET", "cluster-require-full-coverage", "no")


async def test_rights_and_flags_that_one_primary_lacks_are_said_with_its_name(cluster: Cluster) -> None:
    async with opened(cluster.url, shards=64) as store:
        await made(store)
        asked = [await cluster.owner(name) for name in (keys.META, keys.root(0))]
        lacking = next(node for node in await cluster.primaries() if node not in asked)
        for node in cluster.nodes:
            await node.ask("CONFIG", "SET", "notify-keyspace-events", "Ex")
        await lacking.ask("CONFIG", "SET", "notify-keyspace-events", "")
        await lacking.ask("ACL", "SETUSER", "default", "-zadd")
        try:
            wrong = await found(store, wait_seconds=0.2)
            assert wrong["rights"].said == f"{lacking.name}: the Redis user lacks permission for: zadd timers:x"
            assert wrong["flags"].said == f"{lacking.name}: notify-keyspace-events is '' and lacks 'Ex'"
        finally:
            await lacking.ask("ACL", "SETUSER", "default", "+@all")
        await examine(store, fix=True, wait_seconds=0.2)
        _, flags = await lacking.ask("CONFIG", "GET", "notify-keyspace-events")
        assert set(flags) == set("xE")


async def test_a_replica_that_has_another_password_is_named(cluster: Cluster) -> None:
    odd = await cluster.replica_of((await cluster.primaries())[0])
    for node in cluster.nodes:
        password = "rotated" if node is odd else "old"
        await node.ask("ACL", "SETUSER", "other", "reset", "on", f">{password}", "~*", "&*", "+@all")
    async with opened(cluster.url.replace("://", "://other:old@"), shards=64) as store:
        await made(store)
        await knows_replicas(store)
        there = (await found(store, wait_seconds=0.2))["replicas' rights"]
        refused = f"{odd.name}: Redis is not available: invalid username-password pair or user is disabled."
        assert (there.level, there.said) == ("warn", refused)
        await odd.ask("ACL", "SETUSER", "other", ">old")
        assert "replicas' rights" not in await found(store, wait_seconds=0.2)


async def test_rights_that_only_a_cluster_asks_for_are_checked(cluster: Cluster) -> None:
    async with opened(cluster.url, shards=64) as store:
        await made(store)
        lacking = await cluster.owner(keys.META)
        for name in (right.removeprefix("+") for right in for_clusters() if not right.startswith("+cluster")):
            await lacking.ask("ACL", "SETUSER", "default", f"-{name}")
            try:
                wrong = (await found(store, wait_seconds=0.2))["rights"]
            finally:
                await lacking.ask("ACL", "SETUSER", "default", "+@all")
            assert wrong.said.startswith(f"{lacking.name}: the Redis user lacks permission for: {name}")
            assert f"default +{name}" in wrong.repair
        assert "rights" not in await found(store, wait_seconds=0.2)
    assert {f"+{command.split()[0]}" for command in _ON_CLUSTERS} == {*for_clusters()}


async def test_flags_that_a_replica_lacks_are_named_and_set(cluster: Cluster) -> None:
    for node in cluster.nodes:
        await node.ask("CONFIG", "SET", "notify-keyspace-events", "Ex")
    lacking = await cluster.replica_of((await cluster.primaries())[0])
    await lacking.ask("CONFIG", "SET", "notify-keyspace-events", "")
    async with opened(cluster.url, shards=64) as store:
        await made(store)
        found_there = (await found(store, wait_seconds=0.2))["replicas' flags"]
        assert (found_there.level, found_there.said) == ("warn", f"{lacking.name} lacks 'Ex'")
        await examine(store, fix=True, wait_seconds=0.2)
        assert "replicas' flags" not in await found(store, wait_seconds=0.2)


async def test_a_primary_without_a_replica_is_named(cluster: Cluster) -> None:
    primary = (await cluster.primaries())[0]
    async with opened(cluster.url, shards=64) as store:
        await made(store)
        replica = await cluster.replica_of(primary)
        assert (await durability_check(store, (), has_ledger=False)).level == "ok"
        replica.down()

        async def seen() -> Check | None:
            check = await durability_check(store, (), has_ledger=False)
            return check if check.level != "ok" else None

        check = await eventually(seen, "the primary has noticed")
    assert (check.level, check.said.rpartition("; ")[2]) == ("warn", f"without a replica: {primary.name}")


async def test_primaries_that_all_refuse_their_replicas_are_named(cluster: Cluster) -> None:
    """As after failovers with another `masterauth`: where none had a replica, none was missed."""
    async with opened(cluster.url, shards=64) as store:
        await knows_replicas(store)
        for node in cluster.nodes:
            await node.ask("CONFIG", "SET", "masteruser", "nobody", "masterauth", "wrong")
        primaries = await cluster.primaries()
        for node in primaries:
            await node.ask("CLIENT", "KILL", "TYPE", "replica")
        try:
            check = await durability_check(store, (), has_ledger=False)
        finally:
            for node in cluster.nodes:
                await node.ask("CONFIG", "SET", "masteruser", "", "masterauth", "")
    assert check.level == "warn"
    assert {*check.said.partition("without a replica: ")[2].split(", ")} == {node.name for node in primaries}


async def test_the_doctor_and_a_create_say_that_a_primary_is_away(cluster: Cluster) -> None:
    for node in cluster.nodes:
        await node.ask("CONFIG", "SET", "cluster-require-full-coverage", "no")
    needed = {await cluster.owner(keys.PODS_ROOT), await cluster.owner(keys.META)}
    lost = next(node for node in await cluster.primaries() if node not in needed)
    replica = await cluster.replica_of(lost)
    async with opened(cluster.url, shards=64) as store:
        await made(store)
        replica.down()
        lost.down()
        checks = [check for check in await examine(store, wait_seconds=0.2) if check.level == "fail"]
        told = {check.name: check for check in checks}
        assert told["server"].said.startswith(f"{lost.name}: ")
        for name in ("data", "delivery"):
            assert told[name].said.startswith("not checked: Redis is not available: ")
        assert [check.name for check in checks].count("server") == 1
        assert not any("nothing is armed or run" in check.means for check in checks)  # the others go on
        here = {await cluster.owner(keys.root(shard)) is lost: keys.root(shard) for shard in range(64)}
        with pytest.raises(Unavailable):
            await refusal_of(store, "replicated", has_ledger=False, root=here[True])
        assert await refusal_of(store, "replicated", has_ledger=False, root=here[False]) is None


async def test_a_slot_that_is_being_moved_leaves_the_db_usable(cluster: Cluster) -> None:
    for node in cluster.nodes:
        await node.ask("CONFIG", "SET", "cluster-require-full-coverage", "no", "notify-keyspace-events", "Ex")
    async with opened(cluster.url, shards=64) as store:
        await made(store)
        await alive(store)
        source = await cluster.owner(keys.root(0))
        target = next(node for node in await cluster.primaries() if node is not source)
        async with held_open(slot_of(keys.root(0)), source, target):
            wrong = await found(store)
        assert {check.level for check in wrong.values()} == {"warn"}
        assert all("hash slot 13907 is being moved" in wrong[name].said for name in ("rights", "data"))


async def test_a_pod_that_reaches_some_primaries_is_ready_unless_these_refuse_everything(cluster: Cluster) -> None:
    async with opened(cluster.url, shards=64) as store:
        await store.identity.make()
        always = {"fresh_seconds": 0.0, "answer_seconds": DEADLINE_SECONDS}
        health = HealthRoutes(store, client_over(store), None, Metrics(), **always)
        assert (await health._refresh())[0] == health._partly == ""
        for node in cluster.nodes:
            await node.ask("CONFIG", "SET", "cluster-require-full-coverage", "yes")
        lost = await cluster.owner(keys.root(7))
        (await cluster.replica_of(lost)).down()
        lost.down()

        async def stops() -> bool:
            return bool((await health._refresh())[0])

        await eventually(stops, "the others refuse everything")
        assert health._partly == ""
        for node in cluster.nodes:
            if node.is_up:
                await node.ask("CONFIG", "SET", "cluster-require-full-coverage", "no")
        said = f"a primary of the cluster is away, and the timers of the others run: {lost.name}"

        async def goes_on() -> bool:
            return await health._refresh() == ("", False, ALL_SERVED) and health._partly == said

        await eventually(goes_on, "the others go on")


async def test_a_primary_that_hangs_leaves_pods_ready(cluster: Cluster) -> None:
    """It answers nothing, not even that it is away."""
    for node in cluster.nodes:
        await node.ask("CONFIG", "SET", "cluster-require-full-coverage", "no")
    async with opened(cluster.url, shards=64) as store:
        await store.identity.make()
        health = HealthRoutes(store, client_over(store), None, Metrics(), fresh_seconds=0.0, answer_seconds=2.0)
        hung = await cluster.owner(keys.root(7))
        (await cluster.replica_of(hung)).down()
        hung.hang()
        assert (await health._refresh())[0] == ""
        assert health._partly == f"a primary of the cluster is away, and the timers of the others run: {hung.name}"


async def test_a_primary_whose_user_may_not_ask_is_not_away(cluster: Cluster) -> None:
    async with opened(cluster.url, shards=64) as store:
        await made(store)
        refusing, *_ = await cluster.primaries()
        await refusing.ask("ACL", "SETUSER", "default", "-cluster|info")
        try:
            assert await away_from(store.connections, DEADLINE_SECONDS) == []
        finally:
            await refusing.ask("ACL", "SETUSER", "default", "+cluster|info")


@pytest.mark.usefixtures(reading_each_time.__name__)
async def test_the_dashboard_and_the_metrics_name_a_primary_that_is_away(cluster: Cluster) -> None:
    for node in cluster.nodes:
        await node.ask("CONFIG", "SET", "cluster-require-full-coverage", "no")
    async with running_api(cluster.url, [done], request_seconds=2.0) as api:
        visitor = Visitor(api)
        await eventually(lambda: present(visitor, "/"), "the page is shown")
        lost = await cluster.owner(keys.root(7))
        (await cluster.replica_of(lost)).down()
        lost.down()
        shown = await visitor.get("/")
        said = f"A primary of the cluster is away, and the timers of the others run: {lost.name}."
        assert (shown.status, f"<strong>{said}</strong>" in shown.text) == (503, True)
        told = await api.text("/metrics")
        up = {node.name: 0.0 if node is lost else 1.0 for node in [lost, *await cluster.primaries()]}
        assert all(f'timers_redis_up{{server="{server}"}} {value}\n' in told for server, value in up.items())
        assert "\ntimers_ready 1.0\n" in told


async def test_each_primary_has_a_clock(cluster: Cluster) -> None:
    """A due time is its own primary's, and no reading of another one changes when it is."""
    async with opened(cluster.url, shards=64) as store:
        await store.identity.make()
        other = next(
            n for n in range(64) if store.connections.node_of(keys.root(n)) is not store.connections.node_of(keys.META)
        )
        store.clock_of(other).observe(1, 0.0, 0.001)
        assert abs(store.clock.now_ms() - await store.now_ms()) < 60_000
        await store.touch(other)
        assert abs(store.clock_of(other).now_ms() - await store.now_ms()) < 60_000
