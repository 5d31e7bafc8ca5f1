"""A user who loses a right to the service's own keys on nodes of a cluster: the pod says so, and goes on by itself."""

import pytest
from structlog.testing import capture_logs

from tests.clusters import Cluster
from tests.engine.fleet import Calls, Fleet, Pod, until
from tests.rights import as_user, grant
from timers.engine import pod as pods
from timers.store import keys
from timers.store.store import Arming

SHARDS = 16
LACKS = "its ACL needs +hset and ~timers:*"


async def test_a_pod_whose_user_may_change_nothing_is_not_ready(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it may still do, such as looking for due timers, went on, so the pod was ready, and its log said again and
    again that a part of the cluster was out of reach, and that all was within reach again."""
    monkeypatch.setattr(pods, "REFUSED_SECONDS", 1.0)
    fleet = await Fleet.over(cluster.url, shards=SHARDS, pods_url=as_user(cluster.url))
    await grant(fleet.redis, 0)
    calls = Calls()
    pod = await fleet.pod(calls)
    await until(lambda: pod.worker.health().ready, "it is ready")
    names = [str(number) for number in range(100)]
    nodes = {await cluster.owner(keys.root(fleet.store.shard_of("note", name))) for name in names}
    assert len(nodes) == cluster.size

    with capture_logs() as logs:
        await grant(fleet.redis, 0, without=["hset"])
        await fleet.store.arm([Arming("note", name, "+0", {}) for name in names])
        await until(lambda: _is_told(pod), "it is not ready")
        await grant(fleet.redis, 0)
        await until(lambda: len(calls) == len(names), "all run")
        await until(lambda: pod.worker.health().ready, "it is ready again")
    assert sorted(calls.ids) == sorted(names)
    assert not [log for log in logs if log["event"].startswith(("a part of the cluster", "all of the cluster"))]
    await fleet.close()


def _is_told(pod: Pod) -> bool:
    return any(LACKS in problem for problem in pod.worker.health().problems)


async def test_a_pod_whose_user_lacks_a_right_on_one_node_stays_ready(cluster: Cluster) -> None:
    fleet = await Fleet.over(cluster.url, shards=SHARDS, pods_url=as_user(cluster.url))
    await grant(fleet.redis, 0)
    calls = Calls()
    pod = await fleet.pod(calls)
    lacking = await cluster.owner(keys.root(0))
    await lacking.ask("ACL", "SETUSER", "timers", "-hset")
    names = [str(number) for number in range(100)]
    owners = {name: await cluster.owner(keys.root(fleet.store.shard_of("note", name))) for name in names}
    await fleet.store.arm([Arming("note", name, "+0", {}) for name in names])
    others = {name for name in names if owners[name] is not lacking}
    await until(lambda: others <= set(calls.ids), "the timers of the other nodes run")
    await until(lambda: any(LACKS in said for said in pod.worker.health().warnings), "it warns")
    await until(lambda: pod.worker.health().ready, "it is ready")
    await grant(fleet.redis, 0)
    await until(lambda: len(calls) == len(names), "all run")
    await fleet.close()
