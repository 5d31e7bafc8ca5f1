"""Pods behind Sentinels hear of due timers from each new primary, whose flags they have set before."""

from collections.abc import AsyncIterator

import pytest

from tests.engine.fleet import Calls, Fleet
from tests.sentinels import Sentinels
from tests.waiting import eventually

FLAGS = "notify-keyspace-events"


@pytest.fixture
async def fleet(sentinels: Sentinels) -> AsyncIterator[Fleet]:
    """A fleet behind Sentinels."""
    made = await Fleet.over(sentinels.url)
    yield made
    await made.close()


async def test_a_replica_that_becomes_the_primary_announces_timers(sentinels: Sentinels, fleet: Fleet) -> None:
    for node in sentinels.nodes:
        await node.ask("CONFIG", "SET", FLAGS, "")
    calls = Calls()
    pod = await fleet.pod(calls, canary_every_seconds=0.2)

    async def are_set() -> bool:
        return all([(await node.ask("CONFIG", "GET", FLAGS))[1] for node in sentinels.nodes])

    await eventually(are_set, "all servers have the flags")
    before = pod.seen.subscriptions
    successor = await sentinels.fail_over()

    async def listens() -> bool:
        return pod.seen.subscriptions > before and bool(await successor.ask("PUBSUB", "CHANNELS", "__keyevent*"))

    await eventually(listens, "the pod listens to the new primary")
    await fleet.client.create("note", "a", delay=0)
    await fleet.completed("a")
    assert calls.ids == ["a"]
