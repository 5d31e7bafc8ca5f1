"""What hostile callers send as names and times, and that no secret ever shows."""

import json
import logging
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import quote

import pytest
from redis.asyncio import Redis
from standardwebhooks import Webhook

from tests.api.conftest import done
from tests.api.harness import Api, running_api
from tests.api.keyed import new_key
from tests.api.test_signing import BODY, NEXT, SECRET, headers
from timers import logs
from timers.api import auth as auth_module
from timers.core.durations import MAX_MS
from timers.embedded import EmbeddedServer
from timers.settings import Settings
from timers.store import alarms

ALLOWED = set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.:@~+=-")
PREFIX_ALLOWED = set("abcdefghijklmnopqrstuvwxyz0123456789_.-")
ODD = [*map(chr, range(128)), "ä", "\u0430", "\u2028", "\u202e", "\uff0f", "😀", "\x80", "\xa0"]


async def foreign_keys(redis: Redis) -> list[str]:
    """All keys whose names contain something from callers."""
    names = [name.decode() if isinstance(name, bytes) else name for name in await redis.keys("*")]
    return [name for name in names if not name.startswith("timers:")]


@pytest.mark.parametrize("field", ["id", "prefix"])
async def test_every_character_in_a_body_is_taken_as_it_is_or_refused(api: Api, redis: Redis, field: str) -> None:
    allowed = ALLOWED if field == "id" else PREFIX_ALLOWED
    for odd in ODD:
        name = f"test-{odd}x"
        fields = {"prefix": "test", "id": "one", "delay": "1h", "if_exists": "replace", field: name}
        reply = await api.call("POST", "/v1/timers", fields)
        if odd in allowed:
            assert reply.status in (200, 201), (odd, reply)
            assert (await api.call("GET", reply.headers["Location"])).body[field] == name
        else:
            assert reply.bad_fields() == [field]
    triggers = await foreign_keys(redis)
    assert len(triggers) == len(allowed & set(ODD))
    assert all(set(key) <= ALLOWED | set("{}") for key in triggers)


@pytest.mark.parametrize("method", ["GET", "PUT", "PATCH", "DELETE"])
async def test_every_character_in_an_address_is_taken_as_it_is_or_refused(api: Api, redis: Redis, method: str) -> None:
    bodies = {"PUT": {"delay": "1h"}, "PATCH": {"payload": 1}}
    for odd in ODD:
        reply = await api.call(method, f"/v1/timers/test/a{quote(odd, safe='')}b", bodies.get(method))
        expected = ({201, 200} if method == "PUT" else {404}) if odd in ALLOWED else {422, 404, 400}
        assert reply.status in expected, (odd, reply)
        (await api.call(method, f"/v1/timers/te{quote(odd, safe='')}st/one", bodies.get(method)))
    assert all(set(key) <= ALLOWED | set("{}") for key in await foreign_keys(redis))


@pytest.mark.parametrize(
    ("prefix", "timer_id"),
    [
        ("*", "one"),
        ("te?t", "one"),
        ("[t]est", "one"),
        ("test", "*"),
        ("test", "{0}:one"),
        ("timers", "one"),
        ("timers:{0}:rec", "one"),
        ("test", "../../healthz"),
        ("test", "one\r\nX: y"),
        ("test", "one\0"),
        ("test", "a" * 201),
        ("a" * 65, "one"),
        ("test\ntest", "one"),
        ("test", "');redis.call('FLUSHALL')--"),
    ],
)
async def test_patterns_hash_tags_and_scripts_in_names_reach_nothing(api: Api, prefix: str, timer_id: str) -> None:
    await api.create()
    for method, body in (("GET", None), ("PUT", {"delay": "1h"}), ("DELETE", None)):
        path = f"/v1/timers/{quote(prefix, safe='')}/{quote(timer_id, safe='')}"
        assert (await api.call(method, path, body)).status in (400, 404, 422)
    reply = await api.call("POST", "/v1/timers", {"prefix": prefix, "id": timer_id, "delay": "1h"})
    assert reply.bad_fields()
    assert [(timer.prefix, timer.id) for timer in (await api.client.list()).items] == [("test", "one")]


async def test_two_identities_never_share_a_timer(api: Api) -> None:
    """`a` with `b:c` and `a-b` with `c` are the most similar pairs that the grammar allows."""
    for prefix, timer_id in (("test", "b:c"), ("test-b", "c"), ("test.b", "c"), ("test_b", "c"), ("test", "b-c")):
        reply = await api.call("POST", "/v1/timers", {"prefix": prefix, "id": timer_id, "delay": "1h"})
        assert reply.status == 201


IN_RANGE: list[dict[str, Any]] = [
    {"delay": 0},
    {"delay": 0.001},
    {"delay": "1ms"},
    {"delay": MAX_MS / 1000 - 1},
    {"delay": "P10Y"},
    {"due_at": 0},
    {"due_at": "1970-01-01T00:00:00Z"},
    {"due_at": "2036-10-01T00:00:00Z"},
    {"due_at": "2027-01-01T00:00:00.999+14:00"},
    {"delay": "1h", "repeat": {"every": "P10Y"}},
]

