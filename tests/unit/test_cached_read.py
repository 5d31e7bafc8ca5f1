"""What is read once for all who ask, and what they get while it cannot be read."""

import asyncio

import pytest

from timers.errors import Unavailable
from timers.store import cooperative
from timers.store.cooperative import CachedRead


class _Source:
    """Counts up; answers only while `answers` is set."""

    def __init__(self) -> None:
        self.number = 0
        self.answers = asyncio.Event()
        self.answers.set()
        self.is_away = False

    async def read(self) -> int:
        await self.answers.wait()
        if self.is_away:
            raise Unavailable("it is away")
        self.number += 1
        return self.number


@pytest.fixture
def source() -> _Source:
    return _Source()


async def test_what_is_known_is_not_read_again_within_its_time(source: _Source) -> None:
    fresh = CachedRead(source.read, 3600.0)
    assert [await fresh.known(), await fresh.known(), await fresh.get()] == [1, 1, 1]


async def test_what_was_last_known_counts_while_it_cannot_be_read(source: _Source) -> None:
    stale = CachedRead(source.read, -1.0)
    assert await stale.known() == 1
    source.is_away = True
    assert await stale.known() == 1
    with pytest.raises(Unavailable):
        await stale.get()
    source.is_away = False
    assert await stale.known() == 2


async def test_who_knows_it_does_not_wait_long_for_news(source: _Source, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cooperative, "PATIENCE_SECONDS", 0)
    stale = CachedRead(source.read, -1.0)
    assert await stale.get() == 1
    source.answers.clear()
    assert await stale.known() == 1
    source.answers.set()


async def test_who_knows_nothing_waits_and_is_told_why(source: _Source) -> None:
    source.is_away = True
    with pytest.raises(Unavailable, match="it is away"):
        await CachedRead(source.read, -1.0).known()
