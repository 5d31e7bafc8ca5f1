"""A pod that hears nothing: its sweep claims at once, and a cut subscription is soon up again."""

import asyncio
import math
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.engine.fleet import options_of, until
from tests.engine.judging import judging
from tests.servers import start_server
from tests.waiting import eventually, patient
from timers import Context, Timer
from timers.client import open_store
from timers.embedded import Family
from timers.engine.canary import Canaries
from timers.engine.hooks import Hooks
from timers.engine.intake import Intake
from timers.engine.listener import Listener
from timers.engine.peers import Peers
from timers.engine.pod import Counted, Observer, Pod
from timers.engine.sweeper import Sweeper
from timers.errors import Unavailable
from timers.processor import Registry, processor
from timers.store.membership import Member, Membership
from timers.store.notifications import Notification, Sink
from timers.store.servers import connect
from timers.store.store import Store, Touched

pytestmark = pytest.mark.every_server


@processor("note")
async def _note(_timer: Timer, _context: Context) -> None:
    """Do nothing."""


class _DueJustNow(Store):
    """A store in which every look finds a timer that became due a millisecond ago. `during` is called in each look."""

    def __init__(self) -> None:
        super().__init__(connect("redis://nowhere.invalid"))
        self.clock.observe(1_000_000, 0.0, 0.0)
        self.looked = asyncio.Event()
        self.during: Callable[[], None] = self.looked.set

    async def touch(self, shard: int, rank: int = 0, *, joins: bool = False) -> Touched:
        self.during()
        now_ms = round(self.clock.now_ms())
        return Touched(now_ms, None, {"note": now_ms - 1})


def _pod(store: Store, observer: Observer | None = None, **options: Any) -> Pod:
    return Pod(store, Registry([_note]), options_of(**options), observer or Observer())


class _Rig:
    """A sweeper without the rest of its pod, which has not subscribed yet."""

    def __init__(self) -> None:
        self.store, self.intake = _DueJustNow(), Intake()
        pod = _pod(self.store)
        canaries, self.canary = judging(pod)
        self.sweeper = Sweeper(pod, self.intake, Peers(Membership(self.store), Member("a")), canaries)

    async def marks_after_a_poll(self) -> bool:
        """True if the sweep's next look, until it sleeps again, marks what it finds."""
        sweeping = asyncio.create_task(self.sweeper.run())
        await asyncio.wait([sweeping, asyncio.create_task(self.store.looked.wait())], return_when="FIRST_COMPLETED")
        sweeping.cancel()
        await asyncio.gather(sweeping, return_exceptions=True)
        return bool(self.intake.take(100))


async def _after_a_gap_was_swept(rig: _Rig) -> None:
    rig.canary.resubscribed(0)
    assert await rig.marks_after_a_poll()
    rig.store.looked.clear()


async def test_pod_that_can_hear_leaves_a_timer_due_just_now_to_its_event() -> None:
    rig = _Rig()
    await _after_a_gap_was_swept(rig)
    rig.sweeper.wake(0, 0)
    assert not await rig.marks_after_a_poll()


async def test_timers_wait_for_events_that_cannot_come_while_the_subscription_is_cut() -> None:
    rig = _Rig()
    await _after_a_gap_was_swept(rig)
    rig.canary.subscribed = False
    rig.sweeper.wake(0, 0)
    assert await rig.marks_after_a_poll()


async def test_a_gap_during_a_look_that_failed_was_forgotten() -> None:
    rig = _Rig()
    await _after_a_gap_was_swept(rig)

    def fail() -> None:
        rig.sweeper.sweep_everything([0])
        raise Unavailable("away")

    rig.store.during = fail
    rig.sweeper.wake(0, 0)
    assert not await rig.marks_after_a_poll()
    rig.store.during = rig.store.looked.set
    assert await rig.marks_after_a_poll()


