"""Events: heard once over one subscription; timers run right even if events are lost or forged."""

from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest
from redis.asyncio import Redis

from tests.engine.fleet import Calls, Fleet, Held, until
from tests.life.past import make_older
from tests.waiting import eventually, patient
from timers.engine.listener import Subscription
from timers.store import notifications as server_facts
from timers.store.servers import connect

pytestmark = pytest.mark.every_server

EXPIRED = "__keyevent@0__:expired"
DAY = "1d"
HOUR_MS = 3_600_000
QUICK: dict[str, Any] = {"canary_every_seconds": 0.05, "deaf_seconds": 0.2}
"""Deafness is noticed sooner than for real."""


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Counts how often the test's listeners heard each id's trigger."""
    counted: Counter[str] = Counter()
    handle = Subscription.handle

    def count(self: Subscription, what: str, *said: Any) -> None:
        if what == "triggers":
            counted.update(timer_id.decode() for timer_id in said[-1])
        handle(self, what, *said)

    monkeypatch.setattr(Subscription, "handle", count)
    return counted


async def _announces(redis: Redis, flags: str) -> None:
    """Return once the server has exactly these flags: a pod may subscribe before it has set them."""

    async def look() -> bool:
        answer = await redis.config_get(server_facts.FLAGS)
        return {letter for value in answer.values() for letter in _text(value)} == set(flags)

    await eventually(look, f"the flags are {flags}")


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


@pytest.mark.one_server
async def test_cutting_the_subscription_again_and_again_loses_nothing(fleet: Fleet, heard: Counter[str]) -> None:
    calls = Calls()
    pod = await fleet.pod(calls)
    number = 0
    for cut in range(12):
        await until(lambda: pod.seen.subscriptions > cut, f"subscription {cut}")  # noqa: B023 (within this round)
        for _ in range(5):
            await fleet.client.create("note", f"n{number}", delay="10ms")
            number += 1
        assert await fleet.redis.client_kill_filter(_type="pubsub") == 1
    for each in range(number):
        await fleet.completed(f"n{each}")
    assert sorted(calls.ids) == sorted(f"n{each}" for each in range(number))
    assert max(heard.values(), default=0) <= 1


@pytest.mark.one_server
async def test_there_is_one_subscription_however_often_it_was_cut(fleet: Fleet, heard: Counter[str]) -> None:
    """If handlers were attached again at each reconnect, they would hear each event several times."""
    calls = Calls()
    pod = await fleet.pod(calls)
    for cut in range(8):
        await until(lambda: pod.seen.subscriptions > cut, f"subscription {cut}")  # noqa: B023 (within this round)
        await fleet.redis.client_kill_filter(_type="pubsub")
    await until(lambda: pod.seen.subscriptions == 9, "the last subscription")
    assert await fleet.redis.pubsub_numsub(EXPIRED) == [(EXPIRED.encode(), 1)]
    for timer_id in ("one", "two"):
        await fleet.client.create("note", timer_id, delay="10ms")
        await fleet.completed(timer_id)
        await until(lambda: heard[timer_id], "its event has arrived")  # noqa: B023 (within this round)
    assert (heard["one"], calls.ids) == (1, ["one", "two"])


@pytest.mark.one_server
async def test_every_subscription_is_followed_by_a_sweep(fleet: Fleet) -> None:
    """What became due without an event is claimed at once, not only when it is overdue."""
    pod = await fleet.pod(Calls(), grace_ms=HOUR_MS)
    await fleet.client.create("note", "first", delay="10ms")
    await fleet.completed("first")
    await fleet.client.create("note", "x", delay="30m")
    await make_older(fleet, "note", "x", HOUR_MS)
    await fleet.redis.client_kill_filter(_type="pubsub")
    assert (await fleet.completed("x")).history[-2].cause == "sweep-gap"
    await until(lambda: pod.seen.subscriptions == 2, "the second subscription")


@pytest.fixture
def _may_configure(fleet: Fleet) -> None:
    """Gives the pods all rights."""
    fleet.pods_url = fleet.url


@pytest.mark.one_server
@pytest.mark.usefixtures("_may_configure")
async def test_the_servers_flags_are_added_to_and_not_overwritten(fleet: Fleet) -> None:
    await fleet.redis.config_set(server_facts.FLAGS, "Kg$")
    pod = await fleet.pod(Calls())
    await until(lambda: pod.seen.subscriptions == 1, "the subscription")
    await _announces(fleet.redis, "KEg$x")


@pytest.mark.one_server
@pytest.mark.usefixtures("_may_configure")
async def test_flags_that_a_server_has_forgotten_are_set_again_with_the_next_subscription(fleet: Fleet) -> None:
    pod = await fleet.pod(Calls())
    await until(lambda: pod.seen.subscriptions == 1, "the subscription")
    await fleet.redis.config_set(server_facts.FLAGS, "")
    await fleet.redis.client_kill_filter(_type="pubsub")
    await until(lambda: pod.seen.subscriptions == 2, "the next subscription")
    await _announces(fleet.redis, "Ex")


@pytest.fixture
async def no_config(fleet: Fleet) -> AsyncIterator[str]:
    """The URL of a user without CONFIG, on a server that announces nothing."""
    await fleet.redis.config_set(server_facts.FLAGS, "")
    every: dict[str, Any] = {"categories": ["+@all"], "commands": ["-config"], "keys": ["*"], "channels": ["*"]}
    await fleet.redis.acl_setuser("limited", enabled=True, passwords=["+secret"], **every)
    yield f"{fleet.url}&username=limited&password=secret"
    await fleet.redis.acl_deluser("limited")


@pytest.mark.one_server
async def test_a_deaf_pod_says_so_and_fires_by_sweep_until_it_hears_again(fleet: Fleet, no_config: str) -> None:
    calls = Calls()
    own_url, fleet.pods_url = fleet.pods_url, no_config
    pod = await fleet.pod(calls, **QUICK)
    fleet.pods_url = own_url
    await until(lambda: "notify-keyspace-events" in " ".join(pod.worker.health().problems), "it has noticed")
    health = pod.worker.health()
    assert (health.ready, health.notifications) == (False, "deaf")
    for number in range(10):
        await fleet.client.create("note", f"n{number}", delay="20ms")
    for number in range(10):
        assert (await fleet.completed(f"n{number}")).history[-2].cause == "sweep-deaf"
    await fleet.redis.config_set(server_facts.FLAGS, "Ex")
    await until(lambda: pod.worker.health().ready, "it hears again")
    assert pod.worker.health().notifications == "ok"
    assert sorted(calls.ids) == sorted(f"n{number}" for number in range(10))
    await fleet.drain(pod)


@pytest.mark.usefixtures("_may_configure")
async def test_flags_that_somebody_turned_off_are_turned_on_again_by_the_pod_that_hears_nothing(fleet: Fleet) -> None:
    pod = await fleet.pod(Calls(), **QUICK)
    await until(lambda: pod.worker.health().ready and pod.hears(), "it hears")
    await fleet.redis.config_set(server_facts.FLAGS, "")
    await _announces(fleet.redis, "Ex")
    await until(lambda: pod.worker.health().notifications == "ok", "it hears again")


async def test_a_deleted_trigger_key_is_not_missed(fleet: Fleet) -> None:
    calls = Calls()
    await fleet.pod(calls)
    await fleet.client.create("note", "x", delay="1s")
    assert await fleet.redis.delete("note:{0}:x")
    timer = await fleet.completed("x")
    assert timer.history[-2].note == "sweep"
    assert calls.ids == ["x"]


async def test_a_trigger_key_that_was_overwritten_without_a_time_to_live_is_missed_by_nobody(fleet: Fleet) -> None:
    calls = Calls()
    await fleet.pod(calls)
    await fleet.client.create("note", "x", delay="1s")
    await fleet.redis.set("note:{0}:x", "mine now")
    timer = await fleet.completed("x")
    assert timer.history[-2].note == "sweep"
    assert not await fleet.redis.exists("note:{0}:x")
    assert calls.ids == ["x"]


async def test_a_trigger_key_that_expires_too_early_fires_nothing_early(fleet: Fleet) -> None:
    calls = Calls()
    await fleet.pod(calls)
    created = await fleet.client.create("note", "x", delay="150ms")
    assert await fleet.redis.pexpire("note:{0}:x", 1)
    timer = await fleet.completed("x")
    assert timer.history[-2].at_ms >= created.due_ms
    assert calls.ids == ["x"]


async def test_forged_events_fire_nothing(fleet: Fleet) -> None:
    calls = Calls()
    pod = await fleet.pod(calls)
    await until(pod.hears, "the subscription")
    await fleet.client.create("note", "x", delay=DAY)
    forged = [
        "note:{0}:x",
        "note:{0}:nobody",
        "note:{7}:x",
        "note:{99999999999999999999}:x",
        "timers:{0}:lease:note:x",
        "timers:{5}:lease:note:x",
        "timers:canary:a",
        "timers:canary:",
        "timers:",
        "",
        "note",
        "nöte:{0}:x",
        "note:{0}:" + "x" * 10_000,
    ]
    for name in forged:
        await fleet.redis.publish(EXPIRED, name.encode())
    await fleet.redis.publish(EXPIRED, b"\xff\xfe")
    for said in (b"{0} 1", b"{0} 99999999999999999999", b"{9} 5", b"nonsense", b"", b"\xff"):
        await fleet.redis.publish("timers:wake:0", said)
    await fleet.client.create("note", "real", delay="10ms")
    await fleet.completed("real")
    assert calls.ids == ["real"]
    assert (await fleet.client.get("note", "x")).version == 1
    assert pod.hears()
    assert pod.worker.health().ready


async def test_an_event_heard_many_times_fires_its_timer_once(fleet: Fleet) -> None:
    calls = Calls()
    await fleet.pod(calls)
    await fleet.client.create("note", "x", delay="30ms")

    async def completed() -> bool:
        for _ in range(20):
            await fleet.redis.publish(EXPIRED, "note:{0}:x")
        return len(calls) > 0

    await eventually(completed, "it has fired")
    await fleet.completed("x")
    await fleet.client.create("note", "after", delay=0)
    await fleet.completed("after")
    assert calls.ids == ["x", "after"]


@pytest.mark.one_server
async def test_events_of_another_db_are_ignored(fleet: Fleet) -> None:
    elsewhere = connect(patient(fleet.url.replace("db=0", "db=1")))
    calls = Calls()
    await fleet.pod(calls)
    await fleet.client.create("note", "x", delay=DAY)
    await elsewhere.commands.set("note:{0}:x", "1", px=1)
    await eventually(lambda: _gone(elsewhere.commands, "note:{0}:x"), "it has expired")
    await elsewhere.close()
    await fleet.client.create("note", "real", delay="10ms")
    await fleet.completed("real")
    assert calls.ids == ["real"]


async def _gone(redis: Redis, key: str) -> bool:
    return not await redis.exists(key)


async def test_an_event_finds_the_earliest_due_of_its_queue(fleet: Fleet) -> None:
    """An event only says that something is due; claims are in the order of the due times."""
    held = Held()
    await fleet.pod(held, concurrency=1)
    await fleet.client.create("note", "long", delay=0)
    await until(lambda: len(held) == 1, "the pod is full")
    now_ms = await fleet.store.now_ms()
    for timer_id, due_ms in (("third", -1_000), ("first", -3_000), ("second", -2_000)):
        await fleet.client.create("note", timer_id, due_at=now_ms + due_ms)
    held.release.set()
    for timer_id in ("first", "second", "third"):
        await fleet.completed(timer_id)
    assert held.ids == ["long", "first", "second", "third"]