OUT_OF_RANGE: list[Any] = [
    {"delay": -0.001},
    {"delay": -1},
    {"delay": "-1s"},
    {"delay": True},
    {"delay": None},
    {"delay": []},
    {"delay": {}},
    {"delay": ""},
    {"delay": MAX_MS / 1000 + 1},
    {"delay": "11y"},
    {"delay": "99999999999999999999999999999d"},
    {"delay": 1e308},
    {"delay": 2**53},
    {"delay": 2**63},
    {"delay": 10**400},
    {"delay": "P10Y1M"},
    {"due_at": -1},
    {"due_at": True},
    {"due_at": 1.5},
    {"due_at": 2**53},
    {"due_at": 2**63},
    {"due_at": 10**400},
    {"due_at": 1e300},
    {"due_at": "1969-12-31T23:59:59Z"},
    {"due_at": "0000-00-00T00:00:00Z"},
    {"due_at": "9999-12-31T23:59:59Z"},
    {"due_at": "2027-01-01T00:00:00"},
    {"due_at": "2027-02-30T00:00:00Z"},
    {"due_at": "2027-01-01T25:00:00Z"},
    {"due_at": "2027-01-01T00:00:00+99:00"},
    {"due_at": ""},
    {"delay": "1h", "timeout": -1},
    {"delay": "1h", "timeout": 1e308},
    {"delay": "1h", "repeat": {"every": 0}},
    {"delay": "1h", "repeat": {"every": "1ms", "count": -1}},
    {"delay": "1h", "repeat": {"every": "1d", "count": 2**70}},
    {"delay": "1h", "retry": {"max_attempts": 2**70}},
    {"delay": "1h", "retry": {"max_attempts": 1.5}},
    {"delay": "1h", "retry": {"max_attempts": True}},
]


@pytest.mark.parametrize("times", IN_RANGE, ids=json.dumps)
async def test_times_within_the_range_are_kept(api: Api, times: dict[str, Any]) -> None:
    reply = await api.create(**times)
    assert reply.status == 201, reply
    assert (await api.call("GET", "/v1/timers/test/one")).body["due_at"] == reply.body["due_at"]


@pytest.mark.parametrize("times", OUT_OF_RANGE, ids=lambda times: json.dumps(times)[:60])
async def test_times_out_of_range_are_refused_and_named(api: Api, redis: Redis, times: dict[str, Any]) -> None:
    named = [name.partition(".")[0] for name in (await api.create(**times)).bad_fields()]
    assert set(named) <= set(times)
    assert await redis.keys("test:*") == []


