"""Hostile and broken bodies: each gets a problem that says why, never a 500, and never leaves half a timer."""

import asyncio
import gzip
import json
from collections.abc import AsyncIterator, Iterator
from urllib.parse import urlsplit

import pytest
from redis.asyncio import Redis
from structlog.testing import capture_logs

from tests.api.harness import PROBLEM, Api, Reply
from timers.api.requests import BODY_LIMIT_BYTES
from timers.core.spec import PAYLOAD_LIMIT_BYTES

JSON = {"Content-Type": "application/json"}


async def post(api: Api, raw: bytes | AsyncIterator[bytes], headers: dict[str, str] | None = None) -> Reply:
    return await api.call("POST", "/v1/timers", data=raw, headers=JSON if headers is None else headers)


def timer(payload: str) -> bytes:
    return b'{"prefix": "test", "id": "one", "delay": "1h", "payload": %s}' % payload.encode("utf-8", "surrogatepass")


@pytest.fixture
async def nothing_armed(redis: Redis) -> AsyncIterator[None]:
    yield
    assert await redis.keys("test:*") == []


@pytest.mark.usefixtures("nothing_armed")
@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"prefix=test&delay=1h",
        timer("NaN"),
        timer("-Infinity"),
        timer("9" * 5000),
        timer("'single'"),
        timer("[1,]"),
        timer('"\n"'),
        timer('"\ud800"'),  # bytes, because it is not valid UTF-8
        b"\xef\xbb\xbf" + timer("1"),
        timer("1").decode().encode("utf-16"),
        timer("1") + timer("2"),
    ],
)
async def test_a_body_that_is_not_json_is_malformed(api: Api, raw: bytes) -> None:
    assert "not JSON" in (await post(api, raw)).problem(400, "malformed-request")["detail"]


@pytest.mark.usefixtures("nothing_armed")
@pytest.mark.parametrize(
    "raw",
    [
        timer('"\\ud800"'),
        timer('["a", {"\\udfff": 1}]'),
        b'{"prefix": "test", "delay": "1h", "metadata": {"a": "\\ud800"}}',
        timer("[" * 210 + "]" * 210),
        timer("[" * 40_000 + "]" * 40_000),
    ],
)
async def test_half_characters_and_endless_nesting_are_malformed(api: Api, raw: bytes) -> None:
    detail = (await post(api, raw)).problem(400, "malformed-request")["detail"]
    assert detail.startswith("the body is not JSON: ")
    assert len(detail) < 200


@pytest.mark.usefixtures("nothing_armed")
async def test_a_number_out_of_range_is_reported_by_field(api: Api) -> None:
    assert (await post(api, timer("[1e999]"))).bad_fields() == ["payload"]


async def test_the_last_value_of_a_repeated_name_counts(api: Api) -> None:
    reply = await post(api, b'{"prefix": "test", "delay": "1h", "id": "a", "id": "b"}')
    assert (reply.status, reply.body["id"]) == (201, "b")


async def test_the_deepest_payload_is_read_back_and_listed(api: Api) -> None:
    payload = "[" * 199 + "]" * 199
    assert (await post(api, timer(payload))).status == 201
    assert (await api.call("GET", "/v1/timers/test/one")).body["payload"] == json.loads(payload)
    assert (await api.call("GET", "/v1/timers")).body["items"][0]["payload"] == json.loads(payload)


async def test_a_whole_character_in_two_escapes_and_a_huge_number_are_kept(api: Api) -> None:
    assert (await post(api, timer('["\\ud83d\\ude00", "ä\\u0000", -%s]' % ("9" * 4300)))).status == 201
    assert (await api.call("GET", "/v1/timers/test/one")).body["payload"] == ["😀", "ä\0", -int("9" * 4300)]


@pytest.mark.usefixtures("nothing_armed")
@pytest.mark.parametrize(
    "headers",
    [
        {"Content-Type": "text/plain"},
        {"Content-Type": "application/x-www-form-urlencoded"},
        {"Content-Type": "application/json; charset=latin-1"},
        {"Content-Type": "application/merge-patch+json"},
        {"Content-Type": "application/json;x=" + "(" * 8000},
        {"Content-Type": "application/json" + ';x="' * 1900},
    ],
)
async def test_other_types_are_refused(api: Api, headers: dict[str, str]) -> None:
    (await post(api, timer("1"), headers)).problem(415, "unsupported-media-type")


@pytest.mark.usefixtures("nothing_armed")
async def test_a_compressed_body_is_refused_unread(api: Api) -> None:
    bomb = gzip.compress(timer('"%s"' % ("a" * 10_000_000)))
    reply = await post(api, bomb, {**JSON, "Content-Encoding": "gzip"})
    reply.problem(415, "unsupported-media-type")


