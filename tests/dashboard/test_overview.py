"""The first page: one sentence about health, what fired, what is due next."""

import asyncio
import json
import re
import shlex
from html import unescape

import pytest
from redis.asyncio import Redis

from tests.api.harness import Api
from tests.dashboard.conftest import EVERYTHING, READS, Visitor
from tests.members import announce
from tests.store.acts import an_end, retrying, running
from tests.waiting import DEADLINE_SECONDS, eventually
from timers.core.model import Progress, Status
from timers.store import alarms, keys
from timers.store.cooperative import CachedRead
from timers.store.scripts import FULL
from timers.store.starts import FAILED, RETRIED, add_starts, bucket_of
from timers.store.store import Arming, Store

LONG_AGO = 1_700_000_000_000


pytestmark = pytest.mark.usefixtures("reading_each_time")


def sentence(text: str) -> str:
    return troubles(text)[0][0]


def troubles(text: str) -> list[tuple[str, str]]:
    """What is said at the head of the page, in order, and where each links to."""
    begun, linked = r'(?:aria-hidden="true"></span><span>|<li class="(?:bad|warn)">)', r'(?: <a href="(.*?)">.*?</a>)?'
    found = re.findall(f"{begun}(.*?){linked}</(?:span|li)>", text)
    return [(unescape(said), where) for said, where in found]


async def test_without_a_worker_the_first_sentence_says_so(visitor: Visitor) -> None:
    assert sentence((await visitor.get("/")).text) == "No worker is alive, so nothing fires until one starts."


async def test_a_deaf_worker_is_explained(visitor: Visitor) -> None:
    await announce(visitor.api.store, "pod-1", processors=["test"], notifications="deaf")
    assert "notifications do not arrive" in sentence((await visitor.get("/")).text)


async def test_long_overdue_timers_come_first(visitor: Visitor) -> None:
    await announce(visitor.api.store, "pod-1", processors=["test"], notifications="ok")
    await visitor.api.client.create("test", "late", due_at="2026-01-01T00:00:00Z")
    await visitor.api.store.connections.commands.zadd("timers:{0}:due:test", {"late": 1_700_000_000_000})
    await visitor.api.store.connections.commands.zadd("timers:{0}:heads", {"test": 1_700_000_000_000})
    assert sentence((await visitor.get("/")).text).startswith("Timers are late: the oldest has been due for ")


async def test_timers_that_may_not_run_now_are_not_late(visitor: Visitor) -> None:
    """A timer that is paused, or at a limit, is counted apart from those due."""
    await announce(visitor.api.store, "pod-1", processors=["test"], notifications="ok")
    await visitor.api.client.create("test", "held", due_at="2026-01-01T00:00:00Z")
    await visitor.api.client.pause("test")
    redis = visitor.api.store.connections.commands
    await redis.zadd("timers:{0}:due:test", {"held": 1_700_000_000_000})
    await redis.zadd("timers:{0}:held", {"test": 1_700_000_000_000})
    assert sentence((await visitor.get("/")).text) == "Timers are due, but somebody has paused test."


async def test_when_all_is_well_it_says_how_late_timers_start(working: Api) -> None:
    await working.create("one", delay="0s")
    visitor = Visitor(working)

    async def well() -> str | None:
        said = sentence((await visitor.get("/")).text)
        return said if "99 % start within" in said else None

    assert (await eventually(well, "all is well")).startswith("All is well.")


async def test_timers_that_were_late_did_not_fire_on_time(visitor: Visitor) -> None:
    await announce(visitor.api.store, "pod-1", processors=["test"], notifications="ok", lateness={bucket_of(12_000): 1})
    await visitor.api.client.create("test", "one", delay="1h")
    said = sentence((await visitor.get("/")).text)
    assert said == "All is well. Timers were late in the last five minutes: 99 % started within 12 s."


async def test_what_is_due_first_over_all_prefixes_comes_first(visitor: Visitor) -> None:
    for prefix, timer_id, delay in [("test", "later", "3h"), ("mine", "next", "1h"), ("test", "second", "2h")]:
        await visitor.api.client.create(prefix, timer_id, delay=delay)
    text = (await visitor.get("/")).text
    assert re.findall(r'href="/ui/timers/(\w+/\w+)"', text) == ["mine/next", "test/second", "test/later"]
    assert "3 timers are due in the next 24 hours, at most 1 in an hour" in text


