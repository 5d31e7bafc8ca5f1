"""Foreign values in the service's keys: every script still works, other timers run, and readers answer."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import pytest

from tests.conftest import SharedServers
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
    lease_ended,
    prune,
    put_list,
    settle,
)
from tests.store.backends import open_store
from timers.core.model import Status, Timer
from timers.core.policies import Limits, Rate
from timers.store import keys, queries
from timers.store.callers import Callers
from timers.store.filters import Filter
from timers.store.listing import read_page
from timers.store.permits import Permits
from timers.store.store import Store

ROOT: Final = "timers:{0}:"
ELSEWHERE: Final = "mail"
"""Another queue of the shard: what happens to the first must not reach it."""


class World:
    """A shard with a timer in each state, and a due one in another queue. `again` brings it back after an act."""

    def __init__(self, store: Store, run: Timer, lost: Timer, keys: Sequence[tuple[bytes, int, bytes]]) -> None:
        self.store, self.run, self.lost, self._keys = store, run, lost, keys

    @classmethod
    async def made(cls, store: Store) -> "World":
        redis = store.connections.commands
        await store.arm([arming("run"), arming("done")])
        run, done = await claim(store)
        await settle(store, an_end(done))
        await armed(store, "lost")
        (lost,) = await claim(store, lease_ms=1)
        await store.arm([arming("due"), arming("later", due="+3600000"), arming("x", prefix=ELSEWHERE)])
        await lease_ended(store, lost)
        saved = [
            (key, await redis.pexpiretime(key), value)
            async for key in redis.scan_iter()
            if (value := await redis.dump(key)) is not None
        ]
        return cls(store, run, lost, saved)

    async def again(self) -> None:
        async with self.store.connections.commands.pipeline(transaction=False) as pipeline:
            pipeline.flushdb()
            for key, expires_ms, value in self._keys:
                pipeline.restore(key, max(expires_ms, 0), value, absttl=expires_ms > 0)
            await pipeline.execute()

    async def others_go_on(self) -> None:
        """The other queue's timer is found, listed, run and settled."""
        assert [timer.id for timer in (await read_page(self.store, Filter(prefix=ELSEWHERE))).items] in (["x"], [])
        (claimed,) = await claim(self.store, prefix=ELSEWHERE)
        assert await settle(self.store, an_end(claimed)) == ["settled"]
        assert (await self.store.get([(ELSEWHERE, "x")]))[0] is not None


Act = Callable[[World], Awaitable[object]]

ACTS: Final[dict[str, Act]] = {
    "arm": lambda w: w.store.arm([arming("new"), arming("later", if_exists="replace", due="+1000")]),
    "get": lambda w: w.store.get([(PREFIX, timer_id) for timer_id in ("run", "due", "done")]),
    "list": lambda w: read_page(w.store, Filter()),
    "cancel": lambda w: w.store.cancel(PREFIX, "later", purge=True),
    "reschedule": lambda w: w.store.reschedule(PREFIX, "later", due="+1000", cause="changed"),
    "rearm": lambda w: w.store.rearm(PREFIX, "done", cause="retried", completed=True),
    "claim": lambda w: claim(w.store),
    "extend": lambda w: w.store.extend(0, [w.run], pod=POD, lease_ms=LEASE_MS),
    "settle": lambda w: settle(w.store, an_end(w.run, Status.FAILED)),
    "settle again": lambda w: settle(w.store, an_end(w.run, Status.SCHEDULED)),
    "settle to nothing": lambda w: settle(w.store, an_end(w.run), retention_ms=0),
    "touch": lambda w: w.store.touch(0),
    "orphans": lambda w: w.store.orphans(0),
    "rescue": lambda w: w.store.rescue(0, [(PREFIX, "lost")], pod=OTHER, lease_ms=LEASE_MS),
    "abandon": lambda w: w.store.abandon(0, PREFIX, ["lost"], before_ms=2**52, most=10, pod=OTHER),
    "prune": lambda w: prune(w.store, retention_ms=-1000, most=10),
    "pause": lambda w: w.store.pause(PREFIX, paused=True),
    "resume": lambda w: w.store.pause(PREFIX, paused=False),
    "read": lambda w: read_all(w.store),
}


async def read_all(store: Store) -> None:
    """Read everything that shows the whole db."""
    await queries.counts(store)
    await queries.due(store)
    await queries.earliest_due(store)
    await queries.paused(store)
    await queries.quarantined(store)


@pytest.mark.parametrize("act", ACTS)
async def test_the_fake_server_of_the_test_kit_runs_every_script(act: str, servers: SharedServers) -> None:
    async with open_store(servers, "fake") as store:
        await ACTS[act](await World.made(store))


STRINGS: Final = (f"{ROOT}token", f"{ROOT}epoch", f"{ROOT}lease:{PREFIX}:run", f"{ROOT}lease:{PREFIX}:lost")
KEYS: Final = (
    *STRINGS,
    *(bucket_of(f"{PREFIX}:{timer_id}") for timer_id in ("run", "due", "later", "done", "lost")),
    *(f"{ROOT}{name}" for name in (f"due:{PREFIX}", "heads", "held", "blocked", "leases", "paused", "counts")),
    *(f"{ROOT}{name}" for name in ("prefixes", f"finished:c:{PREFIX}", "adopted", "quarantine")),
    *(f"{PREFIX}:{{0}}:{timer_id}" for timer_id in ("due", "later")),
)


async def put_text(redis: Any, key: str) -> None:
    await redis.set(key, b"\xff foreign")


async def put_text_for_a_day(redis: Any, key: str) -> None:
    await redis.set(key, b"\xff foreign", ex=86_400)


