"""Nodes that do not name their host: a client goes to the right ones, and to no other server."""

from collections.abc import AsyncIterator

import pytest

from tests.clusters import Cluster
from tests.waiting import patient
from timers.store import keys
from timers.store.servers import connect
from timers.store.servers.slots import _host_of

TYPE = "cluster-preferred-endpoint-type"


@pytest.fixture
async def nameless(cluster: Cluster, endpoint_type: str) -> AsyncIterator[Cluster]:
    for node in cluster.nodes:
        await node.ask("CONFIG", "SET", TYPE, endpoint_type)
    yield cluster
    for node in cluster.nodes:
        await node.ask("CONFIG", "SET", TYPE, "ip")


@pytest.mark.parametrize(("endpoint_type", "named"), [("hostname", "?"), ("unknown-endpoint", None)])
async def test_a_node_without_a_host_is_reached_where_it_is(nameless: Cluster, named: str | None) -> None:
    ranges = await nameless.nodes[0].ask("CLUSTER SLOTS")
    assert {place[0] for _, _, *places in ranges for place in places} == {named}
    connections = connect(patient(nameless.url))
    for shard in range(64):
        await connections.commands.set(f"{keys.root(shard)}x", shard)
    known = {node.address for node in (*connections.nodes, *connections.replicas)}
    assert known <= {node.name for node in nameless.nodes}, "a replica that has just come may not be named yet"
    assert len(connections.nodes) == 3

    moved = await nameless.move(keys.root(7))
    assert await connections.commands.set(f"{keys.root(7)}x", "moved")
    assert await moved.ask("GET", f"{keys.root(7)}x") == "moved"
    assert {node.address for node in connections.nodes} <= {node.name for node in nameless.nodes}
    await connections.close()


def test_a_node_that_says_nothing_of_itself_has_no_host() -> None:
    assert [_host_of(node) for node in ([b"?", 1, b"id"], [b"?", 1, b"id", []], [None, 1, b"id"], [b"", 1])] == [""] * 4
