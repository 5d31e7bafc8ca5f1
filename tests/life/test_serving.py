"""Who serves what: pods for some prefixes and some shards, and timers that end unhandled because no pod serves them."""

from collections.abc import Iterator, Sequence

import pytest
import structlog
from structlog.typing import EventDict

from tests.engine.fleet import Calls, Fleet, Held, options_of, until
from tests.members import declare
from timers.core.explain import explain
from timers.core.model import Status
from timers.core.spec import NewTimer
from timers.engine.maintenance import Maintenance
from timers.engine.peers import Peers
from timers.engine.pod import Pod as WorkerPod
from timers.processor import Registry
from timers.store.membership import Member, Membership
from timers.store.servers import connect
from timers.store.store import Identity, Store, Touched

UNHANDLED_AFTER_MS = 200


@pytest.fixture
def logged() -> Iterator[list[EventDict]]:
    with structlog.testing.capture_logs() as captured:
        yield captured


async def _alarms(logged: list[EventDict]) -> list[EventDict]:
    """Waits for the alarms: the pod raises them when it gets the answer, maybe after the test has seen the record."""

    def raised() -> list[EventDict]:
        return [event for event in logged if event["event"].startswith("timers unhandled")]

    await until(raised, "an alarm")
    return raised()


class TestUnhandled:
    async def test_a_timer_that_nobody_serves_ends_unhandled_with_an_alarm_and_is_armed_again(
        self, fleet: Fleet, logged: list[EventDict]
    ) -> None:
        watching = Calls("mail")
        await fleet.pod(watching, unhandled_after_ms=UNHANDLED_AFTER_MS)
        await fleet.client.create("note", "x", delay=0, payload={"n": 1})
        timer = await fleet.reached(Status.UNHANDLED, "x")
        last = timer.history[0]
        assert (last.status, last.pod, last.note) == (Status.UNHANDLED, "a", "no live pod serves the prefix")
        assert last.at_ms - timer.due_ms >= UNHANDLED_AFTER_MS
        alarms = await _alarms(logged)
        assert [(alarm["log_level"], alarm["prefix"], alarm["count"], alarm["first"]) for alarm in alarms] == [
            ("error", "note", 1, "x")
        ]
        calls = Calls()
        await fleet.pod(calls, name="b")
        assert (await fleet.client.retry("note", "x")).status is Status.SCHEDULED
        done = await fleet.completed("x")
        assert calls.timers[0].payload == {"n": 1}
        assert [entry.status for entry in done.history] == [
            *(Status.COMPLETED, Status.RUNNING, Status.SCHEDULED, Status.UNHANDLED, Status.SCHEDULED)
        ]

    async def test_a_run_whose_only_pod_died_ends_unhandled_and_is_armed_again(
        self, fleet: Fleet, logged: list[EventDict]
    ) -> None:
        held = Held()
        dying = await fleet.pod(held, name="dying")
        await fleet.client.create("note", "x", delay=0, payload={"n": 1})
        await until(lambda: len(held) == 1, "it runs")
        await fleet.pod(Calls("mail"), name="watch", unhandled_after_ms=UNHANDLED_AFTER_MS, forget_after_ms=500)
        await fleet.kill(dying)
        await fleet.expire_lease("x")
        timer = await fleet.reached(Status.UNHANDLED, "x")
        assert (timer.attempt, timer.failures) == (1, 1)
        died = "its pod died during the run, and no live pod served 'note'"
        assert any(line.startswith(died) for line in explain(timer, timer.updated_ms))
        alarms = await _alarms(logged)
        assert [(alarm["prefix"], alarm["count"], alarm["first"]) for alarm in alarms] == [("note", 1, "x")]
        calls = Calls()
        await fleet.pod(calls, name="new")
        assert (await fleet.client.retry("note", "x")).status is Status.SCHEDULED
        done = await fleet.completed("x")
        assert (calls.attempts, calls.timers[0].payload) == ([2], {"n": 1})
        assert [entry.status for entry in done.history] == [
            *(Status.COMPLETED, Status.RUNNING, Status.SCHEDULED, Status.UNHANDLED, Status.RUNNING, Status.SCHEDULED)
        ]

    async def test_no_timer_that_is_served_paused_or_not_due_ends_unhandled(self, fleet: Fleet) -> None:
        held = Held("mail", concurrency=1)
        await declare(fleet.store, "paused", "later", "mail", "lost")
        await fleet.store.pause("paused", paused=True)
        waiting = [("paused", "x"), ("later", "x"), ("mail", "second")]
        for prefix, timer_id in [("mail", "first"), *waiting]:
            await fleet.client.create(prefix, timer_id, delay="1h" if prefix == "later" else 0)
        await fleet.pod(held, unhandled_after_ms=UNHANDLED_AFTER_MS)
        for timer_id in ("x", "y"):
            # The pod looks at the second one after everything that was there with the first.
            await fleet.client.create("lost", timer_id, delay=0)
            await fleet.reached(Status.UNHANDLED, timer_id, "lost")
        assert {(await fleet.client.get(*timer)).status for timer in waiting} == {Status.SCHEDULED}
        held.release.set()

    async def test_a_rolling_deploy_does_not_trigger_it(self, fleet: Fleet) -> None:
        """A pod goes and its successor comes. The wait restarts with every pod that serves the prefix."""
        watch = await fleet.pod(Calls("mail"), name="watch")
        old = await fleet.pod(Calls(), name="old")
        await until(lambda: watch.worker.peers.serve(0, "note"), "the watching pod sees who serves")
        await fleet.drain(old)
        await fleet.client.create("note", "x", delay=0)
        await until(lambda: not watch.worker.peers.serve(0, "note"), "the watching pod sees that nobody does")
        calls = Calls()
        await fleet.pod(calls, name="new")
        timer = await fleet.completed("x")
        assert calls.ids == ["x"]
        assert Status.UNHANDLED not in {entry.status for entry in timer.history}


