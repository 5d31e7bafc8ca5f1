"""Several pods: each timer runs once, pods share the work, and no timer waits for a dead, full or unfit pod."""

import asyncio

import pytest

from tests.engine.fleet import Calls, Fleet, Held, Pod, notes, until
from tests.members import declare
from timers.core.model import Status
from timers.core.spec import NewTimer


async def _know_each_other(*pods: Pod) -> None:
    await until(lambda: all(len(pod.worker.peers.members) == len(pods) for pod in pods), "all pods know each other")


def _of_another(pod: Pod, count: int) -> list[str]:
    """Ids whose events this pod leaves to another pod."""
    ids = (f"n{number}" for number in range(10_000))
    return [timer_id for timer_id in ids if not pod.worker.peers.is_mine(0, "note", timer_id)][:count]


@pytest.mark.parametrize("size", [2, 3])
async def test_each_timer_runs_once_and_every_pod_does_work(fleet: Fleet, size: int) -> None:
    """No pod has room for all of them, and the runs last until each pod has one."""
    calls = [Held() for _ in range(size)]
    pods = [await fleet.pod(each, name=f"pod-{number}", concurrency=150) for number, each in enumerate(calls)]
    await _know_each_other(*pods)
    now_ms = await fleet.store.now_ms()
    news = [NewTimer(prefix="note", id=f"n{i}", due_at=now_ms + 100 + 2 * i) for i in range(200)]
    await fleet.client.batch(news)
    await until(lambda: all(len(each) > 0 for each in calls), "every pod does work")
    for each in calls:
        each.release.set()
    for new in news:
        await fleet.completed(str(new.id))
    assert sorted(timer_id for each in calls for timer_id in each.ids) == sorted(str(new.id) for new in news)


async def test_a_backlog_is_run_once_by_whoever_has_room(fleet: Fleet) -> None:
    await fleet.client.batch([NewTimer(prefix="note", id=f"n{i}", delay=0) for i in range(1000)])
    calls = [Calls() for _ in range(3)]
    await asyncio.gather(*[fleet.pod(each, name=f"p{n}", concurrency=20) for n, each in enumerate(calls)])
    for number in range(1000):
        await fleet.completed(f"n{number}")
    assert sorted(timer_id for each in calls for timer_id in each.ids) == sorted(f"n{number}" for number in range(1000))


async def test_the_events_of_a_dead_pod_are_taken_by_the_others(fleet: Fleet) -> None:
    """It is still registered, so half of the events belong to it. The test keeps the sweep out."""
    calls = Calls()
    alive = await fleet.pod(calls, name="alive", forget_after_ms=3_600_000, grace_ms=3_600_000)
    dead = await fleet.pod(Calls(), name="dead")
    await _know_each_other(alive, dead)
    await fleet.kill(dead)
    ids = _of_another(alive, 5)
    for timer_id in ids:
        await fleet.client.create("note", timer_id, delay="20ms")
        timer = await fleet.completed(timer_id)
        assert timer.history[-2].note == "late look"
    assert calls.ids == ids


async def test_the_events_of_a_full_pod_are_taken_by_the_others(fleet: Fleet) -> None:
    full, calls = Held(), Calls()
    busy = await fleet.pod(full, name="full", concurrency=1)
    await fleet.client.create("note", "long", delay=0)
    await until(lambda: len(full) == 1, "the pod is full")
    free = await fleet.pod(calls, name="free")
    await _know_each_other(busy, free)
    for timer_id in _of_another(free, 5):
        await fleet.client.create("note", timer_id, delay="10ms")
        await fleet.completed(timer_id)
    assert len(full) == 1
    assert len(calls) == 5
    full.release.set()
    await fleet.completed("long")


async def test_a_pod_that_left_is_waited_for_by_nobody(fleet: Fleet) -> None:
    calls = Calls()
    stays, leaves = await fleet.pod(calls, name="stays"), await fleet.pod(Calls(), name="leaves")
    await _know_each_other(stays, leaves)
    timer_id = _of_another(stays, 1)[0]
    await fleet.drain(leaves)
    await _know_each_other(stays)
    assert stays.worker.peers.is_mine(0, "note", timer_id)
    assert [pod.pod for pod in await fleet.client.pods()] == ["stays"]


async def test_each_pod_runs_only_the_prefixes_it_has_processors_for(fleet: Fleet) -> None:
    mails, pushes = Calls("mail"), Calls("push")
    await fleet.pod(mails, name="a")
    await fleet.pod(pushes, name="b")
    for number in range(10):
        await fleet.client.create(("mail", "push")[number % 2], f"n{number}", delay="5ms")
    for number in range(10):
        await fleet.completed(f"n{number}", ("mail", "push")[number % 2])
    assert sorted(mails.ids) == ["n0", "n2", "n4", "n6", "n8"]
    assert sorted(pushes.ids) == ["n1", "n3", "n5", "n7", "n9"]


async def test_timers_of_a_prefix_that_no_pod_serves_wait_for_one_that_does(fleet: Fleet) -> None:
    await fleet.pod(Calls("mail"), name="a")
    await declare(fleet.store, "push")
    await fleet.client.create("push", "x", delay=0)
    await fleet.client.create("mail", "y", delay="20ms")
    await fleet.completed("y", "mail")
    assert (await fleet.client.get("push", "x")).status is Status.SCHEDULED
    pushes = Calls("push")
    await fleet.pod(pushes, name="b")
    await fleet.completed("x", "push")
    assert pushes.ids == ["x"]


async def test_the_timers_of_all_shards_fire(sharded: Fleet) -> None:
    calls = Calls()
    await sharded.pod(calls)
    await sharded.client.batch([NewTimer(prefix="note", id=f"n{i}", delay="10ms") for i in range(40)])
    for number in range(40):
        await sharded.completed(f"n{number}")
    assert sorted(calls.ids) == sorted(f"n{number}" for number in range(40))


async def test_each_pod_runs_only_its_own_shards(sharded: Fleet) -> None:
    low, high = Calls(), Calls()
    await sharded.pod(low, name="low", shard_subset=(0, 1))
    await sharded.pod(high, name="high", shard_subset=(2, 3))
    ids = [f"n{number}" for number in range(40)]
    await sharded.client.batch([NewTimer(prefix="note", id=timer_id, delay="10ms") for timer_id in ids])
    for timer_id in ids:
        await sharded.completed(timer_id)
    assert {sharded.store.shard_of("note", timer_id) for timer_id in low.ids} == {0, 1}
    assert {sharded.store.shard_of("note", timer_id) for timer_id in high.ids} == {2, 3}
    assert sorted(low.ids + high.ids) == sorted(ids)


async def test_another_pod_takes_at_once_what_one_has_no_room_for(fleet: Fleet) -> None:
    first, second = Held(), Held()
    await fleet.pod(first, name="a", concurrency=3)
    await fleet.client.batch([NewTimer(prefix="note", id=f"n{i}", delay=0) for i in range(6)])
    await until(lambda: len(first) == 3, "the first pod is full")
    await fleet.pod(second, name="b", concurrency=3)
    await until(lambda: len(second) == 3, "the second has the rest")
    first.release.set()
    second.release.set()
    for number in range(6):
        timer = await fleet.completed(f"n{number}")
        assert timer.attempt == 1
        assert notes(timer)[-1] == "completed"