async def test_a_key_sees_counts_and_timers_of_its_prefixes_alone(guest: Visitor) -> None:
    await guest.api.client.create("test", "theirs", delay="1h")
    await guest.api.client.create("mine", "own", delay="2h")
    await guest.sign_in(READS)
    text = (await guest.get("/")).text
    assert "theirs" not in text
    assert re.findall(r'href="/ui/timers/(\w+/\w+)"', text) == ["mine/own"]
    assert "<strong>1</strong> scheduled" in text
    assert "1 timers are due" in text
    assert "/ui/server" not in text
    assert "/ui/keys" not in text


async def test_lost_data_comes_before_anything_else_until_it_is_acknowledged(visitor: Visitor) -> None:
    await visitor.api.client.create("test", "one", delay="1h")
    redis, identity = visitor.api.store.connections.commands, visitor.api.store.identity
    await redis.hset("timers:meta", "loss:shard:0", "1795000000000 1795000001000 40")
    await identity.refresh()
    told = "Data was lost: shard 0 lost everything written from "
    assert sentence((await visitor.get("/")).text).startswith(told)
    assert "shard 0 lost everything" in (await visitor.get("/ui/server")).text
    assert (await visitor.post("/ui/server/acknowledge")).where == "/ui/server"
    assert not sentence((await visitor.get("/")).text).startswith(told)
    assert await redis.hget("timers:meta", "loss:shard:0") is None


async def test_alarms_that_ring_are_shown_to_whoever_sees_all(guest: Visitor) -> None:
    """The alarm, since when, its text and its timers, on the first page and beside the hooks."""
    store, hostile = guest.api.store, "</li><script>alert(1)</script>"
    entries = [(f"{number}-0".encode(), "mine") for number in range(1, 13)]
    await alarms.count(store, "failed", [{"prefix": "mine", "id": "one", "note": hostile}], 0, entries)
    await alarms.note(store, "deaf", [{"note": "pod a"}])
    await guest.api.store.connections.commands.hset(f"{keys.ALARMS_ROOT}lost", mapping={"since": 1, "newest": "[1]"})
    await guest.sign_in(EVERYTHING)
    for path in ("/", "/ui/server"):
        text = (await guest.get(path)).text
        assert "2 ringing" in text
        assert "<strong>failed</strong>: 12 timers failed. Since <time" in text
        assert "no message sent yet" in text
        assert '<a class="id" href="/ui/timers/mine/one">mine:one</a>' in text
        assert "<strong>deaf</strong>: notifications do not arrive, timers run later." in text
        assert "<script>alert" not in text
    await guest.sign_in(READS)
    assert "ringing" not in (await guest.get("/")).text


async def test_without_an_alarm_none_is_shown(visitor: Visitor) -> None:
    assert 'id="alarms"' not in (await visitor.get("/")).text
    assert 'id="alarms"' not in (await visitor.get("/ui/server")).text


async def test_a_load_that_takes_long_to_count_holds_up_no_page() -> None:
    """The count runs in the background, once for all viewers, and the next request shows it."""
    counted, counts = asyncio.Event(), 0

    async def count() -> str:
        nonlocal counts
        counts += 1
        await counted.wait()
        return "counted"

    fresh = CachedRead[str](count, 3600.0)
    assert [await fresh.soon(0.0) for _ in range(3)] == [None] * 3
    counted.set()
    assert await fresh.soon(DEADLINE_SECONDS) == "counted"
    assert (await fresh.soon(0.0), counts) == ("counted", 1)


async def due_for_years(store: Store, prefix: str, *, index: str = "heads") -> None:
    """A timer of the prefix that is long due, in the index of queues that may run or in that of those that may not."""
    await store.arm([Arming(prefix, "late", "+3600000", {})])
    for name, member in ((f"due:{prefix}", "late"), (index, prefix)):
        await store.connections.commands.zadd(f"timers:{{0}}:{name}", {member: LONG_AGO})
    if index == "held":
        await store.connections.commands.zrem("timers:{0}:heads", prefix)


