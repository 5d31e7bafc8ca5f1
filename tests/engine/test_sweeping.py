"""The sweeper alone: when it looks next, what it marks, and when it leaves this to another pod."""

import asyncio
from collections.abc import Callable, Sequence

import pytest

from tests.engine.fleet import options_of, until
from tests.engine.judging import judging
from timers.core.clock import ServerClock
from timers.engine.intake import Intake
from timers.engine.peers import Peers
from timers.engine.pod import Pod
from timers.engine.sweeper import INTERVAL_MS, NO_EVENTS_INTERVAL_MS, STAGGER_MS, TRUST_MS, Sweeper
from timers.processor import Context, Registry, processor
from timers.store.membership import Member, Membership
from timers.store.servers import connect
from timers.store.store import Identity, Store, Touched

NOW_MS = 1_000_000

During = Callable[[], None]


@processor("note")
async def _note(_timer: object, _context: Context) -> None:
    """Never called here."""


class _FakeStore(Store):
    """A store with a clock that only the test moves. Its looks find what the test says."""

    def __init__(self) -> None:
        self.now_s = 0.0
        super().__init__(connect("redis://nowhere.invalid"), clock=ServerClock(lambda: self.now_s))
        self.clock.observe(NOW_MS, 0.0, 0.0)
        self.identity.form = 2
        self.looks = 0
        self.next_ms: int | None = None
        self.due: dict[str, int] = {}
        self.lost: list[Identity] = []
        self.next_orphan = self.next_rank = 0
        self.ranks: list[int] = []
        self.looked_from: list[int] = []
        self.during: During = lambda: None
        self.runs, self.has_lost = False, True
        self.asked_for_runs = asyncio.Event()

    async def has_runs(self, shards: Sequence[int]) -> bool:
        self.asked_for_runs.set()
        return self.runs

    async def touch(self, shard: int, rank: int = 0, *, joins: bool = False) -> Touched:
        self.looks += 1
        self.ranks.append(rank)
        self.during()
        now_ms = round(self.clock.now_ms())
        return Touched(now_ms, self.next_ms, self.due, self.next_rank, lost=self.has_lost)

    async def orphans(self, shard: int, rank: int = 0) -> tuple[list[Identity], int]:
        self.looked_from.append(rank)
        return self.lost, self.next_orphan


class _Ranked(Peers):
    """Peers in which the test sets this pod's rank."""

    def __init__(self, store: Store) -> None:
        super().__init__(Membership(store), Member("a"))
        self.own_rank = 0

    def rank(self, shard: int, *, adopting: bool = False) -> int:
        return self.own_rank


class _Rig:
    """A sweeper without the rest of its pod, which has subscribed."""

    def __init__(self, lease_ms: int = 4_000) -> None:
        self.store, self.intake = _FakeStore(), Intake()
        pod = Pod(self.store, Registry([_note]), options_of(lease_ms=lease_ms))
        self.peers, (canaries, self.canary) = _Ranked(self.store), judging(pod)
        self.sweeper = Sweeper(pod, self.intake, self.peers, canaries)
        self.canary.resubscribed(0)
        self.one = self.sweeper.sweeps[0]

    async def poll(self, next_rank: int = 0) -> float:
        """Look once, with the rank at which the answer says to continue. Returns the ms until the next look."""
        self.store.next_rank = next_rank
        await self.one.poll()
        return self.one.next_poll_ms - self.store.clock.now_ms()

    def marked(self) -> set[str]:
        return {ask.prefix for asks in self.intake.take(1_000) for ask in asks}


@pytest.fixture
async def rig() -> _Rig:
    """A sweeper that has looked at everything once and found nothing."""
    made = _Rig()
    await made.poll()
    made.store.looked_from.clear()
    return made


def ms(value: float) -> object:
    """This many ms, give or take one, because times are rounded."""
    return pytest.approx(value, abs=1.1)


async def test_with_nothing_planned_it_looks_again_after_its_interval(rig: _Rig) -> None:
    assert await rig.poll() == ms(INTERVAL_MS)


async def test_of_shards_that_looked_together_each_looks_again_at_its_own_time(rig: _Rig) -> None:
    rig.store.identity.shards = 4
    rig.sweeper.sweep_everything([0])
    assert await rig.poll() == ms(INTERVAL_MS / 4)
    assert await rig.poll() == ms(INTERVAL_MS)


async def test_beside_programs_that_announce_only_what_is_due_within_a_second_it_looks_each_second(rig: _Rig) -> None:
    rig.store.identity.form = 1
    assert await rig.poll() == ms(1000)
    assert rig.marked() == set()


async def test_it_looks_just_after_the_next_due_time(rig: _Rig) -> None:
    rig.store.next_ms = NOW_MS + 300
    assert await rig.poll() == ms(300)


async def test_a_sleep_to_a_due_time_beyond_the_interval_is_split(rig: _Rig) -> None:
    rig.store.next_ms = NOW_MS + 86_400_000
    assert await rig.poll() == ms(INTERVAL_MS)


