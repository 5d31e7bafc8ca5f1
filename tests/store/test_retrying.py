"""Timers that fail and wait for their next try are counted and listed, and cost nothing where none fails."""

from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.conftest import SharedServers
from tests.conservation import conserved
from tests.store.acts import HOUR_MS, PREFIX, an_end, armed, arming, claim, read, retrying, settle
from tests.store.backends import open_store
from timers.core.durations import format_time
from timers.core.model import Status
from timers.store import queries
from timers.store.filters import Filter
from timers.store.listing import read_page
from timers.store.queries import endings, groups, long_failing
from timers.store.store import Store
from timers.store.upkeep import audit


async def listed(store: Store, **wanted: Any) -> list[str]:
    return sorted(timer.id for timer in (await read_page(store, Filter.parse(wanted))).items)


async def counted(store: Store) -> tuple[int, int]:
    """How many are retrying and how many scheduled, by prefix and in all alike."""
    of, total = (await queries.counts(store)).get(PREFIX, {}), await queries.totals(store)
    alone = Counter[Status]()
    async for _, _, status, n in queries.counted(store, PREFIX):
        alone[status] += n
    assert [of.get(status, 0) for status in Status] == [total[status] for status in Status]
    assert of == alone
    return total[Status.RETRYING], total[Status.SCHEDULED]


async def test_a_timer_that_waits_for_its_next_try_is_counted_and_listed(store: Store) -> None:
    await retrying(store)
    await armed(store, "fresh", due="+3600000")
    assert await counted(store) == (1, 2)
    assert await listed(store, status="retrying") == ["a"]
    assert await listed(store, status="scheduled") == await listed(store) == ["a", "fresh"]
    assert await listed(store, status=["retrying", "scheduled"]) == ["a", "fresh"]
    assert await listed(store, status=["retrying", "running"], prefix=PREFIX) == ["a"]
    assert await listed(store, status="retrying", due_before="30m") == []
    assert [
        t.id
        for t in (
            await read_page(store, Filter.parse({"prefix": PREFIX, "status": "retrying"}), limit=5, newest=True)
        ).items
    ] == ["a"]
    assert (await read(store)).status is Status.SCHEDULED
    await conserved(store)


async def _claimed(store: Store) -> None:
    await store.reschedule(PREFIX, "a", due="+0")
    assert len(await claim(store)) == 1


async def _abandoned(store: Store) -> None:
    before_ms = await store.now_ms() + 2 * HOUR_MS
    assert await store.abandon(0, PREFIX, [], before_ms=before_ms, most=10, pod="p") == ["a"]


async def _spoilt(store: Store) -> None:
    redis: Any = store.connections.commands
    for bucket in await redis.keys("timers:{0}:rec:*"):
        await redis.hset(bucket, f"{PREFIX}:a", "nonsense")
    assert [reply.code for reply in await store.arm([arming("a", due="+3600000")])] == ["created"]


ENDS: dict[str, Callable[[Store], Awaitable[object]]] = {
    "cancelled": lambda store: store.cancel(PREFIX, "a"),
    "purged": lambda store: store.cancel(PREFIX, "a", purge=True),
    "replaced": lambda store: store.arm([arming("a", due="+3600000", if_exists="replace")]),
    "claimed": _claimed,
    "unhandled": _abandoned,
    "quarantined": _spoilt,
}


@pytest.mark.parametrize("how", ENDS)
async def test_it_is_no_longer_counted_once_it_is(store: Store, how: str) -> None:
    await retrying(store)
    await ENDS[how](store)
    assert (await counted(store))[0] == 0
    assert await listed(store, status="retrying") == []
    assert await store.connections.commands.keys("timers:{0}:retrying*") == []
    await conserved(store)


async def test_a_change_keeps_it_retrying_and_a_second_failure_counts_once(store: Store) -> None:
    await retrying(store)
    await store.reschedule(PREFIX, "a", due="+0")
    assert await counted(store) == (1, 1)
    (timer,) = await claim(store)
    assert await counted(store) == (0, 0)
    await settle(store, an_end(timer, Status.SCHEDULED, failures=2, due_ms=timer.due_ms + HOUR_MS))
    assert await counted(store) == (1, 1)
    await store.reschedule(PREFIX, "a", due="+0")
    (timer,) = await claim(store)
    await settle(store, an_end(timer))
    assert await counted(store) == (0, 0)
    await conserved(store)