class _Overdue(Store):
    """A store with one timer, which is due or was lost by its pod at time 0, and with a clock that the test sets. The
    pod's clock goes with it, apart from its jumps."""

    def __init__(self, due: dict[str, int], orphans: list[Identity]) -> None:
        super().__init__(connect("redis://nowhere.invalid"))
        self._due, self._lost = due, orphans
        self.now_ms_is = self.jumped_ms = 0
        self.abandoned_before: list[int] = []

    async def touch(self, shard: int, rank: int = 0, *, joins: bool = False) -> Touched:
        return Touched(self.now_ms_is, None, self._due)

    def monotonic(self) -> float:
        return (self.now_ms_is - self.jumped_ms) / 1000

    async def orphans(self, shard: int, rank: int = 0) -> tuple[list[Identity], int]:
        return self._lost, 0

    async def abandon(
        self, shard: int, prefix: str, runs: Sequence[str], *, before_ms: int, most: int, pod: str
    ) -> list[str]:
        self.abandoned_before.append(before_ms)
        return ["x"]


class _Others(Peers):
    """Peers where the test says if one of them serves the prefix."""

    serving = False

    def serve(self, shard: int, prefix: str) -> bool:
        return self.serving


@pytest.fixture(params=[({"note": 0}, []), ({}, [("note", "x")])], ids=["due", "orphaned"])
def overdue(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> _Overdue:
    store = _Overdue(*request.param)
    monkeypatch.setattr("timers.engine.maintenance.time", store)
    return store


def _searching(store: Store, others: Peers) -> Maintenance:
    return Maintenance(WorkerPod(store, Registry([]), options_of()), others, lambda _shard: True)


async def test_the_wait_for_a_prefix_restarts_whenever_a_pod_has_served_it(overdue: _Overdue) -> None:
    """A deploy may stop the only pod any number of times, if each gap is shorter than the wait."""
    store, others = overdue, _Others(Membership(overdue), Member("a"))
    unserved = _searching(store, others)
    for store.now_ms_is in range(0, 600_000, 5_000):
        others.serving = store.now_ms_is % 60_000 == 0
        await unserved.abandon_unserved(0)
    assert store.abandoned_before == []
    others.serving = False
    for store.now_ms_is in range(600_000, 665_000, 5_000):
        await unserved.abandon_unserved(0)
    # Unserved since the look at 545 s, because there was a pod at 540 s.
    assert store.abandoned_before[0] == 605_000 - 60_000


async def test_a_jump_of_the_servers_clock_does_not_end_the_wait_for_a_prefix(overdue: _Overdue) -> None:
    unserved = _searching(overdue, _Others(Membership(overdue), Member("a")))
    await unserved.abandon_unserved(0)
    overdue.jumped_ms = overdue.now_ms_is = 3_600_000
    await unserved.abandon_unserved(0)
    assert overdue.abandoned_before == []


async def test_a_pod_that_has_not_looked_for_long_waits_again(overdue: _Overdue) -> None:
    """It was frozen, and knows only the pods of before."""
    unserved = _searching(overdue, _Others(Membership(overdue), Member("a")))
    for overdue.now_ms_is in (0, 5_000, 600_000):
        await unserved.abandon_unserved(0)
    assert overdue.abandoned_before == []
    for overdue.now_ms_is in range(605_000, 665_000, 5_000):
        await unserved.abandon_unserved(0)
    assert overdue.abandoned_before == [600_000]


class TestPrefixes:
    async def test_pods_take_only_their_kinds_of_work(self, fleet: Fleet) -> None:
        mails, pushes = [Calls("mail"), Calls("push")], [Calls("mail"), Calls("push")]
        await fleet.pod(*mails, only=["mail"], name="a")
        await fleet.pod(*pushes, only=["push"], name="b")
        for number in range(10):
            await fleet.client.create(("mail-x", "push")[number % 2], f"n{number}", delay=0)
        for number in range(10):
            await fleet.completed(f"n{number}", ("mail-x", "push")[number % 2])
        assert [len(calls) for calls in (*mails, *pushes)] == [5, 0, 0, 5]


class TestShards:
    async def test_some_prefixes_on_some_shards(self, sharded: Fleet) -> None:
        """Limited by kind and by load at once: exactly one pod takes each timer."""
        pods = {}
        for only in ("mail", "push"):
            for shards in ((0, 1), (2, 3)):
                pods[only, shards] = calls = [Calls("mail"), Calls("push")]
                await sharded.pod(*calls, only=[only], name=f"{only}-{shards[0]}", shard_subset=shards)
        news = [NewTimer(prefix=prefix, id=f"n{n}", delay=0) for n in range(20) for prefix in ("mail", "push")]
        await sharded.client.batch(news)
        for new in news:
            await sharded.completed(str(new.id), new.prefix)
        for (only, shards), calls in pods.items():
            ran = [timer for each in calls for timer in each.timers]
            assert {timer.prefix for timer in ran} == {only}
            assert {sharded.store.shard_of(timer.prefix, timer.id) for timer in ran} == set(shards)
