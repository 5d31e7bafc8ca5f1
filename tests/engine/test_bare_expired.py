"""What a pod reports of expired bare keys: how many expiries, in what order, and at what cost."""

import asyncio
import tracemalloc
from collections.abc import AsyncIterator, Collection, Mapping

import pytest
from structlog.testing import capture_logs

from timers.bare import watch
from timers.bare.keys import BareKeys, Heard
from timers.bare.watch import BareWatch
from timers.store.servers import connect
from timers.store.store import Identity, Store

X = ("note", "x")
HEARD = Heard(7, "", 1)
MANY = 100_000


class _Told(BareKeys):
    """Records what the server is told, and answers as the test says."""

    def __init__(self) -> None:
        super().__init__(Store(connect("redis://nowhere.invalid")))
        self.told: asyncio.Queue[dict[Identity, Heard]] = asyncio.Queue()
        self.codes: list[str] = []
        self.away: Exception | None = None

    async def announce(self, heard: Mapping[Identity, Heard]) -> dict[Identity, str]:
        if self.away is not None:
            raise self.away
        self.told.put_nowait(dict(heard))
        return {identity: self.codes.pop(0) if self.codes else "known" for identity in heard}


class _Watch(BareWatch):
    """Finds every key gone."""

    def __init__(self, keys: BareKeys) -> None:
        self.marks: list[tuple[int, str]] = []
        self.refusals: list[str] = []
        super().__init__(
            keys,
            leads=lambda: True,
            declared=lambda _prefix: True,
            every_ms=None,
            mark=lambda shard, prefix: self.marks.append((shard, prefix)),
            count=self.refusals.append,
        )
        self.inspected: list[Identity] = []

    async def inspect(
        self, identities: Collection[Identity], heard: Mapping[Identity, Heard] | None = None
    ) -> list[Identity]:
        assert heard is not None
        assert heard.keys() >= set(identities)
        self.inspected += identities
        return list(identities)


class _Pod:
    """The service that reports expired keys, on a fake server."""

    def __init__(self) -> None:
        self.keys = _Told()
        self.expired = _Watch(self.keys)

    async def said(self) -> dict[Identity, Heard]:
        return await self.keys.told.get()


@pytest.fixture
async def pod() -> AsyncIterator[_Pod]:
    made = _Pod()
    working = asyncio.create_task(made.expired.report())
    yield made
    working.cancel()
    await asyncio.gather(working, return_exceptions=True)


async def test_what_a_pod_hears_is_told_with_what_it_knows(pod: _Pod) -> None:
    pod.expired.heard(X, HEARD, mine=True)
    assert await pod.said() == {X: HEARD}


async def test_a_key_that_expires_again_at_once_is_told_again(pod: _Pod) -> None:
    pod.keys.codes = ["due", "due"]
    for number in (1, 2):
        heard = HEARD._replace(number=number)
        pod.expired.heard(X, heard, mine=True)
        assert await pod.said() == {X: heard}
    pod.expired.heard(("note", "last"), HEARD, mine=True)
    await pod.said()
    assert pod.expired.marks == [(0, "note")] * 2


async def test_an_expiry_of_another_pods_is_told_behind_its_own(pod: _Pod) -> None:
    pod.expired.heard(X, HEARD, mine=False)
    pod.expired.heard(("note", "mine"), HEARD, mine=True)
    assert list(await pod.said()) == [("note", "mine")]
    assert list(await pod.said()) == [X]


@pytest.mark.parametrize("code", ["running", "look"])
async def test_what_the_shard_cannot_say_yet_is_told_again(pod: _Pod, code: str) -> None:
    pod.keys.codes = [code]
    pod.expired.heard(X, HEARD, mine=True)
    assert [await pod.said(), await pod.said()] == [{X: HEARD}, {X: HEARD._replace(again=code == "running")}]
    assert pod.expired.inspected == ([X] if code == "look" else [])


async def test_what_was_not_answered_is_told_after_a_restart() -> None:
    made = _Pod()
    made.expired.heard(X, HEARD, mine=True)
    made.keys.away = OSError("away")
    with pytest.raises(OSError, match="away"):
        await made.expired.report()
    assert made.expired.marks == [(0, "note")], "its timer may be due, and only the answer is lost"
    made.keys.away = None
    working = asyncio.create_task(made.expired.report())
    assert await made.said() == {X: HEARD}
    working.cancel()
    await asyncio.gather(working, return_exceptions=True)


async def test_a_notification_costs_no_more_however_many_wait() -> None:
    """When 170,000 keys expired together, each copied what was held of all others. This blocked the loop for 3.4 s."""
    expired = _Pod().expired
    for number in range(MANY):
        expired.heard(("note", str(number)), HEARD, mine=number % 2 == 0)
    tracemalloc.start()
    for number in range(10):
        expired.heard(("note", f"one-more-{number}"), HEARD, mine=True)
        expired.take()
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 4 * MANY, "a copy of all that waits takes at least a pointer for each"


async def test_what_a_pod_remembers_of_expiries_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "MEMORY_LIMIT", 100)
    expired = _Pod().expired
    for number in range(1_000):
        expired.heard(("note", str(number)), HEARD, mine=True)
    assert expired.waiting == 100


async def test_refused_expiries_are_counted_and_logged_once_a_minute(pod: _Pod) -> None:
    pod.keys.codes = ["refused"] * 3
    with capture_logs() as logs:
        for _ in range(3):
            pod.expired.heard(X, HEARD, mine=True)
            await pod.said()
        pod.expired.heard(("note", "last"), HEARD, mine=True)
        await pod.said()
    assert pod.expired.refusals == ["refused"] * 3
    assert [(line["event"], line["timer"], line["count"]) for line in logs] == [
        ("announced bare keys changed nothing", "note:x", 1)
    ]
