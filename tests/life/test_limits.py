"""Limits of a queue: concurrency in the fleet and on a pod, rate, order, pause. A limited queue delays no other."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from itertools import count, islice
from typing import Any

import pytest
from redis.asyncio import Redis

from tests.engine.fleet import Calls, Fleet, Held, until
from tests.waiting import eventually
from timers.client.fleet import read_fleet
from timers.core.durations import HOUR_MS
from timers.core.model import Status, Timer
from timers.core.policies import BURST_US
from timers.core.spec import NewTimer
from timers.doctor.examining import examine
from timers.engine import claimer, sweeper
from timers.errors import Unavailable
from timers.processor import Context
from timers.store import scripts
from timers.store.permits import Permits
from timers.store.servers.connections import Scripts
from timers.store.store import Claimed, Touched


class Busy(Calls):
    """A processor that takes a few turns of the loop and records how many runs were ever in progress at once."""

    def __init__(self, prefix: str = "note", **options: Any) -> None:
        super().__init__(prefix, self._work, **options)
        self.running: Counter[str] = Counter()
        self.most: Counter[str] = Counter()
        """By pod, and in all under the name ``""``."""

    async def _work(self, timer: Timer, _context: Context) -> None:
        assert timer.lease is not None
        names = (timer.lease.pod, "")
        for name in names:
            self.running[name] += 1
            self.most[name] = max(self.most[name], self.running[name])
        await asyncio.sleep(0.001)
        self.running.subtract(names)


def ids(number: int) -> list[str]:
    return [f"n{n}" for n in range(number)]


def of_shard(fleet: Fleet, shard: int, number: int) -> list[str]:
    """The first ids of the prefix `note` that are in a shard."""
    return list(islice((i for n in count() if fleet.store.shard_of("note", i := f"n{n}") == shard), number))


async def arm(fleet: Fleet, timer_ids: Iterable[str], prefix: str = "note", **fields: Any) -> list[Timer]:
    """Arm many similar timers, due at once unless the arguments differ."""
    due = fields if "due_at" in fields else {"delay": 0, **fields}
    results = await fleet.client.batch([NewTimer(prefix=prefix, id=timer_id, **due) for timer_id in timer_ids])
    return [result.timer for result in results if not isinstance(result, Exception)]


async def ended(fleet: Fleet, timer_ids: Sequence[str], prefix: str = "note") -> list[Timer]:
    """All of these timers, once each is completed."""
    return [await fleet.completed(timer_id, prefix) for timer_id in timer_ids]


def fail_once(monkeypatch: pytest.MonkeyPatch, of: object, name: str, error: Exception) -> None:
    """Let the next call of a method fail, instead of doing anything."""
    right = getattr(of, name)

    async def fail(*_given: Any, **_options: Any) -> None:
        monkeypatch.setattr(of, name, right)
        raise error

    monkeypatch.setattr(of, name, fail)


def watch(monkeypatch: pytest.MonkeyPatch, of: object, name: str) -> asyncio.Event:
    """An event that is set once a call of a method has been answered."""
    right, answered = getattr(of, name), asyncio.Event()

    async def call(*given: Any, **options: Any) -> Any:
        answer = await right(*given, **options)
        answered.set()
        return answer

    monkeypatch.setattr(of, name, call)
    return answered


async def test_the_doctor_names_limits_that_differ_between_pods(fleet: Fleet) -> None:
    await fleet.pod(Busy(concurrency=3), Busy("mail", rate="10/s"), name="a")
    await fleet.pod(Busy(concurrency=5), Busy("mail", rate="10/s"), name="b")
    (check,) = [check for check in await examine(fleet.store) if check.name == "settings"]
    assert (check.level, check.said) == ("warn", "limits of note: 3 at once on a and 5 at once on b")


class TestConcurrency:
    async def test_over_the_whole_fleet_no_more_run_than_the_limit(self, fleet: Fleet) -> None:
        busy = Busy(concurrency=3)
        for name in ("a", "b", "c"):
            await fleet.pod(busy, name=name)
        await arm(fleet, ids(60))
        await ended(fleet, ids(60))
        assert busy.most[""] == 3
        assert sorted(busy.ids) == sorted(ids(60))

    async def test_on_a_pod_no_more_run_than_the_limit_and_another_pod_takes_as_many(self, fleet: Fleet) -> None:
        held = Held(pod_concurrency=3)
        await fleet.pod(held, name="a")
        await fleet.pod(held, name="b")
        await arm(fleet, ids(20))
        await until(lambda: len(held) == 6, "both pods are at their limit")
        await arm(fleet, ["other"], "note-beside")
        held.release.set()
        await ended(fleet, ids(20))
        assert Counter(timer.lease.pod for timer in held.timers[:6] if timer.lease) == {"a": 3, "b": 3}

    async def test_two_claims_under_way_do_not_exceed_the_limit_of_a_pod(self, fleet: Fleet) -> None:
        """Each claim had asked for all the room there was."""
        held = Held(pod_concurrency=250)
        await fleet.pod(held, concurrency=1000)
        await arm(fleet, ids(600))
        await until(lambda: len(held) >= 250, "the pod is at its limit")
        await arm(fleet, ["beside"], "note-beside")
        await until(lambda: "beside" in held.ids, "further claims have been answered")
        assert len(held) == 251
        held.release.set()
        await ended(fleet, ids(600))

    async def test_a_pod_at_the_limit_of_a_prefix_does_not_ask_for_it_again_and_again(self, fleet: Fleet) -> None:
        """After a full batch the queue stayed marked, and the pod made empty claims without a pause."""
        held = Held(pod_concurrency=250)
        pod = await fleet.pod(held, concurrency=1000)
        await arm(fleet, ids(600))
        await until(lambda: len(held) >= 250, "the pod is at its limit")
        await until(lambda: pod.worker.intake.is_empty, "it has stopped asking")
        held.release.set()
        await ended(fleet, ids(600))

    async def test_room_that_a_claim_asked_for_and_did_not_need_is_filled(
        self, sharded: Fleet, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Another claim found no room meanwhile, and forgot that its queue was due."""
        calls = Calls(pod_concurrency=1)
        pod = await sharded.pod(calls, grace_ms=HOUR_MS)
        (second,) = of_shard(sharded, 1, 1)
        asked, answer = asyncio.Event(), asyncio.Event()
        claim = pod.store.claim

        async def claim_late(shard: int, *given: Any, **options: Any) -> Claimed:
            if shard == 0:
                asked.set()
                await answer.wait()
            return await claim(shard, *given, **options)

        monkeypatch.setattr(pod.store, "claim", claim_late)
        pod.worker.intake.mark(0, "note")  # its timer goes to another pod, or is cancelled
        await asked.wait()
        found_no_room = watch(monkeypatch, pod.worker._claimer, "_claim")
        await arm(sharded, [second])
        await found_no_room.wait()
        answer.set()
        await ended(sharded, [second])

    async def test_room_on_one_pod_is_filled_when_a_run_on_another_ends(self, fleet: Fleet) -> None:
        held = Held(concurrency=1)
        first = await fleet.pod(held, name="a")
        await arm(fleet, ["x"])
        await until(lambda: len(held) == 1, "the limit is reached")
        await fleet.pod(held, name="b")
        await arm(fleet, ["y"])
        held.release.set()
        await fleet.drain(first)
        await ended(fleet, ["x", "y"])

    @pytest.mark.parametrize("concurrency", [1, 2])
    async def test_room_that_a_draining_pod_leaves_is_filled(
        self, fleet: Fleet, monkeypatch: pytest.MonkeyPatch, concurrency: int
    ) -> None:
        """It claims nothing any more, and told nobody that its runs had ended."""
        monkeypatch.setattr(claimer, "FULL_MS", HOUR_MS)
        leaves, stays = Held(concurrency=concurrency), Calls(concurrency=concurrency)
        first = await fleet.pod(leaves, name="leaves")
        await arm(fleet, ids(concurrency))
        await until(lambda: len(leaves) == concurrency, "the limit is reached")
        second = await fleet.pod(stays, name="stays")
        is_refused = watch(monkeypatch, second.worker._claimer, "_look_again")
        await arm(fleet, ["waits"])
        await is_refused.wait()
        draining = asyncio.create_task(fleet.drain(first))
        await until(lambda: set(first.worker._taking.states.values()) == {"stopped"}, "it claims nothing any more")
        leaves.release.set()
        await draining
        await ended(fleet, [*ids(concurrency), "waits"])
        assert stays.ids == ["waits"]

    async def test_over_several_shards_the_limit_is_the_same(self, sharded: Fleet) -> None:
        busy = Busy(concurrency=2)
        for name in ("a", "b"):
            await sharded.pod(busy, name=name)
        await arm(sharded, ids(40))
        await ended(sharded, ids(40))
        assert busy.most[""] <= 2

    async def test_no_shard_starves_behind_the_backlog_of_another(
        self, sharded: Fleet, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Whoever freed a place asked the shards in the same order each time, and the first took it."""
        monkeypatch.setattr(claimer, "FULL_MS", HOUR_MS)

        async def work(_timer: Timer, _context: Context) -> None:
            await asyncio.sleep(0.05)  # so that the claims after one end are answered before the next

        calls, backlog, waiting = Calls(act=work, concurrency=2), of_shard(sharded, 0, 100), of_shard(sharded, 3, 10)
        await arm(sharded, [*backlog, *waiting])
        await sharded.pod(calls, grace_ms=HOUR_MS)
        await ended(sharded, [*backlog, *waiting])
        assert max(map(calls.ids.index, waiting)) < 60

    async def test_a_dead_pod_gives_its_permit_back(self, fleet: Fleet) -> None:
        held, busy = Held(concurrency=1), Busy(concurrency=1)
        first = await fleet.pod(held, name="a", lease_ms=500)
        await arm(fleet, ["x"])
        await until(lambda: len(held) == 1, "the only permit is taken")
        await fleet.kill(first)
        await fleet.pod(busy, name="b", lease_ms=500)
        await arm(fleet, ["y"])
        await ended(fleet, ["x", "y"])
        assert busy.ids == ["x", "y"]
        assert busy.most[""] == 1

    async def test_a_rescued_run_takes_a_permit(self, fleet: Fleet) -> None:
        """A dead pod's places were filled twice: by its lost runs and by new ones."""
        lost, held = Held(concurrency=2), Held(concurrency=2)
        first = await fleet.pod(lost, name="a", lease_ms=500)
        await arm(fleet, ids(2))
        await until(lambda: len(lost) == 2, "both permits are taken")
        await arm(fleet, ids(6))
        await fleet.kill(first)
        second = await fleet.pod(held, name="b", lease_ms=500)
        await until(lambda: len(held) == 2, "both places are filled")
        await arm(fleet, ["beside"], "note-beside")
        await until(lambda: "beside" in held.ids, "further claims have been answered")
        assert second.worker.runner.executing == 3
        held.release.set()
        await ended(fleet, ids(6))

    @pytest.mark.parametrize("refused", ["claim", "next_shards"])
    async def test_a_claim_that_redis_refused_keeps_no_permit(
        self, fleet: Fleet, monkeypatch: pytest.MonkeyPatch, refused: str
    ) -> None:
        """Nothing of the queue started until the lease of the permit had ended."""
        calls = Calls(concurrency=1)
        pod = await fleet.pod(calls, lease_ms=HOUR_MS)
        if refused == "claim":
            fail_once(monkeypatch, pod.store, refused, Unavailable("Redis cannot do this now", nothing_done=True))
        else:  # it only looks
            fail_once(monkeypatch, pod.worker._pod.permits, refused, Unavailable("no answer"))
        await arm(fleet, ["x"])
        await ended(fleet, ["x"])

    async def test_a_rescue_that_redis_refused_keeps_no_permit(
        self, fleet: Fleet, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(sweeper, "INTERVAL_MS", 100)  # the next poll finds the run again
        lost, calls = Held(concurrency=1), Calls(concurrency=1)
        dying = await fleet.pod(lost, name="a", lease_ms=500)
        await arm(fleet, ["x"])
        await until(lambda: len(lost) == 1, "the only permit is taken")
        pod = await fleet.pod(calls, name="b", lease_ms=HOUR_MS)
        fail_once(monkeypatch, pod.store, "rescue", Unavailable("Redis cannot do this now", nothing_done=True))
        await fleet.kill(dying)
        await ended(fleet, ["x"])

    async def test_a_lost_run_gives_its_permit_back(self, fleet: Fleet) -> None:
        """Its pod kept the permit beside that of the pod that has the run now."""
        lost, held = Held(concurrency=2), Held(concurrency=2)
        frozen = await fleet.pod(lost, name="a", lease_ms=HOUR_MS)
        await arm(fleet, ["x"])
        await until(lambda: len(lost) == 1, "it runs")
        await frozen.freeze()
        await fleet.expire_lease("x")
        await fleet.pod(held, name="b", lease_ms=HOUR_MS)
        await until(lambda: len(held) == 1, "it was taken over")
        frozen.thaw()
        await until(lambda: lost.cancelled == 1, "it is lost")
        held.release.set()
        await ended(fleet, ["x"])
        permits = Permits(fleet.store)

        async def all_free() -> bool:
            return not await permits.in_use("note")

        await eventually(all_free, "no permit is in use")

    async def test_permits_of_runs_longer_than_a_lease_are_kept(self, fleet: Fleet) -> None:
        held, other = Held(concurrency=1), Calls(concurrency=1)
        await fleet.pod(held, name="a", lease_ms=300)
        await arm(fleet, ["x"])
        await until(lambda: len(held) == 1, "the only permit is taken")
        await fleet.pod(other, name="b", lease_ms=300)
        await arm(fleet, ["y"])
        started_ms = held.timers[0].history[-2].at_ms

        async def lease_over() -> bool:
            return await fleet.store.now_ms() > started_ms + 900

        await eventually(lease_over, "three leases have passed")
        assert len(other) == 0
        held.release.set()
        await ended(fleet, ["x", "y"])

    async def test_timers_behind_the_limit_do_not_count_as_late(self, fleet: Fleet) -> None:
        """They did for a moment whenever the block of their queue ended, until a pod had found the limit again."""
        held, named, called = Held(concurrency=2), list[int](), Counter[str]()
        pod = await fleet.pod(held)
        pod.store.called = lambda script, _seconds: called.update([script])
        touch = pod.store.touch

        async def touch_and_look(*given: Any, **options: Any) -> Touched:
            blocks, touched = called["block"], await touch(*given, **options)
            if touched.due and blocks >= len(named) + 1:  # the first that names the queue after a block
                named.append((await read_fleet(fleet.store)).overdue_ms("ready"))
            return touched

        pod.store.touch = touch_and_look  # type: ignore[method-assign]
        await arm(fleet, ids(10))
        await until(lambda: len(named) == 4, "four blocks have ended")
        assert named == [0, 0, 0, 0]
        held.release.set()
        await ended(fleet, ids(10))

    async def test_a_prefix_without_limits_over_the_fleet_reserves_nothing(
        self, fleet: Fleet, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It pays no script and no round trip for other prefixes' limits."""
        ran: Counter[str] = Counter()

        def counted(run: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
            def count(redis: Redis | Scripts, name: str, *given: Any) -> Awaitable[Any]:
                ran[name] += 1
                return run(redis, name, *given)

            return count

        monkeypatch.setattr(scripts, "run", counted(scripts.run))
        monkeypatch.setattr(scripts, "run_all", counted(scripts.run_all))
        await fleet.pod(Calls(pod_concurrency=5))
        await arm(fleet, ids(10))
        await ended(fleet, ids(10))
        assert ran["settle"]
        assert not any(ran[name] for name in ("reserve", "keep", "release"))


class TestOrder:
    async def test_one_at_a_time_runs_by_due_time_then_by_arming_over_all_pods(self, fleet: Fleet) -> None:
        calls = Busy(concurrency=1)
        for name in ("a", "b"):
            await fleet.pod(calls, name=name)
        await fleet.store.pause("note", paused=True)
        now_ms = await fleet.store.now_ms()
        armed = [(now_ms - 1000 * (number * 7 % 5), f"n{number * 13 % 100}") for number in range(100)]
        for due_ms, timer_id in armed:
            await arm(fleet, [timer_id], due_at=due_ms)
        await fleet.store.pause("note", paused=False)
        await ended(fleet, ids(100))
        assert calls.ids == [timer_id for _, timer_id in sorted(armed, key=lambda timer: timer[0])]
        assert calls.most[""] == 1

    async def test_one_at_a_time_runs_by_due_time_over_all_shards(self, sharded: Fleet) -> None:
        """Each shard had its own order."""
        calls = Busy(concurrency=1)
        for name in ("a", "b"):
            await sharded.pod(calls, name=name)
        await sharded.store.pause("note", paused=True)
        now_ms = await sharded.store.now_ms()
        armed = [(now_ms - 10 * (number * 7 % 50), f"n{number}") for number in range(50)]
        for due_ms, timer_id in armed:
            await arm(sharded, [timer_id], due_at=due_ms)
        await sharded.store.pause("note", paused=False)
        await ended(sharded, ids(50))
        assert calls.ids == [timer_id for _, timer_id in sorted(armed)]

    async def test_one_at_a_time_waits_for_no_block_where_each_pod_has_its_own_shards(
        self, sharded: Fleet, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A pod that found no room looked again after half a second, or later: 0.2 starts a second in place of 20."""
        monkeypatch.setattr(claimer, "FULL_MS", 3_600_000)
        calls = Busy(concurrency=1)
        for shard in range(4):
            await sharded.pod(calls, name=f"pod-{shard}", shard_subset=(shard,))
        now_ms = await sharded.store.now_ms()
        for number in range(40):
            await arm(sharded, [f"n{number}"], due_at=now_ms + 5 * number)
        await ended(sharded, ids(40))
        assert calls.most[""] == 1

    async def test_a_block_that_arrives_after_the_room_was_announced_holds_nothing_up(
        self, sharded: Fleet, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A pod finds no room, and blocks its queue after the other pod has ended its run and let the queue go on."""
        monkeypatch.setattr(claimer, "FULL_MS", 3_600_000)
        (first,), (second,) = of_shard(sharded, 0, 1), of_shard(sharded, 1, 1)
        held = Held(concurrency=1)
        let = await sharded.pod(held, name="lets", shard_subset=(0,))
        wait = await sharded.pod(held, name="waits", shard_subset=(1,))
        blocking, went_on = asyncio.Event(), asyncio.Event()
        let_go_on, block_queue = let.store.block, wait.store.block

        async def go_on(shard: int, block_ms: Mapping[str, int]) -> None:
            await let_go_on(shard, block_ms)
            if block_ms.get("note") == 0:
                went_on.set()

        async def block_late(shard: int, block_ms: Mapping[str, int]) -> None:
            if block_ms and not went_on.is_set():
                blocking.set()
                await went_on.wait()
            await block_queue(shard, block_ms)

        monkeypatch.setattr(let.store, "block", go_on)
        monkeypatch.setattr(wait.store, "block", block_late)
        await arm(sharded, [first])
        await until(lambda: held.ids == [first], "the first runs")
        await arm(sharded, [second])
        await blocking.wait()
        held.release.set()
        await ended(sharded, [first, second])

    async def test_a_permit_that_was_only_tried_holds_nothing_up(
        self, sharded: Fleet, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A pod takes the only permit, finds nothing to start and gives it back. Another was refused meanwhile."""
        monkeypatch.setattr(claimer, "FULL_MS", HOUR_MS)
        (first,), (second,) = of_shard(sharded, 0, 1), of_shard(sharded, 1, 1)
        held = Held(concurrency=1)
        tries = await sharded.pod(held, name="tries", shard_subset=(0,))
        waits = await sharded.pod(held, name="waits", shard_subset=(1,))
        permits, looked, go_on = tries.worker._pod.permits, asyncio.Event(), asyncio.Event()
        next_shards = permits.next_shards

        async def look(prefixes: Sequence[str]) -> dict[str, int | None]:
            found = await next_shards(prefixes)
            if prefixes and held.release.is_set() and not looked.is_set():
                assert found == {"note": None}
                looked.set()
                await go_on.wait()
            return found

        monkeypatch.setattr(permits, "next_shards", look)
        await arm(sharded, [first])
        await until(lambda: held.ids == [first], "the first runs")
        held.release.set()
        await looked.wait()
        is_refused = watch(monkeypatch, waits.worker._claimer, "_look_again")
        await arm(sharded, [second])
        await is_refused.wait()
        go_on.set()
        await ended(sharded, [first, second])

    async def test_a_failed_timer_is_overtaken_only_while_it_waits(self, fleet: Fleet) -> None:
        """Its next try is due later, so the queue continues."""

        async def fail_once(timer: Timer, _context: Context) -> None:
            if timer.id == "n1" and timer.attempt == 1:
                raise ValueError("not now")

        calls = Calls(act=fail_once, concurrency=1, retry={"backoff": "fixed", "base": "50ms"})
        await arm(fleet, ids(3))
        await fleet.pod(calls)
        await ended(fleet, ids(3))
        assert calls.ids == ["n0", "n1", "n2", "n1"]


class TestRate:
    @pytest.mark.parametrize("rate", ["100/s", "200/s"])
    async def test_over_all_pods_never_more_than_the_rate_and_its_burst(self, fleet: Fleet, rate: str) -> None:
        """By the server's own times. The rate counts reservations. Claims follow, on a busy machine much later, so they
        may come together, but there are never more than the rate allows."""
        calls, interval_ms = Calls(rate=rate), 1000 / int(rate[:-2])
        burst = BURST_US // round(interval_ms * 1000)
        for name in ("a", "b"):
            await fleet.pod(calls, name=name)
        began_ms = await fleet.store.now_ms()
        await arm(fleet, ids(60))
        starts = sorted(timer.history[-2].at_ms for timer in await ended(fleet, ids(60)))
        for before, at_ms in enumerate(starts):
            assert before <= (at_ms + 1 - began_ms) / interval_ms + burst
        assert len(calls) == 60

    async def test_timers_that_may_not_run_yet_stay_due_and_unleased(self, fleet: Fleet) -> None:
        calls = Calls(rate="1/d")
        await fleet.pod(calls)
        await arm(fleet, ["x", "y"])
        await fleet.completed("x")
        await arm(fleet, ["z"])
        waiting = await fleet.client.get("note", "y")
        assert (waiting.status, waiting.lease, waiting.attempt) == (Status.SCHEDULED, None, 0)
        assert calls.ids == ["x"]


class TestPause:
    async def test_nothing_starts_until_resumed_and_runs_in_progress_continue(self, fleet: Fleet) -> None:
        held = Held()
        await fleet.pod(held)
        await arm(fleet, ["running"])
        await until(lambda: len(held) == 1, "one is running")
        assert await fleet.store.pause("note", paused=True)
        await arm(fleet, ids(5))
        held.release.set()
        await fleet.completed("running")
        assert {(await fleet.client.get("note", timer_id)).status for timer_id in ids(5)} == {Status.SCHEDULED}
        assert await fleet.store.pause("note", paused=False)
        await ended(fleet, ids(5))


async def block(fleet: Fleet, way: str) -> None:
    """Fill the queue `slow` so that it cannot continue."""
    await arm(fleet, ids(300), "slow")
    if way == "paused":
        await fleet.store.pause("slow", paused=True)


@pytest.mark.parametrize("rate", ["1000/s", None])
@pytest.mark.parametrize("before", ["1/h", "10/d"])
async def test_a_rate_that_was_raised_held_for_as_long_as_the_one_before(
    fleet: Fleet, before: str, rate: str | None
) -> None:
    async def is_blocked() -> bool:
        return await fleet.redis.zscore("timers:{0}:blocked", "note") is not None

    slow, fast = Calls(rate=before), Calls(rate=rate)
    pod = await fleet.pod(slow)
    await arm(fleet, ids(4))
    await until(lambda: slow.ids, "one has run")
    await eventually(is_blocked, "the rate holds up the others")
    await fleet.drain(pod)
    await fleet.pod(fast, name="b")
    await until(lambda: len(slow) + len(fast) == 4, "the others run at the new rate")


async def test_a_limited_queue_waited_for_ever_once_others_had_filled_the_pod(fleet: Fleet) -> None:
    crowd, limited = Busy("crowd"), Busy("note", concurrency=2)
    await fleet.pod(crowd, limited, concurrency=10)
    await fleet.client.batch([NewTimer(prefix="crowd", id=str(n), delay=0) for n in range(60)])
    await fleet.client.batch([NewTimer(prefix="note", id=str(n), delay=0) for n in range(5)])
    await until(lambda: (len(crowd), len(limited)) == (60, 5), "all have run")


@pytest.mark.parametrize(
    ("way", "options"),
    [
        ("one at a time", {"concurrency": 1}),
        ("few on a pod", {"pod_concurrency": 2}),
        ("slow", {"rate": "1/d"}),
        ("paused", {}),
    ],
)
async def test_a_prefix_that_is_held_up_delays_no_other(fleet: Fleet, way: str, options: dict[str, Any]) -> None:
    held, calls = Held("slow", **options), Calls()
    await block(fleet, way)
    await fleet.pod(held, calls, concurrency=20)
    for number in range(10):
        await arm(fleet, [f"n{number}"])
        await fleet.completed(f"n{number}")
    assert len(held) <= 2
    assert calls.ids == ids(10)
    held.release.set()