async def test_timers_that_never_fail_cost_nothing(real: Store) -> None:
    redis: Any = real.connections.commands

    async def used(act: Awaitable[object]) -> set[str]:
        await redis.config_resetstat()
        await act
        return {name.removeprefix("cmdstat_") for name in await redis.info("commandstats")}

    await armed(real, "before")
    await claim(real)
    arms = await used(real.arm([arming("a")]))
    timers: list[Any] = []

    async def claims() -> None:
        timers.extend(await claim(real))

    claims_used = await used(claims())
    settles = await used(settle(real, an_end(timers[0], Status.SCHEDULED, due_ms=timers[0].due_ms + HOUR_MS)))
    assert "zcard" not in arms | claims_used | settles
    await retrying(real, "fails")
    assert "zcard" in {name.removeprefix("cmdstat_") for name in await redis.info("commandstats")}


async def test_one_written_by_an_older_version_is_found_by_the_audit(store: Store) -> None:
    await retrying(store)
    redis = store.connections.commands
    await redis.delete("timers:{0}:retrying", f"timers:{{0}}:retrying:{PREFIX}")
    assert await listed(store, status="retrying") == []
    found = [one async for one in audit(store, 0) if one]
    assert found == [{"retrying": 1}]
    assert await listed(store, status="retrying") == ["a"]
    await conserved(store)


async def test_one_claimed_by_an_older_version_is_taken_out_by_the_audit(store: Store) -> None:
    await armed(store, due="+3600000")
    redis: Any = store.connections.commands
    await redis.zadd(f"timers:{{0}}:retrying:{PREFIX}", {"a": 1})
    await redis.zadd("timers:{0}:retrying", {PREFIX: 1})
    found = [one async for one in audit(store, 0) if one]
    assert found == [{"left over": 1}, {"counts": 1}]
    await conserved(store)


async def test_they_are_grouped_by_error_with_the_first_of_them(store: Store) -> None:
    now_ms = await store.now_ms()
    since = {name: format_time(now_ms - ago_ms) for name, ago_ms in (("old", 600_000), ("new", 1000))}
    await retrying(store, "1", since=since["old"])
    await retrying(store, "2", since=since["new"])
    await retrying(store, "3", since=since["new"], reason="quota exceeded")
    await retrying(store, "x", prefix="other", since=since["new"])
    assert await queries.retrying(store) == [
        (PREFIX, 3, now_ms - 600_000), ("other", 1, now_ms - 1000),
    ]  # fmt: skip
    found, looked_at = await groups(store, PREFIX, Status.RETRYING)
    assert ([(group.error, group.number) for group in found], looked_at) == (
        [("OSError: mail is down", 2), ("OSError: quota exceeded", 1)],
        3,
    )
    assert await long_failing(store) == {
        PREFIX: f"3 of {PREFIX}, the first since {since['old']}, most of them by 'OSError: mail is down'"
    }
    assert [ending.id for ending in await endings(store, PREFIX, Status.RETRYING, 5)][-1] == "1"


async def test_one_that_has_failed_for_long_is_found_behind_many_prefixes_with_more(store: Store) -> None:
    now_ms = await store.now_ms()
    since = {name: format_time(now_ms - ago_ms) for name, ago_ms in (("old", 600_000), ("new", 1000))}
    many = [f"many-{n:02}" for n in range(queries.RETRYING_SHOWN + 5)]
    for prefix in many:
        for name in ("1", "2"):
            await retrying(store, name, prefix=prefix, since=since["new"])
    await retrying(store, "x", prefix="one", since=since["old"])
    found = await queries.retrying(store)
    assert ("one", 1, now_ms - 600_000) in found
    assert [number for _, number, _ in found[: queries.RETRYING_SHOWN]] == [2] * queries.RETRYING_SHOWN
    assert list(await long_failing(store)) == ["one"]


async def test_a_prefix_whose_last_one_is_tried_meanwhile_has_not_failed_since_1970(store: Store) -> None:
    """Its number was read before the claim, and its first timer after that."""
    redis: Any = store.connections.commands
    await redis.zadd("timers:{0}:retrying", {PREFIX: 1})
    found = await queries.retrying(store), await long_failing(store)
    await redis.delete("timers:{0}:retrying")
    assert found == ([], {})


async def test_they_are_counted_over_all_shards(servers: SharedServers) -> None:
    async with open_store(servers, "redis", shards=4) as four:
        for n in range(8):
            await four.arm([arming(f"t{n}")])
            shard = four.shard_of(PREFIX, f"t{n}")
            (timer,) = await claim(four, shard=shard)
            end = an_end(timer, Status.SCHEDULED, failures=1, due_ms=timer.due_ms + HOUR_MS)
            await four.settle(shard, [end], pod="p", retention_ms=0)
        assert await counted(four) == (8, 8)
        assert len(await listed(four, status="retrying")) == 8
        assert [number for _, number, _ in await queries.retrying(four)] == [8]
        await conserved(four)
