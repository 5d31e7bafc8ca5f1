"""The audit: it rebuilds deleted indexes and counts of a shard, and moves unreadable records to quarantine."""

import hashlib
import re
from collections import Counter
from typing import Any

import pytest

from tests.conservation import conserved, state_of
from tests.store.acts import PREFIX, an_end, armed, arming, claim, finished, prune, put, running, settle
from tests.store.listening import wakes
from timers.core.model import Status
from timers.store import keys
from timers.store.store import Store
from timers.store.upkeep import audit, compare, uncounted

FAR_MS = 2**53
HOUR = "+3600000"


async def repaired(store: Store) -> Counter[str]:
    """Run the audit and return what it found. A second run must find nothing, and the books must balance."""
    total: Counter[str] = Counter()
    async for found in audit(store, 0):
        total.update(found)
    await conserved(store)
    assert [found async for found in audit(store, 0) if found] == []
    return total


async def many_of_all(store: Store) -> None:
    """Arm timers in every status, in several prefixes."""
    await finished(store, "finished")
    await store.arm([arming(f"later-{n}", due=HOUR) for n in range(150)])
    await store.arm([arming(f"other-{n}", prefix="other", due=HOUR) for n in range(5)])
    await store.arm([arming(f"due-{n}") for n in range(5)])
    await store.arm([arming(f"run-{n}", prefix="runs") for n in range(3)])
    assert len(await claim(store, prefix="runs")) == 3
    await store.arm([arming(f"fail-{n}", prefix="fails") for n in range(3)])
    await settle(store, *(an_end(t, Status.SCHEDULED, failures=1) for t in await claim(store, prefix="fails")))
    await put(store, "cancelled", due=HOUR)
    await store.cancel(PREFIX, "cancelled")


async def test_an_intact_db_is_left_alone(store: Store) -> None:
    await many_of_all(store)
    before = await state_of(store)
    assert await repaired(store) == {}
    before.now_ms = (after := await state_of(store)).now_ms
    for state in (before, after):  # a due trigger may expire by itself, also one that is missing in the index
        later = {name for name in state.triggers if state.due.get(name, FAR_MS) > after.now_ms}
        state.triggers = {name for name in later if not name[1].startswith("due-")}
    assert after == before


@pytest.mark.parametrize(
    ("key", "found"),
    [
        ("due:reminder", {"due"}),
        ("heads", {"heads"}),
        ("counts", {"counts"}),
        ("prefixes", {"prefixes"}),
        ("leases", {"leases"}),
        ("finished:c:reminder", {"finished"}),
        ("finished:x:reminder", {"finished"}),
        ("retrying:fails", {"retrying"}),
        ("retrying", {"counts"}),
    ],
)
async def test_deleted_indexes_come_back(store: Store, key: str, found: set[str]) -> None:
    await many_of_all(store)
    before = await state_of(store)
    assert await store.connections.commands.delete(f"timers:{{0}}:{key}") == 1
    assert found <= set(await repaired(store))
    after = await state_of(store)
    assert (after.due.keys(), after.heads.keys(), after.counts) == (
        before.due.keys(),
        before.heads.keys(),
        before.counts,
    )
    assert (after.leases.keys(), after.finished.keys()) == (before.leases.keys(), before.finished.keys())
    assert after.prefixes == before.prefixes


async def test_prefixes_that_the_index_has_wrongly_leave_it(store: Store) -> None:
    await armed(store, due=HOUR)
    await store.connections.commands.zadd("timers:{0}:prefixes", {PREFIX: 7, "gone": 0, "strange": 9, keys.WHOLE: 0})
    assert (await repaired(store))["prefixes"] == 3
    assert await store.connections.commands.zrange("timers:{0}:prefixes", 0, -1) == [b"reminder", b"~"]


async def test_all_indexes_at_once_come_back(store: Store) -> None:
    await many_of_all(store)
    before = await state_of(store)
    redis = store.connections.commands
    keys: list[Any] = await redis.keys("timers:{0}:*")
    lost = [key for key in keys if not re.search(rb":(rec|lease|token)", key)]
    await redis.delete(*lost)
    await repaired(store)
    after = await state_of(store)
    assert (after.due.keys(), after.counts, after.leases.keys()) == (
        before.due.keys(),
        before.counts,
        before.leases.keys(),
    )


@pytest.mark.parametrize("wrong", ["0", "-3", "99999", "garbage"])
async def test_wrong_counts_are_corrected(store: Store, wrong: str) -> None:
    await many_of_all(store)
    before = (await state_of(store)).counts
    for field in ("s reminder", "r runs", "c reminder", "s nobody"):
        await store.connections.commands.hset("timers:{0}:counts", field, wrong)
    assert (await repaired(store))["counts"] == 4
    assert (await state_of(store)).counts == before


