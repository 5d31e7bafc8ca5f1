"""What is put into the outbox, and what that costs if nobody asked for it."""

from typing import Any

import time_machine

from tests.conftest import SharedServers
from tests.store.acts import an_end, prune
from tests.store.backends import open_store
from timers.core.model import Status
from timers.store import keys, outbox
from timers.store.store import Arming, Store

ROOT = keys.root(0)


async def arm(store: Store, prefix: str, count: int = 20) -> None:
    await store.arm([Arming(prefix, f"a{n}", "+0", {}) for n in range(count)])


async def commands(store: Store, *names: str) -> list[int]:
    """How often each command was called since the last time, including calls by scripts."""
    redis: Any = store.connections.commands
    stats = await redis.info("commandstats")
    await redis.config_resetstat()
    return [stats.get(f"cmdstat_{name}", {}).get("calls", 0) for name in names]


async def test_a_script_looks_once_where_nobody_asked_and_writes_nothing(real: Store) -> None:
    await arm(real, "note")
    await commands(real)
    await arm(real, "other")
    assert await commands(real, "hkeys", "xlen", "xadd") == [1, 0, 0]
    claimed = await real.claim(0, [("note", 20)], pod="p", lease_ms=9000, cause="event")
    assert len(claimed.timers) == 20
    assert await commands(real, "hkeys", "xlen", "xadd") == [1, 0, 0]


async def test_only_requested_changes_are_posted(store: Store) -> None:
    await outbox.change_hooks(store, 0, ["ac send* timers.hook-1", "x note timers.hook-1"], ())
    for prefix in ("send", "send-mail", "sen", "note", "noted", "timers.hook-1"):
        await arm(store, prefix, 1)
        await store.cancel(prefix, "a0")
    await arm(store, "send-run", 1)
    (timer,) = (await store.claim(0, [("send-run", 1)], pod="p", lease_ms=9000, cause="event")).timers
    await store.settle(0, [an_end(timer)], pod="p", retention_ms=0)
    entries = await outbox.first(store, 0, 100)
    found = [(entry.timer.prefix, entry.letter, entry.timer.status) for entry in entries if entry.timer is not None]
    assert found == [
        ("send", "a", Status.SCHEDULED),
        ("send-mail", "a", Status.SCHEDULED),
        ("note", "x", Status.CANCELLED),
        ("send-run", "a", Status.SCHEDULED),
        ("send-run", "c", Status.COMPLETED),
    ]
    await outbox.drop(store, 0, entries)


async def test_a_full_outbox_takes_no_more_and_counts_what_it_drops(servers: SharedServers) -> None:
    async with open_store(servers, "redis") as store:
        redis = store.connections.commands
        await outbox.change_hooks(store, 0, ["a note timers.hook-1"], ())
        fill = "for _ = 1, 50000 do redis.call('XADD', KEYS[1], '*', 'a', 'b') end"
        for _ in range(20):
            await redis.eval(fill, 1, f"{ROOT}outbox")
        await arm(store, "note", 3)
        assert await redis.xlen(f"{ROOT}outbox") == 1_000_000
        entries = await outbox.first(store, 0, 10)
        assert {entry.timer for entry in entries} == {None}
        assert await outbox.drop(store, 0, entries) == 3
        assert await outbox.drop(store, 0, entries) == 0


async def test_foreign_values_in_the_place_of_its_keys_stop_nothing(real: Store) -> None:
    redis = real.connections.commands
    for key in ("hooks", "outbox"):
        await redis.set(f"{ROOT}{key}", "foreign")
    await redis.set(keys.HOOKS, "foreign")
    line = "a note timers.hook-1"
    assert await outbox.ask(real, [line], forget_ms=1000) == {line}
    assert await outbox.lengths(real, [0]) == [(frozenset(), 0)]
    await arm(real, "note", 1)
    await outbox.change_hooks(real, 0, [line], ())
    await arm(real, "note-not-asked-for", 1)
    await real.cancel("note", "a0")
    await real.rearm("note", "a0", cause="retried")
    entries = await outbox.first(real, 0, 10)
    assert [entry.letter for entry in entries] == ["a"]
    await redis.delete(keys.HOOKS)


async def test_completed_calls_go_after_an_hour_and_other_timers_after_their_retention(
    frozen: Store, clock: time_machine.Traveller
) -> None:
    for prefix in ("timers.hook-1", "note"):
        await arm(frozen, prefix, 2)
        clock.shift(1)
        done, failed = (await frozen.claim(0, [(prefix, 2)], pod="p", lease_ms=9000, cause="event")).timers
        ends = [an_end(done), an_end(failed, Status.FAILED)]
        await frozen.settle(0, ends, pod="p", retention_ms=86_400_000)
    clock.shift(3601)
    assert await prune(frozen, retention_ms=86_400_000, most=10) == 1
    left = await frozen.get([(p, f"a{n}") for p in ("timers.hook-1", "note") for n in range(2)])
    assert [timer is not None for timer in left] == [False, True, True, True]
