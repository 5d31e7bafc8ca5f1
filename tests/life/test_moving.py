"""A service that moves to another server while pods and callers work: who may do what, and where timers fire."""

import asyncio
import hashlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis
from structlog.testing import capture_logs

from tests.conftest import SharedServers
from tests.engine.fleet import Calls, Fleet, Held, Pod, until
from tests.servers import start_server
from tests.waiting import eventually
from timers.client import TimerClient
from timers.client.moving import Mover, abort
from timers.core.model import Status, Timer
from timers.embedded import Family
from timers.errors import Moving, Refused, Unavailable
from timers.processor import DISTRIBUTION
from timers.store import keys, moving, upkeep
from timers.store.callers import Callers
from timers.store.identity import COPYING, LEAVING
from timers.store.membership import VERSION, Membership
from timers.store.store import Store

HERE, THERE = "redis://here:6379/0", "redis://there:6379/0"
LONG = "x" * 99
"""Too long for a hash that the server keeps in one piece."""
OURS: dict[str, Any] = {"settings": {VERSION: version(DISTRIBUTION)}}


@pytest.fixture
async def target(servers: SharedServers, family: Family) -> AsyncIterator[Fleet]:
    """A fleet on the server of the other family, with four shards."""
    server = await servers.of("valkey" if family == "redis" else "redis")
    async with Redis.from_url(server.url) as redis:
        await redis.flushdb()
    fleet = await Fleet.over(server.url, shards=4)
    yield fleet
    await fleet.close()


def mover(source: Fleet, target: Fleet, told: list[str] | None = None, *, wait_seconds: float = 60) -> Mover:
    says = list[str]() if told is None else told
    return Mover(source.store, target.store, (HERE, THERE), tell=says.append, wait_seconds=wait_seconds)


async def move(source: Fleet, target: Fleet) -> dict[str, Any]:
    return (await mover(source, target).run()).to_json()


async def everything(fleet: Fleet) -> dict[tuple[str, str], bytes]:
    """All records by (prefix, id), as they lie there."""
    found = {}
    for part in moving.parts(fleet.store):
        async for page in moving.pages(fleet.store, part):
            found.update({(*keys.identity_of(keys.text(m)),): line.partition(b"\n")[2] for m, line in page.copies})
    return found


async def close(fleet: Fleet, phase: str = LEAVING) -> None:
    """Close a db as a move does."""
    await fleet.store.identity.move(phase, "move", THERE)
    await moving.close(fleet.store, phase, THERE)


async def test_each_timer_fires_once_wherever_it_is_due(fleet: Fleet, target: Fleet) -> None:
    here, there, held = Calls(), Calls(), Held("held")
    for name in ("a", "b"):
        await fleet.pod(here, held, name=name, **OURS)
    await target.pod(there, held, name="c", **OURS)
    await fleet.client.create("held", "runs", delay=0)
    await until(held.__len__, "one runs")
    due = [f"{n}" for n in range(200)]
    await fleet.client.batch({"prefix": "note", "id": i, "delay": int(i) / 100} for i in due)
    stop = asyncio.Event()
    armed, refused = list[str](), set[str]()

    async def arm() -> None:
        while not stop.is_set():
            timer_id = f"more-{len(armed)}"
            try:
                await fleet.client.create("note", timer_id, delay="1s")
                armed.append(timer_id)
            except Moving as error:
                refused.add(str(error))
                await asyncio.sleep(0.01)

    arming, told = asyncio.create_task(arm()), list[str]()
    moves = asyncio.create_task(mover(fleet, target, told).run())
    await until(lambda: refused, "callers are refused")
    before = len(here)
    held.release.set()
    report = await moves
    await asyncio.sleep(0.05)
    stop.set()
    await arming
    await until(lambda: len(here) + len(there) >= len(due) + len(armed), "all have run")
    assert sorted(here.ids + there.ids) == sorted(due + armed)
    assert len(here) == before
    assert there.ids
    assert report.lost_runs == 0
    assert (await target.reached(Status.COMPLETED, "runs", "held")).attempt == 1
    assert refused == {
        f"the service is being moved to {THERE}; repeat the call in a while",
        f"the service has moved to {THERE}; connect there",
    }


