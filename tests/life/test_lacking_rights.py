"""A user without the right to the keys of one prefix: nothing is half done, nothing else stands still, all say so."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis
from structlog.testing import capture_logs

from tests.conservation import conserved
from tests.engine.fleet import Calls, Fleet, Held, until
from tests.engine.own import OwnServer
from tests.members import declare
from tests.rights import USER, as_user, grant
from tests.waiting import eventually, patient
from timers.client import client_over, open_store
from timers.client.fleet import read_fleet, read_stats, read_story
from timers.core.durations import HOUR_MS
from timers.core.model import Status
from timers.core.spec import NewTimer
from timers.dashboard.overview import health, read_seen
from timers.doctor.checks import any_full, is_full
from timers.doctor.examining import examine
from timers.engine.peers import Peers
from timers.errors import RedisRights
from timers.store import codec, refusals
from timers.store.membership import Member, Membership
from timers.store.restoring import Restored, restore
from timers.store.servers import connect
from timers.store.store import Store

pytestmark = pytest.mark.every_server

LACKS = f"the Redis user {USER!r} may not SET lost:{{0}}:x: its ACL needs +set and ~lost*"


@pytest.fixture(autouse=True)
async def _kept_log(fleet: Fleet) -> AsyncIterator[None]:
    """The refusals of these tests are no surprise to the fixture of the server."""
    yield
    await grant(fleet.redis, 0)


@pytest.fixture
async def limited(fleet: Fleet) -> AsyncIterator[Store]:
    """A store of a user without the right to the prefix `lost`."""
    await declare(fleet.store, "lost")
    await grant(fleet.redis, 0, ["note"])
    opened = await open_store(connect(patient(as_user(fleet.url))))
    yield opened
    await opened.connections.close()


async def everything(fleet: Fleet) -> dict[bytes, Any]:
    """What lies in the shard, as the server dumps it, but for the trigger of `due`, which expires."""
    dumps = {key: await fleet.redis.dump(key) async for key in fleet.redis.scan_iter("*{0}*")}
    return {key: dump for key, dump in dumps.items() if not key.endswith(b":due")}


async def test_a_copy_that_is_refused_stops_no_other(fleet: Fleet, limited: Store) -> None:
    record = codec.HEAD.pack(b"2 ", b"s", 1, 0, 0, 1, 0, 1000, 9 * 10**12) + b"{}\n"
    codes = await restore(limited, [Restored("lost", "x", record), Restored("note", "x", record)])
    assert codes == ["rights", "restored"]
    assert limited.refusals.lacks == {"lost": LACKS}


@pytest.mark.parametrize("before", ["nothing", "scheduled", "cancelled"])
async def test_a_refused_create_leaves_no_half_timer(fleet: Fleet, limited: Store, before: str) -> None:
    if before != "nothing":
        await fleet.client.create("lost", "x", delay="1h")
    if before == "cancelled":
        await fleet.client.cancel("lost", "x")
    await limited.identity.found([0])
    whole = await everything(fleet)
    with pytest.raises(RedisRights) as refused:
        await client_over(limited).create("lost", "x", delay=0, if_exists="replace")
    assert str(refused.value) == LACKS
    assert await everything(fleet) == whole
    await conserved(fleet.store)


async def test_a_refused_change_leaves_no_half_timer(fleet: Fleet, limited: Store) -> None:
    await fleet.client.create("lost", "x", delay="1h")
    await fleet.client.create("lost", "ended", delay="1h")
    await fleet.client.cancel("lost", "ended")
    whole, caller = await everything(fleet), client_over(limited)
    for call in (
        caller.reschedule("lost", "x", delay="2h"),
        caller.fire("lost", "x"),
        caller.cancel("lost", "x"),
        caller.cancel("lost", "x", purge=True),
        caller.retry("lost", "ended"),
    ):
        with pytest.raises(RedisRights):
            await call
    assert await everything(fleet) == whole
    await conserved(fleet.store)


@pytest.mark.parametrize("lacks", ["hget", "hincrby", "hset", "zadd", "zrem", "zscore"])
async def test_a_user_without_a_command_left_half_a_write(fleet: Fleet, limited: Store, lacks: str) -> None:
    """Of the service's own keys. The index was written before the record, or the record before its count."""
    for name, delay in (("x", "1h"), ("ended", "1h"), ("due", 0)):
        await fleet.client.create("note", name, delay=delay)
    await fleet.client.cancel("note", "ended")
    await grant(fleet.redis, 0, ["note"], without=[lacks])
    whole, caller = await everything(fleet), client_over(limited)
    for call in (
        caller.create("note", "x", delay="2h", if_exists="replace"),
        caller.batch([{"prefix": "note", "id": name, "delay": "2h", "if_exists": "replace"} for name in ("new", "x")]),
        caller.reschedule("note", "x", delay="2h"),
        caller.cancel("note", "x"),
        caller.cancel("note", "x", purge=True),
        caller.retry("note", "ended"),
        limited.claim(0, [("note", 1)], pod="pod", lease_ms=60_000, cause="event"),
    ):
        with pytest.raises(
            RedisRights, match=rf"may not {lacks.upper()} timers:.*its ACL needs \+{lacks} and ~timers:"
        ):
            await call
    assert await everything(fleet) == whole
    await conserved(fleet.store)


