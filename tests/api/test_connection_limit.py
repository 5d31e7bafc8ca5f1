"""Slow and idle clients, and too many of them: each has a deadline, and none is in the way of a healthy one."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import pytest
from redis.asyncio import Redis

from tests.api.conftest import done
from tests.api.harness import Api, running_api
from tests.waiting import DEADLINE_SECONDS
from timers.api import requests
from timers.api import server as listening
from timers.core.spec import NewTimer
from timers.embedded import EmbeddedServer

SLOW = 1000
Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def connected(api: Api, sent: bytes = b"") -> Connection:
    parts = urlsplit(api.server.url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    writer.write(sent)
    await writer.drain()
    return reader, writer


@asynccontextmanager
async def many(api: Api, count: int, sent: bytes) -> AsyncIterator[list[Connection]]:
    open_now: list[Connection] = []
    try:
        for _ in range(count):
            open_now.append(await connected(api, sent))  # noqa: PERF401 (what is open is closed, whatever happens)
        yield open_now
    finally:
        for _, writer in open_now:
            writer.close()


HALF_A_HEAD = b"GET /v1/stats HTTP/1.1\r\nHost: x\r\nX-Slow: "
HALF_A_BODY = b"POST /v1/timers HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n{"


@pytest.mark.parametrize("sent", [b"", HALF_A_HEAD, HALF_A_BODY], ids=["silent", "half a head", "half a body"])
async def test_a_thousand_slow_clients_are_not_in_the_way_of_a_healthy_one(
    server: EmbeddedServer, redis: Redis, sent: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    await redis.ping()
    monkeypatch.setattr(listening, "IDLE_SECONDS", DEADLINE_SECONDS)
    monkeypatch.setattr(listening, "TAKE_SECONDS", DEADLINE_SECONDS)
    async with running_api(server.url, [done], limit=listening.CONNECTION_LIMIT) as api, many(api, SLOW, sent) as slow:
        assert (await api.create()).status == 201
        assert (await api.call("GET", "/v1/timers/test/one")).status == 200
        assert not any(reader.at_eof() for reader, _ in slow)


@pytest.fixture
async def impatient(server: EmbeddedServer, redis: Redis, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Api]:
    """Gives clients a tenth of a second for everything."""
    await redis.ping()
    monkeypatch.setattr(listening, "IDLE_SECONDS", 0.1)
    monkeypatch.setattr(listening, "TAKE_SECONDS", 0.1)
    async with running_api(server.url, [done], limit=listening.CONNECTION_LIMIT) as api:
        yield api


@pytest.mark.parametrize("sent", [b"", HALF_A_HEAD], ids=["silent", "half a head"])
async def test_a_client_that_never_ends_its_head_is_disconnected(impatient: Api, sent: bytes) -> None:
    reader, writer = await connected(impatient, sent)
    assert await reader.read() == b""
    writer.close()


async def test_a_client_that_drips_its_head_is_disconnected(impatient: Api) -> None:
    reader, writer = await connected(impatient, HALF_A_HEAD)
    gone = asyncio.create_task(reader.read())
    while not gone.done():
        writer.write(b"a")
        await asyncio.wait({gone}, timeout=0.001)
    assert gone.exception() is not None or gone.result() == b""
    writer.close()


async def test_a_used_connection_may_idle_no_longer_than_a_new_one(impatient: Api) -> None:
    reader, writer = await connected(impatient, b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
    assert b"200 OK" in await reader.read()
    writer.close()


async def test_a_body_that_does_not_arrive_is_408(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "READ_SECONDS", 0.1)
    reader, writer = await connected(api, HALF_A_BODY.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
    head, _, told = (await reader.readuntil(b"\r\n\r\n")).partition(b"\r\n")
    assert head.split(b" ")[1] == b"408"
    assert b"problem+json" in told
    writer.close()


async def test_one_connection_too_many_is_refused_and_a_freed_place_is_reused(
    server: EmbeddedServer, redis: Redis
) -> None:
    await redis.ping()
    async with running_api(server.url, [done], limit=3) as api:
        first = [await connected(api) for _ in range(3)]
        for _ in range(5):
            reader, writer = await connected(api, b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
            head, _, told = (await reader.read()).partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 503 ")
            assert b"Retry-After: 1" in head
            assert json.loads(told)["type"] == "urn:timers:problem:not-ready"
            writer.close()
        reader, writer = first[0]
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert b"200 OK" in await reader.read()
        writer.close()
        assert (await api.call("GET", "/healthz")).status == 200
        for _, writer in first[1:]:
            writer.close()


async def test_a_client_that_does_not_read_the_answer_is_disconnected(
    impatient: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An answer of sixteen megabytes is more than the buffers between the two can hold."""
    hung_up, real = asyncio.Event(), listening.Connection.connection_lost

    def lost(connection: listening.Connection, error: BaseException | None) -> None:
        hung_up.set()
        real(connection, error)

    monkeypatch.setattr(listening.Connection, "connection_lost", lost)
    fields = {"prefix": "test", "delay": "1h", "payload": "x" * 60_000}
    await impatient.client.batch([NewTimer.parse({**fields, "id": str(n)}) for n in range(300)])
    parts = urlsplit(impatient.server.url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port, limit=1024)
    writer.write(b"GET /v1/timers?limit=300 HTTP/1.1\r\nHost: x\r\n\r\n")
    await reader.readuntil(b"\r\n")
    async with asyncio.timeout(DEADLINE_SECONDS):
        await hung_up.wait()
    writer.transport.abort()
