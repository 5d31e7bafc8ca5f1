"""Unreadable records: each ends with a reason, and none stops another timer."""

import pytest

from tests.conservation import state_of
from tests.records import divided
from tests.store.acts import (
    LEASE_MS,
    OTHER,
    POD,
    PREFIX,
    an_end,
    armed,
    arming,
    bucket_of,
    claim,
    finished,
    lease_ended,
    prune,
    put,
    read,
    running,
    settle,
)
from timers.core.model import Status, Timer
from timers.store import queries
from timers.store.queries import QUARANTINED_SHOWN
from timers.store.store import Claimed, Store

BAD = f"{PREFIX}:bad"
A_BAD_HEAD = {
    "garbage": (b"\x00\xffgarbage", "not a record"),
    "nothing": (b"", "not a record"),
    "an unknown status": (b"1 z 1 0 0 0 1 1000 1000 0\n{}\n", "not a record"),
    "a due time beyond all time": (b"1 s 1 0 0 0 1 99999999999999 1000 0\n{}\n", "not a record"),
    "a creation beyond all time": (b"1 s 1 0 0 0 1 1000 " + b"9" * 5000 + b" 0\n{}\n", "not a record"),
    "a format that never was": (b"0 s 1 0 0 0 1 1000 1000 0\n{}\n", "record format 0, this service knows 1 to 2"),
    "half a head": (b"2 s" + bytes(39), "not a record"),
    "an unknown status in a head": (b"2 z" + bytes(40) + b"{}\n", "not a record"),
    "a due time beyond all time in a head": (b"2 s" + bytes(32) + b"\xff" * 8 + b"{}\n", "not a record"),
}
"""Kind of damage → the record, the reason."""

A_BAD_BODY = {
    "broken spec": (b'{"payload":', b""),
    "spec that are no object": (b"[1]", b""),
    "tags that are no list": (b'{"tags":1}', b""),
    "a retry policy of another version": (b'{"retry":{"backoff":"fibonacci"}}', b""),
    "a time zone that was abolished": (b'{"repeat":{"every":"1d","timezone":"Mars/Olympus"}}', b""),
    "an unknown missed policy": (b'{"missed":"shrug"}', b""),
    "an unknown unit": (b'{"timeout":"3 fortnights"}', b""),
    "broken progress": (b"{}", b"{"),
    "progress of other types": (b"{}", b'{"slot":"soon"}'),
    "bytes that are no text": (b'{"payload":"\xff"}', b""),
}
"""Kind of damage → spec, progress."""


async def damage(store: Store, record: bytes | None, timer_id: str = "bad") -> None:
    """Replace a record's text; None removes it."""
    redis, member = store.connections.commands, f"{PREFIX}:{timer_id}"
    if record is None:
        await redis.hdel(bucket_of(member), member)
    else:
        await redis.hset(bucket_of(member), member, record)


async def spoil(store: Store, body: tuple[bytes, bytes], timer_id: str = "bad") -> None:
    """Replace a record's spec and progress."""
    member = f"{PREFIX}:{timer_id}"
    head, (_, _, *history) = divided(await store.connections.commands.hget(bucket_of(member), member))
    await damage(store, head + b"\n".join([*body, *history]), timer_id)


async def three(store: Store) -> None:
    await store.arm([arming("before"), arming("bad"), arming("after")])


async def claim_all(store: Store) -> Claimed:
    return await store.claim(0, [(PREFIX, 10)], pod=POD, lease_ms=LEASE_MS, cause="event")


@pytest.mark.parametrize("kind", A_BAD_HEAD)
async def test_a_record_without_a_readable_head_is_quarantined(store: Store, kind: str) -> None:
    record, reason = A_BAD_HEAD[kind]
    await three(store)
    await damage(store, record)
    found = await claim_all(store)
    assert [timer.id for timer in found.timers] == ["before", "after"]
    assert found.quarantined == {BAD: reason}
    state = await state_of(store)
    assert state.quarantine[PREFIX, "bad"].split(" ", 1)[1] == f"{reason}\n{record.decode(errors='replace')}"
    assert (state.due, state.triggers) == ({}, set())
    assert await store.get([(PREFIX, "bad")]) == [None]


