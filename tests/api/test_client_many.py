"""TimerClient with many timers: lists, actions, stats, prefixes, pods, pause, events."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from tests.members import announce, declare, declare_at
from tests.topologies import Place
from tests.waiting import DEADLINE_SECONDS, eventually
from timers.client import Armed, TimerClient, client_over, feed_of
from timers.client.feed import LOG_LIMIT, Dropped, Feed, Gap, Open
from timers.client.fleet import Declared
from timers.client.planning import plan
from timers.core.model import Status
from timers.core.shapes import Action
from timers.core.spec import NewTimer
from timers.embedded import EmbeddedServer
from timers.errors import AlreadyExists, InvalidInput, Unavailable
from timers.store.filters import Filter
from timers.store.listing import Page, read_page
from timers.store.notifications import Change, changes
from timers.store.store import Arming, Store


@pytest.fixture
async def client(store: Store) -> AsyncIterator[TimerClient]:
    async with client_over(store) as client:
        await declare(store, "test", "other")
        yield client


async def arm(client: TimerClient, number: int, prefix: str = "test") -> None:
    news = [
        NewTimer(prefix=prefix, id=f"t{i:04}", delay=f"{i + 1}h", tags=("even",) * (i % 2 == 0)) for i in range(number)
    ]
    for start in range(0, number, 1000):
        await client.batch(news[start : start + 1000])


async def test_pages_join_to_the_whole_list(client: TimerClient) -> None:
    await arm(client, 25)
    first = await client.list(limit=10)
    second = await client.list(limit=10, cursor=first.next_cursor)
    assert [timer.id for timer in (*first.items, *second.items)] == [f"t{i:04}" for i in range(20)]
    assert [timer.id async for timer in client.iterate()] == [f"t{i:04}" for i in range(25)]


async def test_the_loop_gets_its_turns_while_a_batch_is_planned(
    client: TimerClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Searching a calendar takes so long that a thousand timers stopped the loop for half a second."""
    await arm(client, 1)  # founds the shards, so that the batch is armed in parts
    monkeypatch.setattr("timers.store.cooperative.SLICE_SECONDS", 0.0)
    turn, planned = 0, Counter[int]()

    def plans(*args: Any, **options: Any) -> Arming:
        planned[turn] += 1
        return plan(*args, **options)

    monkeypatch.setattr("timers.client.client.plan", plans)
    batch = asyncio.create_task(client.batch([{"prefix": "test", "delay": "1h"}] * 1000))
    while not batch.done():
        await asyncio.sleep(0)
        turn += 1
    assert planned.total() == len(await batch) == 1000
    assert max(planned.values()) <= 2


async def test_a_list_is_stable_while_timers_come_and_go(client: TimerClient) -> None:
    await arm(client, 20)
    first = await client.list(limit=10)
    for gone in ("t0003", "t0009", "t0012"):
        await client.cancel("test", gone, purge=True)
    await client.create("test", "early", delay="1m")
    second = await client.list(limit=10, cursor=first.next_cursor)
    assert [timer.id for timer in second.items] == [f"t{i:04}" for i in range(10, 20) if i != 12]


class Kind(str, Enum):  # noqa: UP042 (many programs have such; in a text it appears as `Kind.REMINDER`)
    """The prefixes of an application."""

    REMINDER = "test"


class Name(str, Enum):  # noqa: UP042
    """The ids of an application."""

    ADA = "ada"


async def test_a_timer_may_be_named_by_a_member_of_an_enum(client: TimerClient) -> None:
    """It was armed as `Kind.REMINDER:Name.ADA`, which no processor serves."""
    created = await client.create(Kind.REMINDER, Name.ADA, delay="1h")
    assert (created.key, created) == ("test:ada", await client.get("test", "ada"))
    assert await client.list(prefix=Kind.REMINDER) == await client.list()
    assert (await client.batch([{"prefix": Kind.REMINDER, "id": Name.ADA, "delay": 1, "if_exists": "keep"}]))[0] == (
        Armed(created, "kept")
    )
    for change in (client.get, partial(client.change, payload=1), client.fire, client.cancel, client.retry):
        assert (await change(Kind.REMINDER, Name.ADA)).key == "test:ada"
    assert await client.pause(Kind.REMINDER)
    assert await client.resume("test")