class _Subscriptions(Observer):
    """Records when the pod has heard that its subscription is up."""

    def __init__(self) -> None:
        super().__init__()
        self.confirmed = asyncio.Event()
        self.gaps: list[float] = []

    def count(self, what: Counted, *labels: str, by: float = 1) -> None:
        if what == "subscription_gap_seconds":
            self.gaps.append(by)
            self.confirmed.set()


@pytest.fixture
async def store(family: Family, tmp_path: Path) -> AsyncIterator[Store]:
    async with await start_server(family, tmp_path) as server:
        store = await open_store(connect(patient(server.url)))
        yield store
        await store.connections.close()


async def test_each_cut_of_the_subscription_makes_the_next_one_come_later(store: Store) -> None:
    """The listener handles a cut by itself: if it failed instead, the supervisor would pause for longer each
    time."""
    subscriptions = _Subscriptions()
    pod = _pod(store, subscriptions)
    listening = asyncio.create_task(_listener(pod, Canaries(pod)).run())

    async def cut() -> bool:
        return bool(await store.connections.commands.client_kill_filter(_type="pubsub"))

    for number in range(5):
        await subscriptions.confirmed.wait()  # only a subscription that lasts this long shows that the server is back
        subscriptions.confirmed.clear()
        await eventually(cut, f"subscription {number} is there to be cut")
    assert not listening.done()
    listening.cancel()
    await asyncio.gather(listening, return_exceptions=True)
    assert subscriptions.gaps[0] == 0
    assert all(seconds > 0 for seconds in subscriptions.gaps[1:])


def _listener(pod: Pod, canaries: Canaries) -> Listener:
    peers, intake = Peers(Membership(pod.store), Member("a")), Intake()
    sweeper = Sweeper(pod, intake, peers, canaries)
    hooks = Hooks(pod, peers)
    return Listener(pod, intake, sweeper, peers=peers, canaries=canaries, hooks=hooks, bare=None)


class _Line:
    """Stands for `listen`: confirms that many subscriptions, and then brings only what the test says."""

    def __init__(self, *brings: Notification, confirms: float = math.inf) -> None:
        self.brings, self.confirms, self.seen = brings, confirms, list[str]()

    async def __call__(self, _connections: object, sink: Sink) -> None:
        self.seen.append("opened")
        if self.seen.count("opened") <= self.confirms:
            sink("subscribed", 0)
        try:
            while True:
                await asyncio.sleep(0.001)
                for notification in self.brings:
                    sink(*notification)
        finally:
            self.seen.append("closed")


async def _silences(
    store: Store, line: _Line, monkeypatch: pytest.MonkeyPatch, wanted: Callable[[int], object]
) -> None:
    """Listen over this connection, which brings no canary, until `wanted` agrees with the number of silences."""
    monkeypatch.setattr("timers.engine.listener.listen", line)
    pod = _pod(store, canary_every_seconds=0.01, deaf_seconds=0.01)
    canaries, silences = Canaries(pod), 0
    services = [asyncio.create_task(s.run()) for s in (canaries, _listener(pod, canaries))]
    await until(lambda: canaries.by_node, "the listener has begun")
    (canary,) = canaries.by_node.values()
    while not wanted(silences):
        await canary.next_failure()
        silences += 1
    for service in services:
        service.cancel()
    await asyncio.gather(*services, return_exceptions=True)


async def test_a_silent_subscription_is_closed_only_after_the_next_is_open(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = _Line()
    await _silences(store, line, monkeypatch, lambda _: len(line.seen) >= 5)
    assert line.seen[:5] == ["opened", "opened", "closed", "opened", "closed"]


async def test_a_server_that_confirms_nothing_is_asked_for_one_more_subscription(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each silence would open another."""
    line = _Line(confirms=1)
    await _silences(store, line, monkeypatch, lambda silences: silences > 5)
    assert line.seen == ["opened", "opened", "closed", "closed"]


async def test_a_subscription_that_is_only_slow_is_not_closed(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it still held was lost with it."""
    line = _Line(("wake", 0, 1))
    await _silences(store, line, monkeypatch, lambda silences: silences > 5)
    assert line.seen == ["opened", "closed"]
