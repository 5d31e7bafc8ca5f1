"""POST and PUT: the answers, and which field an error names."""

import re
from typing import Any

import pytest
from redis.asyncio import Redis

from tests.api.harness import Api
from tests.members import announce, declare
from timers.core.hooks import ALARM, HOOK


async def test_a_created_timer_is_answered_with_its_address_and_version(api: Api) -> None:
    reply = await api.create(payload={"email": "a@example.org"}, tags=["vip"], metadata={"order": "7"})
    assert reply.status == 201
    assert reply.headers["Content-Type"].startswith("application/json")
    assert reply.headers["Location"] == "/v1/timers/test/one"
    assert reply.headers["ETag"] == '"1"'
    assert reply.body["status"] == "scheduled"
    assert reply.body["payload"] == {"email": "a@example.org"}
    assert reply.body["tags"] == ["vip"]
    assert reply.body["metadata"] == {"order": "7"}
    got = await api.call("GET", reply.headers["Location"])
    assert (got.status, got.body, got.headers["ETag"]) == (200, reply.body, '"1"')


@pytest.mark.one_server
async def test_an_armed_timer_has_its_record_and_its_trigger_key(api: Api, redis: Redis) -> None:
    await api.create()
    assert 3_590_000 < await redis.pttl("test:{0}:one") <= 3_600_000


async def test_an_answer_has_every_field_of_a_timer(api: Api) -> None:
    reply = await api.create()
    assert list(reply.body) == [
        *("prefix", "id", "status", "due_at", "payload", "repeat", "retry", "missed", "timeout", "tags", "metadata"),
        *("version", "token", "attempt", "failures", "occurrence", "created_at", "updated_at", "lease", "last_error"),
        *("result", "history"),
    ]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", reply.body["due_at"])
    assert [entry["note"] for entry in reply.body["history"]] == ["created"]


async def test_an_id_is_made_where_none_is_given(api: Api) -> None:
    reply = await api.call("POST", "/v1/timers", {"prefix": "test", "delay": "1h"})
    assert reply.status == 201
    assert re.fullmatch(r"[0-9A-Za-z]{22}", reply.body["id"])
    assert (await api.call("GET", reply.headers["Location"])).body == reply.body


async def test_an_id_of_every_allowed_character_is_found_under_its_location(api: Api) -> None:
    reply = await api.create("Az09_.:@~+=-")
    assert reply.status == 201
    assert (await api.call("GET", reply.headers["Location"])).body["id"] == "Az09_.:@~+=-"


async def test_a_taken_identity_is_a_conflict(api: Api) -> None:
    await api.create()
    assert "keep" in (await api.create()).problem(409, "already-exists")["detail"]


async def test_keep_returns_the_existing_timer(api: Api) -> None:
    first = await api.create(payload=1, if_exists="keep")
    again = await api.create(payload=2, if_exists="keep")
    assert (first.status, again.status) == (201, 200)
    assert again.body == first.body
    assert again.headers["ETag"] == first.headers["ETag"]
    assert again.headers["Location"] == first.headers["Location"]


async def test_replace_arms_again(api: Api) -> None:
    first = await api.create(payload=1, if_exists="replace")
    again = await api.create(payload=2, if_exists="replace")
    assert (first.status, again.status) == (201, 200)
    assert again.body["payload"] == 2
    assert again.body["version"] > first.body["version"]


async def test_put_creates_then_replaces(api: Api) -> None:
    first = await api.call("PUT", "/v1/timers/test/one", {"delay": "1h", "payload": 1})
    again = await api.call("PUT", "/v1/timers/test/one", {"delay": "2h", "payload": 2})
    assert (first.status, again.status) == (201, 200)
    assert first.headers["Location"] == again.headers["Location"] == "/v1/timers/test/one"
    assert again.body["payload"] == 2
    assert again.headers["ETag"] == f'"{again.body["version"]}"'


async def test_put_takes_the_identity_of_its_address_only(api: Api) -> None:
    same = {"prefix": "test", "id": "one", "if_exists": "replace", "delay": "1h"}
    assert (await api.call("PUT", "/v1/timers/test/one", same)).status == 201
    other = await api.call("PUT", "/v1/timers/test/one", {**same, "prefix": "else", "id": "two", "if_exists": "keep"})
    assert other.bad_fields() == ["prefix", "id", "if_exists"]


HOUR = {"prefix": "test", "id": "one", "delay": "1h"}


