"""Bare keys as scripts and pods see them: adoption, changes by key and by API, deletion, expiry with nobody there."""

from tests.engine.fleet import Calls, Fleet, notes
from tests.waiting import eventually
from timers.core.model import Status, Timer
from timers.core.spec import TimerChange
from timers.store.bare import BareKeys, Heard

HOUR_MS = 3_600_000
OFTEN_MS = 50
"""A scan so often that tests need not wait for it."""

X = ("note", "x")


async def adopted(fleet: Fleet, key: str, prefix: str = "note") -> Timer:
    """The timer of a bare key, once a pod has adopted it."""

    async def look() -> Timer | None:
        (timer,) = await fleet.store.get([(prefix, key)])
        return timer if timer is not None and timer.status is Status.SCHEDULED else None

    timer = await eventually(look, f"{prefix}:{key} is adopted")
    assert timer is not None
    return timer


class TestChanges:
    async def test_a_change_of_an_adopted_timer_is_not_undone_by_the_next_scan(self, fleet: Fleet) -> None:
        bare = BareKeys(fleet.store)
        await fleet.redis.set("note:x", '"from the key"', px=HOUR_MS)
        assert await bare.adopt(0, {X: b'"from the key"'}) == ["adopted"]
        changed = await fleet.client.change("note", "x", TimerChange.parse({"payload": "from the API"}))
        assert await bare.adopt(0, await bare.values([X])) == []
        timer = await fleet.client.get("note", "x")
        assert (timer.payload, timer.due_ms, timer.version) == ("from the API", changed.due_ms, changed.version)
        assert await fleet.redis.pttl("note:{0}:x") > 0

    async def test_a_key_set_again_with_a_shorter_life_fires_when_that_is_over(self, fleet: Fleet) -> None:
        calls = Calls()
        await fleet.pod(calls, adopt_every_ms=OFTEN_MS)
        await fleet.redis.set("note:x", '{"n":1}', px=HOUR_MS)
        await adopted(fleet, "x")
        await fleet.redis.set("note:x", '{"n":1}', px=1)
        timer = await fleet.completed("x")
        assert [seen.payload for seen in calls.timers] == [{"n": 1}]
        assert timer.occurrence == 1

    async def test_an_expiry_told_late_does_not_fire_the_key_that_was_set_since(self, fleet: Fleet) -> None:
        """SET over a key that is due but not yet deleted announces the old one; a scan may be faster than the event."""
        bare = BareKeys(fleet.store)
        await fleet.redis.set("note:x", "1", px=HOUR_MS)
        assert await bare.adopt(0, {X: b"1"}) == ["adopted"]
        await fleet.redis.set("note:x", "2", px=2 * HOUR_MS)
        assert await bare.adopt(0, {X: b"2"}) == ["moved"]
        assert await bare.announce(0, {X: Heard(1, 0)}) == ["known"]
        timer = await fleet.client.get("note", "x")
        assert (timer.status, timer.payload, notes(timer)[-1]) == (Status.SCHEDULED, 2, "its bare key was set again")
        assert await fleet.redis.zcard("timers:{0}:due:note") == 0