async def test_filters_narrow_a_list(client: TimerClient) -> None:
    await arm(client, 6)
    await client.create("other", "x", delay="1h")
    await client.cancel("test", "t0005")
    assert [t.id async for t in client.iterate(prefix="test", status="scheduled", tag="even")] == [
        "t0000",
        "t0002",
        "t0004",
    ]
    assert [t.id async for t in client.iterate(status="cancelled")] == ["t0005"]
    edge = (await client.get("test", "t0002")).due_at
    assert [t.id async for t in client.iterate(prefix="test", status="scheduled", due_after=edge)] == [
        "t0002",
        "t0003",
        "t0004",
    ]
    assert [t.id async for t in client.iterate(prefix="test", due_before=edge)] == ["t0000", "t0001"]


@pytest.mark.parametrize(
    "wanted",
    [
        {"limit": 0},
        {"limit": 1001},
        {"status": "late"},
        {"prefix": "A"},
        {"tag": ""},
        {"due_after": "x"},
        {"cursor": "?"},
        {"prefix": "A", "status": "late", "limit": True, "cursor": "?"},
    ],
)
async def test_a_bad_list_parameter_is_named(client: TimerClient, wanted: dict[str, object]) -> None:
    with pytest.raises(InvalidInput) as error:
        await client.list(**wanted)  # type: ignore[arg-type]  # wrong on purpose
    assert [field.field for field in error.value.errors] == list(wanted)


async def test_a_batch_takes_the_words_of_the_api(client: TimerClient) -> None:
    results = await client.batch([{"prefix": "test", "id": "a", "delay": "1h"}, {"prefix": "test", "dealy": "1h"}])  # type: ignore[list-item]  # wrong on purpose
    armed, refused = results
    assert isinstance(armed, Armed)
    assert (armed.timer.id, armed.created) == ("a", True)
    assert isinstance(refused, InvalidInput)
    assert [error.field for error in refused.errors] == ["dealy", "delay"]


@pytest.mark.one_server
async def test_a_large_batch_is_armed_in_its_order(client: TimerClient) -> None:
    """Though it is sent in parts, before the first is answered."""
    news = [NewTimer(prefix="test", id=f"t{i:04}", delay="1h") for i in range(600)]
    *armed, again = await client.batch([*news, NewTimer(prefix="test", id="t0000", delay="2h")])
    assert [one.timer.id for one in armed if isinstance(one, Armed)] == [new.id for new in news]
    assert isinstance(again, AlreadyExists)
    assert [timer.id async for timer in client.iterate(prefix="test")] == [new.id for new in news]


