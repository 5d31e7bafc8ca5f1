"""What a pod says of a bare key that expired: how often it has heard that, and since when it was not answered."""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping

import pytest

from timers.engine.announcer import Announcer
from timers.engine.canary import Canary
from timers.engine.intake import Intake
from timers.engine.observer import Observer
from timers.engine.pod import Pod
from timers.processor import Registry
from timers.store.bare import BareKeys, Heard
from timers.store.connect import connect
from timers.store.store import Identity, Store

X = ("note", "x")
NOW_MS = 1_795_000_000_000
LONG_SECONDS = 6.0


class _Told(BareKeys):
    """What the server is told of X."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.of_x: asyncio.Queue[Heard] = asyncio.Queue()

    async def announce(self, shard: int, heard: Mapping[Identity, Heard]) -> list[str]:
        self.of_x.put_nowait(heard[X])
        return ["known"]


class _Telling:
    """An announcer of a pod that has subscribed at NOW_MS and heard no canary since."""

    def __init__(self) -> None:
        self.store = Store(connect("redis://nowhere.invalid"))
        self.store.clock.observe(NOW_MS, time.monotonic(), time.monotonic())
        self.canary, self.told = Canary(self.store, "a"), _Told(self.store)
        self.canary.listening_since_ms = NOW_MS
        pod = Pod("a", self.store, Registry([]), (0,), 4_000, Observer())
        self.announcer = Announcer(pod, self.told, Intake(), self.canary)

    async def said(self) -> Heard:
        """What is said of an expiry that is heard now."""
        self.announcer.heard(X, mine=True)
        return await self.told.of_x.get()


@pytest.fixture
async def telling() -> AsyncIterator[_Telling]:
    made = _Telling()
    working = asyncio.create_task(made.announcer.run())
    yield made
    working.cancel()
    await asyncio.gather(working, return_exceptions=True)


async def test_what_a_pod_hears_after_it_stood_still_was_said_since_the_canary_before(telling: _Telling) -> None:
    telling.canary.listening_since_ms -= 10 * LONG_SECONDS * 1000
    sang_ms = telling.store.clock.now_ms() - LONG_SECONDS * 1000
    telling.canary.last_heard_at = time.monotonic() - LONG_SECONDS
    said = await telling.said()
    assert sang_ms - 1 <= said.since_ms <= telling.store.clock.now_ms() - LONG_SECONDS * 1000


async def test_what_a_pod_hears_was_said_since_it_subscribed(telling: _Telling) -> None:
    assert await telling.said() == Heard(1, NOW_MS)


async def test_what_a_pod_hears_after_an_answer_was_said_since(telling: _Telling) -> None:
    telling.canary.listening_since_ms -= 1_000
    asked_ms = int(telling.store.clock.now_ms())
    assert (await telling.said()).since_ms < asked_ms
    said = await telling.said()
    assert said.times == 2
    assert said.since_ms >= asked_ms