async def test_records_stay_exactly_as_they_were(fleet: Fleet, target: Fleet) -> None:
    async def act(timer: Timer, _context: object) -> None:
        if timer.payload == "fails":
            raise ValueError("no")

    pod = await fleet.pod(Calls("note", act, retry={"max_attempts": 1}), Calls("again", act), **OURS)
    for timer_id, payload in (("good", None), ("bad", "fails")):
        await fleet.client.create("note", timer_id, delay=0, payload=payload)
        await fleet.reached(Status.FAILED if payload else Status.COMPLETED, timer_id)
    retry: Any = {"max_attempts": 2, "backoff": "fixed", "base": "1h"}
    await fleet.client.create("again", "tries", delay=0, payload="fails", retry=retry)
    await until_failed_once(fleet)
    await fleet.drain(pod)
    await fleet.client.create("note", "gone", delay="1h")
    await fleet.client.cancel("note", "gone")
    # So many in one millisecond that only the order of arming tells which is first.
    due_ms = await fleet.store.now_ms() + 3_600_000
    await fleet.client.batch({"prefix": "note", "id": f"{n:03d}", "due_at": due_ms} for n in (5, 3, 9, 1))
    before, order = await everything(fleet), await queued(fleet)
    assert len({record[2:3] for record in before.values()}) >= 4
    report = await move(fleet, target)
    assert (await everything(target), await everything(fleet)) == (before, before)
    assert await queued(target) == order
    assert report["timers"] == len(before)


async def until_failed_once(fleet: Fleet) -> None:
    async def look() -> bool:
        return (await fleet.client.get("again", "tries")).failures == 1

    await eventually(look, "it is tried again")


async def queued(fleet: Fleet) -> list[tuple[bytes, float]]:
    """The due index of `note` over all shards."""
    found = await fleet.store.of_shards(lambda asked, root: asked.zrange(f"{root}due:note", 0, -1, withscores=True), [])
    return sorted((entry for (entries,) in found for entry in entries), key=lambda entry: entry[1])


async def test_nothing_changes_while_the_service_moves(fleet: Fleet) -> None:
    client = fleet.client
    for timer_id in ("a", "done"):
        await client.create("note", timer_id, delay="1h")
    await client.cancel("note", "done")
    key = Callers(fleet.store)
    acts: list[Callable[[], Awaitable[object]]] = [
        lambda: client.create("note", "b", delay="1h"),
        lambda: client.create("note", "a", delay="1h", if_exists="keep"),
        lambda: client.batch([{"prefix": "note", "delay": "1h"}]),
        lambda: client.change("note", "a", payload=2),
        lambda: client.reschedule("note", "a", delay="2h"),
        lambda: client.fire("note", "a"),
        lambda: client.cancel("note", "a"),
        lambda: client.cancel("note", "done", purge=True),
        lambda: client.retry("note", "done"),
        lambda: client.pause("note"),
        lambda: client.forget("note"),
        lambda: key.keep("k", "entry"),
        lambda: key.revoke("k"),
    ]
    before = await everything(fleet)
    for phase in (LEAVING, COPYING):
        await close(fleet, phase)
        for number, act in enumerate(acts):
            with pytest.raises(Moving, match=f"is being moved to {THERE}"):
                raise AssertionError(f"{number}: {await act()}")
        for shard in range(fleet.store.shards):
            await upkeep.prune(fleet.store, shard, retention_ms=-1, retention_failed_ms=-1, most=10)
    assert await everything(fleet) == before
    assert await abort(fleet.store) == THERE
    for act in acts[:7]:
        await act()
    assert await client.pause("note")


async def test_who_runs_may_end_until_the_copy_begins(fleet: Fleet, target: Fleet) -> None:
    held = Held("held")
    await fleet.pod(held, **OURS)
    await fleet.client.create("held", "one", delay=0)
    await until(held.__len__, "it runs")
    with pytest.raises(Refused, match=r"1 timers still run \(held:one\)"):
        await mover(fleet, target, wait_seconds=0).run()
    assert (fleet.store.identity.moving, target.store.identity.moving) == (None, None)
    await fleet.client.create("note", "goes-on", delay="1h")
    await close(fleet, COPYING)
    with capture_logs() as logs:
        held.release.set()  # too late: the run is fenced off, because its timer runs in the new place
        await until(lambda: any(line["event"] == "late result refused" for line in logs), "its end is refused")
    await abort(fleet.store)
    timer = await fleet.client.get("held", "one")
    assert timer.status is Status.RUNNING


