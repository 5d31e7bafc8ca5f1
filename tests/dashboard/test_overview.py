"""The first page: one sentence about health, what fired, what is due next."""

import asyncio
import re

import pytest

from tests.api.harness import Api, Instead
from tests.dashboard.conftest import EVERYTHING, READS, Visitor
from tests.members import announce
from tests.waiting import DEADLINE_SECONDS, eventually
from timers.dashboard.overview import OverviewPage
from timers.store import alarms, keys
from timers.store.cooperative import CachedRead


@pytest.fixture
def instead() -> Instead:
    """Every request reads the db."""
    waits = {"stats_seconds": -1.0, "load_seconds": -1.0, "load_patience_seconds": DEADLINE_SECONDS}
    return lambda parts: OverviewPage(parts, **waits).routes()


def sentence(text: str) -> str:
    found = re.search(r'id="health"[^>]*>.*?</span>(.*?)</p>', text, re.DOTALL)
    assert found is not None
    return found[1]


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
    assert sentence((await visitor.get("/")).text).startswith("All is well.")


async def test_when_all_is_well_it_says_how_late_timers_start(working: Api) -> None:
    await working.create("one", delay="0s")
    visitor = Visitor(working)

    async def well() -> str | None:
        said = sentence((await visitor.get("/")).text)
        return said if "99 % start within" in said else None

    assert (await eventually(well, "all is well")).startswith("All is well.")


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