@pytest.mark.parametrize(
    ("body", "fields"),
    [
        ({}, ["prefix", "delay"]),
        ({"prefix": "OK"}, ["prefix", "delay"]),
        ({**HOUR, "prefix": "OK", "tags": ["x"] * 17, "payload": "x" * (64 * 1024)}, ["payload", "tags", "prefix"]),
        ({"prefix": "test", "id": "-", "missed": "latest"}, ["id", "missed", "delay"]),
        ({"prefix": "test", "id": "-", "repeat": {"cron": "x"}}, ["repeat.cron", "id"]),
        ({"prefix": "test", "id": "-", "retry": {"backoff": ["5s"]}}, ["id"]),
        ({**HOUR, "due_at": 1, "timeout": 0}, ["timeout", "delay"]),
        ({**HOUR, "retry": {"backoff": ["5s", "x", -1]}}, ["retry.backoff.1", "retry.backoff.2"]),
        ({**HOUR, "repeat": {"timezone": "Mars/Phobos", "count": 0}}, ["repeat.timezone", "repeat.count"]),
        ({"prefix": "test"}, ["delay"]),
        ({**HOUR, "due_at": "2027-01-01T00:00:00Z"}, ["delay"]),
        ({**HOUR, "prefix": "timers"}, ["prefix"]),
        ({**HOUR, "prefix": "Test"}, ["prefix"]),
        ({**HOUR, "prefix": "a" * 65}, ["prefix"]),
        ({**HOUR, "prefix": 7}, ["prefix"]),
        ({**HOUR, "id": "a b"}, ["id"]),
        ({**HOUR, "id": "a/b"}, ["id"]),
        ({**HOUR, "id": ""}, ["id"]),
        ({**HOUR, "id": "a" * 201}, ["id"]),
        ({**HOUR, "delay": "soon"}, ["delay"]),
        ({**HOUR, "delay": -1}, ["delay"]),
        ({**HOUR, "delay": True}, ["delay"]),
        ({**HOUR, "delay": 10**400}, ["delay"]),
        ({**HOUR, "delay": "11y"}, ["delay"]),
        ({"prefix": "test", "due_at": "2027-01-01T00:00:00"}, ["due_at"]),
        ({"prefix": "test", "due_at": 10**400}, ["due_at"]),
        ({"prefix": "test", "due_at": "2046-01-01T00:00:00Z"}, ["due_at"]),
        ({**HOUR, "payload": "x" * (64 * 1024)}, ["payload"]),
        ({**HOUR, "retry": {"max_attempts": 0}}, ["retry.max_attempts"]),
        ({**HOUR, "retry": {"max_tries": 3}}, ["retry.max_tries"]),
        ({**HOUR, "retry": {"backoff": ["5s", "soon"]}}, ["retry.backoff.1"]),
        ({**HOUR, "repeat": {"cron": "0 9 * * MON-FRI", "timezone": "Mars/Phobos"}}, ["repeat.timezone"]),
        ({**HOUR, "missed": "ignore"}, ["missed"]),
        ({**HOUR, "timeout": "0s"}, ["timeout"]),
        ({**HOUR, "tags": ["x"] * 17}, ["tags"]),
        ({**HOUR, "metadata": {"": "x"}}, ["metadata"]),
        ({**HOUR, "if_exists": "overwrite"}, ["if_exists"]),
        ({**HOUR, "paylod": 1, "status": "running"}, ["paylod", "status"]),
        ([HOUR], [""]),
        ("one", [""]),
        (3, [""]),
    ],
)
async def test_an_error_names_each_field_with_a_bad_value(api: Api, redis: Redis, body: Any, fields: list[str]) -> None:
    reply = await api.call("POST", "/v1/timers", body)
    assert reply.bad_fields() == fields
    assert await redis.keys("test:*") == []


async def test_only_some_of_thousands_of_mistakes_are_listed(api: Api) -> None:
    reply = await api.call("POST", "/v1/timers", {**HOUR, **{f"wrong{n}": n for n in range(2000)}})
    assert reply.bad_fields() == [*(f"wrong{n}" for n in range(10)), ""]
    assert "; each of 1990 more fields is not accepted; expected one of the fields delay, " in reply.body["detail"]
    query = "&".join(f"wrong{n}=" for n in range(50))
    refused = await api.call("POST", f"/v1/timers?{query}", HOUR)
    assert len(refused.bad_fields()) == 20
    assert refused.body["detail"].endswith("and 30 more")


async def test_unknown_query_parameters_are_refused(api: Api) -> None:
    assert (await api.call("POST", "/v1/timers?if_exists=keep", HOUR)).bad_fields() == ["if_exists"]
    assert (await api.call("GET", "/v1/timers/test/one?verbose=1")).bad_fields() == ["verbose"]


async def test_a_prefix_without_a_processor_is_refused_by_name(api: Api, redis: Redis) -> None:
    reply = await api.call("POST", "/v1/timers", {**HOUR, "prefix": "nobody"})
    assert reply.bad_fields(422, "no-processor") == ["prefix"]
    assert "test" in reply.body["detail"]
    assert await redis.keys("nobody*") == []
    put = await api.call("PUT", "/v1/timers/nobody/one", {"delay": "1h"})
    assert put.bad_fields(422, "no-processor") == ["prefix"]


