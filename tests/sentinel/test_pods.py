"""Pods behind Sentinels hear of due timers from each new primary, whose flags they have set before."""

from collections.abc import AsyncIterator

import pytest
from structlog.testing import capture_logs

from tests.api.harness import running_api
from tests.engine.fleet import Calls, Fleet
from tests.sentinels import Sentinels
from tests.waiting import eventually
from timers.store.servers import sentinel

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


async def test_a_pod_says_that_no_sentinel_answers_and_that_one_does_again(
    sentinels: Sentinels, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when the Sentinels get another password: it goes on with a primary that may soon be none."""
    monkeypatch.setattr(sentinel, "FORGET_SECONDS", 0.0)
    with capture_logs() as lines:
        async with running_api(sentinels.url, []) as api:

            async def warns() -> str:
                reply = await api.call("GET", "/readyz")
                assert reply.status == 200
                return next((said for said in reply.body["warnings"] if "failover" in said), "")

            async def is_calm() -> bool:
                return not await warns()

            await eventually(is_calm, "the Sentinels are heard")
            for each in sentinels.sentinels:
                each.down()
            said = await eventually(warns, "the pod warns")
            for each in sentinels.sentinels:
                each.up()
            await eventually(is_calm, "the warning ends")
    asked = ", ".join(each.name for each in sentinels.sentinels)
    assert said.startswith(f"a failover goes unnoticed: no Sentinel of {asked} can be asked: ")
    logged = [line for line in lines if "Sentinel" in line["event"]]
    assert {line["event"] for line in logged} == {
        "no Sentinel can be asked; a failover goes unnoticed",
        "a Sentinel answers again",
    }
    assert logged[0]["reason"].startswith(f"no Sentinel of {asked} can be asked: ")
