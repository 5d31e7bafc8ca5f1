"""The canary alone: how it judges an event that comes in time, late, or not at all."""

import asyncio
import math
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import pytest
from redis.exceptions import ResponseError

from tests.engine.fleet import options_of, until
from tests.engine.judging import judging
from tests.waiting import DEADLINE_SECONDS
from timers.bare.keys import Heard
from timers.engine.canary import Canary
from timers.engine.pod import Pod
from timers.errors import RedisRights, Unavailable
from timers.processor import Registry
from timers.store.keys import canary_key
from timers.store.servers import connect
from timers.store.servers.connections import Connections
from timers.store.store import Store

AT_MS: Final = 1_795_000_000_000
X: Final = ("note", "x")


class _Rig:
    """A canary on a fake server: the test decides when the key is gone and whether its expiry is announced."""

    def __init__(self, **seconds: float) -> None:
        server: Any = self
        self.connection_pool, self.connection_kwargs = self, dict[str, str]()
        self.store = Store(Connections(server, 0, server))
        given: dict[str, Any] = {"canary_every_seconds": 0.0, "deaf_seconds": 0.05, **seconds}
        pod = Pod(self.store, Registry([]), options_of(**given))
        self.canaries, self.canary = judging(pod)
        self.touches_until_gone = 1
        self.announces = True
        self.announce_after = 0.0
        self.rounds = 0
        self.announced_ms = float("inf")
        self.ahead_ms: list[float] = []
        self.names: list[str] = []
        self.trouble: Exception | None = None

    async def execute_command(self, _evalsha: str, _digest: str, _keys: int, key: str, *_: object) -> list[int]:
        """Arm the canary, as `canary.lua` does."""
        if self.trouble is not None:
            raise self.trouble
        self.names.append(key.removeprefix(canary_key("")))
        if self.rounds:
            self.ahead_ms.append(self.canary.count(("note", "x")).since_ms - self.announced_ms)
        self.rounds += 1
        self.announced_ms = self.store.clock.now_ms()
        self.touches_left = self.touches_until_gone
        return [int(self.announced_ms)]

    async def exists(self, _key: str) -> bool:
        """Touch the canary."""
        self.touches_left -= 1
        if self.touches_left == 0 and self.announces:
            at_ms = int(self.announced_ms)
            asyncio.get_running_loop().call_later(self.announce_after, self.canary.heard, self.names[-1], at_ms)
        return self.touches_left > 0


@asynccontextmanager
async def running_canary(**seconds: float) -> AsyncIterator[_Rig]:
    rig = _Rig(**seconds)
    running = asyncio.create_task(rig.canaries.run())
    yield rig
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


@pytest.fixture(autouse=True)
def due_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("timers.engine.canary.LIFE_MS", 0)


@pytest.fixture
async def rig() -> AsyncIterator[_Rig]:
    async with running_canary() as made:
        yield made


async def rounds(rig: _Rig, more: int = 2) -> None:
    """Wait for complete rounds from now."""
    wanted = rig.rounds + more
    await until(lambda: rig.rounds >= wanted, "a few rounds")


async def test_events_after_a_canary_that_expired_untouched_do_not_count_as_heard(rig: _Rig) -> None:
    """If the pod hangs between arming and touching, the events of that time are still unread."""
    rig.touches_until_gone = 5
    await rounds(rig)
    assert max(rig.ahead_ms) <= 0


async def test_an_event_in_time_is_ok(rig: _Rig) -> None:
    await rounds(rig)
    assert rig.canary.delivery == "ok"


async def test_the_key_is_touched_until_it_is_gone(rig: _Rig) -> None:
    """Redis expires strictly after the deadline, so a first touch may come too soon."""
    rig.touches_until_gone = 5
    await rounds(rig)
    assert rig.canary.delivery == "ok"


