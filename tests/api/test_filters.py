"""Filters in lists and actions: relative times, beginnings of prefixes, several statuses and tags."""

import enum
import sys
from collections.abc import AsyncIterator
from datetime import timedelta
from types import FrameType
from typing import Any

import pytest
from redis.asyncio import Redis

from tests.api.harness import Api, running_api
from tests.api.keyed import new_key
from timers.client.planning import tried
from timers.core.model import Status, Timer
from timers.embedded import EmbeddedServer
from timers.errors import InvalidInput
from timers.processor import Context, processor
from timers.store.filters import Filter

OWN, KEY = new_key("login-*")
ALL, ALL_KEY = new_key()


@processor("login")
async def login(_timer: Timer, _context: Context) -> None:
    """Do nothing."""


@pytest.fixture
async def api(server: EmbeddedServer, redis: Redis) -> AsyncIterator[Api]:
    await redis.ping()
    async with running_api(server.url, [login], keys=f"{KEY.entry} {ALL_KEY.entry}") as running:
        for prefix, timer_id, delay, tags in (
            ("login", "exact", "1h", ["a"]),
            ("login-check", "soon", "1h", ["a", "b"]),
            ("login-mail", "later", "3h", ["b"]),
            ("login-mail", "off", "3h", []),
            ("login.other", "dotted", "5d", ["a", "b", "c"]),
        ):
            await running.client.create(prefix, timer_id, delay=delay, tags=tags)
        await running.client.cancel("login-mail", "off")
        yield running


async def listed(api: Api, query: str, headers: dict[str, str] = ALL) -> list[str]:
    reply = await api.call("GET", f"/v1/timers?{query}", headers=headers)
    assert reply.status == 200, reply
    return [timer["id"] for timer in reply.body["items"]]


@pytest.mark.parametrize(
    ("query", "ids"),
    [
        ("due_before=2h", ["exact", "soon"]),
        ("due_before=%2B2h", ["exact", "soon"]),
        ("due_after=2h&due_before=1d", ["later", "off"]),
        ("due_after=P1D", ["dotted"]),
        ("due_after=-1d&due_before=-1h", []),
        ("due_after=-1d&prefix=login", ["exact"]),
        ("prefix=login-*", ["soon", "later", "off"]),
        ("prefix=login*&status=scheduled", ["exact", "soon", "later", "dotted"]),
        ("prefix=logout*", []),
        ("status=cancelled,failed", ["off"]),
        ("status=cancelled&status=scheduled&prefix=login-mail", ["later", "off"]),
        ("tag=b", ["soon", "later", "dotted"]),
        ("tag=a&tag=b", ["soon", "dotted"]),
    ],
)
async def test_a_list_takes_relative_times_prefix_patterns_and_several_values(
    api: Api, query: str, ids: list[str]
) -> None:
    assert await listed(api, query) == ids


async def test_pages_of_several_statuses_join_to_the_whole_list(api: Api) -> None:
    seen: list[str] = []
    cursor = ""
    while True:
        query = f"prefix=login*&status=scheduled,cancelled&limit=2{cursor}"
        page = (await api.call("GET", f"/v1/timers?{query}", headers=ALL)).body
        seen += [timer["id"] for timer in page["items"]]
        if page["next_cursor"] is None:
            break
        cursor = f"&cursor={page['next_cursor']}"
    assert seen == ["exact", "soon", "later", "dotted", "off"]


async def test_a_key_sees_no_others_through_a_glob(api: Api) -> None:
    for query in ("prefix=login*", "prefix=l*", "status=scheduled,cancelled", "due_after=-1d"):
        assert await listed(api, query, OWN) == ["soon", "later", "off"]
    action = {"action": "purge", "filter": {"prefix": "login*"}}
    done = (await api.call("POST", "/v1/timers/actions", action, headers=OWN)).body
    assert done == {"matched": 3, "done": 3, "refused": {}, "examples": {}, "next_cursor": None}
    assert await listed(api, "prefix=l*") == ["exact", "dotted"]


async def test_an_action_takes_relative_times_prefix_patterns_and_several_values(api: Api) -> None:
    async def matched(**wanted: object) -> int:
        spec = {"action": "purge", "filter": wanted, "dry_run": True}
        number: int = (await api.call("POST", "/v1/timers/actions", spec, headers=ALL)).body["matched"]
        return number

    assert await matched(prefix="login-*") == 3
    assert await matched(status=["scheduled", "cancelled"], due_before="4h") == 4
    assert await matched(status="cancelled,failed") == 1
    assert await matched(tag=["a", "b"]) == 2
    assert await matched(due_after="-1h", due_before="2h") == 2


