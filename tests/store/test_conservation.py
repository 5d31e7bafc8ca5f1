"""The conservation check itself: it finds each planted contradiction, and none in an intact store."""

from typing import Any

import pytest

from tests.conservation import conserved
from tests.store.acts import armed, bucket_of, cancelled, finished, running
from timers.bare.keys import BareKeys, KeyState
from timers.store.store import Store
from timers.testing.fake import fake_connections

R = "timers:{0}:"
PLANTS: dict[str, tuple[tuple[object, ...], str]] = {
    "a count too high": (("HINCRBY", R + "counts", "s reminder", 1), "reminder counts 3 scheduled, there are 2"),
    "a count that stayed at zero": (
        ("HSET", R + "counts", "f other", 0),
        "other still has a count of failed, and it is 0",
    ),
    "a count of nothing": (("HSET", R + "counts", "f other", 1), "other counts 1 failed, there are 0"),
    "an entry without a timer": (("ZADD", R + "due:reminder", 5, "x"), "due index: ('reminder', 'x') is left over"),
    "a timer without an entry": (("ZREM", R + "due:reminder", "waits"), "due index: ('reminder', 'waits') is missing"),
    "an entry at another time": (("ZADD", R + "due:reminder", 5, "waits"), "has 5, its record says"),
    "a head too late": (("ZADD", R + "heads", 9e12, "reminder"), "heads: reminder has 9000000000000.0"),
    "a head of nothing": (("ZADD", R + "heads", 5, "other"), "heads: other is left over"),
    "a trigger without a timer": (("SET", "reminder:{0}:x", 1), "has a trigger key and is not in the due index"),
    "a timer without a trigger": (("DEL", "reminder:{0}:waits"), "is due later and has no trigger key"),
    "a run that no index has": (("ZREM", R + "leases", "reminder:runs"), "leases: ('reminder', 'runs') is missing"),
    "a lease of no run": (("SET", R + "lease:reminder:done", "pod-1 7"), "its running token is None"),
    "a lease under another token": (("SET", R + "lease:reminder:runs", "pod-1 7"), "has a lease 'pod-1 7'"),
    "an end that no index has": (("DEL", R + "finished:c:reminder"), "finished index: "),
    "an index of a timer that goes on": (("ZADD", R + "finished:x:reminder", 5, "waits"), "'waits')) is left over"),
    "a token that was never given": (("SET", R + "token", 5), "the shard gave only 5"),
    "a record nobody can read": (("HSET", bucket_of("reminder:y"), "reminder:y", "?"), "cannot be read"),
    "a wait for nothing": (("ZREM", R + "bare", "reminder:adopted"), "waits for a bare key of which nothing is known"),
    "a key of a shard that nobody knows": (("SET", R + "what", 1), "timers:{0}:what is no key of the protocol"),
    "a key that nobody knows": (("SET", "timers:what", 1), "timers:what is no key of the protocol"),
}
"""Fault → the command that plants it, what the check says of it."""


async def in_order() -> Store:
    """A store with a timer in every possible place."""
    store = Store(fake_connections())
    await running(store, "runs")
    await finished(store, "done")
    await cancelled(store, "off")
    await armed(store, "waits", due="+3600000")
    later, adopted = KeyState(None, await store.now_ms() + 7_200_000, b"1"), ("reminder", "adopted")
    assert await BareKeys(store).report("adopted", {adopted: later}) == {adopted: "adopted"}
    return store


async def test_an_intact_store_passes_the_checks() -> None:
    await conserved(await in_order())


@pytest.mark.parametrize("fault", PLANTS)
async def test_a_planted_contradiction_is_found(fault: str) -> None:
    command, said = PLANTS[fault]
    store = await in_order()
    redis: Any = store.connections.commands
    await redis.execute_command(*command)
    with pytest.raises(AssertionError) as caught:
        await conserved(store)
    assert said in str(caught.value)
