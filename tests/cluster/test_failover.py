"""A primary that ends, stops or hands over to its replica: nothing that a replica has is lost, and timers run on."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress

import pytest

from tests.clusters import Cluster, Node
from tests.engine.fleet import Calls, Fleet, until
from tests.waiting import eventually
from timers.core.model import Status
from timers.errors import Unavailable
from timers.store import keys

SHARDS = 12
TIMERS = 60

Fault = Callable[[Cluster, Node], Awaitable[None]]


async def kill(_cluster: Cluster, primary: Node) -> None:
    """SIGKILL."""
    primary.down()


async def stop(_cluster: Cluster, primary: Node) -> None:
    """SIGSTOP: its connections stay open."""
    primary.hang()


async def hand_over(cluster: Cluster, primary: Node) -> None:
    """CLUSTER FAILOVER."""
    await cluster.fail_over(primary)


@pytest.fixture
async def fleet(cluster: Cluster) -> AsyncIterator[Fleet]:
    made = await Fleet.over(cluster.url, shards=SHARDS)
    yield made
    await cluster.heal()
    await made.close()


@pytest.mark.parametrize("fault", [kill, stop, hand_over])
async def test_timers_that_a_replica_has_run_under_the_next_primary(
    cluster: Cluster, fleet: Fleet, fault: Fault
) -> None:
    calls = Calls()
    pod = await fleet.pod(calls)
    await until(lambda: pod.worker.health().ready, "the pod is ready")
    wanted = [f"t{number}" for number in range(TIMERS)]
    await asyncio.gather(*(fleet.client.create("note", each, delay="2s", durability="replicated") for each in wanted))
    primary = await cluster.owner(keys.root(0))
    replica = await cluster.replica_of(primary)
    await fault(cluster, primary)
    await until(lambda: set(calls.ids) == set(wanted), "all have run")
    assert (await replica.ask("ROLE"))[0] == "master"

    async def are_completed() -> bool:
        with suppress(Unavailable):  # who has not asked since then knows the dead primary only
            timers = await fleet.store.get([("note", each) for each in wanted])
            return {timer and timer.status for timer in timers} == {Status.COMPLETED}
        return False

    await eventually(are_completed, "all ends are written")
    assert {timer for timer, times in Counter(calls.ids).items() if times > 1} == set()

    async def is_heard() -> bool:
        return bool(await replica.ask("CLIENT LIST", "TYPE", "pubsub"))

    await eventually(is_heard, "the pod hears the new primary")
    await until(lambda: pod.worker.health().ready, "the pod is ready again")
