"""API keys over HTTP: who gets in, for how long, how often, and how many timers a key may have."""

import asyncio
import json
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

import pytest
from aiohttp.web import Request
from redis.asyncio import Redis

from tests.api.conftest import done
from tests.api.harness import Api, running_api
from tests.api.keyed import new_key
from tests.waiting import DEADLINE_SECONDS, eventually
from timers.api.auth import FRESH_SECONDS, Auth
from timers.api.stream import END_SECONDS, LOOK_SECONDS
from timers.core.policies import Rate
from timers.embedded import EmbeddedServer
from timers.store.callers import Callers

HEADERS, KEY = new_key()
ONE = "/v1/timers/test/one"
AT_ONCE = -1.0
"""Keys in Redis are read for every request, so that no test waits for them to grow old."""


@pytest.fixture
async def guarded(server: EmbeddedServer, redis: Redis) -> AsyncIterator[Api]:
    await redis.ping()
    async with running_api(server.url, [done], keys=KEY.entry, keys_fresh_seconds=AT_ONCE) as api:
        yield api


@pytest.fixture
async def open_api(server: EmbeddedServer, redis: Redis) -> AsyncIterator[Api]:
    """An API that asks for no key until one exists."""
    await redis.ping()
    async with running_api(server.url, [done], keys_fresh_seconds=AT_ONCE) as api:
        yield api


async def test_the_right_key_opens(guarded: Api) -> None:
    assert (await guarded.call("GET", "/v1/stats", headers=HEADERS)).status == 200
    lower = {"authorization": HEADERS["Authorization"].replace("Bearer", "bearer")}
    assert (await guarded.call("GET", "/v1/stats", headers=lower)).status == 200


WRONG = [
    None,
    "",
    "Bearer",
    "Bearer ",
    "Bearer x",
    "Bearer tmk_nobody_secret",
    f"Bearer tmk_{KEY.id}_",
    f"Bearer tmk_{KEY.id}_{KEY.digest.hex()}",
    f"Bearer {KEY.entry}",
    HEADERS["Authorization"][:-1],
    HEADERS["Authorization"] + "x",
    HEADERS["Authorization"].replace("Bearer", "Basic"),
    HEADERS["Authorization"].replace("Bearer ", ""),
    "Bearer tmk_ä_ö",
    "Bearer \udcff\udcfe",
    "Bearer " + "a" * 7000,
]
"""What is no key. The tests are numbered: workers must agree on names, and keys are random."""


@pytest.mark.parametrize("given", WRONG, ids=list(map(str, range(len(WRONG)))))
async def test_any_other_caller_gets_401_and_instructions(guarded: Api, given: str | None) -> None:
    before = await guarded.call("GET", "/v1/stats", headers={} if given is None else {"Authorization": given})
    body = before.problem(401, "unauthorized")
    assert before.headers["WWW-Authenticate"] == 'Bearer realm="timers"'
    assert "Authorization: Bearer KEY" in body["detail"]
    assert KEY.id not in json.dumps(body)


