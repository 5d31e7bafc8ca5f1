"""The stream that tells a page that there is something new."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
from aiohttp import ClientResponse

from tests.api.harness import Api
from tests.dashboard.conftest import READS, Visitor
from tests.waiting import DEADLINE_SECONDS, eventually
from timers.client.feed import Feed, Open
from timers.core.model import Status
from timers.dashboard import live
from timers.dashboard.live import LivePages
from timers.store.queries import Change, Queries

WORD = b"data: new\n\n"


@pytest.fixture(autouse=True)
def only_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    """No word without a change."""
    monkeypatch.setattr(live, "LEAST_SECONDS", 0.01)
    monkeypatch.setattr(live, "MOST_SECONDS", 3600.0)


@asynccontextmanager
async def listening(api: Api, cookies: dict[str, str] | None = None) -> AsyncIterator[ClientResponse]:
    """The stream after its first two words: that it is there, and that the subscription behind it stands."""
    keeper = (await api.client.feed()).join()
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


async def test_a_page_is_told_of_each_change(api: Api) -> None:
    async with listening(api) as stream:
        for name in ("one", "two"):
            await api.create(name)
            await word(stream)


async def test_a_page_is_told_now_and_then_though_nothing_changes(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    async with listening(api) as stream:
        monkeypatch.setattr(live, "MOST_SECONDS", 0.02)
        await api.create("the last change")
        for _ in range(3):
            await word(stream)


async def test_a_key_hears_only_of_its_prefixes(guest: Visitor) -> None:
    assert (await guest.get("/ui/live")).where.startswith("/ui/sign-in")
    await guest.sign_in(READS)
    async with listening(guest.api, guest.cookies) as stream:
        await guest.api.client.create("test", "of-another", delay="1h")
        await guest.api.client.create("mine", "own", delay="1h")
        await word(stream)
        assert stream.content.total_bytes == 3 * len(WORD)


class Words:
    """Stands for a response: what was written."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.ended = False

    async def write(self, data: bytes) -> None:
        self.written.append(data)

    async def write_eof(self) -> None:
        self.ended = True


async def test_a_burst_is_one_word_and_the_end_of_the_feed_ends_the_stream(api: Api) -> None:
    listener, words = Feed(Queries(api.store)).join(), Words()
    telling = asyncio.create_task(LivePages(cast("Any", api))._pass_on(listener, cast("Any", words)))

    async def told(number: int) -> bool:
        return len(words.written) == number and not listener._waiting

    await eventually(lambda: told(2), "it is told that the subscription stands")
    for version in range(50):
        listener.offer(Change("test", "x", Status.SCHEDULED, version, 0, 0, 0, "changed"))
    await eventually(lambda: told(3), "one word tells of all")
    listener.end()
    await telling
    assert (len(words.written), words.ended) == (3, True)
    await listener._feed.leave(listener)
