"""Bare keys as the scripts and pods see them: adoption, changes by key and by API, deletion, expiry with nobody there."""

from tests.engine.fleet import Fleet
from timers.spec import TimerChange
from timers.store.bare import BareKeys

HOUR_MS = 3_600_000
X = ("note", "x")


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
