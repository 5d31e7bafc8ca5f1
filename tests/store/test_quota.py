"""The quota of scheduled timers: exact for any number of callers, over shards and prefixes."""

import asyncio
import gc
import itertools
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any
from unittest.mock import patch

import pytest
from redis.asyncio.client import Pipeline

from tests.conftest import SharedServers
from tests.members import declare
from tests.servers import Kind
from tests.store.acts import LEASE_MS, POD, PREFIX, an_end, armed, arming, prune, running, settle
from tests.store.backends import real_connections
from timers.client import TimerClient, client_over, open_store
from timers.client.actions import BulkAction
from timers.core.model import Status
from timers.core.spec import NewTimer
from timers.errors import NotFound, TooManyPending
from timers.store import keys
from timers.store.callers import Quota, Quotas
from timers.store.store import Store


@pytest.fixture(params=[1, 3], ids=["one shard", "three shards"])
async def store(request: pytest.FixtureRequest, servers: SharedServers, kind: Kind) -> AsyncIterator[Store]:
    async with real_connections(servers, kind) as connections:
        store = await open_store(connections, shards=request.param)
        numbered = (f"{letter}{n}" for letter in "ap" for n in range(10))
        await declare(store, "a", "ab", "b", "bc", "other", *numbered)
        yield store


def timer(prefix: str, timer_id: str, **fields: str) -> NewTimer:
    return NewTimer.parse({"prefix": prefix, "id": timer_id, "delay": "1h", **fields})


async def codes(client: TimerClient, quota: Quota, *news: NewTimer) -> list[str]:
    results = await client.acting(None, quota).batch(news)
    return [getattr(result, "how", type(result).__name__) for result in results]


async def test_exactly_as_many_callers_as_the_quota_allows_get_a_place(store: Store) -> None:
    client, quota = client_over(store), Quota(20, ("a",), 100)
    calls = [codes(client, quota, *(timer("a", f"{caller}-{n}") for n in range(5))) for caller in range(16)]
    came = Counter(code for answers in await asyncio.gather(*calls) for code in answers)
    assert came == {"created": 20, "TooManyPending": 60}
    assert sum((await client.counts())["a"].values()) == 20


async def test_a_create_that_needs_no_new_place_is_always_allowed(store: Store) -> None:
    client, quota = client_over(store), Quota(2, ("a", "b*"), 100)
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
    client = client_over(store)
    await client.batch([timer("other", "1"), timer("ab", "1")])
    quota = Quota(1, ("a",), 100)
    assert await codes(client, quota, timer("a", "1")) == ["created"]
    with pytest.raises(
        TooManyPending, match="at least 1 timers under a are scheduled or running, the maximum of the key"
    ):
        await client.acting(None, quota).arm(timer("a", "2"))
    assert (await client.list(prefix="a")).items[0].id == "1"
    assert len((await client.list(prefix="a")).items) == 1


async def test_the_last_place_is_taken_once_by_pods_that_ask_at_the_same_time(store: Store) -> None:
    quota, pods = Quota(7, ("a*",), 100), [client_over(store) for _ in range(8)]
    asked = [pod.acting(None, quota).arm(timer(f"a{n}", "x")) for n, pod in enumerate(pods)]
    came = Counter(type(result).__name__ for result in await asyncio.gather(*asked, return_exceptions=True))
    assert came == {"Armed": 7, "TooManyPending": 1}
    assert not await store.connections.commands.exists(f"{keys.ACCESS_ROOT}bookings")


async def test_the_places_of_a_caller_that_died_are_free_again(store: Store) -> None:
    quota = Quota(1, ("a",), 100)
    await store.run("book", keys.ACCESS_ROOT, ["", 200, 1, "a"])
    assert await codes(client_over(store), quota, timer("a", "1")) == ["created"]


