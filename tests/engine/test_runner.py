"""The runner alone: how many runs it takes, and what happens to runs that cannot start or are taken back."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from itertools import count
from typing import Any

import pytest

from tests.engine.fleet import CALM_LEASE_MS, Calls, Held, options_of, until
from tests.unit.samples import NoTimers, a_timer
from tests.waiting import DEADLINE_SECONDS
from timers.core.model import Status, Timer, in_english
from timers.engine.pod import Pod, taken_lease_ms
from timers.engine.runner import Runner
from timers.engine.runs import Run, Runs
from timers.engine.supervisor import Lifespans
from timers.processor import Context, Processor, Registry, processor
from timers.store.servers import connect
from timers.store.store import Claimed, Settlement, Store

LEASE_MS = taken_lease_ms(CALM_LEASE_MS)
_tokens = count(1)


class _FakeRuns(Runs):
    """Only records the ends."""

    ends: list[Settlement]

    def put(self, run: Run, settlement: Settlement) -> None:
        self.ends.append(settlement)
        self.waiting += 1


class _Plain:
    """A plain function whose calls last until the test calls `release.set()`. Nothing else can stop its threads."""

    def __init__(self, prefix: str = "plain", **options: Any) -> None:
        self.timers: list[Timer] = []
        self.release = threading.Event()
        self.processor: Processor = processor(prefix, **options)(self._call)

    def _call(self, timer: Timer, _context: Context) -> None:
        self.timers.append(timer)
        self.release.wait()

    def __len__(self) -> int:
        return len(self.timers)


class _Rig:
    """A runner for ten runs, without the rest of its pod."""

    def __init__(self, *calls: Calls | _Plain | Processor, concurrency: int = 10) -> None:
        store = Store(connect("redis://nowhere.invalid"))
        store.clock.observe(a_timer().due_ms, time.monotonic(), time.monotonic())
        registry = Registry([each if isinstance(each, Processor) else each.processor for each in calls])
        pod = Pod(store, registry, options_of(concurrency=concurrency))
        self.runs = _FakeRuns(pod, lambda _runs: None)
        self.doubted = asyncio.Event()
        self.runs.in_doubt = self.doubted.set
        self.runs.ends = []
        self.runner = Runner(pod, self.runs, NoTimers(), Lifespans([]))

    def start(self, number: int = 1, prefix: str = "note", asked_at: float | None = None) -> list[Timer]:
        """Give the runner `number` claimed timers."""
        timers = [a_timer(prefix=prefix, id=f"n{n}", token=next(_tokens)) for n in range(number)]
        self.runner.start(0, Claimed(timers, [], {}), time.monotonic() if asked_at is None else asked_at)
        return timers

    def held(self, timer: Timer) -> Run:
        """The run of a timer that was started."""
        (run,) = [run for run in self.runs if run.timer is timer]
        return run

    def statuses(self) -> Sequence[Status]:
        return [end.transition.status for end in self.runs.ends]


@pytest.fixture
async def held() -> Held:
    return Held()


@pytest.fixture
def plain() -> Iterator[_Plain]:
    made = _Plain(timeout="20ms", retry={"max_attempts": 1})
    yield made
    made.release.set()


@pytest.fixture
async def rig(held: Held) -> AsyncIterator[_Rig]:
    made = _Rig(held)
    yield made
    await made.runner.hand_back()
    made.runner.close()


async def test_what_runs_takes_room_until_it_has_ended(rig: _Rig, held: Held) -> None:
    assert (rig.runner.room, rig.runner.executing) == (10, 0)
    rig.start(4)
    assert (rig.runner.room, rig.runner.executing) == (6, 4)
    held.release.set()
    await until(lambda: rig.runner.executing == 0, "all have ended")
    assert rig.runner.room == 10
    assert rig.statuses() == [Status.COMPLETED] * 4


async def test_ends_that_wait_to_be_written_take_room_once_they_are_many(rig: _Rig) -> None:
    """They hold leases too; a pod that cannot write to Redis must not go on claiming."""
    rooms = {}
    for waiting in (0, 10, 11, 15, 20, 25):
        rig.runs.waiting = waiting
        rooms[waiting] = rig.runner.room
    assert rooms == {0: 10, 10: 10, 11: 9, 15: 5, 20: 0, 25: -5}


async def test_the_larger_of_running_and_waiting_counts(rig: _Rig) -> None:
    rig.start(3)
    rig.runs.waiting = 12
    assert rig.runner.room == 7
    rig.runs.waiting = 18
    assert rig.runner.room == 2
    rig.runs.waiting = 0


async def waited_for_room(rig: _Rig, taken: Callable[[], int], change: Callable[[], None]) -> list[str]:
    """Which came first: `change`, which is called during the wait, or room."""
    order = []

    async def wait() -> None:
        await rig.runner.room_free(taken)
        order.append("free")

    async def make_room() -> None:
        change()
        order.append("changed")

    async with asyncio.timeout(DEADLINE_SECONDS):
        await asyncio.gather(wait(), make_room())
    return order


async def test_room_is_waited_for_beside_what_claims_under_way_may_bring(rig: _Rig, held: Held) -> None:
    rig.start(8)
    await asyncio.wait_for(rig.runner.room_free(lambda: 1), 10)
    assert await waited_for_room(rig, lambda: 2, held.release.set) == ["changed", "free"]


async def test_who_waits_for_room_counted_claims_that_had_ended(rig: _Rig) -> None:
    under_way = [rig.runner.room]

    def end_the_claims() -> None:
        under_way[0] = 0
        rig.runner.room_changed()

    assert await waited_for_room(rig, lambda: under_way[0], end_the_claims) == ["changed", "free"]


async def test_a_change_of_room_elsewhere_wakes_who_waits_for_it(rig: _Rig) -> None:
    rig.runs.waiting = 20

    def change() -> None:
        rig.runs.waiting = 0
        rig.runner.room_changed()

    assert await waited_for_room(rig, int, change) == ["changed", "free"]


async def test_a_queue_with_its_own_limit_has_its_own_room() -> None:
    prefixes = ("narrow", "narrow.other", "wide")
    narrow, wide = Held("narrow", pod_concurrency=2), Held("wide")
    rig = _Rig(narrow, wide)
    assert [rig.runner.room_of(prefix) for prefix in prefixes] == [2, 2, 10]
    rig.start(2, "narrow")
    rig.start(1, "wide")
    assert [rig.runner.room_of(prefix) for prefix in prefixes] == [0, 2, 10]
    narrow.release.set()
    await until(lambda: rig.runner.room_of("narrow") == 2, "its room is free again")
    await rig.runner.hand_back()
    rig.runner.close()


def answered_late(rig: _Rig, number: int = 1, *, used: float = 1.0) -> list[Timer]:
    """Start timers whose claim was answered when this share of their leases had passed."""
    return rig.start(number, asked_at=time.monotonic() - used * LEASE_MS / 1000)


async def in_doubt(rig: _Rig) -> None:
    await asyncio.wait_for(rig.doubted.wait(), 10)


async def test_a_prefix_takes_no_memory_once_its_runs_have_ended(rig: _Rig, held: Held) -> None:
    """Callers can make up prefixes without end: `note-1`, `note-2` and so on are served by `note`."""
    held.release.set()
    for number in range(3):
        assert rig.runner.room_of(f"note-{number}") == 10
        rig.start(prefix=f"note-{number}")
    await rig.runner.finished()
    assert len(rig.runs.ends) == 3
    assert not rig.runner._of_prefix


@pytest.mark.parametrize("used", [0.8, 1.0])
async def test_a_claim_that_used_up_its_lease_starts_once_that_is_extended(rig: _Rig, held: Held, used: float) -> None:
    timers = answered_late(rig, 3, used=used)
    await in_doubt(rig)
    assert (rig.runner.executing, len(rig.runs), len(held)) == (3, 3, 0)
    assert rig.runner.held == {(timer.prefix, timer.id) for timer in timers}
    rig.doubted.clear()
    rig.runs.extended()
    await in_doubt(rig)
    assert len(held) == 0
    for run in rig.runs:
        run.lease_until = time.monotonic() + LEASE_MS
    rig.runs.extended()
    await until(lambda: len(held) == 3, "all have started")


async def test_a_claim_that_was_answered_after_somebody_took_its_timer_over_starts_nothing(
    rig: _Rig, held: Held
) -> None:
    (timer,) = answered_late(rig)
    await in_doubt(rig)
    rig.runner.lose(rig.held(timer))
    await until(lambda: rig.runner.executing == 0, "it was given up")
    assert (len(rig.runs), len(rig.runs.ends), len(held)) == (0, 0, 0)


async def test_a_drain_takes_back_runs_that_wait_for_their_lease(rig: _Rig, held: Held) -> None:
    answered_late(rig)
    await in_doubt(rig)
    await rig.runner.hand_back()
    (end,) = rig.runs.ends
    assert (end.transition.cause, end.transition.failures) == (("handed-back", "the pod drains"), 0)
    assert len(held) == 0


async def test_an_unreadable_timer_is_ended_without_a_run(rig: _Rig, held: Held) -> None:
    timer = a_timer(prefix="note", token=next(_tokens))
    rig.runner.start(0, Claimed([], [(timer, "unreadable record: odd")], {}), time.monotonic())
    assert rig.statuses() == [Status.FAILED]
    assert "unreadable record: odd" in in_english(*rig.runs.ends[0].transition.cause)
    assert (rig.runner.executing, len(held)) == (0, 0)


async def test_all_of_a_burst_are_started_although_a_few_in_each_turn(held: Held) -> None:
    rig = _Rig(held, concurrency=1_000)
    rig.start(300)
    rig.start(300)
    await until(lambda: len(held) == 600, "all are started")
    await rig.runner.hand_back()
    rig.runner.close()


async def test_a_drain_takes_back_runs_that_have_not_started(held: Held) -> None:
    rig = _Rig(held, concurrency=1_000)
    rig.start(200)
    await rig.runner.hand_back()
    assert len(held) < 200
    assert rig.statuses() == [Status.SCHEDULED] * 200
    assert {end.transition.failures for end in rig.runs.ends} == {0}
    assert rig.runner.executing == 0
    rig.runner.close()


async def test_a_lost_run_that_has_not_started_is_dropped(rig: _Rig, held: Held) -> None:
    (lost, other) = rig.start(2)
    rig.runner.lose(rig.held(lost))
    await until(lambda: len(held) == 1, "the other has started")
    assert held.timers == [other]
    assert [run.timer for run in rig.runs] == [other]
    assert rig.runs.ends == []


async def test_a_run_that_is_lost_in_the_turn_before_its_first_ends_at_once(rig: _Rig, held: Held) -> None:
    (timer,) = rig.start()
    run = rig.held(timer)
    await asyncio.sleep(0)
    assert run.coroutine is not None
    assert not held.timers
    rig.runner.lose(run)
    assert (run.ended, rig.runner.executing, rig.runs.ends) == (True, 0, [])


async def test_a_run_that_a_drain_takes_back_in_the_turn_before_its_first_ends_at_once(rig: _Rig, held: Held) -> None:
    rig.start()
    taking_back = asyncio.create_task(rig.runner.hand_back())
    await asyncio.sleep(0)
    assert rig.statuses() == [Status.SCHEDULED]
    await taking_back
    assert not held.timers


async def test_a_lost_run_is_cancelled_and_its_end_is_not_written(rig: _Rig, held: Held) -> None:
    (timer,) = rig.start()
    await until(lambda: len(held) == 1, "it runs")
    rig.runner.lose(rig.held(timer))
    await until(lambda: rig.runner.executing == 0, "it has ended")
    assert held.cancelled == 1
    assert (rig.runs.ends, len(rig.runs)) == ([], 0)


async def test_a_run_that_is_lost_twice_ends_once(rig: _Rig, held: Held) -> None:
    (timer,) = rig.start()
    await until(lambda: len(held) == 1, "it runs")
    run = rig.held(timer)
    rig.runner.lose(run)
    rig.runner.lose(run)
    await until(lambda: rig.runner.executing == 0, "it has ended")
    rig.runner.lose(run)
    assert (rig.runner.executing, rig.runner.room, rig.runs.ends) == (0, 10, [])


async def test_a_timer_whose_pods_used_up_its_attempts_by_dying_does_not_run(rig: _Rig, held: Held) -> None:
    timer = a_timer(prefix="note", token=next(_tokens), attempt=6, failures=50)
    rig.runner.start(0, Claimed([timer], [], {}), time.monotonic())
    await until(lambda: rig.runs.ends, "it has ended")
    assert len(held) == 0
    assert (rig.statuses(), rig.runs.ends[0].transition.attempt) == ([Status.FAILED], 5)


async def test_as_many_plain_functions_run_at_once_as_the_pod_takes() -> None:
    """Not only as many as a thread pool has threads: every claimed timer is started."""
    plain = _Plain()
    rig = _Rig(plain, concurrency=150)
    try:
        rig.start(150, "plain")
        await until(lambda: len(plain) == 150, "all are running")
    finally:
        plain.release.set()
    await until(lambda: rig.runner.executing == 0, "all have ended")
    assert rig.statuses() == [Status.COMPLETED] * 150
    rig.runner.close()


async def test_a_thread_is_used_again() -> None:
    threads: set[threading.Thread] = set()

    @processor("plain")
    def plain(_timer: Timer, _context: Context) -> None:
        threads.add(threading.current_thread())

    rig = _Rig(plain)
    for _ in range(5):
        rig.start(1, "plain")
        await until(lambda: rig.runner.executing == 0, "it has ended")
    assert rig.statuses() == [Status.COMPLETED] * 5
    assert len(threads) == 1
    rig.runner.close()


async def test_a_thread_that_hangs_takes_room_and_not_the_place_of_a_later_run(plain: _Plain, held: Held) -> None:
    rig = _Rig(plain, held, concurrency=2)
    rig.start(1, "plain")
    await until(lambda: rig.statuses() == [Status.FAILED], "it timed out")
    rig.runs.waiting = 0
    assert (rig.runner.executing, rig.runner.abandoned, rig.runner.room) == (0, 1, 1)
    rig.start(1, "note")
    await until(lambda: len(held) == 1, "the next one runs")
    assert rig.runner.room == 0
    assert await waited_for_room(rig, int, plain.release.set) == ["changed", "free"]
    assert (rig.runner.abandoned, rig.runner.room) == (0, 1)
    await rig.runner.hand_back()
    rig.runner.close()


async def test_a_plain_function_that_has_to_wait_for_a_thread_does_not_time_out_meanwhile(
    plain: _Plain, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine may allow fewer threads than the concurrency. The timeout counts from the start of the function."""
    first = _Plain("first")
    rig = _Rig(plain, first)
    rig.start(1, "first")
    await until(lambda: len(first) == 1, "the only thread is taken")
    monkeypatch.setattr(threading.Thread, "start", _no_thread)
    (waits,) = rig.start(1, "plain")
    await until(lambda: rig.held(waits).in_thread, "it waits")
    assert rig.held(waits).timeout is None
    first.release.set()
    await until(lambda: len(plain) == 1, "it runs")
    await until(lambda: rig.statuses() == [Status.COMPLETED, Status.FAILED], "then it times out")
    rig.runner.close()


