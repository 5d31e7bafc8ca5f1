"""Requests signed with the reference library: valid, altered, and replayed ones."""

import asyncio
import json
from base64 import b64encode
from collections.abc import AsyncIterator, Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from redis.asyncio import Redis
from standardwebhooks import Webhook
from standardwebhooks.webhooks import WebhookVerificationError

from tests.api.conftest import done
from tests.api.harness import Api, Reply, running_api
from tests.api.keyed import new_key
from tests.servers import start_server
from tests.waiting import eventually
from timers.api.operations import OPERATIONS
from timers.embedded import EmbeddedServer

SECRET = "whsec_" + b64encode(b"first secret, at least 24 bytes").decode()
NEXT = "whsec_" + b64encode(b"another secret, while we rotate").decode()
STRANGE = "whsec_" + b64encode(b"a secret that nobody has told us").decode()
BODY = '{"prefix": "test", "id": "one", "delay": "1h", "payload": "ä"}'


@pytest.fixture
async def signed(server: EmbeddedServer, redis: Redis) -> AsyncIterator[Api]:
    await redis.ping()
    async with running_api(server.url, [done], secrets=[SECRET, NEXT]) as api:
        yield api


def headers(body: str, message: str = "msg_1", secret: str = SECRET, late: float = 0) -> dict[str, str]:
    """The headers that the reference library sends."""
    at = datetime.now(tz=UTC) - timedelta(seconds=late)
    return {
        "Content-Type": "application/json",
        "webhook-id": message,
        "webhook-timestamp": str(int(at.timestamp())),
        "webhook-signature": Webhook(secret).sign(message, at, body),
    }


async def post(api: Api, body: str, sent: dict[str, str], path: str = "/v1/timers", method: str = "POST") -> Reply:
    return await api.call(method, path, data=body.encode(), headers=sent)


async def test_signatures_of_the_reference_library_are_accepted(signed: Api) -> None:
    sent = headers(BODY)
    Webhook(SECRET).verify(BODY, sent)
    assert (await post(signed, BODY, sent)).status == 201


async def test_every_secret_opens_and_one_good_signature_among_several_is_enough(signed: Api) -> None:
    assert (await post(signed, BODY, headers(BODY, "a", NEXT))).status == 201
    sent = headers(BODY.replace("one", "two"), "b")
    strange = headers(BODY.replace("one", "two"), "b", STRANGE)["webhook-signature"]
    sent["webhook-signature"] = f"v1a,xyz {strange} {sent['webhook-signature']}"
    assert (await post(signed, BODY.replace("one", "two"), sent)).status == 201


def flipped(signature: str) -> str:
    """Change the first base64 character."""
    return signature[:3] + ("B" if signature[3] == "A" else "A") + signature[4:]


SIGNATURE = "webhook-signature"
ALTERED: Mapping[str, Callable[[dict[str, str]], dict[str, str]]] = {
    "id": lambda good: {**good, "webhook-id": "msg_2"},
    "timestamp": lambda good: {**good, "webhook-timestamp": str(int(good["webhook-timestamp"]) + 1)},
    "signature": lambda good: {**good, SIGNATURE: flipped(good[SIGNATURE])},
    "version": lambda good: {**good, SIGNATURE: good[SIGNATURE].replace("v1,", "v1a,")},
    "no version": lambda good: {**good, SIGNATURE: good[SIGNATURE].removeprefix("v1,")},
    "empty": lambda good: {**good, SIGNATURE: ""},
    "no text": lambda good: {**good, SIGNATURE: "v1,ä\udcff"},
    "strange secret": lambda _good: headers(BODY, secret=STRANGE),
    "another body": lambda _good: headers(BODY.replace("1h", "2h")),
}


@pytest.mark.parametrize("part", ALTERED)
async def test_a_change_of_any_signed_part_is_refused(signed: Api, part: str) -> None:
    sent = ALTERED[part](headers(BODY))
    with pytest.raises((WebhookVerificationError, ValueError)):
        Webhook(SECRET).verify(BODY, sent)
    (await post(signed, BODY, sent)).problem(401, "unauthorized")
    assert (await signed.client.counts()) == {}
    assert (await post(signed, BODY, headers(BODY))).status == 201  # and the refused request has not used up the id


