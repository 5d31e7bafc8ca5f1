"""Records of a format that only a later version reads: whatever a script or a caller wants, they stay as they are."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.conservation import state_of
from tests.store.acts import (
    LEASE_MS,
    POD,
    PREFIX,
    an_end,
    armed,
    arming,
    bucket_of,
    cancelled,
    claim,
    finished,
    lease_ended,
    prune,
    put,
    read,
    running,
    settle,
)
from timers.bare.keys import GONE, BareKeys, Heard, KeyState
from timers.client import client_over
from timers.core.model import Status
from timers.errors import NewerFormat
from timers.store import queries
from timers.store.filters import Filter
from timers.store.listing import read_page
from timers.store.store import Store
from timers.store.upkeep import audit

NEWER = b"9 the head of a later version\nand its body"
LATER = f"{PREFIX}:later"
HOUR_MS = 3_600_000

Change = Callable[[Store], Awaitable[Any]]


@asynccontextmanager
async def in_a_newer_format(store: Store, timer_id: str = "later") -> AsyncIterator[None]:
    """Until the end the timer's record is a later version's. Then nothing about it may have changed."""
    redis, member = store.connections.commands, f"{PREFIX}:{timer_id}"
    bucket = bucket_of(member)
    before: Any = await redis.hget(bucket, member)
    await redis.hset(bucket, member, NEWER)
    yield
    assert await redis.hget(bucket, member) == NEWER
    assert (await state_of(store)).quarantine == {}
    await redis.hset(bucket, member, before)


async def test_a_due_one_is_left_and_the_others_are_claimed(store: Store) -> None:
    await store.arm([arming("before"), arming("later"), arming("after")])
    async with in_a_newer_format(store):
        claimed = await claim(store)
        assert [timer.id for timer in claimed] == ["before", "after"]
        assert store.refusals.newer == {LATER: 9}
        assert list((await state_of(store)).due) == [(PREFIX, "later")]
    assert [timer.id for timer in await claim(store)] == ["later"]


async def test_a_batch_that_has_to_be_left_whole_is_not_asked_for_again_at_once(store: Store) -> None:
    await store.arm([arming("later"), arming("behind")])
    async with in_a_newer_format(store):
        found = await store.claim(0, [(PREFIX, 1)], pod=POD, lease_ms=LEASE_MS, cause="event")
        assert (found.timers, found.more) == ([], set())


@pytest.mark.parametrize("if_exists", ["error", "replace", "keep"])
async def test_it_cannot_be_armed_over(store: Store, if_exists: str) -> None:
    await armed(store, "later", due="+3600000")
    async with in_a_newer_format(store):
        one, other = await store.arm([arming("later", if_exists=if_exists), arming("new", due="+3600000")])
        assert (one.code, other.code) == ("newer", "created")
        assert isinstance(one.refused, NewerFormat)


CHANGES: dict[str, Change] = {
    "cancel": lambda store: store.cancel(PREFIX, "later"),
    "purge": lambda store: store.cancel(PREFIX, "later", purge=True),
    "forget": lambda store: store.cancel(PREFIX, "later", keep=False),
    "reschedule": lambda store: store.reschedule(PREFIX, "later", due="+0"),
    "rearm": lambda store: store.rearm(PREFIX, "later", cause="retried"),
}


@pytest.mark.parametrize("change", CHANGES)
async def test_it_cannot_be_changed(store: Store, change: str) -> None:
    await (cancelled(store, "later") if change == "rearm" else armed(store, "later", due="+3600000"))
    async with in_a_newer_format(store):
        reply = await CHANGES[change](store)
        assert (reply.code, reply.timer) == ("newer", None)
        assert "kept in record format 9, and this process reads formats up to 2" in str(reply.refused)


async def test_callers_are_told_so(real: Store) -> None:
    await real.connections.commands.hset("timers:{pods}:declared", PREFIX, "1 pod")
    await armed(real, "later", due="+3600000")
    client = client_over(real)
    calls: list[Callable[[], Awaitable[Any]]] = [
        lambda: client.get(PREFIX, "later"),
        lambda: client.cancel(PREFIX, "later"),
        lambda: client.fire(PREFIX, "later"),
        lambda: client.create(PREFIX, "later", delay="1h", if_exists="keep"),
    ]
    async with in_a_newer_format(real):
        for call in calls:
            with pytest.raises(NewerFormat, match=f"timer {LATER} is kept in record format 9") as told:
                await call()
            assert told.value.nothing_done
        (result,) = await client.batch([{"prefix": PREFIX, "id": "later", "delay": "1h"}])
        assert isinstance(result, NewerFormat)


async def test_readers_leave_it_out_and_count_it(store: Store) -> None:
    await finished(store, "later", Status.FAILED)
    await finished(store, "older", Status.FAILED)
    async with in_a_newer_format(store):
        page = await read_page(store, Filter.parse({"prefix": PREFIX, "status": "failed"}), limit=10)
        assert [timer.id for timer in page.items] == ["older"]
        assert (await queries.counts(store))[PREFIX][Status.FAILED] == 2


async def test_a_run_in_a_newer_format_belongs_to_another_pod(store: Store) -> None:
    timer = await running(store, "later", lease_ms=1)
    await lease_ended(store, timer)
    async with in_a_newer_format(store):
        assert await settle(store, an_end(timer)) == ["fenced"]
        assert await store.extend(0, [timer], pod=POD, lease_ms=LEASE_MS) == [timer]
        rescued = await store.rescue(0, [(PREFIX, "later")], pod=POD, lease_ms=LEASE_MS)
        assert (rescued.timers, rescued.quarantined) == ([], {})
        now_ms = await store.now_ms()
        assert await store.abandon(0, PREFIX, ["later"], before_ms=now_ms + 1, most=10, pod=POD) == []
        assert list((await state_of(store)).leases) == [(PREFIX, "later")]
        assert store.refusals.newer == {LATER: 9}


async def test_it_does_not_become_unhandled(store: Store) -> None:
    await store.arm([arming("later"), arming("older")])
    async with in_a_newer_format(store):
        now_ms = await store.now_ms()
        assert await store.abandon(0, PREFIX, [], before_ms=now_ms + 1, most=10, pod=POD) == ["older"]


async def test_retention_leaves_it(store: Store) -> None:
    for timer_id in ("later", "older"):
        await finished(store, timer_id)
    async with in_a_newer_format(store):
        assert await prune(store, retention_ms=-1, most=10) == 1
        assert [name for _, name in (await state_of(store)).finished] == [(PREFIX, "later")]


async def test_the_audit_leaves_it(store: Store) -> None:
    await armed(store, "later", due="+3600000")
    async with in_a_newer_format(store):
        assert [found async for found in audit(store, 0) if found] == []


@pytest.mark.parametrize("was", ["nothing", "scheduled", "waiting"])
async def test_a_bare_key_of_its_name_changes_nothing(store: Store, was: str) -> None:
    redis, keys, name = store.connections.commands, BareKeys(store), (PREFIX, "later")
    await redis.set(LATER, "1", px=HOUR_MS)
    states, _ = await keys.inspect([name], 200)
    if was == "waiting":
        assert await keys.report("adopted", states) == {name: "adopted"}
    else:
        await (finished(store, "later") if was == "nothing" else armed(store, "later", due="+3600000"))
    async with in_a_newer_format(store):
        if was == "waiting":
            gone = {name: KeyState((await keys.inspect([name], 200))[0][name].known_ms, GONE)}
            assert await keys.report("deleted", gone) == {name: "newer"}
        else:
            assert await keys.report("adopted", states) == {name: "newer"}
            assert await keys.announce({name: Heard(1, "", 1)}) == {name: "newer"}
    await redis.delete(LATER)


async def test_what_an_earlier_version_has_quarantined_comes_back(store: Store) -> None:
    """A pod that stood still while the db was raised may wake among records that it cannot read."""
    redis = store.connections.commands
    await armed(store, "later")
    raw: Any = await redis.hget(bucket_of(LATER), LATER)
    await redis.hset(bucket_of(LATER), LATER, b"not a record")
    assert await claim(store) == []
    await redis.hset("timers:{0}:quarantine", LATER, b"1795000000000 record format 1, this service knows 0\n" + raw)
    found = [part async for part in audit(store, 0) if part]
    assert {"put back": 1} in found
    assert (await state_of(store)).quarantine == {}
    assert [timer.id for timer in await claim(store)] == ["later"]


async def test_what_was_armed_anew_meanwhile_stays(store: Store) -> None:
    await armed(store, "later", due="+3600000")
    kept = b"1795000000000 record format 1, this service knows 0\n1 s 1 0 0 0 1 1000 1000 0\n{}\n"
    await store.connections.commands.hset("timers:{0}:quarantine", LATER, kept)
    assert [part async for part in audit(store, 0) if part] == []
    assert (await read(store, "later")).due_ms > 1000
    await put(store, "later", if_exists="keep")