async def test_quarantined_records_are_counted_and_named(store: Store) -> None:
    assert await queries.quarantined(store) == (0, {})
    record, reason = A_BAD_HEAD[next(iter(A_BAD_HEAD))]
    for number in range(5):
        await armed(store, f"bad-{number}")
        await damage(store, record, f"bad-{number}")
    await claim_all(store)
    number, some = await queries.quarantined(store)
    assert (number, len(some), set(some.values())) == (5, QUARANTINED_SHOWN, {reason})
    assert (await queries.aside(store)).quarantined == 5
    assert all(member.startswith(f"{PREFIX}:bad-") for member in some)


async def test_a_timer_without_a_record_is_quarantined(store: Store) -> None:
    await three(store)
    await damage(store, None)
    found = await claim_all(store)
    assert [timer.id for timer in found.timers] == ["before", "after"]
    assert found.quarantined == {BAD: "no record"}


async def test_a_foreign_value_in_place_of_a_bucket_is_moved_aside(store: Store) -> None:
    await three(store)
    bucket = bucket_of(BAD)
    await store.connections.commands.set(bucket, "mine")
    found = await claim_all(store)
    assert {timer.id for timer in found.timers} | {"bad"} == {"before", "bad", "after"}
    assert found.quarantined == {BAD: "no record"}
    assert await store.connections.commands.get(f"timers:{{0}}:displaced:{bucket}") == b"mine"
    assert (await put(store, "bad")).code == "created"


@pytest.mark.parametrize("kind", A_BAD_BODY)
async def test_a_timer_without_a_readable_body_is_claimed_to_be_failed(store: Store, kind: str) -> None:
    await three(store)
    await spoil(store, A_BAD_BODY[kind])
    found = await claim_all(store)
    assert [timer.id for timer in found.timers] == ["before", "after"]
    ((timer, reason),) = found.unreadable
    assert (timer.id, timer.status, timer.attempt, timer.spec) == ("bad", Status.RUNNING, 1, {})
    assert reason.startswith("unreadable record: ")
    assert await settle(store, an_end(timer, Status.FAILED, note=reason)) == ["settled"]
    await finish(store, found.timers)
    await store.cancel(PREFIX, "bad", purge=True)


async def finish(store: Store, timers: list[Timer]) -> None:
    assert set(await settle(store, *map(an_end, timers))) == {"settled"}


async def test_an_unreadable_record_is_shown_with_the_reason(store: Store) -> None:
    await armed(store, "bad", due="+3600000")
    await spoil(store, A_BAD_BODY["broken spec"])
    timer = await read(store, "bad")
    assert (timer.status, timer.version, timer.payload) == (Status.SCHEDULED, 1, None)
    assert timer.last_error is not None
    assert timer.last_error["type"] == "CorruptRecord"
    shown = timer.to_json()["last_error"]
    assert shown is not None
    assert shown["reason"].startswith("unreadable record: ")
    await store.cancel(PREFIX, "bad", purge=True)


async def test_an_unreadable_timer_can_be_cancelled_replaced_and_failed_again(store: Store) -> None:
    await armed(store, "bad", due="+3600000")
    await spoil(store, A_BAD_BODY["broken spec"])
    assert (await put(store, "bad")).code == "exists"
    assert (await store.cancel(PREFIX, "bad")).code == "cancelled"
    assert (await store.rearm(PREFIX, "bad", cause="-")).code == "changed"
    ((timer, _),) = (await claim_all(store)).unreadable
    assert await settle(store, an_end(timer, Status.FAILED)) == ["settled"]
    assert (await armed(store, "bad", if_exists="replace", spec={"payload": 1})).payload == 1
    assert [timer.payload for timer in await claim(store)] == [1]


