"""Lists, counts and the stream of changes: everything once and in order, for any page size."""

import asyncio
import json
import random
from base64 import urlsafe_b64encode

import pytest

from tests.store.acts import POD, PREFIX, an_end, armed, arming, cancelled, claim, finished, running, settle
from tests.store.test_quarantine import damage
from tests.waiting import eventually
from timers.core.model import Status, Timer
from timers.errors import InvalidInput, Unavailable
from timers.store import queries
from timers.store.filters import Filter
from timers.store.listing import read_page, read_pages
from timers.store.notifications import Change, changes
from timers.store.store import Store


async def pages(store: Store, wanted: Filter, limit: int) -> list[Timer]:
    """All pages, one after the other."""
    found: list[Timer] = []
    async for timers in read_pages(store, wanted, limit=limit):
        assert len(timers) <= limit
        found += timers
    return found


def written(place: int, prefix: str, member: str) -> str:
    """A cursor that another program made."""
    return urlsafe_b64encode(json.dumps([place, prefix, "due", 0, "5", member]).encode()).decode()


async def one_of_each(store: Store) -> None:
    await running(store, "runs")
    await armed(store, "waits", due="+3600000")
    await armed(store, "elsewhere", due="+1800000", prefix="other", spec={"tags": ["vip"]})
    await finished(store, "done")
    await finished(store, "broke", status=Status.FAILED)
    await cancelled(store, "off")


async def test_the_totals_are_those_of_the_counts(store: Store) -> None:
    await one_of_each(store)
    await store.arm([arming("x", prefix=f"many-{number}", due="+3600000") for number in range(7)])
    await store.connections.commands.hset("timers:{0}:counts", mapping={"s strange": "none", "? strange": "7"})
    whole = dict.fromkeys(Status, 0)
    for counts in (await queries.counts(store)).values():
        for status, number in counts.items():
            whole[status] += number
    assert await queries.totals(store) == whole
    assert whole[Status.SCHEDULED] == 9
    await store.connections.commands.hdel("timers:{0}:counts", "s strange", "? strange")


@pytest.mark.parametrize("limit", [1, 2, 3, 100])
async def test_pages_hold_every_timer_once_by_status_and_prefix(store: Store, limit: int) -> None:
    await one_of_each(store)
    assert [timer.id for timer in await pages(store, Filter(), limit)] == [
        "runs", "elsewhere", "waits", "broke", "done", "off",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        (Filter(prefix="other"), ["elsewhere"]),
        (Filter(status=(Status.FAILED,)), ["broke"]),
        (Filter(status=(Status.RUNNING,)), ["runs"]),
        (Filter(tag=("vip",)), ["elsewhere"]),
        (Filter(prefix="none"), []),
        (Filter(prefix=PREFIX, status=(Status.SCHEDULED,)), ["waits"]),
    ],
)
async def test_filters(store: Store, wanted: Filter, found: list[str]) -> None:
    await one_of_each(store)
    assert [timer.id for timer in await pages(store, wanted, 2)] == found


async def test_a_short_page_is_filled_however_few_pass(store: Store) -> None:
    await store.arm([arming(f"{i:03}", due=f"+{3_600_000 + i}") for i in range(300)])
    for timer_id, due in (("early", "+3600150"), ("late", "+7200000")):
        await armed(store, timer_id, due=due, spec={"tags": ["vip"]})
    first = await read_page(store, Filter(tag=("vip",)), limit=1)
    second = await read_page(store, Filter(tag=("vip",)), limit=1, cursor=first.next_cursor)
    assert [timer.id for timer in (*first.items, *second.items)] == ["early", "late"]


@pytest.mark.parametrize("limit", [7, 100])
async def test_many_of_one_millisecond_are_listed_once_and_in_order(store: Store, limit: int) -> None:
    now_ms = await store.now_ms()
    names = [f"{i:03}" for i in range(120)]
    random.Random(1).shuffle(names)
    await store.arm([arming(name, due=f"@{now_ms + 3_600_000 + i // 50}") for i, name in enumerate(names)])
    assert [timer.id for timer in await pages(store, Filter(prefix=PREFIX), limit)] == names


async def test_due_times_bound_a_list(store: Store) -> None:
    start_ms = await store.now_ms() + 3_600_000
    await store.arm([arming(str(i), due=f"@{start_ms + i}") for i in range(6)])
    wanted = Filter(due_after=start_ms + 1, due_before=start_ms + 4)
    assert [timer.id for timer in await pages(store, wanted, 2)] == ["1", "2", "3"]


async def test_a_removal_between_two_pages_leaves_the_rest_in_place(store: Store) -> None:
    await store.arm([arming(str(i), due=f"+{3_600_000 + i}") for i in range(6)])
    first = await read_page(store, Filter(), limit=3)
    await store.cancel(PREFIX, "2", purge=True)
    await store.cancel(PREFIX, "0", purge=True)
    second = await read_page(store, Filter(), limit=3, cursor=first.next_cursor)
    assert [timer.id for timer in (*first.items, *second.items)] == ["0", "1", "2", "3", "4", "5"]


@pytest.mark.parametrize("record", [None, b"garbage", b"1 s 1 0 0 0 1 1000 1000 0\n{\n"])
async def test_an_unreadable_record_ends_no_list(store: Store, record: bytes | None) -> None:
    await store.arm([arming(timer_id, due=f"+{3_600_000 + i}") for i, timer_id in enumerate(("a", "bad", "z"))])
    await damage(store, record)
    found = [timer.id for timer in await pages(store, Filter(prefix=PREFIX), 1)]
    assert [timer_id for timer_id in found if timer_id != "bad"] == ["a", "z"]
    await armed(store, "bad", if_exists="replace", due="+3600000")


