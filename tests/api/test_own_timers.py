"""The service's own timers (calls of hooks, messages of alarms): left out everywhere unless asked for by prefix."""

import asyncio
import re
from collections.abc import AsyncIterator

import pytest
from redis.asyncio import Redis

from tests.api.harness import Api, running_api
from tests.api.test_stream import listening, next_event
from tests.members import declare
from tests.store.acts import retrying
from tests.waiting import DEADLINE_SECONDS, eventually
from timers.client import feed_of
from timers.client.feed import Open
from timers.client.fleet import Unserved
from timers.core.durations import format_time
from timers.core.model import Timer
from timers.embedded import EmbeddedServer
from timers.engine.pod import Observer
from timers.processor import Context, processor
from timers.store.notifications import Change
from timers.store.queries import OWN_QUEUES
from timers.store.store import Arming

OWN = "timers.hook-0123456789abcdef"


@processor("test")
async def done(_timer: Timer, _context: Context) -> None:
    """Do nothing."""


@pytest.fixture
async def api(server: EmbeddedServer, redis: Redis) -> AsyncIterator[Api]:
    """One timer of a caller, due in an hour; two of the service, one that is long due and one that is cancelled."""
    await redis.ping()
    async with running_api(server.url, [done]) as running:
        await running.create("callers")
        armings = [Arming(OWN, name, "+0", {"tags": ["t"]}) for name in ("call", "off")]
        await running.store.arm(armings)
        await running.client.cancel(OWN, "off")
        yield running


@pytest.mark.parametrize(
    ("query", "ids"),
    [
        ("", ["callers"]),
        ("?status=cancelled", []),
        ("?tag=t", []),
        ("?prefix=t*", ["callers"]),
        ("?prefix=timers.*", ["call", "off"]),
        ("?prefix=timers.h*", ["call", "off"]),
        (f"?prefix={OWN}", ["call", "off"]),
    ],
)
async def test_lists_show_them_only_if_their_prefix_is_asked_for(api: Api, query: str, ids: list[str]) -> None:
    assert [timer["id"] for timer in (await api.call("GET", f"/v1/timers{query}")).body["items"]] == ids


async def test_stats_and_prefixes_leave_them_out(api: Api) -> None:
    stats = (await api.call("GET", "/v1/stats")).body
    assert (stats["by_status"]["scheduled"], stats["by_status"]["cancelled"]) == (1, 0)
    assert list(stats["by_prefix"]) == ["test"]
    assert stats["overdue_ms"] == 0
    assert [view["prefix"] for view in (await api.call("GET", "/v1/prefixes")).body["items"]] == ["test"]
    for asked in (OWN, "timers.*"):
        own = (await api.call("GET", f"/v1/stats?prefix={asked}")).body
        assert (own["by_status"]["scheduled"], own["by_status"]["cancelled"], list(own["by_prefix"])) == (1, 1, [OWN])
        found = (await api.call("GET", f"/v1/prefixes?prefix={asked}")).body["items"]
        assert [view["prefix"] for view in found] == [OWN]
    assert (await api.call("GET", "/v1/stats?prefix=A")).bad_fields() == ["prefix"]


async def test_no_action_reaches_them_unasked(api: Api) -> None:
    for wanted, matched in (({"tag": "t"}, 0), ({"due_before": "9h"}, 1), ({"prefix": "timers.*"}, 2)):
        spec = {"action": "purge", "filter": wanted, "dry_run": True}
        assert (await api.call("POST", "/v1/timers/actions", spec)).body["matched"] == matched


async def test_one_that_refuses_a_new_due_time_is_counted(api: Api) -> None:
    spec = {"action": "reschedule", "filter": {"prefix": "timers.*"}, "delay": "1h"}
    assert (await api.call("POST", "/v1/timers/actions", spec)).body["refused"] == {"invalid-input": 1}


async def test_events_leave_them_out(api: Api) -> None:
    async with listening(api) as response, listening(api, "?prefix=timers.*") as own:
        await api.client.cancel(OWN, "call")
        await api.create("later")
        assert (await next_event(response))[1]["id"] == "later"
        assert (await next_event(own))[1]["id"] == "call"
    listener = (await feed_of(api.client)).join()
    assert isinstance(await listener.next(), Open)
    await api.client.cancel(OWN, "call", purge=True)
    await api.create("last")
    async with asyncio.timeout(DEADLINE_SECONDS):
        event = await listener.next()
    assert isinstance(event, Change)
    assert event.id == "last"


async def test_pages_leave_them_out(api: Api) -> None:
    async def page(path: str) -> str:
        async with api.session.get(api.server.url + path, headers={"Accept": "text/html"}) as shown:
            text = await shown.text()
        return re.sub(r"<nav.*?</nav>", "", text, flags=re.DOTALL)

    for path in ("/", "/ui/timers", "/ui/failed", "/ui/prefixes", "/ui/prefixes?q=im"):
        assert OWN not in await page(path), path
    for path in ("/ui/timers?prefix=timers.*", "/ui/prefixes?q=timers."):
        assert OWN in await page(path), path
    assert ">1 timer<" in await page("/ui/bulk?action=cancel&due_before=9h")
    assert ">1 timer<" in await page("/ui/bulk?action=cancel&prefix=timers.*")


async def test_metrics_tell_how_long_their_calls_have_failed(api: Api) -> None:
    await declare(api.store, OWN)
    await api.client.act("purge", {"prefix": OWN})
    await retrying(api.store, "fails", prefix=OWN, since=format_time(await api.store.now_ms() - 600_000))

    async def told() -> bool:
        text = await api.text("/metrics")
        return re.search(rf'^timers_retrying_seconds{{prefix="{OWN}"}} 6\d\d\.', text, re.MULTILINE) is not None

    await eventually(told, "the calls' age is told, and so the alert TimersRetrying rings")
    assert await api.client.retrying() == []


async def test_what_is_due_next_is_found_behind_many_of_them(api: Api) -> None:
    await api.store.arm([Arming(f"{OWN}{i}", "x", "+0", {}) for i in range(OWN_QUEUES - 10)])
    await api.client.create("test", "due", delay="0s")

    async def overdue() -> bool:
        return (await api.client.stats()).overdue_ms > 0

    await eventually(overdue, "a caller's timer is due")
    async with api.session.get(api.server.url, headers={"Accept": "text/html"}) as shown:
        assert "/ui/timers/test/due" in await shown.text()


def test_starts_and_problems_leave_them_out() -> None:
    observer = Observer()
    observer.started(OWN, 7)
    assert (observer.recent_starts(), observer.starts) == ({}, {})
    observer.started("test", 7)
    assert sum(observer.starts.values()) == 1
    assert Unserved([], [OWN]).warnings() == []
    assert Unserved([], [OWN, "test"]).warnings(lambda _: False) == ["timers are due, but no live pod serves 1 prefix"]