@pytest.mark.parametrize("foreign", ["foreign", "9" * 5000, "-inf", "1.5"])
async def test_a_foreign_value_among_the_bookings_kept_callers_with_a_quota_out(store: Store, foreign: str) -> None:
    redis: Any = store.connections.commands
    await redis.set(f"{keys.ACCESS_ROOT}booked", foreign)
    await redis.zadd(f"{keys.ACCESS_ROOT}bookings", {foreign: "+inf"})
    assert await codes(client_over(store), Quota(1, ("a",), 100), timer("a", "1"), timer("a", "2")) == [
        "created",
        "TooManyPending",
    ]


async def test_a_booking_of_other_prefixes_takes_no_place(store: Store) -> None:
    await store.run("book", keys.ACCESS_ROOT, ["", 60_000, 5, "b* c"])
    assert await codes(client_over(store), Quota(1, ("a",), 100), timer("a", "1")) == ["created"]
    (_, ahead) = await store.run("book", keys.ACCESS_ROOT, ["", 60_000, 1, "bx"])
    assert ahead == 5


async def test_a_caller_cannot_make_prefixes_without_end(store: Store) -> None:
    client, quota = client_over(store), Quota(1000, ("*",), 3)
    news = [timer(f"p{n}", "1") for n in range(5)]
    assert await codes(client, quota, *news) == ["created"] * 3 + ["TooManyPending"] * 2
    await client.cancel("p0", "1")
    with pytest.raises(TooManyPending, match="at least 3 prefixes under \\* have timers, the maximum of the key"):
        await client.acting(None, quota).arm(timer("p9", "1"))
    assert await codes(client, quota, timer("p1", "2")) == ["created"]
    await client.cancel("p0", "1", purge=True)
    assert await codes(client, quota, timer("p9", "1")) == ["created"]


async def test_creates_at_the_same_time_share_a_booking(store: Store) -> None:
    client, quota, ran = client_over(store), Quota(1000, ("a",), 100), Counter[str]()
    store.called = lambda script, _seconds: ran.update([script])
    await asyncio.gather(*(client.acting(None, quota).arm(timer("a", f"{n}")) for n in range(100)))
    assert ran["book"] <= 10  # two, unless a slow machine makes the client read declarations again
    ran.clear()
    await client.arm(timer("a", "free"))
    assert ran == {"arm": 1}


async def test_a_retry_takes_no_place_that_the_quota_does_not_have(store: Store) -> None:
    client, quota = client_over(store), Quota(2, ("a",), 100)
    assert await codes(client, quota, timer("a", "1"), timer("a", "2")) == ["created", "created"]
    await client.cancel("a", "1")
    assert await codes(client, quota, timer("a", "3")) == ["created"]
    with pytest.raises(
        TooManyPending, match="at least 2 timers under a are scheduled or running, the maximum of the key"
    ):
        await client.acting(None, quota).retry("a", "1")
    with pytest.raises(NotFound):
        await client.acting(None, quota).retry("a", "none")
    assert await codes(client, quota, timer("a", "1", if_exists="replace")) == ["TooManyPending"]
    await client.cancel("a", "3")
    assert (await client.acting(None, quota).retry("a", "1")).status is Status.SCHEDULED
    assert not await store.connections.commands.exists(f"{keys.ACCESS_ROOT}bookings")


async def test_an_action_retries_as_many_as_the_quota_has_places_for(store: Store) -> None:
    client, quota = client_over(store), Quota(4, ("a",), 100)
    await codes(client, quota, *(timer("a", f"{n}") for n in range(4)))
    await client.act("cancel", {"prefix": "a"})
    await codes(client, quota, timer("a", "new"))
    asked = BulkAction.parse({"action": "retry", "filter": {"prefix": "a"}})
    counts = await client.acting(None, quota).act(asked)
    assert (counts.matched, counts.done, counts.refused) == (4, 3, {"too-many-pending": 1})
    assert (await client.counts())["a"][Status.SCHEDULED] == 4


