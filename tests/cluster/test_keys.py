"""API keys while a node of the cluster is away: calls that need only the others go on."""

from collections.abc import AsyncIterator

import pytest

from tests.api.conftest import done
from tests.api.harness import Api, running_api
from tests.api.keyed import new_key
from tests.clusters import Cluster, Node
from timers.api import auth
from timers.store import keys
from timers.store.callers import Callers

HEADERS, KEY = new_key()
AT_ONCE = -1.0


@pytest.fixture
async def whole(cluster: Cluster) -> AsyncIterator[Cluster]:
    for node in cluster.nodes:
        await node.ask("CONFIG", "SET", "cluster-require-full-coverage", "no")
    yield cluster
    await cluster.heal()


async def on_another_node(api: Api, cluster: Cluster, lost: Node) -> str:
    """The path of a timer."""
    for number in range(1000):
        if await cluster.owner(keys.root(api.store.shard_of("test", str(number)))) is not lost:
            return f"/v1/timers/test/{number}"
    raise AssertionError("no shard on another node")


async def take_away(cluster: Cluster, lost: Node) -> None:
    (await cluster.replica_of(lost)).down()
    lost.down()


async def test_a_key_that_was_read_opens_for_a_while_when_the_node_with_the_keys_is_away(
    whole: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    unseen, kept = new_key()
    async with running_api(whole.url, [done], keys="stored", keys_fresh_seconds=AT_ONCE) as api:
        await Callers(api.store).keep(KEY.id, KEY.entry)
        lost = await whole.owner(keys.API_KEYS)
        path = await on_another_node(api, whole, lost)
        assert (await api.call("PUT", path, {"delay": "1h"}, headers=HEADERS)).status == 201
        await take_away(whole, lost)
        assert (await api.call("GET", path, headers=HEADERS)).status == 200
        assert (await api.call("PUT", path, {"delay": "2h"}, headers=HEADERS)).status == 200
        (await api.call("GET", path, headers=unseen)).problem(503, "unavailable")
        (await api.call("GET", path)).problem(401, "unauthorized")
        with monkeypatch.context() as later:
            later.setattr(auth, "LAST_READ_SECONDS", 0.0)
            (await api.call("GET", path, headers=HEADERS)).problem(503, "unavailable")

        await whole.heal()
        await Callers(api.store).revoke(KEY.id)
        await Callers(api.store).keep(kept.id, kept.entry)
        (await api.call("GET", path, headers=HEADERS)).problem(401, "unauthorized")
        assert (await api.call("GET", path, headers=unseen)).status == 200


@pytest.mark.parametrize("configured", [None, KEY.entry], ids=["open", "with keys"])
async def test_calls_go_on_and_keys_are_revoked_while_the_node_with_the_meta_is_away(
    whole: Cluster, configured: str | None
) -> None:
    async with running_api(whole.url, [done], keys=configured, keys_fresh_seconds=AT_ONCE) as api:
        lost = await whole.owner(keys.META)
        assert await whole.owner(keys.API_KEYS) is not lost
        path = await on_another_node(api, whole, lost)
        assert (await api.call("PUT", path, {"delay": "1h"}, headers=HEADERS)).status == 201
        await take_away(whole, lost)
        assert (await api.call("GET", path, headers=HEADERS)).status == 200
        if configured:
            await api.store.connections.commands.hset(keys.API_KEYS, KEY.id, "revoked")
            (await api.call("GET", path, headers=HEADERS)).problem(401, "unauthorized")