async def test_a_part_of_a_batch_that_waits_holds_up_those_after_it(
    client: TimerClient, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If what the client knew of the declarations was just too old for the first parts, the last ones overtook them."""
    ids, due_ms, first = [f"{i * 7919 % 1000:04}" for i in range(1000)], 2_000_000_000_000, True
    await client.create("test", "armed-before", delay="1h")
    refusals = Declared.refusals

    async def slow(*given: Any) -> Any:
        nonlocal first
        is_first, first = first, False
        found = await refusals(*given)
        await asyncio.sleep(0.05 * is_first)
        return found

    monkeypatch.setattr(Declared, "refusals", slow)
    await client.batch([NewTimer(prefix="test", id=id, due_at=due_ms) for id in ids])
    assert [timer.id for timer in (await client.list(prefix="test", limit=1000, due_after=due_ms)).items] == ids


async def test_a_change_of_nothing_is_refused(client: TimerClient) -> None:
    await arm(client, 1)
    for change in (client.change("test", "t0000"), client.reschedule("test", "t0000")):
        with pytest.raises(InvalidInput, match="one of"):
            await change
    assert (await client.get("test", "t0000")).version == 1


async def test_a_dry_run_counts_and_changes_nothing(client: TimerClient) -> None:
    await arm(client, 5)
    counts = await client.act("cancel", Filter(prefix="test"), dry_run=True)
    assert counts.to_json() == {"matched": 5, "done": 0, "refused": {}, "examples": {}, "next_cursor": None}
    assert (await client.stats()).to_json()["by_status"]["scheduled"] == 5


async def test_an_action_reaches_all_that_pass_over_many_pages(client: TimerClient) -> None:
    await arm(client, 600)
    await client.create("other", "x", delay="1h")
    assert (await client.act("cancel", Filter(prefix="test", tag=("even",)))).to_json() == {
        "matched": 300,
        "done": 300,
        "refused": {},
        "examples": {},
        "next_cursor": None,
    }
    by_prefix = (await client.stats()).to_json()["by_prefix"]
    assert (by_prefix["test"]["scheduled"], by_prefix["test"]["cancelled"]) == (300, 300)
    assert by_prefix["other"]["scheduled"] == 1


async def test_retrying_a_whole_status_arms_each_once(client: TimerClient) -> None:
    await arm(client, 30)
    await client.act("cancel", Filter(prefix="test"))
    assert (await client.act("retry", Filter(prefix="test", status=(Status.CANCELLED,)))).done == 30
    assert [timer.version async for timer in client.iterate(prefix="test")] == [3] * 30


async def test_a_timer_that_is_cancelled_after_it_was_found_is_not_retried(
    client: TimerClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    await arm(client, 2)
    await client.act("cancel", Filter(prefix="test"))

    async def then_others_change_one(*args: Any, **options: Any) -> Page:
        page = await read_page(*args, **options)
        await client.retry("test", "t0000")
        await client.cancel("test", "t0000")
        return page

    monkeypatch.setattr("timers.client.actions.read_page", then_others_change_one)
    counts = await client.act("retry", Filter(prefix="test"))
    assert (counts.matched, counts.done, counts.refused) == (2, 1, {"version-mismatch": 1})
    assert [timer.status async for timer in client.iterate(prefix="test")] == [Status.SCHEDULED, Status.CANCELLED]


async def test_a_rescheduled_timer_is_not_found_again_at_its_new_time(client: TimerClient) -> None:
    await arm(client, 400)
    counts = await client.act("reschedule", Filter(prefix="test"), delay="200h")
    moved = [timer async for timer in client.iterate(prefix="test")]
    assert (counts.matched, counts.done) == (400, 400)
    assert {timer.version for timer in moved} == {2}
    assert len({timer.due_ms for timer in moved}) == 1


async def test_purge_leaves_nothing(client: TimerClient, redis: Redis) -> None:
    await arm(client, 40)
    await client.act("cancel", Filter(prefix="test", tag=("even",)))
    assert (await client.act("purge", Filter(prefix="test"))).done == 40
    assert [timer async for timer in client.iterate()] == []
    assert await redis.keys("test:*") == []


async def test_refusals_are_counted_by_reason(server: EmbeddedServer, redis: Redis) -> None:
    await redis.ping()
    await declare_at(server.url, "test")
    async with TimerClient(server.url, edit_lock_ms=3_600_000) as client:
        await client.create("test", "soon", delay="1m")
        await client.create("test", "later", delay="9h")
        counts = await client.act("cancel", Filter(prefix="test"))
    assert (counts.matched, counts.done, counts.refused) == (2, 1, {"edit-locked": 1})


@pytest.mark.parametrize(
    ("action", "wanted", "due", "field"),
    [
        ("explode", Filter(prefix="test"), {}, "action"),
        ("cancel", Filter(), {}, "filter"),
        ("retry", Filter(status=(Status.COMPLETED,)), {}, "filter.status"),
        ("reschedule", Filter(prefix="test"), {}, "delay"),
        ("cancel", Filter(prefix="test"), {"delay": "1h"}, "delay"),
    ],
)
async def test_an_action_that_makes_no_sense_is_refused(
    client: TimerClient, action: Action, wanted: Filter, due: dict[str, Any], field: str
) -> None:
    with pytest.raises(InvalidInput) as error:
        await client.act(action, wanted, **due)
    assert [bad.field for bad in error.value.errors] == [field]


async def test_stats_of_an_empty_db_have_every_member(client: TimerClient) -> None:
    stats = (await client.stats()).to_json()
    assert stats == {
        "by_status": dict.fromkeys([status.value for status in Status], 0),
        "by_prefix": {},
        "losses": [],
        "lateness_ms": {"p50": None, "p99": None, "max": None},
        "overdue_ms": 0,
        "notifications": "deaf",
        "pods": [],
    }


async def test_the_worst_pod_decides_how_notifications_arrive(client: TimerClient, store: Store) -> None:
    for name, hearing in (("a", "ok"), ("b", "late")):
        await announce(store, name, processors=["test"], notifications=hearing, lateness={0: 99, 9: 1})
    stats = (await client.stats()).to_json()
    assert stats["notifications"] == "late"
    assert [pod["pod"] for pod in stats["pods"]] == ["a", "b"]
    assert stats["lateness_ms"] == {"p50": 0, "p99": 0, "max": 4}


async def test_overdue_is_how_long_the_oldest_has_waited(client: TimerClient) -> None:
    await client.create("test", "past", due_at=1_000)
    assert (await client.stats()).overdue_ms > 1_000_000


async def test_prefixes_show_who_serves_them_and_which_are_paused(client: TimerClient, store: Store) -> None:
    await client.create("test-long", "x", delay="1h")
    await announce(store, "a", processors=["test", "idle"])
    assert await client.pause("test-long")
    assert not await client.pause("test-long")
    shown = {view.prefix: view.to_json() for view in await client.prefixes()}
    assert set(shown) == {"test-long", "test", "idle", "other"}
    assert shown["test-long"]["processor"] == "test"
    assert shown["test-long"]["pods"] == ["a"]
    assert shown["test-long"]["paused"] is True
    assert shown["test-long"]["counts"]["scheduled"] == 1
    assert shown["test-long"]["next_due_at"] == (await client.get("test-long", "x")).to_json()["due_at"]
    assert shown["idle"]["next_due_at"] is None
    assert await client.resume("test-long")


@pytest.mark.parametrize("prefix", ["test", "te*"])
async def test_changes_are_heard_from_the_opening_on(client: TimerClient, redis: Redis, prefix: str) -> None:
    heard: list[object] = []
    async with asyncio.timeout(DEADLINE_SECONDS):
        async for event in client.events(prefix):
            heard.append(event)
            if event == Open():
                await client.create("other", "x", delay="1h")
                await client.create("test", "x", delay="1h")
                await client.cancel("test", "x")
            if isinstance(event, Change) and event.status is Status.CANCELLED:
                break
    assert [(e.prefix, e.status, e.note) if isinstance(e, Change) else e for e in heard] == [
        Open(),
        ("test", Status.SCHEDULED, "created"),
        ("test", Status.CANCELLED, "cancelled"),
    ]


@pytest.mark.one_server
async def test_many_listeners_share_one_subscription_which_ends_with_the_last(
    client: TimerClient, redis: Redis
) -> None:
    feed = await feed_of(client)
    listeners = [feed.join() for _ in range(50)]
    async with asyncio.timeout(DEADLINE_SECONDS):
        assert [await listener.next() for listener in listeners] == [Open()] * 50
        assert await redis.pubsub_numsub("timers:events:0") == [(b"timers:events:0", 1)]
        for listener in listeners:
            await feed.leave(listener)

    async def nobody_listens() -> bool:
        return await redis.pubsub_numsub("timers:events:0") == [(b"timers:events:0", 0)]

    await eventually(nobody_listens, "the subscription ends")


async def test_a_broken_subscription_becomes_a_gap(client: TimerClient, redis: Redis) -> None:
    feed = await feed_of(client)
    listener = feed.join()
    async with asyncio.timeout(DEADLINE_SECONDS):
        assert await listener.next() == Open()
        await redis.client_kill_filter(_type="pubsub")
        assert await listener.next() == Gap()
    await feed.leave(listener)


class BreakingChanges:
    """A subscription that breaks and returns when the test says so."""

    def __init__(self) -> None:
        self.breaks, self.mends = asyncio.Event(), asyncio.Event()
        self.broken = asyncio.Event()
        self.error: Exception = Unavailable("cut")

    async def changes(self, sink: Callable[[Change | None], None]) -> None:
        if self.broken.is_set():
            await self.mends.wait()
        self.sink = sink
        sink(None)
        await self.breaks.wait()
        self.breaks.clear()
        self.broken.set()
        raise self.error


async def test_a_listener_that_joins_during_an_outage_hears_open_once_subscribed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("timers.client.feed.AGAIN_SECONDS", 0)
    queries = BreakingChanges()
    feed = Feed(queries.changes)
    first = feed.join()
    async with asyncio.timeout(DEADLINE_SECONDS):
        assert await first.next() == Open()
        place = feed.place
        queries.breaks.set()
        await queries.broken.wait()
        second, back = feed.join(), feed.join(after=place)
        assert second.waiting(1) == []
        queries.mends.set()
        assert [await each.next() for each in (first, second, back)] == [Gap(), Open(), Gap()]
    for each in (first, second, back):
        await feed.leave(each)
    assert feed.join().waiting(1) == []
    await feed.close()


async def test_a_purge_that_left_calls_behind_does_not_say_that_nothing_was_done(
    client: TimerClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(*_: object) -> None:
        raise Unavailable("away", nothing_done=True)

    monkeypatch.setattr("timers.client.client.purge_calls", away)
    await client.create("test", "x", delay="1h")
    with pytest.raises(Unavailable) as left:
        await client.cancel("test", "x", purge=True)
    assert not left.value.nothing_done


async def test_a_feed_outlives_an_error_that_nobody_expected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("timers.client.feed.AGAIN_SECONDS", 0)
    queries = BreakingChanges()
    queries.error = RuntimeError("the cluster's topology changes")
    feed = Feed(queries.changes)
    listener = feed.join()
    async with asyncio.timeout(DEADLINE_SECONDS):
        assert await listener.next() == Open()
        queries.breaks.set()
        queries.mends.set()
        assert await listener.next() == Gap()
        queries.sink(change(1))
        assert await listener.next() == change(1)
    await feed.close()


async def test_a_listener_without_a_wish_to_come_back_ends_nobody_elses_wait() -> None:
    """A closed page of the dashboard ended the subscription that a listener of `/v1/events` was to find again."""
    queries = BreakingChanges()
    feed = Feed(queries.changes)
    listener = feed.join()
    async with asyncio.timeout(DEADLINE_SECONDS):
        assert await listener.next() == Open()
    place = feed.place
    await feed.leave(listener, linger_seconds=3600)
    page = feed.join()
    await feed.leave(page)
    queries.sink(change(1))
    back = feed.join(after=place)
    assert back.waiting(3) == [Open(), change(1)]
    await feed.close()


async def test_closing_a_feed_ends_its_listeners(client: TimerClient) -> None:
    feed = await feed_of(client)
    listener = feed.join()
    async with asyncio.timeout(DEADLINE_SECONDS):
        assert await listener.next() == Open()
        await feed.close()
        assert await listener.next() is None
        assert await feed.join().next() is None


def change(version: int) -> Change:
    return Change("test", "x", Status.SCHEDULED, version, 0, 0, 0, "changed")


@pytest.mark.parametrize("filtered", [False, True])
async def test_a_listener_that_does_not_read_costs_nothing_and_learns_how_much_it_lost(filtered: bool) -> None:
    """Two hundred such listeners stalled a pod for seconds."""
    queries, looked = BreakingChanges(), 0
    feed = Feed(queries.changes)

    def wants(_: Change) -> bool:
        nonlocal looked
        looked += 1
        return True

    listener = feed.join(wants if filtered else None)
    assert await listener.next() == Open()
    for version in range(LOG_LIMIT + 7):
        queries.sink(change(version))
    assert (looked, feed.dropped) == (0, 7)
    assert await listener.next() == Dropped(None if filtered else 7)
    kept = [await listener.next() for _ in range(LOG_LIMIT)]
    assert kept == [change(version) for version in range(7, LOG_LIMIT + 7)]
    assert feed.dropped == 7
    queries.sink(change(5000))
    assert await listener.next() == change(5000)
    await feed.close()


async def test_a_listener_that_was_slow_from_the_start_hears_open_first() -> None:
    queries = BreakingChanges()
    feed = Feed(queries.changes)
    slow, quick = feed.join(), feed.join()
    assert await quick.next() == Open()
    for version in range(LOG_LIMIT + 1):
        queries.sink(change(version))
    assert slow.waiting(2) == [Open(), change(1)]
    await feed.close()


async def test_a_listener_that_takes_nothing_holds_nobody_up(client: TimerClient, store: Store) -> None:
    feed = Feed(partial(changes, store))
    slow, quick = feed.join(), feed.join()
    async with asyncio.timeout(DEADLINE_SECONDS):
        assert await quick.next() == Open()
        await arm(client, 2000)
        assert isinstance(await quick.next(), Change)
    assert len(slow.waiting(most=LOG_LIMIT)) > 0
    await feed.leave(slow)
    await feed.leave(quick)


async def test_on_another_event_loop_it_sends_nothing(server: Place, redis: Redis) -> None:
    """The server armed the timer, but the caller got a RuntimeError of asyncio: the answer went to the first loop."""
    await redis.hset("timers:{pods}:declared", "test", "1 before")
    client = TimerClient(server.url)
    await client.create("test", "a", delay="1h")

    async def elsewhere() -> None:
        with pytest.raises(RuntimeError, match="open on another event loop"):
            await client.create("test", "b", delay="1h")
        with pytest.raises(RuntimeError, match="open on another event loop"):
            await client.close()

    async def after_the_close() -> None:
        async with client:
            await client.create("test", "c", delay="1h")

    await asyncio.to_thread(asyncio.run, elsewhere())
    assert [timer.id async for timer in client.iterate()] == ["a"]
    await client.close()
    await asyncio.to_thread(asyncio.run, after_the_close())
    async with client:
        assert [timer.id async for timer in client.iterate()] == ["a", "c"]


async def test_first_calls_at_the_same_time_share_one_pool(
    own_server: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While they looked for the server of `timers dev`, each opened its own, and one stayed open."""
    monkeypatch.setenv("TIMERS_REDIS_URL", "")
    monkeypatch.setenv("TIMERS_DATA_DIR", str(tmp_path))
    async with Redis.from_url(own_server.url) as redis:
        await redis.ping()
        timers = TimerClient()
        await asyncio.gather(*[timers.stats() for _ in range(20)])
        await timers.close()

        async def closed() -> bool:
            return len(await redis.client_list()) == 1

        await eventually(closed, "all connections are closed")