async def test_a_timer_that_was_fired_keeps_its_place_while_it_runs(store: Store) -> None:
    """It may come back: as a repeat, a retry, or handed back."""
    client, quota = client_over(store), Quota(1, ("a",), 100)
    assert await codes(client, quota, timer("a", "1")) == ["created"]
    await client.fire("a", "1")
    shard = store.shard_of("a", "1")
    assert (await store.claim(shard, [("a", 1)], pod="p", lease_ms=60_000, cause="event")).timers
    assert await codes(client, quota, timer("a", "2")) == ["TooManyPending"]


async def test_a_bound_on_prefixes_holds_without_one_on_timers(store: Store) -> None:
    client, quota = client_over(store), Quota(None, ("*",), 2)
    news = [timer(f"p{n}", "1") for n in range(3)]
    assert await codes(client, quota, *news) == ["created", "created", "TooManyPending"]
    await client.cancel("p0", "1")
    assert (await client.acting(None, quota).retry("p0", "1")).status is Status.SCHEDULED


async def test_a_quota_over_names_looks_at_no_other_prefix(real: Store) -> None:
    redis: Any = real.connections.commands
    quota = Quota(1, ("acme",), 1)
    others = {f"s p{number}": 1 for number in range(1000)}
    await redis.hset("timers:{0}:counts", mapping=others)
    await redis.config_resetstat()
    for code in ("created", "full"):
        (reply,) = await Quotas(real).arm([arming(code, prefix="acme", due="+3600000")], quota)
        assert reply.code == code
    stats = await redis.info("commandstats")
    await redis.hdel("timers:{0}:counts", *others)
    assert "cmdstat_hscan" not in stats
    assert stats["cmdstat_hmget"]["calls"] == 2


HOUR = "+3600000"
_APART = itertools.count(36_000_000, 1_000)


async def commands_of_a_create(store: Store, timer_id: str) -> dict[str, int]:
    """Which commands a create under `acme-*` gives, and how often. None is due in the millisecond of another, which
    would be looked at."""
    redis: Any = store.connections.commands
    await redis.config_resetstat()
    quota = Quota(100, ("acme-*",), 100)
    (reply,) = await Quotas(store).arm([arming(timer_id, prefix="acme-mail", due=f"+{next(_APART)}")], quota)
    assert reply.code == "created"
    stats = await redis.info("commandstats")
    return {name: stat["calls"] for name, stat in stats.items() if name != "cmdstat_replconf"}  # replicas send that


async def test_a_create_under_a_pattern_looked_at_the_prefixes_of_all_tenants(real: Store) -> None:
    for timer_id in ("first", "second"):  # the first finds no index yet, and one may connect or load a script
        await commands_of_a_create(real, timer_id)
    alone = await commands_of_a_create(real, "third")
    await real.arm([arming(prefix=f"{letter}cme-{n}", due=HOUR) for letter in "0bz" for n in range(1000)])
    assert await commands_of_a_create(real, "fourth") == alone
    assert "cmdstat_hscan" not in alone


NAMES = [f"t{number}" for number in range(400)]