@pytest.mark.parametrize(
    "lacks", ["get", "hdel", "hincrby", "hkeys", "hsetnx", "zadd", "zcount", "zrevrangebyscore", "zscore"]
)
async def test_a_new_timer_that_lacks_a_right_changes_nothing(fleet: Fleet, limited: Store, lacks: str) -> None:
    """It asks for fewer rights than a change, and is refused before it has changed anything for lack of any of them."""
    due_ms = (await fleet.client.create("note", "x", delay="1h")).due_ms
    await grant(fleet.redis, 0, ["note"], without=[lacks])
    whole = await everything(fleet)
    with pytest.raises(RedisRights, match=rf"(?i)\b{lacks}\b"):
        await client_over(limited).create("note", "new", due_at=due_ms)
    assert await everything(fleet) == whole


@pytest.mark.parametrize("lacks", ["evalsha", "hgetall"])
async def test_a_pod_that_may_no_longer_read_the_identity_waits(fleet: Fleet, limited: Store, lacks: str) -> None:
    """It ended at once, as if the db had got another number of shards, and so did every other pod."""
    await limited.identity.join()
    ended: list[Exception] = []
    peers = Peers(Membership(limited), Member("pod"), disagreed=ended.append)
    await grant(fleet.redis, 0, ["note"], without=[lacks])
    with pytest.raises(RedisRights, match=rf"(?i){lacks}"):
        await peers.check_identity(())
    assert not ended


async def test_a_user_who_may_not_ask_for_the_time_is_told_so(fleet: Fleet, limited: Store) -> None:
    """Redis 7.0 names only the script, by its digest, in the place of the command."""
    await grant(fleet.redis, 0, ["note"], without=["time"])
    for call in (client_over(limited).create("note", "x", delay="1h"), limited.get([("note", "x")])):
        with pytest.raises(RedisRights, match=r"(?i)'time'"):
            await call


async def test_a_pod_that_may_not_ask_how_full_redis_is_goes_on(fleet: Fleet, limited: Store) -> None:
    """It ran its timers, but was not ready."""
    await grant(fleet.redis, 0, ["note"], without=["info"])
    assert not await any_full(limited.connections)


async def test_a_server_whose_info_has_another_name_counts_as_not_full(tmp_path: Path) -> None:
    """The probes could not read it, so no pod was ready, and each logged an error every second."""
    server = OwnServer("redis", tmp_path, "--rename-command", "INFO", "other")
    await server.up()
    try:
        async with Redis.from_url(server.url) as redis:
            assert not await is_full(redis)
    finally:
        server.down()


async def test_one_refused_prefix_of_a_batch_holds_up_no_other(fleet: Fleet, limited: Store) -> None:
    news = [NewTimer(prefix=prefix, id="x", delay="1h") for prefix in ("lost", "note")]
    refused, armed = await client_over(limited).batch(news)
    assert isinstance(refused, RedisRights)
    assert (await fleet.client.get("note", "x")).status is Status.SCHEDULED
    assert not isinstance(armed, Exception)
    await conserved(fleet.store)


async def test_an_action_goes_on_behind_a_timer_that_is_refused(fleet: Fleet, limited: Store) -> None:
    for prefix in ("lost", "note"):
        await fleet.client.create(prefix, "x", delay="1h", tags=["all"])
    counts = await client_over(limited).act("cancel", {"tag": "all"})
    assert (counts.matched, counts.done, counts.refused) == (2, 1, {"redis-rights": 1})