def waiting(text: str) -> dict[str, str]:
    """By timer, why it waits, of the rows that look overdue."""
    rows = re.findall(r'<tr class="overdue blocked">.*?href="/ui/timers/(.*?)".*?Waits: (.*?)</span>', text, re.DOTALL)
    return {timer: unescape(why) for timer, why in rows}


def held_back(metrics: str) -> set[tuple[str, ...]]:
    """The labels of the gauge of what is held back, where that has lasted for years."""
    return {
        tuple(each.split(","))
        for each in re.findall(r"^timers_held_back_seconds\{(.*)\} \d\.\d*e\+07$", metrics, re.MULTILINE)
    }


@pytest.mark.parametrize(
    ("limits", "held", "why"),
    [
        ("2 at once", 2, "its queue is at its concurrency limit (2 at once)"),
        ("any number at once, one every 5 s", 0, "its queue is at its rate limit (one every 5 s)"),
        ("2 at once, one every 5 s", 2, "its queue is at its concurrency limit (2 at once)"),
        ("2 at once, one every 5 s", 1, "its queue is at its rate limit (one every 5 s)"),
    ],
)
async def test_what_is_due_at_a_limit_is_shown_with_the_limit(
    visitor: Visitor, limits: str, held: int, why: str
) -> None:
    store = visitor.api.store
    redis = store.connections.commands
    await announce(store, "pod-1", processors=["test"], notifications="ok", settings={"limits of test": limits})
    await due_for_years(store, "test", index="held")
    later = await store.now_ms() + 3_600_000
    await redis.zadd("timers:{0}:blocked", {"test": later})
    for number in range(held):
        await redis.zadd("timers:{limits:test}:permits", {f"p{number}": later})
    found = waiting((await visitor.get("/")).text)
    assert found.keys() == {"test/late"}
    assert found["test/late"].startswith(why)
    assert sentence((await visitor.get("/")).text) == "Timers are due, but a limit holds back test."
    assert held_back(await visitor.api.text("/metrics")) == {('by="limit"', 'prefix="test"')}


async def test_what_is_due_but_paused_or_served_by_nobody_is_shown_with_the_reason_beside_what_may_run(
    visitor: Visitor,
) -> None:
    store, client = visitor.api.store, visitor.api.client
    await announce(store, "pod-1", processors=["test"], notifications="ok")
    await client.create("test", "next", delay="1h")
    await client.pause("test-paused")
    await due_for_years(store, "test-paused", index="held")
    await due_for_years(store, "mine")
    text = (await visitor.get("/")).text
    found = waiting(text)
    assert found["test-paused/late"].startswith("the prefix 'test-paused' has been paused since")
    assert found["mine/late"].startswith("no live pod serves 'mine'")
    assert 'href="/ui/timers/test/next"' in text
    assert text.count('href="/ui/timers/mine/late"') == 1
    said = dict(troubles(text))
    assert said["Timers are due, but no live pod serves mine."] == "/ui/prefixes/mine"
    assert said["Timers are due, but somebody has paused test-paused."] == "/ui/prefixes/test-paused"
    assert held_back(await visitor.api.text("/metrics")) == {('by="pause"', 'prefix="test"')}


async def test_what_is_wrong_now_comes_before_old_failures_with_a_link_each(visitor: Visitor) -> None:
    store, redis = visitor.api.store, visitor.api.store.connections.commands
    await announce(store, "pod-1", processors=["mine"], notifications="deaf")
    await retrying(store, "r", prefix="test", since="2026-01-01T00:00:00.000Z")
    await retrying(store, "m", prefix="timers.hook-a")
    await announce(store, "pod-2", processors=["timers.hook-a"], notifications="ok")
    timer = await running(store, "f", prefix="test")
    await store.settle(0, [an_end(timer, Status.FAILED)], pod="pod-1", retention_ms=60_000)
    await due_for_years(store, "test")
    found = troubles((await visitor.get("/")).text)
    assert [where for _, where in found] == [
        "/ui/timers?status=scheduled&amp;due_before=0s",
        "/ui/prefixes/test",
        "/ui/timers?prefix=timers.hook-a&amp;status=retrying&amp;status=failed",
        "/ui/prefixes/test",
        "/ui/server",
        "/ui/failed",
    ]
    assert found[1][0].endswith("OSError: mail is down.")
    assert "timers.hook-a" in found[2][0]
    assert found[-1][0] == "1 failed for good."
    for _, where in found:
        assert (await visitor.get(unescape(where))).status == 200
    await redis.delete("timers:{0}:retrying")