async def test_the_refusal_of_an_unknown_prefix_does_not_offer_the_services_own_prefixes(api: Api) -> None:
    await declare(api.store, "mail", f"{HOOK}-0123456789abcdef", f"{ALARM}-0123456789abcdef")
    refused = (await api.call("POST", "/v1/timers", {**HOUR, "prefix": "nobody"})).problem(422, "no-processor")
    (error,) = refused["errors"]
    assert error["accepted"] == "a prefix that a processor serves (mail, test)"


async def test_a_longer_prefix_than_the_processors_is_served(api: Api) -> None:
    assert (await api.call("POST", "/v1/timers", {**HOUR, "prefix": "test-24h-after"})).status == 201


async def test_a_prefix_that_continues_a_processors_without_a_separator_is_refused(api: Api) -> None:
    reply = await api.call("POST", "/v1/timers", {**HOUR, "prefix": "tester"})
    assert reply.bad_fields(422, "no-processor") == ["prefix"]


async def test_a_prefix_that_another_pod_has_just_declared_is_accepted(api: Api) -> None:
    """Even just after a refusal, because declarations are read again before each refusal."""
    welcome = {**HOUR, "prefix": "mail-welcome"}
    assert (await api.call("POST", "/v1/timers", welcome)).status == 422
    await announce(api.store, "other", processors=["mail"])
    assert (await api.call("POST", "/v1/timers", welcome)).status == 201


async def test_a_prefix_without_live_pods_is_accepted(api: Api) -> None:
    """Signups do not fail while no worker is alive, as between two deploys."""
    await declare(api.store, "mail")
    news = [{**HOUR, "id": f"n{n}", "prefix": prefix} for n, prefix in enumerate(["mail", "nobody", "mail-x"])]
    assert (await api.call("PUT", "/v1/timers/mail/one", {"delay": "1h"})).status == 201
    results = (await api.call("POST", "/v1/timers/batch", {"timers": news})).body["results"]
    assert [result["status"] for result in results] == [201, 422, 201]


@pytest.mark.parametrize(
    "planned",
    [
        {"due_at": "2030-01-02T00:00:00Z", "repeat": {"every": "1d", "until": "2030-01-01T00:00:00Z"}},
        {"delay": "2h", "repeat": {"every": "1d", "until": 1}},
        {"repeat": {"cron": "0 9 * * *", "until": "2026-01-01T00:00:00Z"}},
    ],
)
async def test_a_repeat_that_is_over_before_its_first_run_is_refused(api: Api, planned: dict[str, Any]) -> None:
    reply = await api.create(**planned)
    assert reply.bad_fields() == ["repeat.until"]
    assert (await api.call("GET", "/v1/timers/test/one")).status == 404


async def test_a_repeat_may_end_with_its_first_run(api: Api) -> None:
    day = "2030-01-01T00:00:00Z"
    assert (await api.create(due_at=day, repeat={"every": "1d", "until": day})).status == 201


@pytest.mark.parametrize("change", [{"due_at": "2030-02-01T00:00:00Z"}, {"repeat": {"every": "1h", "until": 1}}])
async def test_no_change_makes_a_repeat_that_is_over(api: Api, change: dict[str, Any]) -> None:
    await api.create(due_at="2030-01-01T00:00:00Z", repeat={"every": "1d", "until": "2030-01-15T00:00:00Z"})
    assert (await api.call("PATCH", "/v1/timers/test/one", change)).bad_fields() == ["repeat.until"]


async def test_a_due_time_lies_ten_years_ahead_at_most(api: Api) -> None:
    """As with a delay: ten calendar years, here with three leap days."""
    furthest_ms = await api.store.now_ms() + 3_653 * 24 * 3_600_000
    assert (await api.create("in", delay=None, due_at=furthest_ms)).status == 201
    beyond = await api.create("out", delay=None, due_at=furthest_ms + 60_000)
    assert beyond.bad_fields() == ["due_at"]


@pytest.mark.one_server
async def test_a_durability_that_the_server_cannot_give_is_refused_with_the_reason(api: Api) -> None:
    reply = await api.create(durability="replicated")
    assert reply.status == 422
    (field,) = reply.body["errors"]
    assert (field["field"], field["value"]) == ("durability", "'replicated'")
    assert re.fullmatch("fast.*; this server: it has no replica", field["accepted"])
    batch = await api.call(
        "POST",
        "/v1/timers/batch",
        {"timers": [{"prefix": "test", "delay": "1h", "durability": d} for d in ("fast", "ledger")]},
    )
    assert [result["status"] for result in batch.body["results"]] == [201, 422]
