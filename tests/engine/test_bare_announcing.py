"""What a pod says of bare keys that expired: how often it heard that, in what order, and at what cost."""

import asyncio
import time
import tracemalloc
from collections import OrderedDict
from collections.abc import AsyncIterator, Mapping

import pytest

from timers.bare import announcer as module
from timers.bare.adopter import Adopter
from timers.bare.announcer import Announcer
from timers.bare.keys import BareKeys, Heard
from timers.store.connect import connect
from timers.store.store import Identity, Store

X = ("note", "x")
MANY = 100_000


class _Told(BareKeys):
    """What the server is told, and what it answers to that."""

    def __init__(self) -> None:
        super().__init__(Store(connect("redis://nowhere.invalid")))
        self.told: asyncio.Queue[dict[Identity, Heard]] = asyncio.Queue()
        self.codes: list[str] = []

    async def announce(self, shard: int, heard: Mapping[Identity, Heard]) -> list[str]:
        self.told.put_nowait(dict(heard))
        return [self.codes.pop(0) if self.codes else "known" for _ in heard]


class _Looks(Adopter):
    """Finds of each key that it is gone."""

    def __init__(self, keys: BareKeys) -> None:
        super().__init__(keys, leads=lambda: True, declared=lambda _prefix: True, every_ms=None)
        self.looked: list[Identity] = []

    async def expired(self, identities: object) -> list[Identity]:
        self.looked += list(identities)  # type: ignore[call-overload]
        return self.looked[-1:]


class _Pod:
    """An announcer of a pod that has heard everything until 7, and what it says."""

    def __init__(self, limit: int = module.MEMORY_LIMIT) -> None:
        self.keys = _Told()
        self.looks = _Looks(self.keys)
        self.marks: list[tuple[int, str]] = []
        self.announcer = Announcer(
            self.keys,
            self.looks,
            mark=lambda shard, prefix: self.marks.append((shard, prefix)),
            heard_until_ms=lambda: 7,
            limit=limit,
        )

    async def said(self) -> dict[Identity, Heard]:
        return await self.keys.told.get()


@pytest.fixture
async def pod() -> AsyncIterator[_Pod]:
    made = _Pod()
    working = asyncio.create_task(made.announcer.run())
    yield made
    working.cancel()
    await asyncio.gather(working, return_exceptions=True)


async def test_what_a_pod_hears_is_told_with_what_it_knows(pod: _Pod) -> None:
    pod.announcer.heard(X, mine=True)
    assert await pod.said() == {X: Heard(1, 7)}


async def test_a_key_that_expires_again_at_once_is_told_again(pod: _Pod) -> None:
    pod.keys.codes = ["due", "due"]
    for times in (1, 2):
        pod.announcer.heard(X, mine=True)
        assert await pod.said() == {X: Heard(times, 7)}
    pod.announcer.heard(("note", "last"), mine=True)
    await pod.said()
    assert pod.marks == [(0, "note")] * 2


async def test_an_expiry_of_another_pods_is_told_behind_its_own(pod: _Pod) -> None:
    pod.announcer.heard(X, mine=False)
    pod.announcer.heard(("note", "mine"), mine=True)
    assert list(await pod.said()) == [("note", "mine")]
    assert list(await pod.said()) == [X]


@pytest.mark.parametrize("code", ["running", "look"])
async def test_what_the_shard_cannot_say_yet_is_told_again(pod: _Pod, code: str) -> None:
    pod.keys.codes = [code]
    pod.announcer.heard(X, mine=True)
    assert [await pod.said(), await pod.said()] == [{X: Heard(1, 7)}] * 2
    assert pod.looks.looked == ([X] if code == "look" else [])


async def test_what_was_not_answered_is_told_after_a_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    made = _Pod()

    async def fail(_shard: int, _heard: object) -> list[str]:
        raise OSError("away")

    made.announcer.heard(X, mine=True)
    with monkeypatch.context() as broken:
        broken.setattr(made.keys, "announce", fail)
        with pytest.raises(OSError, match="away"):
            await made.announcer.run()
    working = asyncio.create_task(made.announcer.run())
    assert await made.said() == {X: Heard(1, 7)}
    working.cancel()
    await asyncio.gather(working, return_exceptions=True)


async def test_a_notification_costs_no_more_however_many_wait() -> None:
    """Of 170,000 keys that expired together each copied what was held of all others: the loop was blocked 3.4 s."""
    announcer = _Pod().announcer
    for number in range(MANY):
        announcer.heard(("note", str(number)), mine=number % 2 == 0)
    tracemalloc.start()
    for number in range(10):
        announcer.heard(("note", f"one-more-{number}"), mine=True)
        announcer._take()
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 4 * MANY, "a copy of all that waits takes at least a pointer for each"
    assert isinstance(announcer._counted, OrderedDict), "a dict seeks its first item behind all that were removed"


async def test_what_a_pod_remembers_of_expiries_is_bounded(caplog: pytest.LogCaptureFixture) -> None:
    announcer = _Pod(limit=100).announcer
    for number in range(1_000):
        announcer.heard(("note", str(number)), mine=True)
    assert (len(announcer._pending), len(announcer._counted)) == (100, 100)


async def test_counts_of_long_ago_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    announcer = _Pod().announcer
    for number in range(10):
        announcer.heard(("note", str(number)), mine=True)
    later = time.monotonic() + module.COUNTED_SECONDS
    with monkeypatch.context() as aged:
        aged.setattr(time, "monotonic", lambda: later)
        for number in range(5):
            announcer.heard(("other", str(number)), mine=True)
    assert {prefix for prefix, _ in announcer._counted} == {"other"}