async def test_an_action_takes_no_status_that_it_does_not_act_on(api: Api) -> None:
    spec = {"action": "retry", "filter": {"status": ["failed", "completed"]}}
    reply = await api.call("POST", "/v1/timers/actions", spec, headers=ALL)
    assert reply.bad_fields() == ["filter.status"]
    assert reply.body["errors"][0]["accepted"] == "failed or unhandled or cancelled for retry"


async def test_the_client_takes_relative_times_prefix_patterns_and_several_values(api: Api) -> None:
    page = await api.client.list(prefix="login-*", status=["scheduled", "cancelled"], due_before="2h")
    assert [timer.id for timer in page.items] == ["soon"]
    after, before = timedelta(hours=-1), timedelta(hours=2)
    page = await api.client.list(prefix="login-*", due_after=after, due_before=before)
    assert [timer.id for timer in page.items] == ["soon"]
    assert (await api.client.list(due_after=-timedelta(days=1), due_before=after)).items == []
    with pytest.raises(InvalidInput, match=r"^due_before: .* is not accepted; expected .*, or a duration from now"):
        await api.client.list(due_before=timedelta(days=4000))
    assert [timer.id async for timer in api.client.iterate(tag=["a", "c"])] == ["dotted"]
    with pytest.raises(InvalidInput, match=r"^status: \[\] is not accepted; expected one or more of scheduled"):
        await api.client.list(status=[])


@pytest.mark.parametrize(
    "query",
    [
        *("prefix=*", "prefix=a*b", "prefix=login-**", "prefix=Login*", "prefix=a&prefix=b"),
        *("status=scheduled,late", "status=scheduled,", "status=", "tag=a&tag="),
        *("due_before=soon", "due_before=--1h", "due_before=1x", "due_before=-5", "due_after=11y"),
        "due_after=1h&due_after=2h",
    ],
)
async def test_an_invalid_condition_is_refused_by_name(api: Api, query: str) -> None:
    reply = await api.call("GET", f"/v1/timers?{query}", headers=ALL)
    assert reply.bad_fields() == [query.partition("=")[0]]


async def test_an_unknown_parameter_hides_no_other_mistake(api: Api) -> None:
    reply = await api.call("GET", "/v1/timers?sort=due&limit=0&status=late&colour=red", headers=ALL)
    assert sorted(reply.bad_fields()) == ["colour", "limit", "sort", "status"]
    rules = {error["field"]: error["accepted"] for error in reply.body["errors"]}
    assert rules["sort"].startswith("only the query parameters prefix, status, tag, due_after, due_before, limit")


async def test_the_value_of_an_unknown_parameter_is_not_repeated(api: Api) -> None:
    """It may be a key that somebody put into the address."""
    for path in ("/v1/timers", "/v1/stats", "/v1/timers/login/a"):
        reply = await api.call("GET", f"{path}?key=tmk_secret&key=tmk_secret", headers=ALL)
        assert reply.bad_fields() == ["key"]
        assert "secret" not in str(reply.body)


@pytest.mark.parametrize(
    ("method", "path", "body", "fields"),
    [
        ("POST", "/v1/timers?x=1", {"prefix": "A", "delay": "soon"}, ["delay", "prefix", "x"]),
        ("PUT", "/v1/timers/login/a%20b?x=1", {"delay": "soon", "id": "c"}, ["delay", "id", "id", "x"]),
        ("PATCH", "/v1/timers/A/a%20b?x=1", {"delay": "soon"}, ["delay", "id", "prefix", "x"]),
        ("DELETE", "/v1/timers/login/a%20b?x=1&purge=yes", None, ["id", "purge", "x"]),
        ("POST", "/v1/timers/batch?x=1", {"timers": {}}, ["timers", "x"]),
        ("POST", "/v1/timers/actions?x=1", {"action": "cancel", "filter": {"status": "x"}}, ["filter.status", "x"]),
    ],
)
async def test_all_errors_of_a_request_are_reported_at_once(
    api: Api, method: str, path: str, body: object, fields: list[str]
) -> None:
    assert sorted((await api.call(method, path, body, headers=ALL)).bad_fields()) == fields


@pytest.mark.parametrize("given", ["failed," * 10_000 + "failed", ["failed"] * 10_000, "failed," * 10_000])
def test_naming_a_status_again_costs_next_to_nothing(given: str | list[str]) -> None:
    """Each name listed all statuses, so a query in one URL took half a second."""
    listed = 0

    def count(frame: FrameType, event: str, _called: Any) -> None:
        nonlocal listed
        listed += event == "call" and frame.f_code.co_filename == enum.__file__

    sys.setprofile(count)
    try:
        found = tried(Filter.parse, {"status": given})
    finally:
        sys.setprofile(None)
    assert listed < 100
    assert isinstance(found, InvalidInput) if given[-1] == "," else found == Filter(status=(Status.FAILED,))