class Everything(logging.Handler):
    """Everything that is logged, as text."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.text = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.text += repr(record.__dict__) + record.getMessage()


SHARD: Final = "timers:{0}:"
PODS: Final = "timers:{pods}:"
LONG: Final = "9" * 5000
AFTER_ALL_YEARS: Final = "9" * 15
FORGED: Final[Mapping[str, tuple[str, Mapping[str, str]]]] = {
    "a count of thousands of digits": (f"{SHARD}counts", {"s test": LONG}),
    "a count that no float holds": (f"{SHARD}counts", {"s test": "9" * 4000, "f test": "9" * 4000}),
    "a loss of too many timers": ("timers:meta", {"loss:shard:0": f"1 2 {LONG}"}),
    "a loss in no year": ("timers:meta", {"loss:shard:0": f"1 {AFTER_ALL_YEARS} 3"}),
    "a foreign number of shards in no year": ("timers:meta", {"foreign": f"{AFTER_ALL_YEARS} 7"}),
    "a declaration in no year": (f"{PODS}declared", {"other": f"{AFTER_ALL_YEARS} pod"}),
    "half a character of a pod": (f"{PODS}cards", {"forger": '{"settings": {"version": "\\ud800"}}'}),
    "a pause of thousands of digits": (f"{SHARD}pauses", {"test": LONG}),
}
"""What another program with access to the db may write into a hash of ours: the key and the fields."""

READS: Final = (
    *("/v1/timers", "/v1/timers/test/one", "/v1/stats", "/v1/prefixes", "/v1/pods", "/metrics", "/readyz"),
    *("/", "/ui/prefixes", "/ui/prefixes/test", "/ui/pods", "/ui/server", "/ui/timers", "/ui/timers/test/one"),
    "/ui/failed",
)


@pytest.mark.parametrize("forged", FORGED)
async def test_a_forged_number_in_redis_was_an_error_of_the_service(api: Api, redis: Redis, forged: str) -> None:
    key, fields = FORGED[forged]
    await api.create("one")
    await redis.zadd(f"{PODS}seen", {"forger": await api.store.now_ms()})
    for field, value in fields.items():
        await redis.hset(key, field, value)
    await redis.set(f"{PODS}version", "forged")
    assert [path for path in READS if await status_of(api, path) not in (200, 503)] == []


async def test_a_forged_slot_of_starts_was_an_error_of_the_dashboard(api: Api, redis: Redis) -> None:
    slot = await api.store.now_ms() // 60_000
    await redis.hset("timers:{fired}:hour", str(slot % 60), f"{slot} -5:3 {LONG[:4000]}:1")
    assert await status_of(api, "/") == 200


async def test_an_alarm_in_no_year_stopped_all_alarms(api: Api, redis: Redis) -> None:
    for name, value in {"since": AFTER_ALL_YEARS, "noted": "1", "count": "1"}.items():
        await redis.hset("timers:{alarms}:failed", name, value)
    assert await alarms.active(api.store) == []


async def test_a_name_in_an_index_that_is_no_text_was_an_error_of_the_dashboard(api: Api, redis: Redis) -> None:
    await api.create("one")
    await redis.hset(f"{SHARD}counts", "f test", 1)
    await redis.zadd(f"{SHARD}finished:f:test", {b"\xff": 1})
    assert await status_of(api, "/ui/failed") == 200


async def status_of(api: Api, path: str) -> int:
    async with api.session.get(api.server.url + path, headers={"Accept": "text/html"}) as response:
        return response.status


@pytest.fixture
async def heard(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Everything]:
    monkeypatch.setattr("structlog._config._CONFIG.is_configured", False)
    logs.configure("json", "debug")
    everything = Everything()
    logging.getLogger().addHandler(everything)
    yield everything
    logging.getLogger().removeHandler(everything)


async def test_no_secret_is_ever_shown(server: EmbeddedServer, redis: Redis, heard: Everything) -> None:
    """Not in logs down to debug, answers, problems, metrics, reprs, or anything in Redis."""
    sent, kept = new_key()
    key = sent["Authorization"].removeprefix("Bearer ")
    seen: list[str] = []
    async with running_api(server.url, [done], works=True, keys=kept.entry, secrets=[SECRET, NEXT]) as api:
        wrong = {"Authorization": f"Bearer {key}x"}
        broken = {**headers(BODY), "webhook-signature": Webhook(NEXT).sign("other", datetime.now(tz=UTC), BODY)}
        calls: list[tuple[str, str, Any, Any]] = [
            ("GET", "/v1/stats", None, sent),
            ("GET", "/v1/stats", None, wrong),
            ("POST", "/v1/timers", {"prefix": "nobody"}, sent),
            ("POST", "/v1/timers", {"prefix": "test", "id": "one", "delay": "1h"}, sent),
            ("GET", f"/v1/nothing/{key[:3]}", None, wrong),
            ("PUT", "/v1/timers", None, sent),
            ("GET", "/v1/timers?limit=x", None, sent),
            ("GET", "/readyz", None, sent),
            ("GET", "/openapi.json", None, sent),
        ]
        for method, path, body, given in calls:
            reply = await api.call(method, path, body, headers=given)
            seen += [json.dumps(reply.body), repr(reply.headers)]
        for given in (headers(BODY), broken):
            reply = await api.call("POST", "/v1/timers", data=BODY.encode(), headers=given)
            seen += [json.dumps(reply.body), repr(reply.headers)]
        async with api.session.get(api.server.url + "/metrics", headers=sent) as response:
            seen.append(await response.text())
        seen.append(await all_of(redis))
    settings = Settings(api_keys=kept.entry, signing_secrets=f"{SECRET},{NEXT}")  # type: ignore[arg-type]
    seen += [repr(settings), str(settings), heard.text, repr(kept)]
    assert heard.text.count("request refused") >= 3
    everything = "\n".join(seen)
    secrets = [key, key.split("_")[2], SECRET.removeprefix("whsec_"), NEXT.removeprefix("whsec_")]
    assert [secret for secret in secrets if secret in everything] == []


async def all_of(redis: Redis) -> str:
    """Every key and value in the db."""
    found = []
    for key in await redis.keys("*"):
        found.append(repr(key))
        if await redis.type(key) == b"hash":
            found.append(repr(await redis.hgetall(key)))
        if await redis.type(key) == b"string":
            found.append(repr(await redis.get(key)))
    return "\n".join(found)


async def test_a_guard_that_fails_lets_nobody_in(
    server: EmbeddedServer, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    await redis.ping()
    sent, kept = new_key()

    def broken(*_: object) -> None:
        raise RuntimeError("the auth is broken")

    async with running_api(server.url, [done], keys=kept.entry) as api:
        for name in ("_token", "_read_only_if_asked", "_check_prefix", "_check_right"):
            with monkeypatch.context() as broke:
                broke.setattr(f"{auth_module.__name__}.{name}", broken)
                (await api.call("GET", "/v1/stats", headers=sent)).problem(500, "internal")