async def test_a_drain_takes_back_runs_that_wait_for_a_thread(plain: _Plain, monkeypatch: pytest.MonkeyPatch) -> None:
    first = _Plain("first")
    rig = _Rig(plain, first)
    rig.start(1, "first")
    await until(lambda: len(first) == 1, "the only thread is taken")
    monkeypatch.setattr(threading.Thread, "start", _no_thread)
    (waits,) = rig.start(1, "plain")
    await until(lambda: rig.held(waits).in_thread, "it waits")
    await rig.runner.hand_back()
    assert (rig.statuses(), rig.runner.abandoned) == ([Status.SCHEDULED] * 2, 2)
    first.release.set()
    await until(lambda: rig.runner.abandoned == 0, "the thread is free")
    assert len(plain) == 0
    rig.runner.close()


async def test_without_any_thread_a_plain_function_fails_and_says_so(
    plain: _Plain, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = _Rig(plain)
    monkeypatch.setattr(threading.Thread, "start", _no_thread)
    rig.start(1, "plain")
    await until(lambda: rig.statuses() == [Status.FAILED], "it has failed")
    assert "can't start new thread" in in_english(*rig.runs.ends[0].transition.cause)
    assert (rig.runner.abandoned, len(plain)) == (0, 0)


def _no_thread(_thread: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")