async def test_delivery_has_failed_until_an_event_arrives(rig: _Rig) -> None:
    rig.announces = False
    await until(lambda: rig.canary.delivery == "deaf", "delivery failed")
    rig.announces = True
    await until(lambda: rig.canary.delivery == "ok", "events arrive again")


async def test_an_event_that_takes_its_time_is_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("timers.engine.canary.LATE_SECONDS", 0.005)
    async with running_canary(deaf_seconds=DEADLINE_SECONDS) as rig:
        rig.announce_after = 0.02
        await until(lambda: rig.canary.delivery == "late", "it is late")
        assert rig.canary.delivery != "deaf"


async def test_another_pods_canary_is_not_taken_for_its_own(rig: _Rig) -> None:
    rig.announces = False
    for _ in range(3):
        rig.canary.heard(rig.names[-1].replace("a", "b"), AT_MS)
    await rounds(rig)
    assert rig.canary.delivery == "deaf"


async def test_an_event_of_an_earlier_round_does_not_count_for_a_later_one(rig: _Rig) -> None:
    """A pod that had stood still took an old event for the newest, and events unread between them for heard."""
    rig.announces = False
    await rounds(rig)
    rig.canary.heard(rig.names[-2], AT_MS)
    await rounds(rig, 3)
    assert rig.canary.delivery == "deaf"
    assert len(set(rig.names)) == len(rig.names)


async def test_a_canary_whose_subscription_is_replaced_judges_nothing() -> None:
    """Its event may have gone with the subscription; a pod that was deaf took itself for one that hears."""
    rig = _Rig()
    rig.announces = False
    await rig.canary.judge()
    judged = asyncio.create_task(rig.canary.judge())
    await until(lambda: rig.rounds == 2 and rig.touches_left == 0, "it waits for the event")
    rig.canary.resubscribed(AT_MS)
    await judged
    assert rig.canary.delivery == "deaf"


async def test_a_pod_that_stood_still_is_not_deaf_if_the_event_waits_to_be_read() -> None:
    """Its listener dropped the subscription, with everything that had come over it meanwhile."""
    async with running_canary(deaf_seconds=0.5) as rig:
        await rounds(rig)
        rig.announces = False
        await rounds(rig, 1)
        await until(lambda: rig.touches_left == 0, "it waits for the event")
        silence = asyncio.create_task(rig.canary.next_failure())
        await asyncio.sleep(0)
        time.sleep(0.6)  # noqa: ASYNC251 (it stands still)
        rig.announces = True
        asyncio.get_running_loop().call_later(0.005, rig.canary.heard, rig.names[-1], AT_MS)
        await rounds(rig)
        assert not silence.done()
        silence.cancel()


async def test_what_a_pod_has_heard_counts_from_before_it_asked_for_the_subscription(rig: _Rig) -> None:
    """A pod that stood still before it read the confirmation took what had come meanwhile for news."""
    _, canary = judging(Pod(rig.store, Registry([]), options_of("b")))
    canary.resubscribed(AT_MS)
    assert canary.count(X) == Heard(AT_MS, "b", 1)


def _two() -> tuple[Canary, Canary]:
    """Those of two pods that have just subscribed to one server."""
    store = Store(connect("redis://nowhere.invalid"))
    store.clock.observe(AT_MS, time.monotonic(), time.monotonic())
    one, other = (judging(Pod(store, Registry([]), options_of(name)))[1] for name in "ab")
    one.resubscribed(AT_MS)
    other.resubscribed(AT_MS + 1)
    return one, other


async def test_pods_that_have_heard_a_canary_of_any_pod_count_expiries_alike() -> None:
    one, other = _two()
    assert (one.count(X), other.count(X)) == (Heard(AT_MS, "a", 1), Heard(AT_MS + 1, "b", 1))
    for number in (1, 2):
        for canary in (one, other):
            canary.heard("a:1", AT_MS + 50)
            assert canary.count(X) == Heard(AT_MS + 50, "", number)
            assert canary.count(("note", f"y{number}")) == Heard(AT_MS + 50, "", 1)
    other.heard("c:9", AT_MS + 60)
    assert other.count(X) == Heard(AT_MS + 60, "", 1)