async def test_a_dead_pods_run_is_taken_over_in_the_new_place(fleet: Fleet, target: Fleet) -> None:
    held, there = Held("held"), Calls("held")
    pod = await fleet.pod(held, **OURS)
    await fleet.client.create("held", "one", delay=0)
    await until(held.__len__, "it runs")
    await fleet.kill(pod)
    await fleet.expire_lease("one", "held")
    assert (await move(fleet, target))["lost_runs"] == 1
    await target.pod(there, **OURS)
    timer = await target.reached(Status.COMPLETED, "one", "held")
    assert (timer.attempt, timer.failures, there.attempts) == (2, 1, [2])
    assert timer.token > held.timers[0].token


async def test_what_else_is_the_service_comes_along(fleet: Fleet, target: Fleet) -> None:
    source: Any = fleet.redis
    other: Any = target.redis
    await fleet.client.create("note", "a", delay="1h")
    await Callers(fleet.store).keep("key", "entry")
    secret = await Callers(fleet.store).session_secret()
    assert await Callers(fleet.store).first_time("request", 60_000)
    await fleet.client.pause("note")
    await source.hset("timers:{0}:quarantine", "note:bad", b"1 not a record\n\xff")
    await source.hset("timers:{0}:rec:" + bucket_of("note:worse"), "note:worse", b"9 nothing")
    await source.hset("timers:{alarms}:failed", mapping={"since": 1, "count": 3})
    await source.set("note:bare", "1", px=3_600_000)
    await source.hset("timers:{0}:hooks", "f note timers.hook-1", 1)
    await source.xadd("timers:{0}:outbox", {"event": "f", "timer": "note:a", "record": "x"})
    await source.set("timers:{0}:token", 2**52)
    report = await move(fleet, target)
    assert report["unreadable"] == 1
    assert report["carried"] == {
        "keys": 1, "declarations": 1, "pauses": 1, "quarantined": 1, "outbox": 1, "bare keys": 1,
    }  # fmt: skip
    assert await Callers(target.store).entries() == {"key": "entry"}
    assert await Callers(target.store).session_secret() == secret
    assert not await Callers(target.store).first_time("request", 60_000)
    assert "note" in (await Membership(target.store).read()).declared
    assert await other.hgetall("timers:{alarms}:failed") == {b"since": b"1", b"count": b"3"}
    assert 0 < await other.pttl("note:bare") <= 3_600_000
    of_shards = [f"timers:{{{shard}}}:" for shard in range(4)]
    assert {await other.get(f"{root}token") for root in of_shards} == {b"%d" % 2**52}
    assert [await other.smembers(f"{root}paused") for root in of_shards] == [{b"note"}] * 4
    assert [await other.hkeys(f"{root}hooks") for root in of_shards] == [[b"f note timers.hook-1"]] * 4
    assert sum([await other.hlen(f"{root}quarantine") for root in of_shards]) == 2
    (entry,) = [entry for root in of_shards for _, entry in await other.xrange(f"{root}outbox")]
    assert entry[b"timer"] == b"note:a"
    await target.client.resume("note")
    for root in of_shards:
        await other.delete(f"{root}outbox", f"{root}hooks", f"{root}quarantine")
    for name in ("quarantine", "outbox", "hooks", "rec:" + bucket_of("note:worse")):
        await source.delete(f"timers:{{0}}:{name}")


def bucket_of(member: str) -> str:
    return hashlib.sha1(member.encode(), usedforsecurity=False).hexdigest()[:2]