@pytest.mark.parametrize(
    "cursor",
    [
        *("", "x", "!!!!", "W10", "WzEsMiwzXQ", "bnVsbA"),
        written(1, "\ud800", "x"),
        written(1, PREFIX, "\ud800"),
    ],
)
async def test_a_cursor_that_no_list_has_answered_is_refused(store: Store, cursor: str) -> None:
    with pytest.raises(InvalidInput, match="cursor"):
        await read_page(store, Filter(), cursor=cursor)


@pytest.mark.parametrize("place", [-1, 99])
async def test_a_cursor_that_another_program_made_shows_only_what_passes(store: Store, place: int) -> None:
    await one_of_each(store)
    for prefix in (PREFIX, "other"):
        page = await read_page(store, Filter(prefix="other"), cursor=written(place, prefix, "a"))
        assert {timer.id for timer in page.items} <= {"elsewhere"}


async def test_a_cursor_read_with_another_filter_shows_only_what_passes_there(store: Store) -> None:
    await store.arm([arming(str(i), due=f"+{3_600_000 + i}") for i in range(3)])
    await armed(store, "elsewhere", prefix=f"{PREFIX}-x", due="+1")
    first = await read_page(store, Filter(prefix=PREFIX), limit=1)
    second = await read_page(store, Filter(prefix=f"{PREFIX}-x"), cursor=first.next_cursor)
    assert [timer.id for timer in second.items] == ["elsewhere"]


async def test_counts_oldest_due_and_paused(store: Store) -> None:
    assert (await queries.counts(store), (await queries.due(store))[0], await queries.paused(store)) == ({}, [], [])
    await one_of_each(store)
    assert await queries.counts(store) == {
        PREFIX: dict.fromkeys((Status.RUNNING, Status.SCHEDULED, Status.COMPLETED, Status.FAILED, Status.CANCELLED), 1),
        "other": {Status.SCHEDULED: 1},
    }
    elsewhere = (await store.get([("other", "elsewhere")]))[0]
    assert elsewhere is not None
    assert (await queries.earliest_due(store))["other"] == elsewhere.due_ms
    await store.reschedule("other", "elsewhere", due="+0")
    ((due,), _) = await queries.due(store)
    assert (due.shard, due.prefix, due.kind) == (0, "other", "ready")
    await store.pause("b", paused=True)
    await store.pause("a", paused=True)
    assert await queries.paused(store) == ["a", "b"]


async def test_the_stream_has_every_change(real: Store) -> None:
    heard: list[Change | None] = []
    stream = asyncio.create_task(changes(real, heard.append))

    async def heard_as_many_as(number: int) -> bool:
        return len(heard) >= number

    await eventually(lambda: heard_as_many_as(1), "the subscription")
    await armed(real)
    (timer,) = await claim(real)
    await settle(real, an_end(timer, Status.SCHEDULED, due_ms=timer.due_ms + 3_600_000, note="will retry"))
    await real.reschedule(PREFIX, "a", due="+7200000", cause="moved")
    await real.cancel(PREFIX, "a")
    await real.rearm(PREFIX, "a", cause="retried")
    await real.cancel(PREFIX, "a", purge=True)
    await eventually(lambda: heard_as_many_as(9), "the eight changes")
    assert [heard[0], *((c.status, c.version, c.attempt, c.note) for c in heard[1:] if c)] == [
        None,
        (Status.SCHEDULED, 1, 0, "created"),
        (Status.RUNNING, 2, 1, "sweep"),
        (Status.SCHEDULED, 3, 1, "will retry"),
        (Status.SCHEDULED, 4, 1, "moved"),
        (Status.CANCELLED, 5, 1, "cancelled"),
        (Status.SCHEDULED, 6, 1, "retried on request"),
        (Status.CANCELLED, 7, 1, "cancelled"),
        (Status.CANCELLED, 7, 1, "purged"),
    ]
    await real.connections.commands.client_kill_filter(_type="pubsub")
    with pytest.raises(Unavailable):
        await stream


async def test_a_run_that_is_removed_at_its_end_is_published(real: Store) -> None:
    heard: list[Change | None] = []
    stream = asyncio.create_task(changes(real, heard.append))

    async def told() -> bool:
        return any(change is not None and change.status is Status.COMPLETED for change in heard)

    timer = await running(real)
    await eventually(lambda: subscribed(heard), "the subscription")
    await real.settle(0, [an_end(timer)], pod=POD, retention_ms=0)
    await eventually(told, "the end of the run")
    stream.cancel()
    await asyncio.gather(stream, return_exceptions=True)


async def subscribed(heard: list[Change | None]) -> bool:
    return None in heard


async def test_prefixes_that_were_used_once_leave_no_count_behind(store: Store) -> None:
    """Callers choose prefixes: thousands of them would make all reads of counts slow for ever."""
    names = [f"once-{n}" for n in range(50)]
    await store.arm([arming("a", prefix=name, due="+3600000") for name in names])
    for name in names:
        assert (await store.cancel(name, "a", purge=True)).code == "purged"
    assert not await store.connections.commands.exists("timers:{0}:counts")
