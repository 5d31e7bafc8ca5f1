"""Which db it is: made once and atomically, never by reading, compared by whatever makes a timer."""

import asyncio
from typing import Any
from unittest.mock import patch

import pytest
import time_machine

from tests.members import declare
from tests.store.acts import PREFIX, armed, arming, put
from timers.client import client_over, open_store
from timers.errors import ConfigurationError, NewerFormat, NotFound, RedisRights, TooNew, Unavailable
from timers.store import identity, keys, queries
from timers.store.membership import Member, Membership
from timers.store.store import Store

META = "timers:meta"
EPOCH = "timers:{0}:epoch"


def other(store: Store, shards: int | None = None) -> Store:
    """Another process at the same db."""
    return Store(store.connections, shards=shards)


async def meta(store: Store) -> dict[str, str]:
    found: Any = await store.connections.commands.hgetall(META)
    return {name.decode(): value.decode() for name, value in found.items()}


NOW, NEXT = identity.READS, identity.READS + 1
"""The newest format that this version reads, and the one after it."""


@pytest.fixture
def later(store: Store, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """This process reads the next format too, as a later version would, but lets only today's be written."""
    monkeypatch.setattr(identity, "READS", NEXT)
    return monkeypatch


@pytest.mark.one_server
async def test_many_simultaneous_first_pods_make_one_db(store: Store) -> None:
    pods = [other(store) for _ in range(8)]
    await asyncio.gather(*(pod.identity.join() for pod in pods))
    assert len({pod.identity.epoch for pod in pods}) == 1
    epoch = pods[0].identity.epoch
    assert await meta(store) == {"format": str(NOW), "shards": "1", "epoch": epoch, "founded": f"{epoch} 1"}


async def test_the_default_of_a_later_pod_does_not_count(store: Store) -> None:
    await other(store, 8).identity.join()
    later = other(store)
    await later.identity.join()
    assert later.shards == 8


@pytest.mark.one_server
async def test_as_long_as_nothing_was_armed_a_pod_changes_the_number_of_shards(store: Store) -> None:
    first = other(store)
    await first.identity.join()
    second = other(store, 16)
    await second.identity.join()
    assert (await meta(store))["shards"] == "16"
    assert second.identity.epoch != first.identity.epoch
    with pytest.raises(Unavailable, match="TIMERS_SHARDS is 1, but this db has 16 shards"):
        await put(first)
    assert "armed" not in await meta(store)


async def test_once_a_timer_was_armed_a_pod_that_disagrees_learns_both_numbers(store: Store) -> None:
    await armed(store, due="+3600000")
    for opening in (other(store, 16).identity.join(), other(store, 16).identity.refresh()):
        with pytest.raises(ConfigurationError, match="TIMERS_SHARDS is 16, but this db has 1 shard; use 1"):
            await opening
    assert (await meta(store))["shards"] == "1"


async def test_the_first_arm_makes_the_db_and_founds_its_shard_alone(store: Store) -> None:
    four = other(store, 4)
    first = next(f"user-{i}" for i in range(100) if four.shard_of(PREFIX, f"user-{i}") == 2)
    await four.arm([arming(first, due="+3600000")])
    redis = store.connections.commands
    epochs = [await redis.get(f"{keys.root(shard)}epoch") for shard in range(4)]
    assert epochs == [None, None, four.identity.stamp.encode(), None]
    assert (await meta(store))["armed"] == "1"
    await four.cancel(PREFIX, first, purge=True)
    await redis.flushdb()


async def test_reading_writes_nothing_into_an_empty_db(real: Store) -> None:
    client = client_over(await open_store(real.connections))
    with pytest.raises(NotFound):
        await client.get(PREFIX, "a")
    await client.list()
    await client.stats()
    await client.prefixes()
    await client.pods()
    await client.fleet()
    assert await real.connections.commands.dbsize() == 0


async def test_a_reader_of_an_empty_db_finds_timers_armed_later(real: Store) -> None:
    reader = client_over(await open_store(real.connections))
    assert (await reader.list()).items == []
    writer = other(real, 16)
    await writer.arm([arming(str(n), due="+3600000") for n in range(20)])
    found = [(await reader.get(PREFIX, str(n))).id for n in range(20)]
    assert found == [str(n) for n in range(20)]
    await real.connections.commands.flushdb()


async def test_a_client_that_armed_before_a_flush_finds_the_new_number_of_shards(real: Store) -> None:
    """The same id in two places would be started twice."""
    client = client_over(other(real))
    await declare(real, PREFIX)
    await client.create(PREFIX, "before", delay="1h")
    await real.connections.commands.flushdb()
    there = other(real, 16)
    await there.arm([arming(str(n), due="+3600000") for n in range(20)])
    answers = await client.batch([{"prefix": PREFIX, "id": str(n), "delay": "1h"} for n in range(20)])
    assert [type(answer).__name__ for answer in answers] == ["AlreadyExists"] * 20
    counted = await queries.counts(there)
    assert sum(counted[PREFIX].values()) == 20
    await real.connections.commands.flushdb()


async def test_a_pod_that_worked_before_a_flush_arms_nothing_with_its_old_number_of_shards(real: Store) -> None:
    pod = other(real)
    await pod.identity.join()
    await armed(pod, due="+3600000")
    await real.connections.commands.flushdb()
    await armed(other(real, 16), due="+3600000")
    with pytest.raises(Unavailable, match="this db has 16 shards; use 16"):
        await put(pod, "b")
    await real.connections.commands.flushdb()


@pytest.mark.parametrize("epoch", ["", "another"])
async def test_a_shard_that_lost_its_epoch_is_founded_again(store: Store, epoch: str) -> None:
    await armed(store, due="+3600000")
    await store.connections.commands.set(EPOCH, epoch)
    assert (await put(store)).code == "exists"
    assert await store.connections.commands.get(EPOCH) == store.identity.stamp.encode()


async def test_a_lost_shard_that_cannot_be_founded_undoes_nothing_on_others(real: Store) -> None:
    """The batch said that nothing was done, although another shard had its timer by then."""
    batch, there = [arming(str(n), due="+3600000") for n in range(20)], other(real, 4)
    await there.arm(batch)
    await there.connections.commands.delete("timers:{1}:epoch")
    with (
        patch.object(there.identity, "found", side_effect=RedisRights("it may not SET")),
        pytest.raises(RedisRights) as refused,
    ):
        await there.arm([each._replace(if_exists="replace") for each in batch])
    assert not refused.value.nothing_done


async def test_a_foreign_value_in_place_of_a_shards_epoch_stops_no_arm(store: Store) -> None:
    await store.connections.commands.rpush(EPOCH, "foreign")
    await armed(store, due="+3600000")
    assert (await put(store)).code == "exists"


async def test_an_arm_makes_a_meta_again_that_another_program_has_overwritten(store: Store) -> None:
    """It finds out before the next sign of life, if its shard has lost its epoch too."""
    await armed(store, due="+3600000")
    before = await meta(store)
    await store.connections.commands.set(META, "foreign")
    await store.connections.commands.delete(EPOCH)
    assert (await put(store)).code == "exists"
    assert (await meta(store))["epoch"] == store.identity.epoch != before["epoch"]
    assert await store.connections.commands.get(EPOCH) == store.identity.stamp.encode()


async def test_an_emptied_epoch_in_the_meta_stops_no_pod(store: Store) -> None:
    pod = other(store)
    await pod.identity.join()
    await armed(pod, due="+3600000")
    await store.connections.commands.hset(META, "epoch", "")
    await pod.identity.check([0])
    assert (await meta(store))["epoch"] == pod.identity.epoch != ""
    assert (await put(pod)).code == "exists"


async def test_an_arm_costs_one_call_once_its_shard_is_founded(real: Store) -> None:
    await armed(real, "a", due="+3600000")
    asked = list[str]()
    real.called = lambda script, _seconds: asked.append(script)
    await armed(real, "b", due="+3600000")
    assert asked == ["arm"]


async def test_a_db_with_a_newer_format_is_refused(store: Store) -> None:
    await store.connections.commands.hset(META, "format", str(NEXT))
    for opening in (store.identity.refresh(), store.identity.make()):
        with pytest.raises(
            TooNew, match=rf"the db has records of format {NEXT}; this version reads formats up to {NOW}\. Use the"
        ):
            await opening
    assert await meta(store) == {"format": str(NEXT)}


@pytest.mark.parametrize("form", ["0", "-1", "two", "123"])
async def test_a_db_with_an_impossible_format_is_refused(store: Store, form: str) -> None:
    await store.connections.commands.hset(META, mapping={"format": form, "epoch": "e", "shards": "1"})
    with pytest.raises(ConfigurationError, match="as its record format; write the original there"):
        await store.identity.refresh()


async def test_a_new_db_has_the_newest_format_that_its_first_pod_lets_be_written(
    store: Store, later: pytest.MonkeyPatch
) -> None:
    later.setattr(store.identity, "newest", NEXT)
    await store.identity.join()
    assert ((await meta(store))["format"], store.identity.writes) == (str(NEXT), NEXT)


async def test_a_raised_db_is_written_in_the_new_format_after_a_grace(store: Store, later: pytest.MonkeyPatch) -> None:
    await armed(store, due="+3600000")
    assert store.identity.writes == NOW
    await store.identity.raise_format(NEXT, "9.9")
    assert (await meta(store))["raised"].split(" ")[1:] == [str(NOW), "9.9"]
    assert store.identity.writes == NOW
    later.setattr(identity, "GRACE_MS", -60_000)
    assert store.identity.writes == NEXT
    await store.identity.raise_format(NOW, "0.1")
    assert ((await meta(store))["format"], store.identity.writes) == (str(NEXT), NEXT)


@pytest.mark.usefixtures("later")
async def test_who_knows_an_older_format_learns_of_the_new_one_when_it_arms(store: Store) -> None:
    await armed(store, due="+3600000")
    slow = await open_store(store.connections)
    await store.identity.raise_format(NEXT, "9.9")
    assert await store.connections.commands.get(EPOCH) == f"{store.identity.epoch} {NEXT}".encode()
    assert (await put(slow, "b", due="+3600000")).code == "created"
    assert slow.identity.form == NEXT


async def test_who_cannot_read_the_new_format_arms_nothing(store: Store, later: pytest.MonkeyPatch) -> None:
    await armed(store, due="+3600000")
    outdated = await open_store(store.connections)
    await store.identity.raise_format(NEXT, "9.9")
    later.undo()
    with pytest.raises(
        NewerFormat, match=rf"format {NEXT} since .*Z, by version 9\.9; .* Use version 9\.9, or a later one"
    ):
        await put(outdated, "b")
    with pytest.raises(TooNew):
        await outdated.identity.check([0])
    assert await store.get([(PREFIX, "b")]) == [None]


@pytest.mark.usefixtures("later")
async def test_a_pod_gives_the_format_to_shards_that_whoever_raised_the_db_has_not_reached(store: Store) -> None:
    await armed(store, due="+3600000")
    await store.identity.raise_format(NEXT, "9.9")
    stamp = f"{store.identity.epoch} {NEXT}".encode()
    await store.connections.commands.set(EPOCH, store.identity.epoch)
    pod = await open_store(store.connections)
    await pod.identity.check([0])
    assert await store.connections.commands.get(EPOCH) == stamp


async def test_a_lost_db_keeps_its_format(store: Store, later: pytest.MonkeyPatch) -> None:
    later.setattr(identity, "GRACE_MS", -60_000)
    await armed(store, due="+3600000")
    await store.identity.raise_format(NEXT, "9.9")
    await store.connections.commands.flushdb()
    await store.identity.check([0])
    assert ((await meta(store))["format"], store.identity.writes) == (str(NEXT), NEXT)


async def test_a_db_whose_meta_is_something_else_is_refused(store: Store) -> None:
    await store.connections.commands.set(META, "foreign")
    for opening in (store.identity.refresh(), store.identity.make()):
        with pytest.raises(ConfigurationError, match="TIMERS_REDIS_URL cannot be used"):
            await opening


@pytest.mark.parametrize("shards", ["", "0", "-1", "many"])
async def test_a_db_with_an_impossible_number_of_shards_is_refused(store: Store, shards: str) -> None:
    await store.connections.commands.hset(META, mapping={"format": "1", "epoch": "e", "shards": shards, "armed": "1"})
    with pytest.raises(
        ConfigurationError, match=r"timers:meta has .* as its number of shards; write the original number"
    ):
        await store.identity.refresh()


async def test_a_pause_in_an_empty_db_holds_for_later_pods(real: Store) -> None:
    """With its number of shards changed afterwards it would hold in a few shards only."""
    assert await other(real, 4).pause(PREFIX, paused=True)
    with pytest.raises(ConfigurationError, match="TIMERS_SHARDS is 16, but this db has 4"):
        await other(real, 16).identity.join()


MARK = "timers:{0}:mark"


async def test_a_clock_that_was_set_back_is_no_loss(frozen: Store, clock: time_machine.Traveller) -> None:
    """A pod that marks after another had the shard knows only the marks that this one told of."""
    first, second = other(frozen), other(frozen)
    for pod in (first, second):
        await pod.identity.join()
    await first.identity.check([0])
    await second.identity.check((), [0])
    clock.shift(-3600)
    for _ in range(20):
        await first.identity.check([0])
        await second.identity.check((), [0])
    await second.identity.check([0])
    assert second.identity.losses == {}


async def test_a_pod_that_marks_in_between_hides_no_loss(frozen: Store, clock: time_machine.Traveller) -> None:
    """After a restart another pod may come first, with an older mark in mind."""
    first, second = other(frozen), other(frozen)
    for pod in (first, second):
        await pod.identity.join()
    await first.identity.check([0])
    await second.identity.check((), [0])
    before = await frozen.connections.commands.get(MARK)
    clock.shift(2)
    await first.identity.check([0])
    assert before is not None
    await frozen.connections.commands.set(MARK, before)
    clock.shift(2)
    await second.identity.check([0])
    clock.shift(1)
    await first.identity.check([0])
    (loss,) = first.identity.losses.values()
    newest = int(before.split()[0])
    assert (loss.shard, loss.from_ms, loss.to_ms) == (0, newest, newest + 2000)


async def test_a_pod_that_starts_in_an_emptied_shard_hides_no_loss(store: Store) -> None:
    running, starting = other(store), other(store)
    await running.identity.join()
    await running.identity.check([0])
    await store.connections.commands.delete(MARK)
    while await store.now_ms() <= running.identity.checkpoints[0]:
        pass  # a checkpoint of the same millisecond would be the same one
    await starting.identity.join()
    for _ in range(3):
        await starting.identity.check([0])
    assert starting.identity.losses == {}
    await running.identity.check((), [0])
    (loss,) = running.identity.losses.values()
    assert (loss.shard, loss.from_ms) == (0, 0)
    await running.identity.acknowledge()
    for pod in (running, starting):
        await pod.identity.check([0])
        assert pod.identity.losses == {}


@pytest.mark.parametrize("garbage", ["", "garbage", "9007199254740992", "99999999999999999999 5"])
async def test_a_mark_that_is_garbage_stops_nothing(store: Store, garbage: str) -> None:
    await store.identity.join()
    await store.identity.check([0])
    await store.connections.commands.set(MARK, garbage)
    for _ in range(3):
        await store.identity.check([0])
    newest: Any = await store.connections.commands.get(MARK)
    assert int(newest.split()[0]) < 2**53


async def test_a_shard_that_cannot_be_marked_is_an_error_and_its_marks_are_remembered(real: Store) -> None:
    await real.identity.join()
    await real.identity.check([0])
    epoch, marks, redis = real.identity.epoch, dict(real.identity.checkpoints), real.connections.commands
    await redis.acl_setuser("default", enabled=True, nopass=True, commands=["+@all"], keys=[META], reset_keys=True)
    try:
        with pytest.raises(RedisRights):
            await real.identity.check([0])
    finally:
        await redis.acl_setuser("default", enabled=True, nopass=True, commands=["+@all"], keys=["*"])
    assert (real.identity.epoch, real.identity.checkpoints) == (epoch, marks)


async def test_a_meta_overwritten_under_a_pod_is_made_again_and_reported(store: Store) -> None:
    pod = other(store, 4)
    await pod.identity.join()
    epoch = pod.identity.epoch
    await store.connections.commands.set(META, "foreign")
    await pod.identity.check([0, 1])
    found = await meta(store)
    assert found["shards"] == "4"
    assert found["epoch"] == pod.identity.epoch != epoch
    assert [loss.shard for loss in pod.identity.losses.values()] == [None]


async def test_a_starting_pod_with_another_number_writes_nothing_beside_live_pods(store: Store) -> None:
    running = other(store, 4)
    await running.identity.join()
    await Membership(running).beat(Member("a", roles=("worker",)))
    before = await meta(store)
    with pytest.raises(ConfigurationError, match=r"TIMERS_SHARDS is 16, but the live pods .* use 4 shards; use 4"):
        await other(store, 16).identity.join()
    assert await meta(store) == before
    await running.identity.check([0, 1, 2, 3])
    await Membership(running).leave("a")
    await other(store, 16).identity.join()
    assert (await meta(store))["shards"] == "16"


@pytest.mark.parametrize("is_armed", [True, False])
@pytest.mark.parametrize("written", ["3", "many", ""])
async def test_a_foreign_number_of_shards_counts_for_nobody_and_is_put_back(
    store: Store, written: str, *, is_armed: bool
) -> None:
    pod = other(store, 4)
    await pod.identity.join()
    if is_armed:
        await put(pod)
    epoch = pod.identity.epoch
    await store.connections.commands.hset(META, "shards", written)
    starting, reader = other(store), other(store)
    await starting.identity.join()
    await reader.identity.refresh()
    assert (starting.shards, reader.shards) == (4, 4)
    await pod.identity.check([0, 1, 2, 3])
    assert (pod.identity.epoch, pod.shards) == (epoch, 4)
    assert (await meta(store))["shards"] == "4"
    await reader.identity.refresh()
    for told in (pod, reader):
        assert f"timers:meta had {written!r} as its number of shards" in told.identity.foreign
    await pod.identity.acknowledge()
    await reader.identity.refresh()
    assert (pod.identity.foreign, reader.identity.foreign) == ("", "")


async def test_a_db_made_by_an_older_version_learns_its_number_from_the_next_pod(store: Store) -> None:
    old: dict[Any, Any] = {"format": "1", "shards": "4", "epoch": "e", "armed": "1"}
    await store.connections.commands.hset(META, mapping=old)
    await other(store).identity.join()
    assert await meta(store) == {**old, "founded": "e 4"}


async def test_a_shard_with_many_prefixes_is_counted_a_part_at_each_look(real: Store) -> None:
    await real.arm([arming(str(n), prefix=f"p{n}", due="+3600000") for n in range(2500)])
    redis: Any = real.connections.commands
    await redis.config_resetstat()
    looks = 0
    while not real.identity.timers:
        await real.identity.count([0])
        looks += 1
    assert real.identity.timers == {0: 2500}
    assert (await redis.info("commandstats"))["cmdstat_hscan"]["calls"] == looks >= 2