async def test_a_new_subscription_counts_alone_again() -> None:
    one, _ = _two()
    one.heard("a:1", AT_MS + 50)
    one.resubscribed(AT_MS + 100)
    assert one.count(X) == Heard(AT_MS + 100, "a", 1)


@pytest.mark.parametrize("at_ms", [0, AT_MS - 1, AT_MS, AT_MS + 60_000])
async def test_a_canary_that_is_old_or_forged_changes_no_count(at_ms: int) -> None:
    """It may have expired before this pod subscribed, and come late; an earlier version's says no time."""
    one, _ = _two()
    one.heard("c:9", at_ms)
    assert one.count(X) == Heard(AT_MS, "a", 1)


async def test_after_the_servers_clock_was_set_back_canaries_count_again() -> None:
    """A pod that has subscribed since counts by them; the others went on with the last of before."""
    one, _ = _two()
    one.heard("c:9", AT_MS + 50)
    one._pod.store.clock.observe(AT_MS - 3_600_000, time.monotonic(), time.monotonic())
    one.heard("a:1", AT_MS - 3_600_000)
    assert one.count(X) == Heard(AT_MS - 3_600_000, "", 1)


async def test_what_is_counted_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("timers.engine.canary.COUNTED", 2)
    one, _ = _two()
    numbers = [one.count(("note", str(number % 4))).number for number in range(8)]
    assert numbers == [1, 1, 1, 1, 2, 2, 1, 1]


async def test_a_pod_receives_events_only_while_subscribed_and_delivered_to(rig: _Rig) -> None:
    assert not rig.canary.receives_events()
    rig.canary.resubscribed(AT_MS)
    assert rig.canary.receives_events()
    rig.announces = False
    await until(lambda: rig.canary.delivery == "deaf", "delivery failed")
    assert not rig.canary.receives_events()
    rig.announces = True
    await until(rig.canary.receives_events, "events arrive again")
    rig.canary.subscribed = False
    assert not rig.canary.receives_events()


async def test_a_fresh_subscription_ends_the_pause() -> None:
    async with running_canary(canary_every_seconds=3_600.0) as rig:
        await until(lambda: rig.rounds, "the first round")
        for _ in range(3):
            before = rig.rounds

            def judged(before: int = before) -> bool:
                rig.canary.resubscribed(AT_MS)
                return rig.rounds > before

            await until(judged, "another round")


async def test_next_failure_returns_once_a_canary_is_not_heard(rig: _Rig) -> None:
    await until(lambda: rig.rounds > 1, "a canary is heard")
    rig.announces = False
    await rig.canary.next_failure()
    rig.announces = True
    await until(lambda: rig.canary.delivery == "ok", "the next is heard again")


async def test_while_redis_refuses_it_ends_and_says_nothing_of_notifications() -> None:
    rig = _Rig()
    rig.canary.delivery, rig.canary.lag_seconds = "deaf", math.inf
    rig.trouble = Unavailable("takes no writes")
    with pytest.raises(Unavailable):
        await rig.canaries.run()
    assert rig.canaries.delivery == "ok"
    assert math.isnan(rig.canaries.lag_seconds)


async def test_a_right_that_it_lacks_is_named_in_the_same_words_each_time() -> None:
    """A service that waits says so once for each reason."""
    rig = _Rig()
    for number in (1, 2):
        rig.trouble = ResponseError(f"RIGHTS SET timers:canary:pod-1:{number}*")
        with pytest.raises(RedisRights) as refused:
            await rig.canary.judge()
        said = "may not SET timers:canary:*: its ACL needs +set and ~timers:*"
        assert str(refused.value).endswith(said)
        assert rig.store.refusals.lacks["timers"].endswith(said)
