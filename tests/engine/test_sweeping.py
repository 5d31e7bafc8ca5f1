"""The sweeper alone: when it looks next, what it marks, and when it leaves the looking to another pod."""

import asyncio
from collections.abc import Callable

import pytest

from tests.engine.fleet import until
from timers.core.clock import ServerClock
from timers.engine.canary import Canary
from timers.engine.intake import Intake
from timers.engine.observer import Observer
from timers.engine.peers import Peers
from timers.engine.pod import Pod
from timers.engine.sweeper import DEAF_INTERVAL_MS, GRACE_MS, INTERVAL_MS, STAGGER_MS, TRUST_MS, Sweeper
from timers.processor import Context, Registry, processor
from timers.store.connect import connect
from timers.store.membership import Member, Membership
from timers.store.store import Identity, Store, Touched

NOW_MS = 1_000_000

During = Callable[[], None]


@processor("note")
async def _note(_timer: object, _context: Context) -> None:
    """Is never called here."""


class _Shelf(Store):
    """A store whose clock stands still until the test moves it, and whose looks find what the test says."""

    def __init__(self) -> None:
        self.now_s = 0.0
        super().__init__(connect("redis://nowhere.invalid"), clock=ServerClock(lambda: self.now_s))
        self.clock.observe(NOW_MS, 0.0, 0.0)
        self.looks = 0
        self.next_ms: int | None = None
        self.due: dict[str, int] = {}
        self.lost: list[Identity] = []
        self.next_orphan = self.next_rank = 0
        self.ranks: list[int] = []
        self.looked_from: list[int] = []
        self.during: During = lambda: None

    async def touch(self, shard: int, rank: int = 0) -> Touched:
        self.looks += 1
        self.ranks.append(rank)
        self.during()
        now_ms = round(self.clock.now_ms())
        return Touched(now_ms, self.next_ms, self.due, self.next_rank, lost=True)

    async def orphans(self, shard: int, rank: int = 0) -> tuple[list[Identity], int]:
        self.looked_from.append(rank)
        return self.lost, self.next_orphan


class _Ranked(Peers):
    """Peers in which this pod has the rank that the test says."""

    def __init__(self, store: Store) -> None:
        super().__init__(Membership(store), Member("a"))
        self.own_rank = 0

    def rank(self, shard: int) -> int:
        return self.own_rank


class _Bench:
    """A sweeper with nothing around it, that has subscribed."""

    def __init__(self) -> None:
        self.shelf, self.intake = _Shelf(), Intake()
        self.peers, self.canary = _Ranked(self.shelf), Canary(self.shelf, "a")
        pod = Pod("a", self.shelf, Registry([_note]), (0,), 4_000, Observer())
        self.sweeper = Sweeper(pod, self.intake, self.peers, self.canary)
        self.canary.resubscribed()
        self.one = self.sweeper.sweeps[0]

    async def look(self) -> float:
        """Look once; answers in how many ms it will look again."""
        await self.one.look()
        return self.one.look_ms - self.shelf.clock.now_ms()

    def marked(self) -> set[str]:
        return {ask.prefix for some in self.intake.take(1_000) for ask in some.asks}


@pytest.fixture
async def bench() -> _Bench:
    """It has looked at everything once and found nothing."""
    made = _Bench()
    await made.look()
    made.shelf.looked_from.clear()
    return made


def ms(value: float) -> object:
    """The clock cuts and rounds to a millisecond."""
    return pytest.approx(value, abs=1.1)


async def test_with_nothing_planned_it_looks_again_after_its_interval(bench: _Bench) -> None:
    assert await bench.look() == ms(INTERVAL_MS)
    assert bench.marked() == set()


async def test_it_looks_just_after_the_next_due_time(bench: _Bench) -> None:
    bench.shelf.next_ms = NOW_MS + 300
    assert await bench.look() == ms(301)


async def test_a_sleep_to_a_due_time_beyond_the_interval_is_split(bench: _Bench) -> None:
    bench.shelf.next_ms = NOW_MS + 86_400_000
    assert await bench.look() == ms(INTERVAL_MS)


async def test_a_pod_that_cannot_hear_a_nearer_due_time_looks_more_often(bench: _Bench) -> None:
    bench.canary.unsubscribed()
    assert await bench.look() == ms(DEAF_INTERVAL_MS)


async def test_each_rank_gives_the_one_before_it_time_to_touch(bench: _Bench) -> None:
    bench.shelf.next_ms = NOW_MS + 300
    bench.peers.own_rank = 3
    assert await bench.look() == ms(301 + 3 * STAGGER_MS)


