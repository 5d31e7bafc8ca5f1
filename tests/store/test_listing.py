"""Lists have each timer once, for any page size and order; their pages are bounded in bytes and in round trips."""

import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import pytest

from tests.conftest import SharedServers
from tests.servers import Kind
from tests.store.acts import PREFIX, armed, arming, cancelled, claim, finished, running
from tests.store.backends import open_store
from tests.store.test_round_trips import count_sent
from timers.core.model import Status, Timer
from timers.errors import InvalidInput
from timers.store import queries
from timers.store.filters import Filter
from timers.store.listing import LARGEST_BYTES, PAGE_BYTES, Page, read_page, read_pages
from timers.store.queries import endings
from timers.store.scripts import Call
from timers.store.servers.connections import Scripts
from timers.store.starts import due_load
from timers.store.store import Arming, Store

LARGE = {"payload": "x" * (LARGEST_BYTES - 2)}
FITTING = PAGE_BYTES // LARGEST_BYTES
PREFIXES = 600


@pytest.fixture
async def sharded(servers: SharedServers, kind: Kind) -> AsyncIterator[Store]:
    async with open_store(servers, kind, shards=16) as store:
        yield store


async def all_pages(store: Store, wanted: Filter) -> list[list[Timer]]:
    return [timers async for timers in read_pages(store, wanted)]


@pytest.mark.parametrize("status", [Status.SCHEDULED, Status.RUNNING])
@pytest.mark.parametrize("prefixes", [1, 2 * FITTING], ids=["one prefix", "many prefixes"])
async def test_a_page_of_large_timers_ends_at_two_mebibytes_and_continues(
    sharded: Store, status: Status, prefixes: int
) -> None:
    """A thousand timers with payloads of maximum size made an answer of 64 MiB."""
    due = "+0" if status is Status.RUNNING else "+3600000"
    armings = [arming(f"t{n}", due=due, prefix=f"p{n % prefixes}", spec=LARGE) for n in range(2 * FITTING)]
    await sharded.arm(armings)
    if status is Status.RUNNING:
        for shard in range(sharded.shards):
            for prefix in range(prefixes):
                await claim(sharded, prefix=f"p{prefix}", shard=shard)
    pages = await all_pages(sharded, Filter())
    assert [len(page) <= FITTING for page in pages] == [True] * len(pages)
    assert sorted(timer.id for page in pages for timer in page) == sorted(each.id for each in armings)
    assert {timer.status for page in pages for timer in page} == {status}


async def test_one_list_over_many_prefixes_and_shards_takes_a_few_round_trips(
    sharded: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call for each prefix, shard and status took ten seconds, and the API answered 503."""
    await sharded.arm([arming("a", prefix=f"p{n}", due="+3600000") for n in range(PREFIXES)])
    await armed(sharded, "b", prefix="p7", due="+3600000", spec={"tags": ["vip"]})
    await all_pages(sharded, Filter())  # a server that has no test before this one gets the script
    sent = count_sent(sharded, monkeypatch)
    for wanted, found, most in (
        (Filter(), PREFIXES + 1, 3),
        (Filter(tag=("vip",)), 1, 8),
        (Filter(status=(Status.FAILED,)), 0, 1),
        (Filter(prefix="p7"), 2, 2),
        (Filter(prefix="p7*"), sum(f"p{n}".startswith("p7") for n in range(PREFIXES)) + 1, 2),
        (Filter(prefix="q*"), 0, 1),
        (Filter(status=(Status.FAILED, Status.CANCELLED)), 0, 1),
        (Filter(status=(Status.FAILED, Status.SCHEDULED), tag=("vip",)), 1, 8),
    ):
        sent.clear()
        pages = await all_pages(sharded, wanted)
        assert sum(map(len, pages)) == found
        assert len(sent) <= most, (wanted, sent)


@pytest.mark.one_server
async def test_a_page_that_continues_a_long_list_takes_one_round_trip(
    real: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counting first, as the first page must, made it a quarter slower."""
    await real.arm([arming(f"t{n}", due="+3600000") for n in range(400)])
    first = await read_page(real, Filter(), limit=10)
    sent = count_sent(real, monkeypatch)
    assert len((await read_page(real, Filter(), limit=10, cursor=first.next_cursor)).items) == 10
    assert len(sent) == 1


async def test_counting_all_shards_takes_one_round_trip(sharded: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    await sharded.arm([arming("a", prefix=f"p{n}", due="+3600000") for n in range(20)])
    sent = count_sent(sharded, monkeypatch)
    for look in (queries.counts, queries.earliest_due, queries.paused, queries.quarantined):
        sent.clear()
        await look(sharded)
        assert len(sent) == 1, look


class Asked(Store):
    """Remembers the first two arguments of each call."""

    def __init__(self, real: Store) -> None:
        super().__init__(real.connections, shards=real.shards)
        self.asked: list[tuple[object, ...]] = []

    async def run_all(self, name: str, calls: Sequence[Call], via: Scripts | None = None) -> list[Any]:
        self.asked += (tuple(arguments[:2]) for _, arguments in calls)
        return await super().run_all(name, calls, via)


async def test_a_list_reads_only_where_timers_are_counted(real: Store) -> None:
    await finished(real, "done")
    await armed(real, "waits", prefix="other", due="+3600000")
    asked = Asked(real)
    await all_pages(asked, Filter())
    assert asked.asked == [("due", "other"), ("c", "reminder")]


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


@pytest.mark.parametrize("cursor", ["", "x", '["nan","a"]', '["(1","a"]', "[1]"])
async def test_a_made_up_cursor_is_refused(store: Store, cursor: str) -> None:
    search = Filter(prefix=PREFIX, status=(Status.FAILED,))
    with pytest.raises(InvalidInput):
        await read_page(store, search, limit=5, cursor=cursor, newest=True)
    with pytest.raises(InvalidInput):
        await read_page(store, search, limit=5, cursor=cursor)