@pytest.mark.parametrize("indexed", [True, False], ids=["indexed", "of an older version"])
@pytest.mark.parametrize(
    ("ends", "quota", "code"),
    [(False, Quota(len(NAMES), ("t*",), 1000), "full"), (True, Quota(None, ("t*",), len(NAMES)), "prefixes")],
)
async def test_a_timer_that_starts_or_ends_while_prefixes_are_looked_for_makes_no_room(
    real: Store, *, ends: bool, quota: Quota, code: str, indexed: bool
) -> None:
    """The prefixes of a pattern are looked for in parts. If the only timer of one started or ended between two parts,
    its count left for another that was among those already read, and the prefix was missed."""
    await real.arm([arming(prefix=prefix) for prefix in NAMES])
    if not indexed:
        await real.connections.commands.delete("timers:{0}:prefixes")
    waiting, execute, run = NAMES[::-1], Pipeline.execute, Store.run

    async def move() -> None:
        """Start or end the timers of the next prefixes."""
        names = [waiting.pop() for _ in range(min(len(waiting), 20))]
        claimed = await real.claim(0, [(name, 1) for name in names], pod=POD, lease_ms=LEASE_MS, cause="sweep")
        if ends:
            assert await settle(real, *map(an_end, claimed.timers)) == ["settled"] * len(names)

    async def part(pipe: Any, **options: Any) -> Any:
        answers = await execute(pipe, **options)
        await move()
        return answers

    async def script(store: Store, name: str, *more: Any, **options: Any) -> Any:
        answers = await run(store, name, *more, **options)
        if name == "audit":
            await move()
        return answers

    with (
        patch("timers.store.callers.COUNT_BATCH", 20),
        patch("timers.store.upkeep.INDEXED", 20),
        patch.object(Pipeline, "execute", part),
        patch.object(Store, "run", script),
    ):
        (reply,) = await Quotas(real).arm([arming(prefix="tnew")], quota)
    assert reply.code == code
    assert len(waiting) < len(NAMES) / 2


async def test_a_quota_over_a_pattern_holds_in_a_db_without_its_index(store: Store) -> None:
    client, quota = client_over(store), Quota(10, ("p*",), 100)
    await client.batch([timer(f"p{n}", "1") for n in range(10)])
    for shard in range(store.shards):
        await store.connections.commands.delete(f"{keys.root(shard)}prefixes")
    await client.batch([timer("a", "1")])  # what is armed now is in the index, the rest not yet
    assert await codes(client, quota, timer("p1", "2")) == ["TooManyPending"]
    await client.cancel("p3", "1", purge=True)
    assert await codes(client, quota, timer("p1", "2"), timer("p1", "3")) == ["created", "TooManyPending"]


async def test_a_quota_over_a_pattern_begins_anew_in_an_emptied_db(real: Store) -> None:
    quotas, quota = Quotas(real), Quota(1, ("t*",), 1)
    for code in ("created", "prefixes"):
        (reply,) = await quotas.arm([arming(prefix=f"t{code}", due=HOUR)], quota)
        assert reply.code == code
    await real.connections.commands.flushdb()
    for code in ("created", "prefixes"):
        (reply,) = await quotas.arm([arming(prefix=f"t{code}", due=HOUR)], quota)
        assert reply.code == code


async def test_quotas_that_were_used_leave_nothing_in_the_pod(real: Store) -> None:
    """Each API key may have another, and keys come and go."""
    quotas = Quotas(real)

    def locks() -> int:
        gc.collect()
        return sum(isinstance(each, asyncio.Lock) for each in gc.get_objects())

    await quotas.arm([arming("first", due=HOUR)], Quota(100, (PREFIX,), 1))
    before = locks()
    for most in range(101, 121):
        await quotas.arm([arming(f"{most}", due=HOUR)], Quota(most, (PREFIX,), 1))
    assert locks() <= before


@pytest.mark.parametrize("way", ["purge", "prune", "settle", "cancel"])
async def test_a_prefix_leaves_the_index_with_its_last_timer(real: Store, way: str) -> None:
    """Callers choose prefixes: the index would otherwise grow without end."""
    last = await running(real) if way == "settle" else await armed(real, due=HOUR)
    await armed(real, "other", due=HOUR, prefix="other")
    if way == "prune":
        await real.cancel(PREFIX, last.id)
        assert await prune(real, retention_ms=-1000, most=10) == 1
    elif way == "settle":
        assert await settle(real, an_end(last), retention_ms=0) == ["settled"]
    else:
        await real.cancel(PREFIX, last.id, purge=way == "purge", keep=way == "purge")
    assert await real.connections.commands.zrange("timers:{0}:prefixes", 0, -1) == [b"other"]