async def test_an_adopted_key_still_rules_its_timer(fleet: Fleet, target: Fleet) -> None:
    pod = await fleet.pod(Calls(), adopt_every_ms=50, **OURS)
    await fleet.redis.set("note:bare", "1", px=3_600_000)
    await fleet.reached(Status.SCHEDULED, "bare")
    await fleet.drain(pod)
    await move(fleet, target)
    there = Calls()
    await target.pod(there, adopt_every_ms=50, **OURS)
    await target.redis.set("note:bare", "2", px=7_200_000)

    async def follows() -> bool:
        timer = await target.client.get("note", "bare")
        return timer.payload == 2 and timer.due_ms == await target.redis.pexpiretime("note:bare")

    await eventually(follows, "the timer is as the key is now")
    await target.client.fire("note", "bare")
    await target.completed("bare")
    assert [timer.payload for timer in there.timers] == [2]


async def test_pods_know_where_it_went_and_callers_hear_it(fleet: Fleet, target: Fleet) -> None:
    here, there = Calls(), Calls()
    pods = [await fleet.pod(here, **OURS), await target.pod(there, name="c", **OURS)]
    await fleet.client.create("note", "a", delay="1h")
    await move(fleet, target)
    for each, says in zip(pods, (f"the service has moved to {THERE}; connect there", None), strict=True):
        await until(lambda each=each, says=says: reason_of(each) == says, f"{each.name} knows")  # type: ignore[misc]
    with pytest.raises(Moving, match="has moved"):  # what a pod of the old place could read is of the past
        await pods[0].client.get("note", "a")
    await target.client.fire("note", "a")
    await target.completed("a")
    assert (len(here), len(there)) == (0, 1)
    with pytest.raises(Refused, match="has moved"):
        await abort(fleet.store)


def reason_of(pod: Pod) -> str | None:
    known = pod.store.identity.moving
    return None if known is None else str(known.error)


async def test_the_target_begins_only_when_all_is_there(fleet: Fleet, target: Fleet) -> None:
    there = Calls()
    await target.pod(there, **OURS)
    await fleet.client.create("note", "due", delay=0)
    moves = mover(fleet, target)
    begun = asyncio.Event()

    async def begin() -> None:
        begun.set()
        await asyncio.Event().wait()

    moves._begin = begin  # type: ignore[method-assign]  # as if the process stopped there
    first = asyncio.create_task(moves.run())
    await begun.wait()
    with pytest.raises(Moving, match=f"is being moved here from {HERE}"):
        await target.client.create("note", "other", delay=0)
    first.cancel()
    with suppress(asyncio.CancelledError):
        await first
    assert not there
    assert (await mover(fleet, target).run()).was_done is False
    await target.completed("due")
    assert (await mover(fleet, target).run()).was_done


async def test_who_has_moved_does_not_say_that_it_went_to_another_place(fleet: Fleet, target: Fleet) -> None:
    await fleet.client.create("note", "a", delay="1h")
    await move(fleet, target)
    elsewhere = Mover(fleet.store, target.store, (HERE, "redis://elsewhere:6379/0"), tell=print, wait_seconds=60)
    with pytest.raises(Refused, match=f"the service has moved to {THERE}"):
        await elsewhere.check()


async def test_a_program_of_an_earlier_version_arms_nothing(fleet: Fleet) -> None:
    """It knows nothing of moves, but the stamp that it gives is no longer the shard's, nor does it read the format."""
    await fleet.client.create("note", "a", delay="1h")
    stamp = fleet.store.identity.stamp
    await close(fleet)
    assert await fleet.store.run("arm", 0, [stamp, 2, 0, "", "note b error +1000 -\n{}\n"]) == [b"foreign"]
    assert await fleet.redis.hget(keys.META, "format") == b"99"
    await abort(fleet.store)
    assert await fleet.redis.hget(keys.META, "format") == b"2"


async def test_a_move_into_a_place_with_timers_is_refused(fleet: Fleet, target: Fleet) -> None:
    await fleet.client.create("note", "a", delay="1h")
    await target.client.create("note", "b", delay="1h")
    with pytest.raises(Refused, match="has timers; empty it"):
        await move(fleet, target)
    await target.client.cancel("note", "b", purge=True)
    await close(fleet, COPYING)
    with pytest.raises(Refused, match="--abort"):
        await move(fleet, target)
    await abort(fleet.store)
    with pytest.raises(Refused, match="same db"):
        await move(fleet, fleet)
    assert (await move(fleet, target))["timers"] == 1
    assert isinstance(fleet.client, TimerClient)