async def test_a_pod_that_cannot_hear_a_nearer_due_time_looks_more_often(rig: _Rig) -> None:
    rig.canary.subscribed = False
    assert await rig.poll() == ms(NO_EVENTS_INTERVAL_MS)


async def test_each_rank_gives_the_one_before_it_time_to_touch(rig: _Rig) -> None:
    rig.store.next_ms = NOW_MS + 300
    rig.peers.own_rank = 3
    assert await rig.poll() == ms(300 + 3 * STAGGER_MS)


async def test_a_server_whose_clock_nobody_has_read_is_asked_whoever_else_asks_it(rig: _Rig) -> None:
    """As that of shards whose node had the db's own keys, too, until these moved: pods slept not, asked not, and stood
    still."""
    rig.peers.own_rank = 1
    rig.sweeper.heard(0)
    assert rig.one.another_pod_polls()
    rig.store.clock = rig.store.clock.like()
    assert not rig.one.another_pod_polls()


async def test_what_is_due_is_looked_at_again_when_it_would_be_overdue(rig: _Rig) -> None:
    rig.store.due = {"note": NOW_MS - 1}
    assert await rig.poll() == ms(options_of().grace_ms)
    assert rig.marked() == set()


async def test_an_overdue_timer_is_marked_whatever_happened_to_its_event(rig: _Rig) -> None:
    rig.store.due = {
        "note": NOW_MS - options_of().grace_ms - 2,
        "note.punctual": NOW_MS - 1,
        "unknown": NOW_MS - 10_000,
    }
    await rig.poll()
    assert rig.marked() == {"note"}


async def test_after_a_gap_everything_due_is_marked_at_once(rig: _Rig) -> None:
    rig.store.due = {"note": NOW_MS - 1}
    rig.sweeper.sweep_everything([0])
    assert rig.one.next_poll_ms <= rig.store.clock.now_ms()
    await rig.poll()
    assert rig.marked() == {"note"}
    await rig.poll()
    assert rig.marked() == set()


async def test_orphans_of_prefixes_it_serves_are_marked(rig: _Rig) -> None:
    rig.store.lost = [("note", "x"), ("unknown", "y")]
    await rig.poll()
    assert rig.intake.take_orphans(10) == {0: [("note", "x")]}


@pytest.mark.parametrize(("run", "again_ms"), [(("note", "x"), options_of().grace_ms), (("unknown", "y"), INTERVAL_MS)])
async def test_lost_runs_that_found_no_room_waited_for_the_longest_sleep(
    rig: _Rig, run: Identity, again_ms: int
) -> None:
    rig.store.lost = [run]
    assert await rig.poll() == ms(again_ms)


async def test_it_continues_at_once_if_there_are_more_orphans_than_one_look_takes(rig: _Rig) -> None:
    rig.store.next_orphan = 500
    assert await rig.poll() <= 0
    rig.store.next_orphan = 0
    assert await rig.poll() == ms(INTERVAL_MS)
    await rig.poll()
    assert rig.store.looked_from == [0, 500, 0]


async def test_a_look_continues_where_the_last_one_ended(rig: _Rig) -> None:
    rig.store.ranks.clear()
    for next_rank in (500, 0, 0):
        await rig.poll(next_rank)
    assert rig.store.ranks == [0, 500, 0]


@pytest.mark.parametrize(("answered", "continued"), [(500, 1_000), (1_500, 1_500)])
async def test_a_look_at_a_due_time_skips_no_queues_behind_the_place_that_was_reached(
    rig: _Rig, answered: int, continued: int
) -> None:
    rig.store.ranks.clear()
    for next_rank in (500, 1_000):
        await rig.poll(next_rank)
    rig.store.now_s += (INTERVAL_MS + 1) / 1000
    for next_rank in (answered, 0):
        await rig.poll(next_rank)
    assert rig.store.ranks == [0, 500, 0, continued]


async def test_a_nearer_due_time_brings_the_look_forward_and_a_later_one_does_not(rig: _Rig) -> None:
    await rig.poll()
    rig.sweeper.wake(0, NOW_MS + 200)
    rig.sweeper.wake(0, NOW_MS + 500)
    rig.sweeper.wake(7, NOW_MS)
    assert rig.one.next_poll_ms - NOW_MS == ms(200)


async def test_a_nearer_due_time_that_comes_during_a_look_is_not_overwritten_by_its_answer(rig: _Rig) -> None:
    rig.store.next_ms = NOW_MS + 700
    rig.store.during = lambda: rig.sweeper.wake(0, NOW_MS + 50)
    assert await rig.poll() == ms(50)


async def test_a_gap_during_a_look_is_looked_at_after_it(rig: _Rig) -> None:
    rig.store.due = {"note": NOW_MS - 1}
    rig.store.during = lambda: rig.sweeper.sweep_everything([0])
    assert await rig.poll() <= 0
    assert rig.marked() == set()
    rig.store.during = lambda: None
    await rig.poll()
    assert rig.marked() == {"note"}


