"""Malformed HTTP: every refusal is a problem with the request's id."""

import asyncio
import json
from urllib.parse import urlsplit

import pytest

from tests.api.harness import PROBLEM, Api

POST = b"POST /v1/timers HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
REFUSED = {
    "words": (b"hello\r\n\r\n", 400, "malformed-request"),
    "TLS": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400, "malformed-request"),
    "HTTP/2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400, "malformed-request"),
    "a version to come": (b"GET / HTTP/9.9\r\nHost: x\r\n\r\n", 400, "malformed-request"),
    "no host": (b"GET /healthz HTTP/1.1\r\n\r\n", 400, "malformed-request"),
    "a method of coffee pots": (b"BREW /v1/timers HTTP/1.1\r\nHost: x\r\n\r\n", 400, "malformed-request"),
    "a long address": (b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\nHost: x\r\n\r\n", 400, "malformed-request"),
    "a long header": (b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 9000 + b"\r\n\r\n", 400, "malformed-request"),
    "many headers": (b"GET / HTTP/1.1\r\nHost: x\r\n" + b"X: a\r\n" * 200 + b"\r\n", 400, "malformed-request"),
    "bytes in an address": (b"GET /\xff\xfe HTTP/1.1\r\nHost: x\r\n\r\n", 400, "malformed-request"),
    "a negative length": (POST + b"Content-Length: -1\r\n\r\n", 400, "malformed-request"),
    "two lengths": (
        POST + b"Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        400,
        "malformed-request",
    ),
    "a broken chunk": (POST + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n", 400, "malformed-request"),
    "a type of garbage": (
        b"POST /v1/timers HTTP/1.1\r\nHost: x\r\nContent-Type: ;;;\xff\r\nContent-Length: 2\r\n\r\n{}",
        415,
        "unsupported-media-type",
    ),
    "an expectation": (POST + b"Expect: magic\r\nContent-Length: 2\r\n\r\n{}", 417, "expectation-failed"),
    "an expectation nowhere": (b"GET /x HTTP/1.1\r\nHost: x\r\nExpect: magic\r\n\r\n", 417, "expectation-failed"),
    "CONNECT": (b"CONNECT x:1 HTTP/1.1\r\nHost: x\r\n\r\n", 404, "no-such-address"),
    "OPTIONS *": (b"OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n", 404, "no-such-address"),
    "a way out": (b"GET /docs/../../etc/passwd HTTP/1.1\r\nHost: x\r\n\r\n", 404, "no-such-address"),
    "TRACE": (b"TRACE /v1/timers HTTP/1.1\r\nHost: x\r\n\r\n", 405, "method-not-allowed"),
    "bytes behind percent": (b"GET /v1/timers/%ff/a HTTP/1.1\r\nHost: x\r\n\r\n", 422, "invalid-input"),
    "a zero byte": (b"GET /v1/timers/test/%00 HTTP/1.1\r\nHost: x\r\n\r\n", 422, "invalid-input"),
}


@pytest.mark.parametrize(("sent", "status", "kind"), REFUSED.values(), ids=REFUSED)
async def test_an_improper_request_is_a_problem(api: Api, sent: bytes, status: int, kind: str) -> None:
    address = urlsplit(api.server.url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    writer.write(sent)
    head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    headers = dict(line.split(": ", 1) for line in head[1:] if line)
    body = json.loads(await reader.readexactly(int(headers["Content-Length"])))
    writer.close()
    assert head[0].split()[1] == str(status)
    assert headers["Content-Type"] == PROBLEM
    assert (body["status"], body["type"]) == (status, f"urn:timers:problem:{kind}")
    assert body["title"]
    assert body["detail"]
    assert body["request_id"] == headers["X-Request-Id"]
