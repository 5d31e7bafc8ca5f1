"""The canary alone: what it makes of an event that comes in time, late, or not at all."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.engine.fleet import until
from tests.waiting import DEADLINE_SECONDS
from timers.engine.canary import Canary, Hearing
from timers.errors import Unavailable
from timers.store.connect import Connections
from timers.store.keys import canary_key
from timers.store.store import Store


class _Cage:
    """A canary whose server is the test: it says when the key is gone, and whether that is announced."""

    def __init__(self, **seconds: float) -> None:
        server: Any = self
        self.store = Store(Connections(server, server, 0))
        given = {"every_seconds": 0.0, "deaf_seconds": 0.05, **seconds}
        self.canary = Canary(self.store, "a", life_ms=0, **given)
        self.touches_until_gone = 1
        self.announces = True
        self.announce_after = 0.0
        self.rounds = 0
        self.announced_ms = float("inf")
        self.sang_ahead: list[float] = []
        self.trouble: Exception | None = None

    async def evalsha(self, _digest: str, _keys: int, key: str, *_: object) -> None:
        """The canary is armed."""
        if self.trouble is not None:
            raise self.trouble
        assert key == canary_key("a")
        if self.rounds:
            self.sang_ahead.append(self.canary.heard_until_ms - self.announced_ms)
        self.rounds += 1
        self.announced_ms = self.store.clock.now_ms()
        self._left = self.touches_until_gone

    async def exists(self, _key: str) -> bool:
        """The canary is touched."""
        self._left -= 1
        if self._left == 0 and self.announces:
            asyncio.get_running_loop().call_later(self.announce_after, self.canary.heard, "a")
        return self._left > 0


@asynccontextmanager
async def singing(**seconds: float) -> AsyncIterator[_Cage]:
    cage = _Cage(**seconds)
    running = asyncio.create_task(cage.canary.run())
    yield cage
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


@pytest.fixture
async def cage() -> AsyncIterator[_Cage]:
    async with singing() as made:
        yield made


async def rounds(cage: _Cage, more: int = 2) -> None:
    """So many whole rounds from now."""
    wanted = cage.rounds + more
    await until(lambda: cage.rounds >= wanted, "a few rounds")


async def test_what_is_announced_after_a_canary_that_expired_untouched_does_not_count_as_heard(cage: _Cage) -> None:
    """As when the pod stands still between arming and touching it: what came meanwhile is still to be heard."""
    cage.touches_until_gone = 5
    await rounds(cage)
    assert max(cage.sang_ahead) <= 0


async def test_an_event_in_time_is_ok(cage: _Cage) -> None:
    await rounds(cage)
    assert cage.canary.hearing is Hearing.OK
    assert not cage.canary.is_deaf()


async def test_the_key_is_touched_until_it_is_gone(cage: _Cage) -> None:
    """Redis expires strictly after the deadline, so a first touch may come too soon."""
    cage.touches_until_gone = 5
    await rounds(cage)
    assert cage.canary.hearing is Hearing.OK


async def test_a_pod_without_events_is_deaf_until_one_arrives(cage: _Cage) -> None:
    cage.announces = False
    await until(cage.canary.is_deaf, "it is deaf")
    cage.announces = True
    await until(lambda: cage.canary.hearing is Hearing.OK, "it hears again")


async def test_an_event_that_takes_its_time_is_late() -> None:
    async with singing(late_seconds=0.005, deaf_seconds=DEADLINE_SECONDS) as cage:
        cage.announce_after = 0.02
        await until(lambda: cage.canary.hearing is Hearing.LATE, "it is late")
        assert not cage.canary.is_deaf()


async def test_another_pods_canary_is_not_taken_for_its_own(cage: _Cage) -> None:
    cage.announces = False
    for _ in range(3):
        cage.canary.heard("b")
    await rounds(cage)
    assert cage.canary.is_deaf()


async def test_an_event_of_an_earlier_round_does_not_count_for_a_later_one(cage: _Cage) -> None:
    cage.announces = False
    await rounds(cage)
    cage.canary.heard("a")
    await rounds(cage, 3)
    assert cage.canary.is_deaf()


async def test_a_pod_that_is_deaf_or_not_subscribed_cannot_hear(cage: _Cage) -> None:
    assert not cage.canary.can_hear()
    cage.canary.resubscribed()
    assert cage.canary.can_hear()
    cage.announces = False
    await until(cage.canary.is_deaf, "it is deaf")
    assert not cage.canary.can_hear()
    cage.announces = True
    await until(cage.canary.can_hear, "it hears again")
    cage.canary.unsubscribed()
    assert not cage.canary.can_hear()


async def test_a_fresh_subscription_ends_the_pause() -> None:
    async with singing(every_seconds=3_600.0) as cage:
        await until(lambda: cage.rounds, "the first round")
        for _ in range(3):
            before = cage.rounds

            def judged(before: int = before) -> bool:
                cage.canary.resubscribed()
                return cage.rounds > before

            await until(judged, "another round")


async def test_whoever_waits_for_silence_is_told_of_the_next(cage: _Cage) -> None:
    await until(lambda: cage.rounds > 1, "a canary is heard")
    cage.announces = False
    await cage.canary.next_silence()
    cage.announces = True
    await until(lambda: cage.canary.hearing is Hearing.OK, "the next is heard again")


async def test_without_redis_it_ends_and_its_last_judgement_stays() -> None:
    cage = _Cage()
    cage.trouble = Unavailable("away")
    with pytest.raises(Unavailable):
        await cage.canary.run()
    assert cage.canary.hearing is Hearing.OK
