"""Timers with unreadable records: a pod fails them with the reason, runs the others, and keeps no lease."""

from tests.engine.fleet import Calls, Fleet
from tests.records import divided
from tests.store.acts import bucket_of

BAD = "note:bad"


async def spoil(fleet: Fleet, spec: bytes) -> None:
    """Overwrite the spec of the timer `bad` in Redis."""
    head, (_, *rest) = divided(await fleet.redis.hget(bucket_of(BAD), BAD))
    await fleet.redis.hset(bucket_of(BAD), BAD, head + b"\n".join([spec, *rest]))


async def test_a_timer_with_an_unreadable_spec_fails_and_the_others_of_its_claim_run(fleet: Fleet) -> None:
    for timer_id in ("before", "bad", "after"):
        await fleet.client.create("note", timer_id, delay=0)
    await spoil(fleet, b'{"payload":')
    calls = Calls()
    await fleet.pod(calls)
    timer = await fleet.failed("bad")
    await fleet.completed("before")
    await fleet.completed("after")
    assert sorted(calls.ids) == ["after", "before"]
    assert (timer.attempt, timer.lease) == (1, None)
    assert timer.last_error is not None
    assert (timer.last_error["type"], timer.last_error["reason"][:18]) == ("CorruptRecord", "unreadable record:")
    await fleet.client.cancel("note", "bad", purge=True)


async def test_a_repeat_in_a_time_zone_that_was_abolished_fails_before_its_run(fleet: Fleet) -> None:
    """If this were found only after the run, the run would have no end."""
    await fleet.client.create("note", "bad", delay=0)
    await spoil(fleet, b'{"repeat":{"every":"1d","timezone":"Mars/Olympus"}}')
    calls = Calls()
    await fleet.pod(calls)
    await fleet.failed("bad")
    assert calls.ids == []
    await fleet.client.cancel("note", "bad", purge=True)


async def test_a_change_of_a_timer_in_an_abolished_time_zone_keeps_the_rest(fleet: Fleet) -> None:
    await fleet.client.create("note", "bad", delay="1h")
    spec = b'{"payload":{"n":1},"timeout":"5s","repeat":{"every":"1d","timezone":"Mars/Olympus"}}'
    await spoil(fleet, spec)
    moved = await fleet.client.reschedule("note", "bad", delay="2h")
    assert (moved.payload, moved.repeat, (moved.last_error or {})["type"]) == ({"n": 1}, None, "CorruptRecord")
    assert divided(await fleet.redis.hget(bucket_of(BAD), BAD))[1][0] == spec
    berlin = await fleet.client.change(
        "note", "bad", repeat={"every": "1d", "timezone": "Europe/Berlin", "count": 1}, delay=0
    )
    assert (berlin.payload, berlin.timeout) == ({"n": 1}, "5s")
    calls = Calls()
    await fleet.pod(calls)
    await fleet.completed("bad")
    assert [timer.payload for timer in calls.timers] == [{"n": 1}]


async def test_a_retried_timer_that_is_still_unreadable_fails_again_and_a_new_one_runs(fleet: Fleet) -> None:
    await fleet.client.create("note", "bad", delay=0)
    await spoil(fleet, b"nonsense")
    calls = Calls()
    await fleet.pod(calls)
    first = await fleet.failed("bad")
    await fleet.client.retry("note", "bad")
    again = await fleet.failed("bad")
    assert calls.ids == []
    assert again.version > first.version
    await fleet.client.create("note", "bad", delay=0, if_exists="replace", payload=1)
    assert (await fleet.completed("bad")).payload == 1


async def test_a_timer_without_a_record_is_quarantined_and_the_others_run(fleet: Fleet) -> None:
    await fleet.client.create("note", "bad", delay=0)
    await fleet.client.create("note", "good", delay=0)
    await fleet.redis.hdel(bucket_of(BAD), BAD)
    calls = Calls()
    await fleet.pod(calls)
    await fleet.completed("good")
    assert calls.ids == ["good"]
    assert b"no record" in dict(await fleet.redis.hgetall("timers:{0}:quarantine"))[b"note:bad"]