async def test_what_is_due_is_looked_at_again_when_it_would_be_overdue(bench: _Bench) -> None:
    bench.shelf.due = {"note": NOW_MS - 1}
    assert await bench.look() == ms(GRACE_MS)
    assert bench.marked() == set()


async def test_an_overdue_timer_is_marked_whatever_happened_to_its_event(bench: _Bench) -> None:
    bench.shelf.due = {"note": NOW_MS - GRACE_MS - 2, "note.punctual": NOW_MS - 1, "unknown": NOW_MS - 10_000}
    await bench.look()
    assert bench.marked() == {"note"}


async def test_after_a_gap_everything_due_is_marked_at_once(bench: _Bench) -> None:
    bench.shelf.due = {"note": NOW_MS - 1}
    bench.sweeper.sweep_everything()
    assert bench.one.look_ms <= bench.shelf.clock.now_ms()
    await bench.look()
    assert bench.marked() == {"note"}
    await bench.look()
    assert bench.marked() == set()


async def test_orphans_of_prefixes_it_serves_are_marked(bench: _Bench) -> None:
    bench.shelf.lost = [("note", "x"), ("unknown", "y")]
    await bench.look()
    assert bench.intake.take_orphans(10) == {0: [("note", "x")]}


async def test_it_continues_at_once_if_there_are_more_orphans_than_one_look_takes(bench: _Bench) -> None:
    bench.shelf.next_orphan = 500
    assert await bench.look() <= 0
    bench.shelf.next_orphan = 0
    assert await bench.look() == ms(INTERVAL_MS)
    await bench.look()
    assert bench.shelf.looked_from == [0, 500, 0]


async def test_a_nearer_due_time_brings_the_look_forward_and_a_later_one_does_not(bench: _Bench) -> None:
    await bench.look()
    bench.sweeper.wake(0, NOW_MS + 200)
    bench.sweeper.wake(0, NOW_MS + 500)
    bench.sweeper.wake(7, NOW_MS)
    assert bench.one.look_ms - NOW_MS == ms(201)


async def test_a_nearer_due_time_that_comes_during_a_look_is_not_overwritten_by_its_answer(bench: _Bench) -> None:
    bench.shelf.next_ms = NOW_MS + 700
    bench.shelf.during = lambda: bench.sweeper.wake(0, NOW_MS + 50)
    assert await bench.look() == ms(51)


async def test_a_gap_during_a_look_is_looked_at_after_it(bench: _Bench) -> None:
    bench.shelf.due = {"note": NOW_MS - 1}
    bench.shelf.during = bench.sweeper.sweep_everything
    assert await bench.look() <= 0
    assert bench.marked() == set()
    bench.shelf.during = lambda: None
    await bench.look()
    assert bench.marked() == {"note"}


async def test_the_first_in_rank_always_looks_itself(bench: _Bench) -> None:
    await bench.look()
    bench.sweeper.heard(0)
    assert not bench.one.somebody_else_does_it()


@pytest.mark.parametrize("rank", [1, 2])
async def test_a_pod_that_hears_another_touch_looks_away_for_a_while(bench: _Bench, rank: int) -> None:
    """It hears what it has touched itself, too: timers are so late until a dead pod that touched is forgotten."""
    bench.peers.own_rank = rank
    await bench.look()
    bench.sweeper.heard(0)
    assert bench.one.somebody_else_does_it()
    assert bench.one.look_ms == ms(NOW_MS + rank * TRUST_MS)
    bench.shelf.now_s += (rank * TRUST_MS + 3) / 1000
    bench.sweeper.heard(0)
    assert not bench.one.somebody_else_does_it()


async def test_a_pod_that_hears_nobody_touch_looks_itself(bench: _Bench) -> None:
    bench.peers.own_rank = 1
    await bench.look()
    bench.shelf.now_s += (TRUST_MS + 3) / 1000
    assert not bench.one.somebody_else_does_it()


async def test_a_pod_that_cannot_hear_trusts_nobody(bench: _Bench) -> None:
    bench.peers.own_rank = 1
    await bench.look()
    bench.sweeper.heard(0)
    bench.canary.unsubscribed()
    assert not bench.one.somebody_else_does_it()


async def test_it_sleeps_until_its_time_and_is_woken_sooner_by_a_nearer_due_time(bench: _Bench) -> None:
    looks = bench.shelf.looks
    sweeping = asyncio.create_task(bench.sweeper.run())
    bench.sweeper.wake(0, NOW_MS - 10)
    await until(lambda: bench.shelf.looks > looks, "the look it was woken for")
    sweeping.cancel()
    await asyncio.gather(sweeping, return_exceptions=True)
    assert bench.shelf.looks == looks + 1