@pytest.mark.parametrize("late", [-330, 301, 10**9])
async def test_a_time_more_than_five_minutes_off_is_refused(signed: Api, late: float) -> None:
    (await post(signed, BODY, headers(BODY, late=late))).problem(401, "unauthorized")


@pytest.mark.parametrize("late", [-290, 290])
async def test_clocks_may_differ_by_less(signed: Api, late: float) -> None:
    assert (await post(signed, BODY, headers(BODY, late=late))).status == 201


@pytest.mark.parametrize("name", ["webhook-id", "webhook-timestamp", "webhook-signature"])
async def test_each_header_is_needed_once(signed: Api, name: str) -> None:
    sent = headers(BODY)
    (await post(signed, BODY, {key: value for key, value in sent.items() if key != name})).problem(401, "unauthorized")
    twice = [*sent.items(), (name, sent[name])]
    reply = await signed.call("POST", "/v1/timers", data=BODY.encode(), headers=twice)
    reply.problem(401, "unauthorized")


@pytest.mark.parametrize("message", ["a.b", "", " ", "ä", "x" * 257, "a b"])
@pytest.mark.parametrize("timestamp", ["now", "nan", "-1", "1e9", "٣", "1" * 5000])
async def test_odd_ids_and_times_are_refused_and_are_no_error_of_ours(
    signed: Api, message: str, timestamp: str
) -> None:
    good = headers(BODY)
    (await post(signed, BODY, {**good, "webhook-id": message})).problem(401, "unauthorized")
    (await post(signed, BODY, {**good, "webhook-timestamp": timestamp})).problem(401, "unauthorized")


async def test_a_request_sent_again_is_refused_on_every_pod(server: EmbeddedServer, signed: Api) -> None:
    sent = headers(BODY)
    assert (await post(signed, BODY, sent)).status == 201
    (await post(signed, BODY, sent)).problem(401, "unauthorized")
    async with running_api(server.url, [done], secrets=[SECRET]) as other:
        (await post(other, BODY, sent)).problem(401, "unauthorized")
        (await post(other, BODY, sent, "/v1/timers/test/other", "PUT")).problem(401, "unauthorized")


async def test_an_id_is_remembered_for_longer_than_its_signature_is_valid(signed: Api, redis: Redis) -> None:
    assert (await post(signed, BODY, headers(BODY))).status == 201
    (seen,) = await redis.keys("timers:{access}:seen:*")
    assert await redis.pttl(seen) > 2 * 300 * 1000


def body_of(operation_id: str) -> str:
    bodies: dict[str, Any] = {
        "createTimer": {"prefix": "test", "id": "new", "delay": "1h"},
        "putTimer": {"delay": "1h"},
        "changeTimer": {"payload": 1},
        "createTimers": {"timers": []},
        "actOnTimers": {"action": "cancel", "filter": {"prefix": "test"}, "dry_run": True},
    }
    return json.dumps(bodies[operation_id]) if operation_id in bodies else ""


@pytest.mark.parametrize(
    "operation",
    [operation for operation in OPERATIONS if operation.right is not None],
    ids=lambda operation: operation.id,
)
async def test_a_signature_allows_reads_and_calls_with_a_body(signed: Api, operation: Any) -> None:
    await signed.client.create("test", "one", delay="1h")
    body = body_of(operation.id)
    path = operation.path.format(prefix="test", id="one")
    sent = headers(body)
    url = signed.server.url + path
    async with signed.session.request(operation.method, url, data=body.encode(), headers=sent) as response:
        opens = operation.method == "GET" or bool(body)
        assert (response.status in (200, 201)) is opens, await response.text()
        if not opens:
            assert response.status == 403


async def test_a_large_batch_can_be_signed(signed: Api) -> None:
    timers = [{"prefix": "test", "id": str(n), "delay": "1h", "payload": "x" * 1000} for n in range(500)]
    body = json.dumps({"timers": timers})
    reply = await post(signed, body, headers(body), "/v1/timers/batch")
    assert {result["status"] for result in reply.body["results"]} == {201}


async def test_unsigned_and_half_signed_requests_get_nothing(signed: Api) -> None:
    (await signed.call("GET", "/v1/stats")).problem(401, "unauthorized")
    (await signed.call("GET", "/v1/stats", headers={"webhook-id": "x"})).problem(401, "unauthorized")
    assert (await signed.call("GET", "/healthz")).status == 200