async def test_a_call_of_a_hook_that_has_failed_for_good_is_told_until_it_is_gone(visitor: Visitor) -> None:
    """It is not among the failed timers, and the alert names it."""
    store, prefix = visitor.api.store, "timers.hook-a"
    await announce(store, "pod-1", processors=[prefix], notifications="ok")
    timer = await running(store, "m", prefix=prefix)
    failed = an_end(timer, Status.FAILED, progress=Progress(last_error={"type": "Fail", "reason": "no such host"}))
    await store.settle(0, [failed], pod="pod-1", retention_ms=60_000)
    said = f"Calls of hooks or messages of alarms do not arrive ({prefix}): Fail: no such host."
    where = f"/ui/timers?prefix={prefix}&amp;status=retrying&amp;status=failed"
    assert troubles((await visitor.get("/")).text) == [(said, where)]
    await visitor.api.client.act("purge", {"prefix": prefix, "status": "failed"})
    assert sentence((await visitor.get("/")).text).startswith("All is well.")


async def test_a_full_redis_comes_first(visitor: Visitor, redis: Redis) -> None:
    await announce(visitor.api.store, "pod-1", processors=["test"], notifications="ok")
    await redis.config_set("maxmemory", 1)
    try:
        found = troubles((await visitor.get("/")).text)
    finally:
        await redis.config_set("maxmemory", 0)
    assert found[0] == (f"{FULL}.", "/ui/server")


async def test_a_service_that_is_moved_is_not_well(visitor: Visitor) -> None:
    identity = visitor.api.store.identity
    await identity.make()
    await identity.move("leaving", "move", "redis://there:1/0")
    found = troubles((await visitor.get("/")).text)
    await identity.stay(armed=False)
    said = "the service is being moved to redis://there:1/0; repeat the call in a while"
    assert found[0] == (f"Nothing is armed or started here: {said}.", "/ui/server")


async def test_an_empty_service_shows_how_to_arm_the_first_timer_instead_of_charts(visitor: Visitor) -> None:
    base = visitor.api.server.url
    text = (await visitor.get("/")).text
    assert "<svg" not in text
    lines = [unescape(line) for line in re.findall(r"<pre[^>]*>(.*?)</pre>", text, re.DOTALL)]
    assert lines[0].startswith(f"curl -X PUT {base}/v1/timers/")
    assert lines[1].startswith("from timers import BlockingTimerClient")
    assert re.fullmatch(r"redis-cli -[hs] .+ -n \d+ SET \w+:first '{\"hello\": \"world\"}' PX 60000", lines[2])
    _, _, address, *_, body = shlex.split(lines[0])[1:]
    armed = await visitor.api.call("PUT", address.removeprefix(base), json.loads(body))
    assert armed.status == 201
    text = (await visitor.get("/")).text
    assert "curl" not in text
    assert "<svg" in text


async def test_each_tile_leads_to_the_list_that_it_counts(visitor: Visitor) -> None:
    store, client = visitor.api.store, visitor.api.client
    await client.create("test", "soon", delay="1h")
    await client.create("test", "off", delay="1h")
    await client.cancel("test", "off")
    await retrying(store, "again", prefix="mine")
    text = (await visitor.get("/")).text
    tiles = re.findall(r'<li><a href="(/ui/timers\?status=\w+)"[^>]*><strong>(\d+)</strong>', text)
    assert len(tiles) == len(Status)
    for where, number in tiles:
        assert len(re.findall(r'<td class="timer">', (await visitor.get(where)).text)) == int(number), where


async def test_failed_attempts_are_series_of_the_charts_in_colours_of_their_own(visitor: Visitor) -> None:
    store = visitor.api.store
    await visitor.api.client.create("test", "one", delay="1h")
    await add_starts(store, {1: 7})
    await add_starts(store, {RETRIED: 2, FAILED: 1}, keys.FAILED_ROOT)
    text = (await visitor.get("/")).text
    assert [text.count(f'<rect class="{name}"') for name in ("fired", "retrying", "failed")] == [2, 2, 2]
    assert "7 fired in the last hour, 2 tried again, 1 failed for good, at most 7 in a minute" in text