async def test_a_broken_line_of_the_history_stops_nothing(store: Store) -> None:
    await armed(store, "bad")
    raw = await store.connections.commands.hget(bucket_of(BAD), BAD)
    assert isinstance(raw, bytes)
    await damage(store, b"\n".join([raw, b"gibberish", b"9" * 20 + b" s 1 - - - changed"]))
    (timer,) = await claim(store)
    assert await settle(store, an_end(timer)) == ["settled"]
    assert [entry.note for entry in (await read(store, "bad")).history] == [
        "completed", "sweep", "unreadable entry", "unreadable entry", "created",
    ]  # fmt: skip
    assert (await read(store, "bad")).to_json()


@pytest.mark.parametrize("kind", A_BAD_HEAD)
async def test_a_run_with_a_damaged_record_is_quarantined_when_its_lease_ends(store: Store, kind: str) -> None:
    record, reason = A_BAD_HEAD[kind]
    await three(store)
    timers = await claim(store, lease_ms=1)
    for timer in timers:
        await lease_ended(store, timer)
    await damage(store, record)
    bad = next(timer for timer in timers if timer.id == "bad")
    assert await store.extend(0, [bad], pod=POD, lease_ms=LEASE_MS) == [bad]
    assert await settle(store, an_end(bad)) == ["missing"]
    orphans = (await store.orphans(0))[0]
    found = await store.rescue(0, orphans, pod=OTHER, lease_ms=LEASE_MS)
    assert sorted(timer.id for timer in found.timers) == ["after", "before"]
    assert found.quarantined == {BAD: reason}
    assert (await state_of(store)).counts[Status.RUNNING, PREFIX] == 2


async def test_a_rescued_run_without_a_readable_body_is_to_be_failed(store: Store) -> None:
    timer = await running(store, "bad", lease_ms=1)
    await lease_ended(store, timer)
    await spoil(store, A_BAD_BODY["broken spec"])
    found = await store.rescue(0, [(PREFIX, "bad")], pod=OTHER, lease_ms=LEASE_MS)
    assert found.timers == []
    ((rescued, _),) = found.unreadable
    assert rescued.token > timer.token
    await settle(store, an_end(rescued, Status.FAILED), pod=OTHER)
    await store.cancel(PREFIX, "bad", purge=True)


@pytest.mark.parametrize("due", ["+0", "+3600000"])
async def test_an_unreadable_record_makes_way_for_a_new_timer(store: Store, due: str) -> None:
    await armed(store, "bad", due=due)
    await damage(store, b"garbage")
    assert (await store.reschedule(PREFIX, "bad", due="+0")).code == "missing"
    assert (await store.cancel(PREFIX, "bad")).code == "missing"
    assert (await store.rearm(PREFIX, "bad", cause="-")).code == "missing"
    assert (await put(store, "bad", due="+7200000", if_exists="keep")).code == "created"
    assert (await state_of(store)).quarantine[PREFIX, "bad"].endswith("not a record\ngarbage")


async def test_an_unreadable_record_of_a_run_makes_way_too(store: Store) -> None:
    timer = await running(store, "bad")
    await damage(store, b"garbage")
    assert (await put(store, "bad", due="+7200000")).code == "created"
    assert await settle(store, an_end(timer)) == ["fenced"]


async def test_an_unreadable_finished_record_goes_with_its_retention(frozen: Store) -> None:
    await finished(frozen, "bad")
    await damage(frozen, b"garbage")
    assert await prune(frozen, retention_ms=-1, most=10) == 1


async def test_an_unreadable_run_that_nobody_serves_is_quarantined(store: Store) -> None:
    await lease_ended(store, await running(store, "bad", lease_ms=1))
    await damage(store, b"garbage")
    before_ms = await store.now_ms() + 1
    assert await store.abandon(0, PREFIX, ["bad"], before_ms=before_ms, most=10, pod=POD) == ["bad"]
    state = await state_of(store)
    assert set(state.quarantine) == {(PREFIX, "bad")}
    assert state.leases == {}


async def test_unreadable_timers_that_nobody_serves_are_quarantined(store: Store) -> None:
    await three(store)
    await damage(store, b"garbage")
    due_before_ms = await store.now_ms() + 1
    assert await store.abandon(0, PREFIX, [], before_ms=due_before_ms, most=10, pod=POD) == ["before", "bad", "after"]
    assert (await state_of(store)).quarantine.keys() == {(PREFIX, "bad")}
