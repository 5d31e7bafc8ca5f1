"""PATCH, DELETE, retry and fire: which statuses allow which."""

import asyncio
from collections.abc import AsyncIterator
from datetime import datetime

import pytest
from redis.asyncio import Redis

from tests.api.harness import Api, Reply, running_api
from tests.waiting import eventually
from timers.core.model import Timer
from timers.core.outcome import Fail
from timers.embedded import EmbeddedServer
from timers.processor import Context, processor

ONE = "/v1/timers/test/one"


async def test_a_patch_changes_what_it_names_and_nothing_else(api: Api) -> None:
    before = (await api.create(payload=1, tags=["a"])).body
    reply = await api.call("PATCH", ONE, {"payload": {"new": True}, "metadata": {"k": "v"}})
    assert reply.status == 200
    assert reply.headers["ETag"] == f'"{reply.body["version"]}"'
    assert reply.body["version"] > before["version"]
    changed = {"payload": {"new": True}, "metadata": {"k": "v"}}
    untouched = ("due_at", "tags", "status", "created_at", "attempt", "occurrence")
    assert {name: reply.body[name] for name in changed} == changed
    assert {name: reply.body[name] for name in untouched} == {name: before[name] for name in untouched}


@pytest.mark.one_server
async def test_a_patch_moves_the_due_time(api: Api, redis: Redis) -> None:
    await api.create()
    reply = await api.call("PATCH", ONE, {"due_at": "2035-01-01T00:00:00+01:00"})
    assert reply.body["due_at"] == "2034-12-31T23:00:00.000Z"
    later = await api.call("PATCH", ONE, {"delay": "2h"}, headers={"Content-Type": "application/merge-patch+json"})
    assert datetime.fromisoformat(later.body["due_at"]) < datetime.fromisoformat(reply.body["due_at"])
    assert 7_190_000 < await redis.pttl("test:{0}:one") < 7_200_100


async def test_patches_at_the_same_time_without_a_condition_are_all_made(api: Api) -> None:
    await api.create()
    fields = [{"payload": number} if number % 2 else {"metadata": {"n": str(number)}} for number in range(30)]
    replies = await asyncio.gather(*(api.call("PATCH", ONE, each) for each in fields))
    assert [reply.status for reply in replies] == [200] * len(fields)
    assert sorted(reply.body["version"] for reply in replies) == [*range(2, len(fields) + 2)]


async def test_a_payload_can_be_set_to_null(api: Api) -> None:
    await api.create(payload=1)
    assert (await api.call("PATCH", ONE, {"payload": None})).body["payload"] is None


@pytest.mark.parametrize("media_type", ["application/json", "application/merge-patch+json"])
async def test_null_removes_an_optional_field(api: Api, media_type: str) -> None:
    nothing = dict.fromkeys(("payload", "repeat", "retry", "tags", "metadata"))
    plain = (await api.create("plain")).body
    spec = {"payload": 1, "repeat": {"every": "1d"}, "retry": {"max_attempts": 2}, "tags": ["a"]}
    await api.call("PUT", ONE, {"delay": "1h", **spec, "metadata": {"k": "v"}, "missed": "all"})
    reply = await api.call("PATCH", ONE, nothing, headers={"Content-Type": media_type})
    assert reply.status == 200
    assert {name: reply.body[name] for name in (*nothing, "missed")} == {
        name: plain[name] for name in (*nothing, "missed")
    }


@pytest.mark.parametrize(
    ("body", "fields"),
    [
        ({}, [""]),
        ([], [""]),
        ({"id": "two", "status": "completed"}, ["id", "status"]),
        ({"missed": "skip"}, ["missed"]),
        ({"delay": "soon"}, ["delay"]),
        ({"delay": "1h", "due_at": "2027-01-01T00:00:00Z"}, ["delay"]),
        ({"delay": "11y"}, ["delay"]),
        ({"delay": None}, ["delay"]),
        ({"due_at": None, "payload": 1}, ["due_at"]),
        ({"payload": "x" * (64 * 1024)}, ["payload"]),
    ],
)
async def test_a_bad_patch_names_its_fields_and_changes_nothing(api: Api, body: object, fields: list[str]) -> None:
    before = await api.create()
    assert (await api.call("PATCH", ONE, body)).bad_fields() == fields
    assert (await api.call("GET", ONE)).body == before.body


async def test_cancelling_returns_the_timer_and_deletes_its_trigger_key(api: Api, redis: Redis) -> None:
    await api.create()
    reply = await api.call("DELETE", ONE)
    assert (reply.status, reply.body["status"]) == (200, "cancelled")
    assert reply.headers["ETag"] == f'"{reply.body["version"]}"'
    assert await redis.keys("test:*") == []
    assert (await api.call("GET", ONE)).body["status"] == "cancelled"
    (await api.call("PATCH", ONE, {"delay": "1h"})).problem(409, "not-scheduled")
    (await api.call("POST", f"{ONE}/fire")).problem(409, "not-scheduled")


async def test_purge_leaves_nothing(api: Api) -> None:
    await api.create()
    purged = await api.call("DELETE", f"{ONE}?purge=true")
    assert (purged.status, purged.body["status"]) == (200, "cancelled")
    (await api.call("GET", ONE)).problem(404, "timer-not-found")
    await api.create()
    await api.call("DELETE", f"{ONE}?purge=false")
    assert (await api.call("DELETE", f"{ONE}?purge=true")).status == 200
    (await api.call("GET", ONE)).problem(404, "timer-not-found")


