"""The stream that tells a page when something has changed."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import ClientResponse

from tests.api.harness import Api, other_server
from tests.api.own_feed import MadeUp, OwnFeed
from tests.dashboard.conftest import READS, Visitor
from tests.waiting import DEADLINE_SECONDS
from timers.api.operations import routes_of
from timers.client import feed_of
from timers.client.feed import Feed, Open
from timers.core.model import Status
from timers.dashboard import site
from timers.store.notifications import Change

WORD = b"data: new\n\n"


@pytest.fixture
def most_seconds() -> float:
    """Switches off the regular word, so that only changes send one."""
    return 3600.0


@pytest.fixture(autouse=True)
def paced(most_seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site, "LEAST_SECONDS", 0.01)
    monkeypatch.setattr(site, "MOST_SECONDS", most_seconds)


@asynccontextmanager
async def listening(api: Api, cookies: dict[str, str] | None = None) -> AsyncIterator[ClientResponse]:
    """The stream after its first two words, which say that it is open and that its subscription is up."""
    keeper = (await feed_of(api.client)).join()
    assert isinstance(await keeper.next(), Open)
    headers = {"Cookie": "; ".join(f"{name}={value}" for name, value in (cookies or {}).items())}
    async with api.session.get(f"{api.server.url}/ui/live", headers=headers) as stream:
        assert (stream.status, stream.content_type) == (200, "text/event-stream")
        await word(stream)
        await word(stream)
        yield stream


async def word(stream: ClientResponse) -> None:
    async with asyncio.timeout(DEADLINE_SECONDS):
        assert await stream.content.readline() + await stream.content.readline() == WORD


async def test_a_page_hears_of_each_change(api: Api) -> None:
    async with listening(api) as stream:
        for name in ("one", "two"):
            await api.create(name)
            await word(stream)


@pytest.mark.parametrize("most_seconds", [0.02])
async def test_a_page_is_refreshed_now_and_then_without_changes(api: Api) -> None:
    async with listening(api) as stream:
        for _ in range(3):
            await word(stream)


async def test_a_page_hears_only_of_the_prefixes_of_its_key(guest: Visitor) -> None:
    assert (await guest.get("/ui/live")).where.startswith("/ui/sign-in")
    await guest.sign_in(READS)
    async with listening(guest.api, guest.cookies) as stream:
        await guest.api.client.create("test", "of-another", delay="1h")
        await guest.api.client.create("mine", "own", delay="1h")
        await word(stream)
        assert stream.content.total_bytes == 3 * len(WORD)


async def test_a_burst_of_changes_is_one_word_and_closing_the_feed_ends_the_stream(api: Api) -> None:
    queries = MadeUp()
    feed = Feed(queries.changes)
    routes = routes_of(site.LivePages(api.store, OwnFeed(feed), api.auth))
    async with (
        other_server(api, routes, api.auth) as other,
        api.session.get(f"{other.server.url}/ui/live") as stream,
    ):
        await word(stream)
        await word(stream)
        for version in range(50):
            queries.told(Change("test", "x", Status.SCHEDULED, version, 0, 0, 0, "changed"))
        await word(stream)
        await feed.close()
        async with asyncio.timeout(DEADLINE_SECONDS):
            assert await stream.content.read() == b""
