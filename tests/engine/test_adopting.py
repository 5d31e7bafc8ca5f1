"""The adopter alone: when it looks after keys that are gone, and when it takes one for deleted."""

import asyncio
import time
from collections.abc import Sequence

import pytest

from tests.engine.fleet import until
from timers.core.durations import HOUR_MS
from timers.engine import adopter as module
from timers.engine.adopter import Adopter
from timers.engine.canary import Canary
from timers.engine.observer import Observer
from timers.engine.peers import Peers
from timers.engine.pod import Pod
from timers.processor import Registry
from timers.store.bare import BareKeys, Gone
from timers.store.connect import connect
from timers.store.store import Identity, Store

NOW_MS = 1_795_000_000_000
FIRST = Gone("note", "x", NOW_MS + HOUR_MS)
SECOND = Gone("note", "x", NOW_MS + 2 * HOUR_MS)


class _Looked(BareKeys):
    """Bare keys of which the test says which are gone, and what was concluded of them."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.gone: list[Gone] = []
        self.deleted: list[Gone] = []

    async def look(self, shard: int, start: int, most: int) -> tuple[list[Gone], int]:
        return self.gone, len(self.gone)

    async def conclude(self, shard: int, timers: Sequence[Gone], *, deleted: bool) -> None:
        self.deleted += timers if deleted else ()


@pytest.fixture
def store() -> Store:
    made = Store(connect("redis://nowhere.invalid"))
    made.clock.observe(NOW_MS, time.monotonic(), time.monotonic())
    return made


async def test_a_key_that_was_set_again_and_is_gone_again_is_doubted_anew(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ANNOUNCED_SECONDS", 0.0)
    bare, canary = _Looked(store), Canary(store, "a")
    pod = Pod("a", store, Registry([]), (0,), 4_000, Observer())
    adopter = Adopter(pod, bare, Peers(store, "a", dict), canary, every_ms=1_000)
    for gone in (FIRST, SECOND):
        bare.gone = [gone]
        await adopter._review(0)
        assert bare.deleted == []
        canary.last_heard_at = time.monotonic()
    await adopter._review(0)
    assert bare.deleted == [SECOND]


class _EndlessScan(_Looked):
    """Bare keys of which a scan never comes to an end, as among millions of keys."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.scanning = asyncio.Event()
        self.looks = 0

    async def scan(self, cursor: int) -> tuple[int, list[Identity]]:
        self.scanning.set()
        await asyncio.get_running_loop().create_future()
        return 0, []

    async def look(self, shard: int, start: int, most: int) -> tuple[list[Gone], int]:
        self.looks += 1
        return [], 0


async def test_a_key_that_went_without_an_event_is_looked_after_while_a_scan_lasts(store: Store) -> None:
    bare = _EndlessScan(store)
    pod = Pod("a", store, Registry([]), (0,), 4_000, Observer())
    adopter = Adopter(pod, bare, Peers(store, "a", dict), Canary(store, "a"), every_ms=3_600_000)
    working = asyncio.create_task(adopter.run())
    await bare.scanning.wait()
    await until(lambda: bare.looks, "the first look")
    looks = bare.looks

    def looked_again() -> bool:
        adopter.overdue()
        return bare.looks > looks

    await until(looked_again, "the look for what is overdue")
    working.cancel()
    await asyncio.gather(working, return_exceptions=True)