async def test_where_no_secret_is_set_a_signature_opens_nothing(server: EmbeddedServer, redis: Redis) -> None:
    await redis.ping()
    async with running_api(server.url, [done], keys="stored") as api:
        (await post(api, BODY, headers(BODY))).problem(401, "unauthorized")


async def test_without_redis_nobody_knows_whether_it_was_sent_before(tmp_path: Path) -> None:
    """The API refuses then, because it could not recognise a replay."""
    server = await start_server("redis", tmp_path)
    async with running_api(server.url, [done], secrets=[SECRET]) as api:
        server.kill()
        (await post(api, BODY, headers(BODY))).problem(503, "unavailable")


async def test_large_bodies_with_bad_signatures_are_held_up_to_a_budget_of_the_pod(
    server: EmbeddedServer, redis: Redis
) -> None:
    """A hundred strangers with 8 MiB each took 860 MiB, because a signature is checked once the whole body is there."""
    await redis.ping()
    large = json.dumps({"timers": [{"prefix": "test", "delay": "1h", "payload": "x" * 60_000}] * 5})
    forged = headers(large, secret=STRANGE)
    async with running_api(server.url, [done], secrets=[SECRET], unverified_bytes=400_000) as api:
        parts = urlsplit(api.server.url)
        _, stalled = await asyncio.open_connection(parts.hostname, parts.port)
        lines = "".join(f"{name}: {value}\r\n" for name, value in forged.items())
        head = f"POST /v1/timers/batch HTTP/1.1\r\nHost: x\r\n{lines}Content-Length: {len(large) + 1}\r\n\r\n"
        stalled.write(head.encode() + large.encode())
        await stalled.drain()

        async def answered(status: int) -> Reply | None:
            reply = await post(api, large, forged, "/v1/timers/batch")
            assert reply.status in (401, 503), reply
            return reply if reply.status == status else None

        busy = await eventually(lambda: answered(503), "the stalled body fills the budget")
        busy.problem(503, "busy")
        assert busy.headers["Retry-After"] == "1"
        assert (await post(api, BODY, headers(BODY))).status == 201
        stalled.close()
        await eventually(lambda: answered(401), "what it held is given back")


async def test_a_signature_over_a_body_that_comes_in_parts_opens(signed: Api) -> None:
    timers = json.dumps({"timers": [{"prefix": "test", "delay": "1h", "payload": "x" * 60_000}] * 5})

    async def parts() -> AsyncIterator[bytes]:
        for start in range(0, len(timers), 50_000):
            yield timers[start : start + 50_000].encode()

    reply = await signed.call("POST", "/v1/timers/batch", data=parts(), headers=headers(timers))
    assert [result["status"] for result in reply.body["results"]] == [201] * 5


async def test_large_bodies_without_a_key_are_held_up_to_the_same_budget(server: EmbeddedServer, redis: Redis) -> None:
    """An API without keys knows none of its callers, so each body counts until its call has ended."""
    await redis.ping()
    wishes = [{"prefix": "test", "id": f"t{n}", "delay": "1h", "payload": "x" * 60_000} for n in range(5)]
    async with running_api(server.url, [done], unverified_bytes=200_000) as api:
        reply = await api.call("POST", "/v1/timers/batch", {"timers": wishes})
        reply.problem(503, "busy")
        assert (await api.call("GET", "/v1/timers")).body["items"] == []
        for _ in range(3):  # what was freed can be used again
            reply = await api.call("POST", "/v1/timers/batch", {"timers": wishes[:2]})
            assert reply.status == 200


@pytest.mark.parametrize("page", ["sign-in", "sign-out"])
async def test_anybody_could_fill_the_memory_with_forms_that_need_no_key(
    server: EmbeddedServer, redis: Redis, page: str
) -> None:
    """4,096 strangers who sent 256 KiB each to sign out, slowly, took a gigabyte."""
    await redis.ping()
    _, kept = new_key()
    async with running_api(server.url, [done], keys=kept.entry, unverified_bytes=100_000) as api:
        form, origin = b"to=" + b"x" * 200_000, {"Origin": api.server.url}
        async with api.session.post(f"{api.server.url}/ui/{page}", data=form, headers=origin) as response:
            assert response.status == 503