@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("put", [put_list, put_text, put_text_for_a_day])
async def test_a_value_of_another_type_stopped_every_service(
    real: Store, act: str, put: Callable[[Any, str], Awaitable[None]]
) -> None:
    world = await World.made(real)
    for key in KEYS:
        await world.again()
        await put(real.connections.commands, key)
        try:
            await ACTS[act](world)
            await world.others_go_on()
        except BaseException as error:
            error.add_note(f"with a foreign value in the place of {key}")
            raise
    await real.connections.commands.flushdb()


async def put_scores(redis: Any, score: str) -> None:
    """Put entries with impossible scores, for existing timers and for none."""
    strange = {b"\xff\xfe": score, "no member": score, "": score}
    await redis.zadd(f"{ROOT}due:{PREFIX}", {"later": score, "due": score, "gone": score, **strange})
    await redis.zadd(f"{ROOT}heads", {PREFIX: score, "gone": score, **strange})
    await redis.zadd(f"{ROOT}held", {PREFIX: score, **strange})
    await redis.zadd(f"{ROOT}blocked", {"gone": score, **strange})
    await redis.zadd(f"{ROOT}leases", {f"{PREFIX}:lost": score, f"{PREFIX}:gone": score, **strange})
    await redis.zadd(f"{ROOT}finished:c:{PREFIX}", {"done": score, "gone": score, **strange})


async def put_counts(redis: Any, value: str) -> None:
    strange: dict[str | bytes, str] = {"": value, "z": value, b"s \xff": value, "\u00df x": value}
    await redis.hset(f"{ROOT}counts", mapping={f"{letter} {PREFIX}": value for letter in "srcfux"} | strange)


async def put_token(redis: Any, value: str) -> None:
    await redis.set(f"{ROOT}token", value)


async def put_paused(redis: Any, value: str) -> None:
    await redis.sadd(f"{ROOT}paused", value, b"\xff")


GARBAGE: Final = [
    *((put_scores, score) for score in ("inf", "-inf", "1e300", "-5", "0.5")),
    *((put_counts, value) for value in ("garbage", "", "1.5", "-7", str(2**63 - 1), "9" * 30)),
    *((put_token, value) for value in ("garbage", "", "inf", "nan", "-1", str(2**63 - 1), "9" * 30)),
    (put_paused, "no prefix"),
]


@pytest.mark.parametrize("act", ACTS)
async def test_garbage_in_a_key_of_ours_stopped_every_service(real: Store, act: str) -> None:
    world = await World.made(real)
    for put, value in GARBAGE:
        await world.again()
        await put(real.connections.commands, value)
        try:
            await ACTS[act](world)
            await read_all(real)
            await real.touch(0)
            await world.others_go_on()
        except BaseException as error:
            error.add_note(f"after {put.__name__}({value!r})")
            raise
    await real.connections.commands.flushdb()


@pytest.mark.parametrize("score", ["-inf", "0"])
async def test_a_score_in_the_past_made_a_timer_early(store: Store, score: str) -> None:
    timer = await armed(store, "later", due="+3600000")
    await store.connections.commands.zadd(f"{ROOT}due:{PREFIX}", {"later": score})
    assert await claim(store) == []
    assert await store.connections.commands.zscore(f"{ROOT}due:{PREFIX}", "later") == timer.due_ms


async def test_foreign_values_in_the_way_are_moved_aside(real: Store) -> None:
    redis: Any = real.connections.commands
    key = f"{ROOT}counts"
    await redis.set(key, "foreign")
    await armed(real, due="+3600000")
    assert await redis.get(f"{ROOT}displaced:{key}") == b"foreign"
    assert (await queries.counts(real))[PREFIX] == {Status.SCHEDULED: 1}


LIMITED: Final = Limits(concurrency=2, rate=Rate(interval_us=1000, burst=5))


@pytest.mark.parametrize("value", ["garbage", "", "inf", "-inf", "nan", str(2**63 - 1), "9" * 30])
async def test_a_strange_rate_blocked_a_prefix_or_a_caller_for_ever(real: Store, value: str) -> None:
    redis, permits = real.connections.commands, Permits(real)
    await redis.set(f"{keys.limits_root(PREFIX)}rate", value)
    await redis.set(f"{keys.ACCESS_ROOT}rate:k", value)
    reserved = (await permits.reserve({PREFIX: (LIMITED, 2)}, pod=POD, lease_ms=LEASE_MS))[PREFIX]
    assert reserved.count == 2
    await redis.set(f"{keys.limits_root(PREFIX)}rate", value)
    await permits.give_back([(reserved, 0)])
    assert await Callers(real).wait_ms("k", Rate(interval_us=1000, burst=1)) == 0
    await redis.flushdb()


@pytest.mark.parametrize("put", [put_list, put_text])
async def test_another_type_in_place_of_permits_stopped_the_prefix(
    real: Store, put: Callable[[Any, str], Awaitable[None]]
) -> None:
    redis, permits = real.connections.commands, Permits(real)
    for name in ("permits", "rate"):
        await put(redis, f"{keys.limits_root(PREFIX)}{name}")
    await put(redis, f"{ROOT}counts")
    await put(redis, f"{ROOT}due:{PREFIX}")
    reserved = (await permits.reserve({PREFIX: (LIMITED, 2)}, pod=POD, lease_ms=LEASE_MS))[PREFIX]
    assert reserved.count == 2
    assert await permits.next_shards([PREFIX]) == {PREFIX: None}
    await permits.keep(reserved.permits, LEASE_MS)
    await permits.release(reserved.permits)
    await redis.flushdb()