async def test_a_difference_is_found(fleet: Fleet, target: Fleet) -> None:
    await fleet.client.create("note", "a", delay="1h")
    moves = mover(fleet, target)
    copy = moves._copy_records

    async def spoil(servers: str) -> None:
        await copy(servers)
        for part in moving.parts(target.store):
            await target.redis.hset(f"{keys.root(part[0])}rec:{bucket_of('note:x')}", "note:x", (await sample(fleet)))

    moves._copy_records = spoil  # type: ignore[method-assign]
    with pytest.raises(Refused, match="records of 1 statuses and prefixes differ: s note"):
        await moves.run()
    with pytest.raises(Moving):
        await fleet.client.cancel("note", "a")
    await abort(fleet.store)
    await fleet.client.cancel("note", "a")
    await target.redis.flushdb()


async def sample(fleet: Fleet) -> bytes:
    ((_, record),) = (await everything(fleet)).items()
    return record


class Restarted:
    """A fleet on a server of its own, which can be killed and started again."""

    def __init__(self, family: Family, folder: Path) -> None:
        self._family, self._folder = family, folder

    async def begin(self) -> Fleet:
        self._server = await start_server(self._family, self._folder)
        return await Fleet.over(self._server.url)

    async def again(self) -> None:
        self._server.kill()
        self._server = await start_server(self._family, self._folder)

    async def end(self) -> None:
        await self._server.stop()


async def test_a_copy_goes_on_after_a_restart_of_the_source(
    family: Family, tmp_path: Path, target: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process has other cursors: what lay behind the old ones was left out."""
    monkeypatch.setattr(moving, "PAGE", 40)
    source, reach, carry, passes = Restarted(family, tmp_path), moving.reach, moving.carry, list[str]()
    fleet = await source.begin()
    for first in range(0, 20_000, 1000):
        names = (f"{first + n}" for n in range(1000))
        await fleet.client.batch([{"prefix": "note", "id": name, "delay": "1h", "payload": LONG} for name in names])

    async def die(store: Store, part: moving.Part, place: moving.Place | None) -> None:
        await reach(store, part, place)
        if place is not None and place.cursor != "0":
            raise Unavailable("it dies")

    async def restart(*stores: Store) -> Counter[str]:
        passes.append("carried")
        if len(passes) == 1:
            await source.again()
        return await carry(*stores)

    monkeypatch.setattr(moving, "reach", die)
    with pytest.raises(Unavailable, match="it dies"):
        await move(fleet, target)
    await source.again()
    monkeypatch.setattr(moving, "reach", reach)
    monkeypatch.setattr(moving, "carry", restart)
    assert (await move(fleet, target))["timers"] == 20_000
    assert len(passes) == 2, "what a restart may have hidden is looked for again"
    await fleet.close()
    await source.end()


@pytest.mark.one_server
async def test_to_a_cluster_and_back(fleet: Fleet, servers: SharedServers, family: Family) -> None:
    cluster = await servers.cluster(family)
    there = await Fleet.over(cluster.url, shards=8)
    await fleet.client.batch({"prefix": "note", "id": f"{n}", "delay": "1h", "payload": n} for n in range(100))
    await fleet.client.pause("note")
    await fleet.redis.set("note:bare", "1", px=3_600_000)
    before = await everything(fleet)
    report = await move(fleet, there)
    assert (report["timers"], report["carried"]["pauses"], report["carried"]["bare keys"]) == (100, 1, 1)
    assert await everything(there) == before
    assert await there.redis.get("note:bare") == b"1"
    await there.client.resume("note")
    await there.client.cancel("note", "7", purge=True)
    await fleet.redis.flushdb()
    fleet.store.identity.epoch, fleet.store.identity.moving = "", None
    report = await move(there, fleet)
    assert report["timers"] == 99
    assert await everything(fleet) == {name: record for name, record in before.items() if name != ("note", "7")}
    with pytest.raises(Moving, match="has moved"):
        await there.client.cancel("note", "8")
    await there.close()
