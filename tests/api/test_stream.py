"""Server-sent events: what is sent, to whom, and how a stream ends."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

import pytest
from aiohttp import ClientResponse
from redis.asyncio import Redis

from tests.api.conftest import done
from tests.api.harness import Api, other_server, running_api
from tests.api.own_feed import MadeUp, OwnFeed
from tests.waiting import DEADLINE_SECONDS, eventually
from timers.api import stream
from timers.api.operations import routes_of
from timers.api.stream import EventRoutes
from timers.client import feed_of
from timers.client.feed import Feed
from timers.core.model import Status
from timers.core.spec import NewTimer
from timers.embedded import EmbeddedServer
from timers.store.notifications import Change


@asynccontextmanager
async def stream_of(api: Api, query: str = "", **headers: str) -> AsyncIterator[ClientResponse]:
    url = f"{api.server.url}/v1/events{query}"
    async with asyncio.timeout(DEADLINE_SECONDS), api.session.get(url, headers=headers) as response:
        assert response.status == 200
        assert response.content_type == "text/event-stream"
        yield response


@asynccontextmanager
async def listening(api: Api, query: str = "") -> AsyncIterator[ClientResponse]:
    """An open stream whose subscription is up."""
    async with stream_of(api, query) as response:
        assert await next_event(response) == ("open", {})
        yield response


def back(api: Api, place: str, **headers: str) -> AbstractAsyncContextManager[ClientResponse]:
    """The stream of a listener that reconnects."""
    return stream_of(api, **{"Last-Event-ID": place, **headers})


async def next_event(response: ClientResponse) -> tuple[str, Any]:
    """The next event, skipping comments. Raises EOFError at the end."""
    _, name, data = await next_numbered(response)
    return name, data


async def next_numbered(response: ClientResponse) -> tuple[str | None, str, Any]:
    """The next event with its id."""
    while True:
        fields = await next_block(response)
        if "event" in fields:
            return fields.get("id"), fields["event"], json.loads(fields["data"])


async def next_block(response: ClientResponse) -> dict[str, str]:
    """The fields up to an empty line, with a comment as a field without a name. Raises EOFError at the end."""
    fields: dict[str, str] = {}
    while line := (await response.content.readline()).decode().rstrip("\n"):
        name, _, value = line.partition(":")
        fields[name] = value.strip()
    if not fields:
        raise EOFError
    return fields


async def test_every_change_of_a_timer_is_streamed(api: Api) -> None:
    async with listening(api) as response:
        created = (await api.create()).body
        await api.call("DELETE", "/v1/timers/test/one")
        name, change = await next_event(response)
        assert name == "change"
        assert list(change) == [
            "prefix",
            "id",
            "status",
            "version",
            "attempt",
            "due_at",
            "at",
            "processor",
            "cause",
            "note",
        ]
        assert {key: change[key] for key in ("prefix", "id", "status", "version", "due_at")} == {
            key: created[key] for key in ("prefix", "id", "status", "version", "due_at")
        }
        assert (await next_event(response))[1]["status"] == "cancelled"


async def test_a_prefix_is_listened_to_alone(api: Api) -> None:
    async with listening(api, "?prefix=test-b") as response:
        await api.create("x", prefix="test-a")
        await api.create("y", prefix="test-b")
        assert (await next_event(response))[1]["id"] == "y"


@pytest.mark.parametrize(("query", "field"), [("?prefix=A", "prefix"), ("?since=1", "since")])
async def test_a_bad_parameter_is_named(api: Api, query: str, field: str) -> None:
    assert (await api.call("GET", f"/v1/events{query}")).bad_fields() == [field]


async def test_a_gap_is_streamed(api: Api, redis: Redis) -> None:
    async with listening(api) as response:
        await redis.client_kill_filter(_type="pubsub")
        assert await next_event(response) == ("gap", {})


async def test_a_forged_change_with_an_impossible_time_ends_no_stream(api: Api, redis: Redis) -> None:
    async with listening(api) as response:
        for due, at in (("9" * 30, "0"), ("0", "9" * 30), ("-1", "0")):
            await redis.publish("timers:events:0", f"test:forged\ns\n1\n0\n{due}\n{at}\n-\ncreated ")
        await api.create("true")
        assert (await next_event(response))[1]["id"] == "true"


async def test_a_forged_change_of_what_is_no_timer_reached_the_terminal_of_whoever_watches(
    api: Api, redis: Redis
) -> None:
    async with listening(api) as response:
        for member in ("te\x1b[31mst:forged", "test:for\x1b[2Jged", "test", ":forged", ""):
            await redis.publish("timers:events:0", f"{member}\ns\n1\n0\n0\n0\n-\ncreated ")
        await api.create("true")
        assert (await next_event(response))[1]["id"] == "true"


@pytest.mark.one_server
async def test_many_streams_cost_one_subscription_and_none_when_they_are_gone(api: Api, redis: Redis) -> None:
    channel = f"timers:events:{api.store.connections.db}"
    async with serving(api, linger_seconds=0) as brief:
        async with listening(brief), listening(brief), listening(brief):
            assert (await redis.pubsub_numsub(channel))[0][1] == 1
        async with asyncio.timeout(DEADLINE_SECONDS):
            while (await redis.pubsub_numsub(channel))[0][1]:
                await api.create(if_exists="replace")  # a write is how a server learns that a listener has gone


async def test_a_stream_ends_with_its_server(api: Api) -> None:
    async with listening(api) as response:
        stopping = asyncio.create_task(api.client.end_events())
        with pytest.raises(EOFError):
            await next_event(response)
        await stopping


async def test_silence_is_filled_with_comments(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "HEARTBEAT_SECONDS", 0.01)
    async with stream_of(api) as response:
        place, name, _ = await next_numbered(response)
        assert name == "open"
        assert await next_block(response) == {"": "still here", "id": place}


async def test_a_slow_reader_learns_what_it_lost_and_holds_up_nobody(api: Api) -> None:
    """The slow reader reads nothing until far more has happened than its socket and its queue can hold."""
    parts = urlsplit(api.server.url)
    with socket.socket() as narrow:
        narrow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        narrow.connect((parts.hostname, parts.port))
        reader, writer = await asyncio.open_connection(sock=narrow.dup(), limit=1024)
    feed = await feed_of(api.client)
    writer.write(b"GET /v1/events HTTP/1.1\r\nHost: x\r\n\r\n")
    async with asyncio.timeout(DEADLINE_SECONDS), listening(api) as quick:
        assert b"open" in await reader.readuntil(b"event: open")
        told, sent = 0, 0
        while feed.dropped == 0:
            await api.client.batch([NewTimer(prefix="test", delay="1h") for _ in range(500)])
            sent += 500
            while told < sent:
                name, _ = await next_event(quick)
                assert name == "change"
                told += 1
        seen = b""
        while b"event: dropped" not in seen:
            seen = seen[-100:] + await reader.read(1 << 16)
    writer.close()


class Encoded(Change):
    """Counts how often its note is read."""

    count = 0

    @property
    def note(self) -> str:
        type(self).count += 1
        return super().note


async def test_a_change_is_encoded_once_for_all_listeners(api: Api) -> None:
    queries, before = MadeUp(), Encoded.count
    feed = Feed(queries.changes)
    async with serving(replace(api, client=OwnFeed(feed))) as served:
        async with listening(served) as first, listening(served) as second, listening(served) as third:
            for number in range(20):
                place = f"{feed.place}-{number}"
                queries.told(Encoded("test", f"t{number}", Status.SCHEDULED, 1, 0, 0, 0, "created", place=place))
            for response in (first, second, third):
                assert [(await next_event(response))[1]["id"] for _ in range(20)] == [f"t{n}" for n in range(20)]
        await feed.close()
    assert Encoded.count - before == 20


@asynccontextmanager
async def serving(api: Api, **options: Any) -> AsyncIterator[Api]:
    """The same events, over a server of its own."""
    routes = routes_of(EventRoutes(api.client, **options))
    async with other_server(api, routes) as other:
        yield other
        await api.client.end_events()


async def test_too_many_listeners_are_answered_busy(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "LISTENERS", 2)
    monkeypatch.setattr(stream, "HEARTBEAT_SECONDS", 2 * DEADLINE_SECONDS)
    async with listening(api):
        async with listening(api):
            refused = await api.call("GET", "/v1/events")
            refused.problem(503, "busy")
            assert refused.headers["Retry-After"] == "1"

        async def room() -> bool:
            async with api.session.get(f"{api.server.url}/v1/events") as response:
                return response.status == 200

        await eventually(room, "the place of who has left is free again, though nothing is written")


async def test_a_listener_that_comes_back_hears_what_it_missed(api: Api) -> None:
    async with stream_of(api) as response:
        opened, name, _ = await next_numbered(response)
        await api.create("heard")
        heard, _, change = await next_numbered(response)
        assert (name, change["id"]) == ("open", "heard")
    for timer_id in ("missed", "too"):
        await api.create(timer_id)
    assert opened
    assert heard
    async with back(api, opened) as response, back(api, heard) as later:
        assert await next_numbered(response) == (opened, "open", {})
        assert await next_numbered(later) == (heard, "open", {})
        await api.create("live")
        told = [(await next_event(response))[1]["id"] for _ in range(4)]
        assert told == ["heard", "missed", "too", "live"]
        assert [(await next_event(later))[1]["id"] for _ in range(3)] == told[1:]


async def test_an_unknown_last_event_id_is_answered_with_a_gap(api: Api, redis: Redis) -> None:
    async with back(api, "nobody's") as response:
        place, name, _ = await next_numbered(response)
        assert name == "gap"
        await redis.client_kill_filter(_type="pubsub")
        after_break, name, _ = await next_numbered(response)
        assert name == "gap"
    assert place
    assert after_break
    async with back(api, place) as response:
        assert await next_event(response) == ("gap", {})
    async with back(api, after_break) as response:
        assert await next_event(response) == ("open", {})


async def test_a_last_event_id_of_another_pod_is_known_or_answered_with_a_gap(api: Api, server: EmbeddedServer) -> None:
    await api.create("first")  # from now on the db has an epoch, from which the ids follow
    async with running_api(server.url, [done]) as listens, running_api(server.url, [done]) as deaf:
        async with listening(api) as response, listening(listens) as other:
            await api.create("heard")
            place, _, _ = await next_numbered(response)
            assert place
            assert (await next_numbered(other))[0] == place
        await api.create("missed")
        async with back(listens, place) as response:
            assert await next_event(response) == ("open", {})
            assert (await next_event(response))[1]["id"] == "missed"
        async with back(deaf, place) as response:
            assert await next_event(response) == ("gap", {})


async def test_missed_changes_are_streamed_only_for_the_wanted_prefixes(api: Api) -> None:
    async with stream_of(api, "?prefix=test-b*") as response:
        place, _, _ = await next_numbered(response)
    assert place
    await api.create("other", prefix="test-a")
    await api.create("own", prefix="test-b")
    async with stream_of(api, "?prefix=test-b*", **{"Last-Event-ID": place}) as response:
        assert await next_event(response) == ("open", {})
        assert (await next_event(response))[1]["id"] == "own"