async def test_a_due_time_that_disagrees_with_the_record_is_corrected(store: Store) -> None:
    timer = await armed(store, due=HOUR)
    await store.connections.commands.zadd("timers:{0}:due:reminder", {"a": 5})
    assert (await repaired(store))["due"] == 1
    assert int((await state_of(store)).due[PREFIX, "a"]) == timer.due_ms


async def test_a_run_whose_lease_is_listed_again_is_not_rescued_while_it_is_held(store: Store) -> None:
    run = await running(store)
    await store.connections.commands.delete("timers:{0}:leases")
    await repaired(store)
    assert (await state_of(store)).leases[PREFIX, "a"] > await store.now_ms()
    assert await store.extend(0, [run], pod="pod-1", lease_ms=1000) == []


async def test_the_sweepers_were_not_woken_for_a_lost_run_that_is_listed_again(store: Store) -> None:
    await running(store)
    await store.connections.commands.delete("timers:{0}:leases", "timers:{0}:lease:reminder:a")
    async with wakes(store) as heard:
        await repaired(store)
        (ends_ms,) = (await state_of(store)).leases.values()
        assert await heard() == [f"{{0}} {ends_ms:.0f}"]


async def test_a_finished_timer_that_was_armed_again_is_not_pruned_by_what_was_left_over(store: Store) -> None:
    await armed(store, due=HOUR)
    await store.connections.commands.zadd("timers:{0}:finished:c:reminder", {"a": 1})
    assert (await repaired(store))["left over"] == 1
    assert await prune(store, retention_ms=0, most=10) == 0


@pytest.mark.parametrize("record", ["", "no record", "0 s 1 0 0 0 1 5 5 0\n{}\n"])
async def test_an_unreadable_record_is_quarantined_with_the_reason(store: Store, record: str) -> None:
    await armed(store, "good", due=HOUR)
    await armed(store, "bad", due=HOUR)
    redis = store.connections.commands
    bucket = hashlib.sha1(b"reminder:bad", usedforsecurity=False).hexdigest()[:2]
    await redis.hset(f"timers:{{0}}:rec:{bucket}", "reminder:bad", record)
    assert (await repaired(store))["unreadable"] == 1
    state = await state_of(store)
    assert list(state.records) == [(PREFIX, "good")]
    assert list(state.quarantine) == [(PREFIX, "bad")]


async def test_an_entry_without_a_record_is_quarantined(store: Store) -> None:
    await armed(store, "good", due=HOUR)
    await store.connections.commands.zadd("timers:{0}:due:reminder", {"ghost": 5})
    assert (await repaired(store))["no record"] == 1
    assert (await state_of(store)).quarantine.keys() == {(PREFIX, "ghost")}


@pytest.mark.parametrize(
    ("key", "found"),
    [("due:reminder", "due"), ("heads", "heads"), ("held", ""), ("counts", "counts"), ("prefixes", "prefixes")],
)
async def test_a_foreign_value_in_place_of_an_index_is_moved_aside(store: Store, key: str, found: str) -> None:
    await armed(store, due=HOUR)
    redis, name = store.connections.commands, f"timers:{{0}}:{key}"
    await redis.set(name, "foreign")
    looked = [seen async for seen in compare(store, 0) if seen]
    assert looked or key == "held"
    assert (await repaired(store))[found] == bool(found)
    assert await redis.get(f"timers:{{0}}:displaced:{name}") == b"foreign"


async def test_records_of_a_prefix_that_lost_counts_heads_and_indexes_are_uncounted(store: Store) -> None:
    await many_of_all(store)
    assert await uncounted(store, 0) == {}
    await store.connections.commands.delete("timers:{0}:counts", "timers:{0}:heads", "timers:{0}:due:other")
    assert await uncounted(store, 0) == {"uncounted records": len((await state_of(store)).records)}
    await repaired(store)
    assert await uncounted(store, 0) == {}


@pytest.mark.parametrize("key", ["due:reminder", "heads", "counts", "prefixes"])
async def test_a_quick_look_reports_it_and_changes_nothing(store: Store, key: str) -> None:
    await many_of_all(store)
    assert [found async for found in compare(store, 0) if found] == []
    await store.connections.commands.delete(f"timers:{{0}}:{key}")
    before = await state_of(store)
    assert [found async for found in compare(store, 0) if found] != []
    before.now_ms = (after := await state_of(store)).now_ms
    for state in (before, after):  # a due trigger may expire by itself, also one that is missing in the index
        later = {name for name in state.triggers if state.due.get(name, FAR_MS) > after.now_ms}
        state.triggers = {name for name in later if not name[1].startswith("due-")}
    assert after == before
    await repaired(store)


async def test_a_paused_queues_head_stays_held(store: Store) -> None:
    await armed(store, due=HOUR)
    await store.pause(PREFIX, paused=True)
    await store.connections.commands.delete("timers:{0}:held")
    assert (await repaired(store))["heads"] == 1
    assert await store.connections.commands.zscore("timers:{0}:held", PREFIX) is not None
    assert await store.connections.commands.zscore("timers:{0}:heads", PREFIX) is None
