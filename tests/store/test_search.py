"""Searches by several statuses and any condition, newest first: each timer once, for any page size."""

import random
from collections.abc import Awaitable, Callable

import pytest

from tests.conftest import SharedServers
from tests.store.acts import PREFIX, armed, cancelled, finished, running
from tests.store.backends import open_store
from timers.core.model import Status, Timer
from timers.errors import InvalidInput
from timers.store.filters import Filter
from timers.store.listing import Page, read_page
from timers.store.queries import endings
from timers.store.starts import add_starts, due_load, past_starts, total
from timers.store.store import Arming, Store

Turn = Callable[[str | None], Awaitable[Page]]


async def all_of(turn: Turn) -> list[Timer]:
    """The timers of all pages."""
    found: list[Timer] = []
    cursor: str | None = None
    while True:
        page = await turn(cursor)
        found += page.items
        cursor = page.next_cursor
        if cursor is None:
            return found


@pytest.mark.parametrize("limit", [1, 2, 3, 10])
async def test_several_statuses_are_one_list(store: Store, limit: int) -> None:
    await running(store, "runs")
    await armed(store, "waits", due="+3600000")
    for name in ("broke", "broke2"):
        await finished(store, name, status=Status.FAILED)
    await finished(store, "done")
    await cancelled(store, "off")
    wanted = Filter(status=(Status.CANCELLED, Status.FAILED, Status.RUNNING))
    found = await all_of(lambda at: read_page(store, wanted, limit=limit, cursor=at))
    assert [timer.id for timer in found] == ["runs", "broke", "broke2", "off"]
    everything = await all_of(lambda at: read_page(store, Filter(), limit=limit, cursor=at))
    assert len(everything) == 6


async def test_a_condition_without_an_index_is_searched_in_bounded_pages(store: Store) -> None:
    await store.arm([Arming(PREFIX, f"user-{i}", f"+{60_000 + i}", {}) for i in range(30)])
    wanted = Filter(status=(Status.SCHEDULED,)).where(lambda timer: timer.id.endswith("7"))
    found = await all_of(lambda at: read_page(store, wanted, limit=2, cursor=at))
    assert [timer.id for timer in found] == ["user-7", "user-17", "user-27"]


@pytest.mark.parametrize("limit", [1, 7, 50])
async def test_newest_first_is_the_reversed_list_over_all_shards(servers: SharedServers, limit: int) -> None:
    rng = random.Random(limit)
    async with open_store(servers, "redis", shards=4) as store:
        await store.arm([Arming(PREFIX, f"t{i}", f"@{1_900_000_000_000 + rng.randrange(20)}", {}) for i in range(60)])
        search = Filter(prefix=PREFIX, status=(Status.SCHEDULED,))
        forward = await all_of(lambda at: read_page(store, search, limit=50, cursor=at))
        turned = await all_of(lambda at: read_page(store, search, limit=limit, cursor=at, newest=True))
        assert [timer.id for timer in turned] == [timer.id for timer in reversed(forward)]


async def test_the_newest_ends_come_with_why_and_without_payloads(store: Store) -> None:
    await finished(store, "first", status=Status.FAILED)
    await finished(store, "second", status=Status.FAILED)
    found = await endings(store, PREFIX, Status.FAILED, 10)
    assert {ending.id for ending in found} == {"first", "second"}
    assert len(await endings(store, PREFIX, Status.FAILED, 1)) == 1
    assert await endings(store, "none", Status.FAILED, 10) == []


async def test_scores_that_nobody_of_ours_wrote_stop_nothing(real: Store) -> None:
    await armed(real, "good", due="+60000")
    await finished(real, "broke", status=Status.FAILED)
    redis = real.connections.commands
    await redis.zadd(f"timers:{{0}}:due:{PREFIX}", {"odd": "inf"})
    await redis.zadd(f"timers:{{0}}:finished:f:{PREFIX}", {"odd": "inf"})
    search = Filter(prefix=PREFIX, status=(Status.SCHEDULED,))
    found = await all_of(lambda at: read_page(real, search, limit=1, cursor=at, newest=True))
    assert [timer.id for timer in found] == ["good"]
    assert [ending.id for ending in await endings(real, PREFIX, Status.FAILED, 5)] == ["broke", "odd"]
    assert sum((await due_load(real, step_ms=3_600_000, steps=24))[0]) == 1
    await redis.zrem(f"timers:{{0}}:due:{PREFIX}", "odd")
    await redis.zrem(f"timers:{{0}}:finished:f:{PREFIX}", "odd")


async def test_a_strangers_value_in_place_of_a_ring_is_moved_aside(real: Store) -> None:
    redis = real.connections.commands
    await redis.set("timers:{fired}:hour", "a stranger's")
    await past_starts(real)
    await add_starts(real, {1: 1})
    assert total((await past_starts(real))["hour"]) == {1: 1}
    assert await redis.delete("timers:{fired}:displaced:timers:{fired}:hour") == 1


@pytest.mark.parametrize("cursor", ["", "x", '["nan","a"]', '["(1","a"]', "[1]"])
async def test_a_made_up_cursor_is_refused(store: Store, cursor: str) -> None:
    search = Filter(prefix=PREFIX, status=(Status.FAILED,))
    with pytest.raises(InvalidInput):
        await read_page(store, search, limit=5, cursor=cursor, newest=True)
    with pytest.raises(InvalidInput):
        await read_page(store, search, limit=5, cursor=cursor)
