"""The quota of scheduled timers: exact under any number of callers, over shards and prefixes."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.servers import start_server
from timers.client import TimerClient, open_store
from timers.core.spec import NewTimer
from timers.errors import TooManyPending
from timers.store.connect import connect
from timers.store.store import Quota, Store


@pytest.fixture(params=[1, 3], ids=["one shard", "three shards"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    server = await start_server("redis", tmp_path)
    store = await open_store(connect(server.url), shards=request.param)
    yield store
    await store.connections.close()
    await server.stop()


def timer(prefix: str, timer_id: str, **fields: str) -> NewTimer:
    return NewTimer.parse({"prefix": prefix, "id": timer_id, "delay": "1h", **fields})


async def codes(client: TimerClient, quota: Quota, *news: NewTimer) -> list[str]:
    results = await client.batch(news, quota=quota)
    return [getattr(result, "how", type(result).__name__) for result in results]


async def test_of_many_callers_exactly_as_many_as_the_quota_allows_get_a_place(store: Store) -> None:
    client, quota = TimerClient.over(store), Quota(20, ("a",))
    calls = [codes(client, quota, *(timer("a", f"{caller}-{n}") for n in range(5))) for caller in range(16)]
    came = Counter(code for answers in await asyncio.gather(*calls) for code in answers)
    assert came == {"created": 20, "TooManyPending": 60}
    assert sum((await client.counts())["a"].values()) == 20


async def test_what_takes_no_new_place_is_always_allowed(store: Store) -> None:
    client, quota = TimerClient.over(store), Quota(2, ("a", "b*"))
    assert await codes(client, quota, timer("a", "1"), timer("bc", "1")) == ["created", "created"]
    assert await codes(client, quota, timer("b", "2")) == ["TooManyPending"]
    assert await codes(client, quota, timer("a", "1", if_exists="replace")) == ["replaced"]
    assert await codes(client, quota, timer("a", "1", if_exists="keep")) == ["kept"]
    assert await codes(client, quota, timer("a", "1")) == ["AlreadyExists"]
    await client.cancel("a", "1")
    assert await codes(client, quota, timer("a", "1", if_exists="replace")) == ["replaced"]
    await client.cancel("bc", "1", purge=True)
    assert await codes(client, quota, timer("b", "2")) == ["created"]


async def test_a_full_quota_counts_only_its_own_prefixes_and_arms_nothing(store: Store) -> None:
    client = TimerClient.over(store)
    await client.batch([timer("other", "1"), timer("ab", "1")])
    quota = Quota(1, ("a",))
    assert await codes(client, quota, timer("a", "1")) == ["created"]
    with pytest.raises(TooManyPending, match="1 timers are scheduled under a, as many as the key may have"):
        await client.arm(timer("a", "2"), quota=quota)
    assert (await client.list(prefix="a")).items[0].id == "1"
    assert len((await client.list(prefix="a")).items) == 1