async def test_bytes_that_are_no_text_are_401(guarded: Api) -> None:
    parts = urlsplit(guarded.server.url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    writer.write(
        b"GET /v1/stats HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer \xff\xfe\xe4\r\nConnection: close\r\n\r\n"
    )
    head = (await reader.read()).partition(b"\r\n")[0]
    writer.close()
    assert head.split(b" ")[1] == b"401"


async def test_two_keys_at_once_open_nothing(guarded: Api) -> None:
    twice = [("Authorization", HEADERS["Authorization"]), ("Authorization", HEADERS["Authorization"])]
    (await guarded.call("GET", "/v1/stats", headers=twice)).problem(401, "unauthorized")


async def test_no_key_opens_by_the_address(guarded: Api) -> None:
    token = HEADERS["Authorization"].removeprefix("Bearer ")
    for query in (f"?key={token}", f"?access_token={token}", f"?authorization=Bearer%20{token}"):
        (await guarded.call("GET", f"/v1/stats{query}")).problem(401, "unauthorized")


async def test_making_and_revoking_a_key_takes_effect_on_every_pod(server: EmbeddedServer, redis: Redis) -> None:
    await redis.ping()
    headers, kept = new_key()
    async with (
        running_api(server.url, [done], keys="stored", keys_fresh_seconds=AT_ONCE) as one,
        running_api(server.url, [done], keys="stored", keys_fresh_seconds=AT_ONCE) as two,
    ):
        statuses = []
        for change in (None, kept.entry, "revoked"):
            if change == "revoked":
                await Callers(one.store).revoke(kept.id)
            elif change:
                await Callers(one.store).keep(kept.id, change)
            statuses.append([(await api.call("GET", "/v1/stats", headers=headers)).status for api in (one, two)])
        assert statuses == [[401, 401], [200, 200], [401, 401]]


async def test_keys_in_redis_are_believed_for_a_second_and_no_longer(server: EmbeddedServer, redis: Redis) -> None:
    """With the real freshness limit, on a pod that gets requests all the time."""
    assert FRESH_SECONDS <= 1
    await redis.ping()
    async with running_api(server.url, [done], keys=KEY.entry) as api:
        assert (await api.call("GET", "/v1/stats", headers=HEADERS)).status == 200
        await Callers(api.store).revoke(KEY.id)

        async def refused() -> bool:
            return (await api.call("GET", "/v1/stats", headers=HEADERS)).status == 401

        await eventually(refused, "a revoked key of the settings is refused")


@pytest.mark.parametrize("path", ["/v1/events", "/ui/live"])
async def test_a_revoked_key_keeps_no_stream_open(guarded: Api, path: str) -> None:
    assert FRESH_SECONDS + LOOK_SECONDS + END_SECONDS < 2
    async with guarded.session.get(guarded.server.url + path, headers=HEADERS) as stream:
        assert stream.status == 200
        await Callers(guarded.store).revoke(KEY.id)
        async with asyncio.timeout(DEADLINE_SECONDS):
            await stream.content.read()


async def test_a_stream_stays_open_while_its_key_is_as_it_was(guarded: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    looked, still_lets = list[bool](), Auth.still_lets

    async def noted(self: Auth, request: Request) -> bool:
        looked.append(await still_lets(self, request))
        return looked[-1]

    monkeypatch.setattr(Auth, "still_lets", noted)

    async def thrice() -> bool:
        return len(looked) >= 3

    async with guarded.session.get(guarded.server.url + "/v1/events", headers=HEADERS) as stream:
        await eventually(thrice, "it was looked at again")
        assert stream.status == 200
    assert all(looked)


async def test_a_stream_of_an_open_api_ends_when_the_first_key_is_made(open_api: Api) -> None:
    async with open_api.session.get(open_api.server.url + "/v1/events") as stream:
        assert stream.status == 200
        await Callers(open_api.store).keep(KEY.id, KEY.entry)
        async with asyncio.timeout(DEADLINE_SECONDS):
            await stream.content.read()


async def test_one_entry_that_cannot_be_read_harms_no_other(guarded: Api, redis: Redis) -> None:
    headers, kept = new_key()
    await redis.hset("timers:keys", mapping={"broken": "\udcff nonsense".encode(errors="replace"), kept.id: kept.entry})
    await redis.hset("timers:keys", "alias", kept.entry.replace(kept.id, "another"))
    assert (await guarded.call("GET", "/v1/stats", headers=headers)).status == 200
    assert (await guarded.call("GET", "/v1/stats", headers=HEADERS)).status == 200


async def test_an_open_api_requires_keys_once_the_first_is_made(open_api: Api) -> None:
    assert (await open_api.call("GET", "/v1/stats")).status == 200
    headers, kept = new_key()
    await Callers(open_api.store).keep(kept.id, kept.entry)
    (await open_api.call("GET", "/v1/stats")).problem(401, "unauthorized")
    assert (await open_api.call("GET", "/v1/stats", headers=headers)).status == 200
    await Callers(open_api.store).revoke(kept.id)
    (await open_api.call("GET", "/v1/stats")).problem(401, "unauthorized")
    (await open_api.call("GET", "/v1/stats", headers=headers)).problem(401, "unauthorized")


@pytest.mark.parametrize("gone", ["timers:keys", "timers:meta"])
async def test_an_api_that_was_closed_stays_closed_when_its_keys_are_deleted(
    open_api: Api, server: EmbeddedServer, redis: Redis, gone: str
) -> None:
    headers, kept = new_key()
    await Callers(open_api.store).keep(kept.id, kept.entry)
    (await open_api.call("GET", "/v1/stats")).problem(401, "unauthorized")
    await redis.delete(gone)
    (await open_api.call("GET", "/v1/stats")).problem(401, "unauthorized")
    async with running_api(server.url, [done], keys_fresh_seconds=AT_ONCE) as another:
        (await another.call("GET", "/v1/stats")).problem(401, "unauthorized")
    status = (await open_api.call("GET", "/v1/stats", headers=headers)).status
    assert status == (401 if gone == "timers:keys" else 200)


async def test_revoking_a_mistyped_key_closes_no_open_api(open_api: Api) -> None:
    assert not await Callers(open_api.store).revoke("mistyped")
    assert (await open_api.call("GET", "/v1/stats")).status == 200


async def test_a_foreign_value_in_place_of_the_meta_is_named_and_asks_nobody_for_a_key(
    open_api: Api, redis: Redis
) -> None:
    """The second time it is known whether a key was ever kept."""
    await open_api.store.identity.join()
    for _ in range(2):
        await redis.set("timers:meta", "foreign")
        assert "timers:meta" in (await open_api.call("GET", "/v1/stats")).problem(503, "unavailable")["detail"]
        await open_api.store.identity.check([])
        assert (await open_api.call("GET", "/v1/stats")).status == 200


async def test_an_api_stays_closed_over_a_flush(open_api: Api, server: EmbeddedServer, redis: Redis) -> None:
    """The process remembers, and marks the new db as closed."""
    _, kept = new_key()
    await Callers(open_api.store).keep(kept.id, kept.entry)
    await open_api.store.identity.join()
    await redis.flushdb()
    await open_api.store.identity.check(())
    async with running_api(server.url, [done], keys_fresh_seconds=AT_ONCE) as another:
        (await another.call("GET", "/v1/stats")).problem(401, "unauthorized")


async def test_deleting_the_keys_and_the_closed_mark_opens_an_api(
    open_api: Api, server: EmbeddedServer, redis: Redis
) -> None:
    """As the README says, with the pods stopped; a running pod stays closed."""
    _, kept = new_key()
    await Callers(open_api.store).keep(kept.id, kept.entry)
    await redis.delete("timers:keys")
    await redis.hdel("timers:meta", "closed")
    (await open_api.call("GET", "/v1/stats")).problem(401, "unauthorized")
    async with running_api(server.url, [done], keys_fresh_seconds=AT_ONCE) as another:
        assert (await another.call("GET", "/v1/stats")).status == 200


async def test_a_rate_holds_over_all_pods_and_says_when_to_come_back(server: EmbeddedServer, redis: Redis) -> None:
    await redis.ping()
    headers, kept = new_key(rate="5/h")
    other, other_kept = new_key()
    entries = f"{kept.entry} {other_kept.entry}"
    async with (
        running_api(server.url, [done], keys=entries) as one,
        running_api(server.url, [done], keys=entries) as two,
    ):
        assert (await one.call("GET", ONE, headers=headers)).status == 404
        refused = await two.call("GET", ONE, headers=headers)
        refused.problem(429, "rate-limited")
        assert 600 < int(refused.headers["Retry-After"]) <= 720
        assert (await two.call("GET", "/v1/stats", headers=other)).status == 200


async def test_a_storm_gets_exactly_what_the_rate_allows(api: Api) -> None:
    """The rate allows a burst of seven, and the next call an hour later."""
    rate = Rate(interval_us=3600 * 1_000_000, burst=7)
    waits_ms = await asyncio.gather(*(Callers(api.store).wait_ms("k", rate) for _ in range(100)))
    assert waits_ms.count(0) == 7
    assert all(3_590_000 < wait_ms <= 3_600_000 for wait_ms in waits_ms if wait_ms)


async def test_a_quota_of_waiting_timers(server: EmbeddedServer, redis: Redis) -> None:
    await redis.ping()
    headers, kept = new_key("test*", pending=2)
    async with running_api(server.url, [done], keys=kept.entry) as api:
        due = {"delay": "1h"}
        batch = {
            "timers": [{"prefix": prefix, "id": str(n), **due} for n, prefix in enumerate(["test", "test-b", "test"])]
        }
        results = (await api.call("POST", "/v1/timers/batch", batch, headers=headers)).body["results"]
        assert [result["status"] for result in results] == [201, 201, 429]
        assert results[2]["problem"]["type"].endswith(":too-many-pending")
        refused = await api.call("POST", "/v1/timers", {"prefix": "test", "id": "x", **due}, headers=headers)
        refused.problem(429, "too-many-pending")
        assert int(refused.headers["Retry-After"]) > 0
        (await api.call("PUT", "/v1/timers/test/x", due, headers=headers)).problem(429, "too-many-pending")
        assert (await api.call("PUT", "/v1/timers/test/0", due, headers=headers)).status == 200
        assert (await api.call("DELETE", "/v1/timers/test/0", headers=headers)).status == 200
        assert (await api.call("PUT", "/v1/timers/test/x", due, headers=headers)).status == 201
