"""Redis goes away: it is restarted, hangs, is emptied, full or cut off. The pods go on and nothing is lost."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.engine.fleet import Calls, Fleet, Held, until
from tests.engine.own import OwnServer
from tests.waiting import eventually
from timers.core.model import Status
from timers.core.spec import NewTimer
from timers.embedded import Family
from timers.errors import Unavailable

pytestmark = pytest.mark.every_server


@pytest.fixture
async def crashing(own: OwnServer) -> AsyncIterator[Fleet]:
    """A fleet on a server that the test may crash. At the end the server must be up and the books must balance."""
    made = await Fleet.over(own.url)
    yield made
    await made.close()


async def test_what_became_due_while_redis_was_down_fires_when_it_is_back(crashing: Fleet, own: OwnServer) -> None:
    calls = Calls()
    await crashing.pod(calls)
    await crashing.client.batch([NewTimer(prefix="note", id=f"n{i}", delay="300ms") for i in range(20)])
    own.down()
    clock = crashing.store.clock
    due_ms = clock.now_ms() + 300
    await until(lambda: clock.now_ms() > due_ms, "all are due")
    await own.up()
    for number in range(20):
        await crashing.completed(f"n{number}")
    assert sorted(calls.ids) == sorted(f"n{number}" for number in range(20))


async def test_what_became_due_while_redis_refused_writes_fires_when_it_accepts_them(crashing: Fleet) -> None:
    calls, clock = Calls(), crashing.store.clock
    pod = await crashing.pod(calls)
    await crashing.client.batch([NewTimer(prefix="note", id=f"n{i}", delay=f"{300 + 10 * i}ms") for i in range(20)])
    due_ms = clock.now_ms() + 500
    await crashing.redis.config_set("min-replicas-to-write", 1)
    await until(lambda: not pod.worker.health().ready, "the pod has noticed")
    await until(lambda: clock.now_ms() > due_ms, "all are due")
    await crashing.redis.config_set("min-replicas-to-write", 0)
    for number in range(20):
        timer = await crashing.completed(f"n{number}")
        (run,) = (entry for entry in timer.history if entry.status is Status.RUNNING)
        assert run.cause in ("event", "sweep-gap"), "`sweep` comes half a minute later"
    assert sorted(calls.ids) == sorted(f"n{number}" for number in range(20))


async def test_a_pod_says_that_redis_is_away_and_recovers_by_itself(crashing: Fleet, own: OwnServer) -> None:
    calls = Calls()
    pod = await crashing.pod(calls)
    await until(lambda: pod.worker.health().ready, "it is ready")
    own.down()
    await until(lambda: any("Redis is not available" in p for p in pod.worker.health().problems), "it says so")
    assert not pod.worker.health().ready
    with pytest.raises(Unavailable):
        await crashing.client.create("note", "refused", delay=0)
    await own.up()
    await until(lambda: pod.worker.health().ready, "it is ready again")
    assert set(pod.worker.health().services.values()) == {"running"}
    await crashing.client.create("note", "x", delay="10ms")
    await crashing.completed("x")
    assert calls.ids == ["x"]


async def test_what_ends_while_redis_is_down_is_written_once_when_it_is_back(crashing: Fleet, own: OwnServer) -> None:
    held = Held()
    pod = await crashing.pod(held)
    for number in range(5):
        await crashing.client.create("note", f"n{number}", delay=0)
    await until(lambda: len(held) == 5, "all run")
    own.down()
    held.release.set()
    await until(lambda: pod.worker.runner.executing == 0, "all have ended")
    assert len(pod.worker.runner.held) == 5
    await own.up()
    for number in range(5):
        timer = await crashing.completed(f"n{number}")
        assert (timer.attempt, timer.failures) == (1, 0)
    assert held.attempts == [1] * 5


async def test_a_fleet_lives_through_crash_after_crash(crashing: Fleet, own: OwnServer) -> None:
    calls = [Calls(), Calls()]
    for number, each in enumerate(calls):
        await crashing.pod(each, name=f"pod-{number}", lease_ms=1_000)
    armed = 0
    for _ in range(4):
        news = [NewTimer(prefix="note", id=f"n{armed + i}", delay=f"{10 + 20 * i}ms") for i in range(10)]
        await crashing.client.batch(news)
        armed += len(news)
        await until(lambda: sum(map(len, calls)) > armed - 10, "some of them have run")  # noqa: B023 (within this round)
        own.down()
        await own.up()
    for number in range(armed):
        await crashing.completed(f"n{number}")
    assert {timer_id for each in calls for timer_id in each.ids} == {f"n{number}" for number in range(armed)}


@pytest.mark.drill
async def test_a_server_that_hangs_for_a_while_costs_only_that_while(crashing: Fleet, own: OwnServer) -> None:
    crashing.answer_timeout_seconds = 1.0
    calls = Calls()
    pod = await crashing.pod(calls, lease_ms=1_000)
    await crashing.client.batch([NewTimer(prefix="note", id=f"n{i}", delay=f"{20 * i}ms") for i in range(20)])
    own.hang()
    await until(lambda: not pod.worker.health().ready, "the pod has noticed")
    own.go_on()
    for number in range(20):
        await crashing.completed(f"n{number}")
    await until(lambda: pod.worker.health().ready, "the pod has recovered")
    assert set(calls.ids) == {f"n{number}" for number in range(20)}


async def test_pods_continue_with_a_server_that_lost_all_its_data(family: Family, tmp_path: Path) -> None:
    own = OwnServer(family, tmp_path, "--appendonly", "no")
    await own.up()
    fleet = await Fleet.over(own.url)
    held, calls = Held(), Calls("other")
    pod = await fleet.pod(held, calls)
    await fleet.client.create("note", "lost", delay=0)
    await until(lambda: len(held) == 1, "it runs")
    own.down()
    await own.up()
    held.release.set()
    await until(lambda: not pod.worker.runner.held, "its end was refused")
    assert pod.worker.runner.executing == 0
    await fleet.client.create("other", "new", delay=0)
    await fleet.completed("new", "other")
    assert calls.ids == ["new"]
    assert await fleet.store.get([("note", "lost")]) == [None]
    await fleet.close()
    own.down()


async def test_a_db_emptied_in_the_middle_of_the_work_stops_nothing(fleet: Fleet) -> None:
    held, calls = Held(), Calls("other")
    pod = await fleet.pod(held, calls, lease_ms=1_000)
    await fleet.client.create("note", "lost", delay=0)
    await until(lambda: len(held) == 1, "it runs")
    await fleet.redis.flushdb()
    await until(lambda: held.cancelled == 1, "its lease is found to be lost")
    await until(lambda: pod.worker.runner.executing == 0, "its slot is free")
    await fleet.client.create("other", "new", delay="10ms")
    await fleet.completed("new", "other")
    assert calls.ids == ["new"]


async def test_a_script_cache_that_was_flushed_is_filled_again(fleet: Fleet) -> None:
    calls = Calls()
    await fleet.pod(calls)
    for number in range(5):
        await fleet.redis.script_flush()
        await fleet.client.create("note", f"n{number}", delay="5ms")
        await fleet.redis.script_flush()
        await fleet.completed(f"n{number}")
    assert calls.ids == [f"n{number}" for number in range(5)]


async def test_connections_cut_again_and_again_lose_nothing(fleet: Fleet) -> None:
    """If an answer is lost after the script ran, that claim is repeated after its lease, and no sooner."""
    calls = Calls()
    await fleet.pod(calls, lease_ms=1_000)
    for number in range(30):
        await _though_cut_off(fleet, f"n{number}")
        if number % 3 == 0:
            await fleet.redis.client_kill_filter(_type="normal", skipme=True)
    for number in range(30):
        timer = await fleet.completed(f"n{number}")
        assert 1 <= calls.ids.count(timer.id) <= timer.attempt


async def _though_cut_off(fleet: Fleet, timer_id: str) -> None:
    async def armed() -> bool:
        try:
            await fleet.client.create("note", timer_id, delay="5ms", if_exists="keep")
        except Unavailable:
            return False
        return True

    await eventually(armed, f"{timer_id} is armed")


async def test_a_server_that_sleeps_delays_and_loses_nothing(fleet: Fleet) -> None:
    calls = Calls()
    await fleet.pod(calls)
    await fleet.client.batch([NewTimer(prefix="note", id=f"n{i}", delay=f"{10 * i}ms") for i in range(20)])
    await fleet.redis.execute_command("DEBUG", "SLEEP", "0.3")  # type: ignore[no-untyped-call]  # redis-py leaves it untyped
    for number in range(20):
        assert (await fleet.completed(f"n{number}")).attempt == 1
    assert sorted(calls.ids) == sorted(f"n{number}" for number in range(20))


async def test_timers_fire_and_complete_on_a_server_without_memory_left(own: OwnServer, crashing: Fleet) -> None:
    calls = Calls()
    pod = await crashing.pod(calls)
    await crashing.client.batch([NewTimer(prefix="note", id=f"n{i}", delay=f"{200 + 10 * i}ms") for i in range(20)])
    await crashing.client.create("note", "later", delay="1h")
    await crashing.redis.config_set("maxmemory", "1")
    with pytest.raises(Unavailable):
        await crashing.client.create("note", "one-too-many", delay=0)
    for number in range(20):
        await crashing.completed(f"n{number}")
    assert (await crashing.client.cancel("note", "later")).status is Status.CANCELLED
    lag_seconds = pod.worker.health().lag_seconds
    await until(lambda: pod.worker.health().lag_seconds != lag_seconds, "another canary is heard")
    health = pod.worker.health()
    assert (health.ready, health.notifications, health.problems) == (True, "ok", ())
    await crashing.redis.config_set("maxmemory", "0")
    assert sorted(calls.ids) == sorted(f"n{number}" for number in range(20))


async def test_a_pod_does_not_start_while_redis_is_away(own: OwnServer) -> None:
    fleet = await Fleet.over(own.url)
    own.down()
    with pytest.raises(Unavailable):
        await fleet.pod(Calls())
    await own.up()
    await fleet.close()


async def test_a_run_continues_while_redis_is_down_and_keeps_its_timer_if_redis_returns_in_time(
    crashing: Fleet, own: OwnServer
) -> None:
    held, others = Held(), Calls()
    await crashing.pod(held, name="a")
    await crashing.client.create("note", "x", delay=0)
    await until(lambda: len(held) == 1, "it runs")
    other = await crashing.pod(others, name="b")
    own.down()
    await until(lambda: not other.worker.health().ready, "the pods have noticed")
    await own.up()
    await until(lambda: other.worker.health().ready, "the pods have recovered")
    assert (await crashing.client.get("note", "x")).status is Status.RUNNING
    held.release.set()
    timer = await crashing.completed("x")
    assert (timer.attempt, timer.failures, len(others)) == (1, 0, 0)