@pytest.mark.parametrize("character", ["a", "ж", "語", "😀"])
async def test_the_largest_payload_fits_however_it_is_escaped(api: Api, character: str) -> None:
    """`json.dumps` escapes by default: a two-byte character becomes six bytes, a four-byte one twelve."""
    largest = character * ((PAYLOAD_LIMIT_BYTES - 2) // len(character.encode()))
    assert (await post(api, timer(json.dumps(largest)))).status == 201
    (await post(api, timer(json.dumps(largest + 2 * character)))).problem(422, "invalid-input")


@pytest.mark.usefixtures("nothing_armed")
async def test_a_body_announced_too_large_is_refused(api: Api) -> None:
    (await post(api, timer('"%s"' % ("a" * BODY_LIMIT_BYTES)))).problem(413, "too-large")


@pytest.mark.usefixtures("nothing_armed")
async def test_a_body_that_grows_too_large_is_refused_while_it_comes(api: Api) -> None:
    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield b" " * 65_536

    (await post(api, endless())).problem(413, "too-large")


async def test_the_largest_payload_is_taken_however_it_is_escaped(api: Api) -> None:
    size = 64 * 1024 - 2
    assert (await post(api, timer('"%s"' % ("a" * size)))).status == 201
    assert (await api.call("GET", "/v1/timers/test/one")).body["payload"] == "a" * size


async def test_retry_fire_and_delete_take_no_spec(api: Api) -> None:
    await api.create()
    for method, path in (("POST", "/retry"), ("POST", "/fire"), ("DELETE", "")):
        reply = await api.call(method, f"/v1/timers/test/one{path}", {"delay": "1h"})
        assert reply.bad_fields() == [""]
    assert (await api.call("POST", "/v1/timers/test/one/fire", {})).status == 200


def raw_requests() -> Iterator[bytes]:
    yield b"GARBAGE\r\n\r\n"
    yield b"GET / HTTP/9.9\r\n\r\n"
    yield b"POST /v1/timers HTTP/1.1\r\nHost: x\r\nContent-Length: minus\r\n\r\n"
    yield b"GET /healthz HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 20_000 + b"\r\n\r\n"
    yield b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n"
    yield (
        b"POST /v1/timers HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        b"Transfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n"
    )


@pytest.mark.parametrize("request_bytes", list(raw_requests()))
async def test_invalid_http_is_answered_with_a_problem(api: Api, request_bytes: bytes) -> None:
    parts = urlsplit(api.server.url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    writer.write(request_bytes)
    head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    assert head.split(b" ")[1] == b"400"
    assert f"Content-Type: {PROBLEM}".encode() in head
    assert json.loads(body)["type"] == "urn:timers:problem:malformed-request"


@pytest.mark.parametrize(
    ("request_bytes", "detail"),
    [
        (
            b"GET / HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer tmk_sesame\r\r\n\r\n",
            "Missing expected LF after header value",
        ),
        (b"GET / HTTP/1.1\r\nHost: x\r\nCookie: timers_session=tmk_sesame\0\r\n\r\n", "Invalid header value char"),
        (
            b"GET / HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer tmk_sesame" + b"x" * 9000 + b"\r\n\r\n",
            "Got more than 8190 bytes when reading",
        ),
        (b"GET /tmk_sesame HTTP/1.1\nHost: x\n\n", "Bad status line: Expected CRLF after version"),
        (b"GET http://[tmk_sesame HTTP/1.1\r\nHost: x\r\n\r\n", "the address is not a valid one"),
        (b"GET / HTTP/1.1\r\nHost: x\r\nHost: x\r\n\r\n", "Duplicate 'Host' header found."),
    ],
)
async def test_nothing_of_a_request_that_cannot_be_read_is_repeated(
    api: Api, request_bytes: bytes, detail: str
) -> None:
    """What cannot be read is often a key, with a line break that its file had."""
    parts = urlsplit(api.server.url)
    with capture_logs() as lines:
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
        writer.write(request_bytes)
        answered = await reader.read()
        writer.close()
    assert json.loads(answered.partition(b"\r\n\r\n")[2])["detail"] == detail
    assert b"sesame" not in answered
    assert [line["reason"] for line in lines] == [detail]


async def test_a_client_that_leaves_in_mid_body_arms_nothing_and_harms_nobody(api: Api, redis: Redis) -> None:
    parts = urlsplit(api.server.url)
    _, writer = await asyncio.open_connection(parts.hostname, parts.port)
    raw = timer("1")
    head = (
        f"POST /v1/timers HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(raw)}\r\n\r\n"
    )
    writer.write(head.encode() + raw[:-1])
    await writer.drain()
    writer.close()
    await writer.wait_closed()
    assert (await api.call("GET", "/healthz")).status == 200
    assert await redis.keys("test:*") == []


async def test_an_error_in_the_whole_body_names_no_field(api: Api) -> None:
    told = (await post(api, b"[]")).problem(422, "invalid-input")
    assert told["detail"] == "[] is not accepted; expected an object"
    assert [error["field"] for error in told["errors"]] == [""]