@pytest.mark.parametrize("query", ["purge=yes", "purge=", "purge=true&purge=false"])
async def test_a_doubtful_purge_is_refused(api: Api, query: str) -> None:
    await api.create()
    assert (await api.call("DELETE", f"{ONE}?{query}")).bad_fields() == ["purge"]
    assert (await api.call("GET", ONE)).body["status"] == "scheduled"


async def test_retry_arms_a_cancelled_timer_and_refuses_a_scheduled_one(api: Api) -> None:
    await api.create()
    (await api.call("POST", f"{ONE}/retry")).problem(409, "not-scheduled")
    await api.call("DELETE", ONE)
    reply = await api.call("POST", f"{ONE}/retry")
    assert (reply.status, reply.body["status"]) == (200, "scheduled")
    assert datetime.fromisoformat(reply.body["due_at"]) <= datetime.fromisoformat(reply.body["updated_at"])


async def test_fire_makes_a_timer_due_now(api: Api) -> None:
    before = await api.create()
    reply = await api.call("POST", f"{ONE}/fire")
    assert reply.status == 200
    assert datetime.fromisoformat(reply.body["due_at"]) < datetime.fromisoformat(before.body["due_at"])


CALLS = [("GET", ""), ("PATCH", ""), ("DELETE", ""), ("POST", "/retry"), ("POST", "/fire")]


@pytest.mark.parametrize(("method", "path"), CALLS)
async def test_a_missing_timer_is_not_found(api: Api, method: str, path: str) -> None:
    body = {"delay": "1h"} if method == "PATCH" else None
    (await api.call(method, ONE + path, body)).problem(404, "timer-not-found")


@pytest.mark.parametrize(("method", "path"), CALLS)
@pytest.mark.parametrize(
    "address", ["test/a%20b", "test/%2e%2e%2fetc", "test/%00", "Test/one", "timers/one", "test/%ff"]
)
async def test_an_invalid_path_names_what_is_wrong(api: Api, method: str, path: str, address: str) -> None:
    body = {"delay": "1h"} if method == "PATCH" else None
    reply = await api.call(method, f"/v1/timers/{address}{path}", body)
    assert reply.bad_fields() == ["id" if address.startswith("test/") else "prefix"]


async def test_inside_the_edit_lock_a_timer_is_left_alone(server: EmbeddedServer, redis: Redis) -> None:
    await redis.ping()
    async with running_api(server.url, [hold], edit_lock_ms=120_000) as api:
        await api.call("POST", "/v1/timers", {"prefix": "hold", "id": "one", "delay": "1m"})
        one = "/v1/timers/hold/one"
        (await api.call("PATCH", one, {"delay": "1h"})).problem(409, "edit-locked")
        (await api.call("DELETE", one)).problem(409, "edit-locked")
        (await api.call("PUT", one, {"delay": "1h"})).problem(409, "edit-locked")
        assert (await api.call("POST", f"{one}/fire")).status == 200


async def test_an_overdue_timer_can_be_changed_whatever_the_edit_lock(server: EmbeddedServer, redis: Redis) -> None:
    await redis.ping()
    async with running_api(server.url, [hold], edit_lock_ms=120_000) as api:
        for timer_id in ("one", "two"):
            await api.call("POST", "/v1/timers", {"prefix": "hold", "id": timer_id, "delay": "0s"})
        assert (await api.call("PATCH", "/v1/timers/hold/one", {"delay": "1h"})).status == 200
        assert (await api.call("DELETE", "/v1/timers/hold/two")).status == 200


release = asyncio.Event()


@processor("hold")
async def hold(_timer: Timer, _context: Context) -> None:
    """Runs until the test releases it."""
    await release.wait()


@processor("fail")
async def fail(_timer: Timer, _context: Context) -> None:
    raise Fail("not today")


@pytest.fixture
async def working(server: EmbeddedServer, redis: Redis) -> AsyncIterator[Api]:
    await redis.ping()
    release.clear()
    async with running_api(server.url, [hold, fail], works=True) as running:
        yield running


async def in_status(api: Api, address: str, status: str) -> Reply:
    async def look() -> Reply | None:
        reply = await api.call("GET", address)
        return reply if reply.body["status"] == status else None

    return await eventually(look, f"{address} is {status}")


async def test_a_running_timer_cannot_be_changed(working: Api) -> None:
    one = "/v1/timers/hold/one"
    await working.call("PUT", one, {"delay": 0})
    running = await in_status(working, one, "running")
    assert running.body["lease"]["pod"] == "api-test"
    (await working.call("PATCH", one, {"payload": 1})).problem(409, "running")
    (await working.call("DELETE", one)).problem(409, "running")
    (await working.call("PUT", one, {"delay": "1h"})).problem(409, "running")
    (await working.call("POST", f"{one}/retry")).problem(409, "running")
    (await working.call("POST", f"{one}/fire")).problem(409, "running")
    release.set()
    (await in_status(working, one, "completed"))
    (await working.call("POST", f"{one}/retry")).problem(409, "not-scheduled")


async def test_retry_arms_a_failed_timer(working: Api) -> None:
    one = "/v1/timers/fail/one"
    await working.call("PUT", one, {"delay": 0})
    failed = await in_status(working, one, "failed")
    assert failed.body["last_error"]["reason"] == "not today"
    assert (await working.call("POST", f"{one}/retry")).body["status"] == "scheduled"
    again = await in_status(working, one, "failed")
    assert again.body["token"] > failed.body["token"]
