"""What Redis remembers of callers: each key's rate, requests that were seen, and valid and revoked keys."""

import time_machine

from timers.core.policies import Rate
from timers.store.callers import REVOKED, Callers
from timers.store.store import Store


async def test_a_rate_lets_a_burst_pass_and_then_says_how_long_to_wait(
    frozen: Store, clock: time_machine.Traveller
) -> None:
    callers, rate = Callers(frozen), Rate(interval_us=100_000, burst=3)
    assert [await callers.wait_ms("k", rate) for _ in range(4)] == [0, 0, 0, 100]
    assert await callers.wait_ms("other", rate) == 0
    clock.shift(0.030)
    assert await callers.wait_ms("k", rate) == 70
    clock.shift(0.070)
    assert [await callers.wait_ms("k", rate) for _ in range(2)] == [0, 100]
    clock.shift(60)
    assert [await callers.wait_ms("k", rate) for _ in range(4)] == [0, 0, 0, 100]


async def test_an_idle_key_leaves_nothing_behind(frozen: Store, clock: time_machine.Traveller) -> None:
    await Callers(frozen).wait_ms("k", Rate(interval_us=1000, burst=1))
    clock.shift(1)
    assert await frozen.connections.commands.keys("*") == []


async def test_a_request_is_seen_once_until_it_is_forgotten(frozen: Store, clock: time_machine.Traveller) -> None:
    callers = Callers(frozen)
    assert await callers.first_time("msg_1", 1000)
    assert not await callers.first_time("msg_1", 1000)
    assert await callers.first_time("msg_2", 1000)
    clock.shift(1.001)
    assert await callers.first_time("msg_1", 1000)


async def test_a_revoked_key_stays_revoked(store: Store) -> None:
    callers = Callers(store)
    await callers.keep("a", "entry")
    assert await callers.entries() == {"a": "entry"}
    assert await callers.revoke("a")
    assert not await callers.revoke("of-the-settings")
    assert await callers.entries() == {"a": REVOKED, "of-the-settings": REVOKED}