async def test_the_first_in_rank_always_looks_itself(rig: _Rig) -> None:
    await rig.poll()
    rig.sweeper.heard(0)
    assert not rig.one.another_pod_polls()


@pytest.mark.parametrize("rank", [1, 2])
async def test_a_pod_that_hears_another_touch_looks_away_for_a_while(rig: _Rig, rank: int) -> None:
    """It hears its own touches as well. If the touching pod dies, timers are this late until it is forgotten."""
    clock, rig.peers.own_rank = rig.store.clock, rank
    await rig.poll()
    rig.sweeper.heard(0)
    assert rig.one.another_pod_polls()
    assert rig.one.next_poll_ms == ms(NOW_MS + rank * TRUST_MS)
    rig.store.now_s += clock.seconds_until(rig.one.next_poll_ms)
    rig.sweeper.heard(0)
    assert clock.seconds_until(rig.one.next_poll_ms) == 0
    assert not rig.one.another_pod_polls()  # else it would ask itself this for as long as the clock stands still


async def test_a_pod_that_hears_nobody_touch_looks_itself(rig: _Rig) -> None:
    rig.peers.own_rank = 1
    await rig.poll()
    rig.store.now_s += (TRUST_MS + 3) / 1000
    assert not rig.one.another_pod_polls()


async def test_a_pod_that_cannot_hear_trusts_nobody(rig: _Rig) -> None:
    rig.peers.own_rank = 1
    await rig.poll()
    rig.sweeper.heard(0)
    rig.canary.subscribed = False
    assert not rig.one.another_pod_polls()


async def test_it_sleeps_until_its_time_and_is_woken_sooner_by_a_nearer_due_time(rig: _Rig) -> None:
    looks = rig.store.looks
    sweeping = asyncio.create_task(rig.sweeper.run())
    rig.sweeper.wake(0, NOW_MS - 10)
    await until(lambda: rig.store.looks > looks, "the look it was woken for")
    sweeping.cancel()
    await asyncio.gather(sweeping, return_exceptions=True)
    assert rig.store.looks == looks + 1


async def test_while_anything_runs_on_any_pod_it_looks_once_in_each_lease() -> None:
    """That look tells when the lease ends, so a dead pod's run is found in time however long the sweep sleeps."""
    rig = _Rig(lease_ms=5)
    sweeping = asyncio.create_task(rig.sweeper.run())
    for _ in range(3):
        rig.store.asked_for_runs.clear()
        await rig.store.asked_for_runs.wait()
    looks, rig.store.runs = rig.store.looks, True
    assert looks == 1
    await until(lambda: rig.store.looks > looks + 2, "the looks for lost runs")
    sweeping.cancel()
    await asyncio.gather(sweeping, return_exceptions=True)


async def test_a_clock_of_the_server_that_was_set_forward_ends_a_sleep(
    rig: _Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("timers.engine.sweeper.CLOCK_SECONDS", 0.001)
    rig.store.next_ms = NOW_MS + 20_000
    await rig.poll()
    looks, sweeping = rig.store.looks, asyncio.create_task(rig.sweeper.run())
    await asyncio.sleep(0)
    rig.store.next_ms = None
    rig.store.clock.observe(NOW_MS + 30_000, rig.store.now_s, rig.store.now_s)
    await until(lambda: rig.store.looks > looks, "a look")
    sweeping.cancel()
    await asyncio.gather(sweeping, return_exceptions=True)


@pytest.mark.parametrize("rank", [0, 1])
async def test_a_clock_of_the_server_that_was_set_back_ends_a_sleep(
    rig: _Rig, monkeypatch: pytest.MonkeyPatch, rank: int
) -> None:
    """By the new clock the next poll was to come ten minutes later, and another pod had been heard in ten minutes."""
    monkeypatch.setattr("timers.engine.sweeper.CLOCK_SECONDS", 0.001)
    rig.peers.own_rank = rank
    await rig.poll()
    rig.sweeper.heard(0)
    looks, sweeping = rig.store.looks, asyncio.create_task(rig.sweeper.run())
    await asyncio.sleep(0)
    rig.store.clock.observe(NOW_MS - 600_000, rig.store.now_s, rig.store.now_s)
    await until(lambda: rig.store.looks > looks, "a look")
    assert rig.one.next_poll_ms <= rig.store.clock.now_ms() + INTERVAL_MS
    sweeping.cancel()
    await asyncio.gather(sweeping, return_exceptions=True)


@pytest.mark.parametrize(
    ("due", "lost", "leaves"), [({"note": 0}, False, False), ({"x": 0}, False, True), ({}, True, True)]
)
async def test_it_tells_where_it_leaves_due_timers_or_lost_runs(
    rig: _Rig, due: dict[str, int], lost: bool, leaves: bool
) -> None:
    rig.store.due, rig.store.has_lost = due, lost
    await rig.poll()
    assert rig.sweeper.leaves_work(0) is leaves