async def test_a_prefix_without_rights_holds_up_no_other_without_notifications(
    fleet: Fleet, limited: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refusals, "TRY_AGAIN_SECONDS", 0.2)
    await fleet.redis.config_set("notify-keyspace-events", "")
    notes, lost = Calls(), Calls("lost")
    with capture_logs() as logs:
        pod = await fleet.pod(notes, lost, canary_every_seconds=60)
        for n in range(3):
            await fleet.client.create("lost", f"x{n}", delay=0)
            await fleet.client.create("note", f"x{n}", delay=0)
        for n in range(3):
            await fleet.completed(f"x{n}")
        await until(lambda: pod.store.refusals.lacks, "the pod knows what it lacks")
        await until(lambda: not pod.store.refusals.waits("lost"), "it tries again")
        await until(lambda: pod.store.refusals.waits("lost"), "it is refused again")
        told = [log for log in logs if log["event"] == "the Redis user lacks a right"]
    assert [log["prefix"] for log in told] == ["lost"]
    assert len(lost) == 0
    assert pod.worker.health().services["claimer"] == "running"
    said = await _said(fleet)
    timer = await fleet.client.get("lost", "x0")
    assert said in (await read_story(fleet.store, timer))[-1]
    troubles = health(await read_seen(fleet.store, await read_stats(fleet.store)), None)
    assert any(said in trouble.said for trouble in troubles)
    pods = next(check for check in await examine(fleet.store, wait_seconds=0.01) if check.name == "pods")
    assert pods.level == "fail"
    assert said in pods.said
    await grant(fleet.redis, 0, ["note", "lost"])
    for n in range(3):
        await fleet.completed(f"x{n}", "lost")


async def _said(fleet: Fleet) -> str:
    async def look() -> str | None:
        return next(
            (said for member in (await read_fleet(fleet.store)).roster.members for said in member.lacks.values()), None
        )

    said = await eventually(look, "the pod tells the others what it lacks")
    assert said is not None
    assert said.startswith(f"the Redis user {USER!r} may not DEL lost:{{0}}:x")
    return said


async def test_a_run_of_a_prefix_whose_right_was_taken_back_can_still_end(fleet: Fleet, limited: Store) -> None:
    await grant(fleet.redis, 0, ["note", "lost"])
    held, notes = Held("lost", retry={"max_attempts": 3, "backoff": "fixed", "base": "1h"}), Calls()
    await fleet.pod(held, notes)
    await fleet.client.create("lost", "x", delay=0, repeat={"every": "1h"})
    await until(lambda: len(held) == 1, "it runs")
    await grant(fleet.redis, 0, ["note"])
    held.release.set()
    timer = await fleet.reached(Status.SCHEDULED, "x", "lost")
    assert timer.occurrence == 2
    await fleet.client.create("note", "x", delay=0)
    await fleet.completed("x")
    await fleet.client.cancel("lost", "x")  # it has no trigger key


async def test_a_bare_key_without_rights_holds_up_no_other(fleet: Fleet, limited: Store) -> None:
    pod = await fleet.pod(Calls(), Calls("lost"), adopt_every_ms=20)
    await fleet.redis.set("lost:bare", "{}", px=60_000)
    await fleet.redis.set("note:bare", "{}", px=60_000)
    await fleet.reached(Status.SCHEDULED, "bare")
    await until(lambda: "lost" in pod.store.refusals.lacks, "the pod was refused the other key")
    await fleet.client.cancel("note", "bare")


async def test_a_user_who_may_not_publish_leaves_no_half_timer(fleet: Fleet, limited: Store) -> None:
    redis: Any = fleet.redis
    await redis.execute_command("ACL", "SETUSER", USER, "resetchannels")
    await client_over(limited).create("note", "x", delay=0)
    await conserved(fleet.store)


async def test_bare_keys_that_may_not_be_read_hold_up_no_others(fleet: Fleet) -> None:
    """A page full of them was read again and again: whether another key was deleted in time, nobody looked."""
    await declare(fleet.store, "lost")
    pod = await fleet.pod(Calls(), Calls("lost"), adopt_every_ms=HOUR_MS)
    await until(pod.hears, "it would hear of an expiry")
    await fleet.redis.set("note:x", "1", px=4_000)
    assert pod.worker._listener._bare is not None
    pod.worker._listener._bare.scan_now()

    async def is_adopted() -> bool:
        return await fleet.redis.zscore("timers:{0}:bare", "note:x") is not None

    await eventually(is_adopted, "it is adopted")
    await grant(fleet.redis, 0, ["note"])
    await fleet.redis.zadd("timers:{0}:bare", {f"lost:{number}": number for number in range(1, 502)})
    await fleet.redis.delete("note:x")

    async def is_over() -> bool:
        (timer,) = await fleet.store.get([("note", "x")])
        return timer is not None and timer.status is not Status.SCHEDULED

    await eventually(is_over, "its end was found")
    await fleet.redis.zremrangebyscore("timers:{0}:bare", 1, 501)
