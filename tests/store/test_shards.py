"""Shards: a timer's name decides its shard, batches over shards keep their order, each shard is independent."""

import zlib
from collections.abc import AsyncIterator

import pytest

from tests.conftest import SharedServers
from tests.conservation import state_of
from tests.store.acts import PREFIX, an_end, arming, claim
from tests.store.backends import Backend, open_store
from timers.store import keys
from timers.store.filters import Filter
from timers.store.listing import read_page, read_pages
from timers.store.servers import connect
from timers.store.store import Store

SHARDS = 4


@pytest.fixture
async def four(servers: SharedServers, backend: Backend) -> AsyncIterator[Store]:
    async with open_store(servers, backend, shards=SHARDS) as opened:
        yield opened


def test_the_shard_is_the_crc_32_of_the_name() -> None:
    sharded, single = (Store(connect("redis://localhost"), shards=shards) for shards in (64, 1))
    assert sharded.shard_of("reminder", "user-42") == zlib.crc32(b"reminder:user-42") % 64 == 48
    assert single.shard_of("reminder", "user-42") == 0


def test_names_of_keys_and_channels() -> None:
    assert keys.root(7) == "timers:{7}:"
    assert keys.expired_channel(5) == "__keyevent@5__:expired"
    assert keys.wake_channel(5) == "timers:wake:5"
    assert keys.events_channel(5) == "timers:events:5"
    assert keys.canary_key("pod-1") == "timers:canary:pod-1"


async def test_a_batch_over_all_shards_is_answered_in_its_order(four: Store) -> None:
    names = [f"user-{i}" for i in range(50)]
    answers = await four.arm([arming(name) for name in names])
    assert [answer.timer.id for answer in answers if answer.timer] == names
    found = await four.get([(PREFIX, name) for name in (*names, "missing", *reversed(names))])
    assert [None if timer is None else timer.id for timer in found] == [*names, None, *reversed(names)]


@pytest.mark.parametrize("limit", [1, 7, 100])
async def test_a_list_is_in_the_order_of_due_times_over_all_shards(four: Store, limit: int) -> None:
    names = [f"user-{i}" for i in range(50)]
    now_ms = await four.now_ms()
    await four.arm([arming(name, due=f"@{now_ms + 3_600_000 - 1000 * i}") for i, name in enumerate(names)])
    found = [[timer.id for timer in page] async for page in read_pages(four, Filter(), limit=limit)]
    assert all(len(page) <= limit for page in found)
    assert [timer_id for page in found for timer_id in page] == names[::-1]


async def test_what_comes_and_goes_between_two_pages_leaves_the_rest_in_place_over_all_shards(four: Store) -> None:
    names, hour_ms = [f"user-{i:02}" for i in range(40)], await four.now_ms() + 3_600_000
    await four.arm([arming(name, due=f"@{hour_ms + 1000 * i}") for i, name in enumerate(names)])
    first = await read_page(four, Filter(), limit=20)
    await four.cancel(PREFIX, names[19], purge=True)
    await four.cancel(PREFIX, names[25], purge=True)
    await four.arm([arming("before", due="+60000"), arming("behind", due=f"@{hour_ms + 30_500}")])
    second = await read_page(four, Filter(), limit=50, cursor=first.next_cursor)
    rest = [*names[20:25], *names[26:31], "behind", *names[31:]]
    assert [timer.id for timer in second.items] == rest


async def test_each_timer_lies_in_its_shard_alone(four: Store) -> None:
    names = [f"user-{i}" for i in range(50)]
    await four.arm([arming(name, due="+3600000") for name in names])
    for shard in range(SHARDS):
        mine = {(PREFIX, name) for name in names if four.shard_of(PREFIX, name) == shard}
        state = await state_of(four, shard)
        assert mine
        assert (set(state.records), set(state.due), state.triggers) == (mine, mine, mine)


async def test_a_run_lives_in_its_shard(four: Store) -> None:
    names = [f"user-{i}" for i in range(20)]
    await four.arm([arming(name) for name in names])
    for shard in range(SHARDS):
        timers = await claim(four, shard=shard)
        assert {four.shard_of(PREFIX, timer.id) for timer in timers} == {shard}
        assert await four.extend(shard, timers, pod="pod-1", lease_ms=1000) == []
        ends = [an_end(timer) for timer in timers]
        assert set(await four.settle(shard, ends, pod="pod-1", retention_ms=1000)) == {"settled"}


async def test_changes_go_to_the_shard_of_their_timer(four: Store) -> None:
    for number in range(8):
        name = f"user-{number}"
        await four.arm([arming(name, due="+3600000")])
        assert (await four.reschedule(PREFIX, name, due="+7200000")).code == "changed"
        assert (await four.cancel(PREFIX, name)).code == "cancelled"
        assert (await four.rearm(PREFIX, name, cause="-")).code == "changed"


async def test_a_pause_holds_in_all_shards(four: Store) -> None:
    await four.arm([arming(f"user-{i}") for i in range(20)])
    assert await four.pause(PREFIX, paused=True)
    assert [await claim(four, shard=shard) for shard in range(SHARDS)] == [[]] * SHARDS
    assert await four.pause(PREFIX, paused=False)
    assert sum([len(await claim(four, shard=shard)) for shard in range(SHARDS)]) == 20
