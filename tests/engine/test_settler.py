"""Ends of runs alone: each end is written or refused, even after errors, and none holds up another."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from itertools import count

import pytest

from tests.engine.fleet import options_of, until
from tests.unit.samples import a_timer
from timers.core.decide import Transition
from timers.core.model import Status
from timers.engine.pod import Counted, Observer, Pod
from timers.engine.runs import SETTLE_BATCH, Run, Runs
from timers.errors import Unavailable
from timers.processor import Context, Registry, processor
from timers.store.servers import connect
from timers.store.store import Settlement, Store

_tokens = count(1)


@processor("reminder")
async def _reminder(_timer: object, _context: Context) -> None:
    """Never called here."""


class _FakeStore(Store):
    """A store that only takes ends. It calls `during`, which may raise, while it writes a batch."""

    def __init__(self) -> None:
        super().__init__(connect("redis://nowhere.invalid"))
        self.batches: list[tuple[int, list[str]]] = []
        self.during: Callable[[Sequence[str]], None] = lambda ids: None
        self.answers: dict[str, str] = {}

    async def settle(self, shard: int, settlements: Sequence[Settlement], **_given: object) -> list[str]:
        await asyncio.sleep(0)
        ids = [settlement.timer.id for settlement in settlements]
        self.during(ids)
        self.batches.append((shard, ids))
        return [self.answers.get(timer_id, "settled") for timer_id in ids]


class _Refusals(Observer):
    def __init__(self) -> None:
        super().__init__()
        self.prefixes: list[str] = []

    def count(self, what: Counted, *labels: str, by: float = 1) -> None:
        self.prefixes += labels if what == "refused" else ()


class _Rig:
    """Runs without the rest of its pod."""

    def __init__(self) -> None:
        self.store, self.observer = _FakeStore(), _Refusals()
        self.told: list[str] = []
        pod = Pod(self.store, Registry([_reminder]), options_of(), self.observer)
        self.runs = Runs(pod, self._tell)

    def _tell(self, runs: Sequence[Run]) -> None:
        self.told += [run.timer.id for run in runs]

    def put(self, timer_id: str, shard: int = 0) -> Run:
        """Give an end to be written."""
        run = Run(shard, a_timer(id=timer_id, token=next(_tokens)), _reminder, 0.0, 0.0)
        self.runs.add([run])
        transition = Transition(Status.COMPLETED, 1, 1, 0, 1, run.timer.progress, ("completed", ""))
        self.runs.put(run, Settlement(run.timer, transition))
        return run

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Write the ends."""
        running = asyncio.create_task(self.runs.settle())
        try:
            yield
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


def at_first(act: Callable[[], object]) -> Callable[[Sequence[str]], None]:
    """Call `act` while the first batch is being written."""
    acts = iter([act])

    def during(_ids: Sequence[str]) -> None:
        for each in acts:
            each()

    return during


async def test_ends_are_written_in_their_order_and_the_leases_given_up() -> None:
    rig = _Rig()
    for number in range(3):
        rig.put(f"n{number}")
    async with rig.open():
        await rig.runs.emptied()
    assert rig.store.batches == [(0, ["n0", "n1", "n2"])]
    assert (len(rig.runs), rig.runs.waiting) == (0, 0)
    assert rig.told == ["n0", "n1", "n2"]


async def test_who_waits_for_room_is_told_of_a_lost_run_and_its_end_is_not_written() -> None:
    rig = _Rig()
    run = Run(0, a_timer(id="x", token=next(_tokens)), _reminder, 0.0, 0.0)
    rig.runs.add([run])
    rig.runs.lose(run)
    async with rig.open():
        await rig.runs.emptied()
    assert (rig.store.batches, len(rig.runs), rig.told) == ([], 0, ["x"])


async def test_a_run_keeps_its_lease_until_its_end_is_written() -> None:
    rig = _Rig()
    held: list[int] = []
    rig.store.during = lambda _ids: held.append(len(rig.runs))
    rig.put("x")
    async with rig.open():
        await rig.runs.emptied()
    assert held == [1]


async def test_no_batch_is_larger_than_a_script_may_take() -> None:
    rig = _Rig()
    for number in range(SETTLE_BATCH + 1):
        rig.put(f"n{number}")
    async with rig.open():
        await rig.runs.emptied()
    assert [len(ids) for _, ids in rig.store.batches] == [SETTLE_BATCH, 1]


async def test_the_first_end_of_another_shard_comes_while_one_is_written() -> None:
    rig = _Rig()
    rig.store.during = at_first(lambda: rig.put("second", shard=1))
    rig.put("first")
    async with rig.open():
        await until(lambda: len(rig.store.batches) == 2, "both are written")
    assert rig.store.batches == [(0, ["first"]), (1, ["second"])]


async def test_an_end_that_comes_while_another_is_written_is_not_forgotten() -> None:
    rig = _Rig()
    rig.store.during = at_first(lambda: rig.put("second"))
    rig.put("first")
    async with rig.open():
        await rig.runs.emptied()
    assert rig.store.batches == [(0, ["first"]), (0, ["second"])]


async def test_ends_wait_while_redis_is_away_and_are_written_when_it_is_back() -> None:
    rig = _Rig()

    def fail(_ids: Sequence[str]) -> None:
        raise Unavailable("away")

    rig.store.during = fail
    rig.put("x")
    with pytest.raises(Unavailable):
        await rig.runs.settle()
    assert (len(rig.runs), rig.runs.waiting) == (1, 1)
    rig.store.during = lambda _ids: None
    async with rig.open():
        await rig.runs.emptied()
    assert rig.store.batches == [(0, ["x"])]


@pytest.mark.parametrize("answer", ["fenced", "missing"])
async def test_a_refused_end_is_reported_and_given_up(answer: str) -> None:
    rig = _Rig()
    rig.store.answers["late"] = answer
    rig.put("late")
    rig.put("right")
    async with rig.open():
        await rig.runs.emptied()
    assert rig.observer.prefixes == ["reminder"]
    assert len(rig.runs) == 0


async def test_an_end_that_is_already_written_is_not_a_refusal() -> None:
    rig = _Rig()
    rig.store.answers["x"] = "already"
    rig.put("x")
    async with rig.open():
        await rig.runs.emptied()
    assert rig.observer.prefixes == []


async def test_one_end_that_cannot_be_written_does_not_hold_up_the_others() -> None:
    rig = _Rig()

    def fail(ids: Sequence[str]) -> None:
        if "odd" in ids:
            raise UnicodeError("cannot be encoded")

    rig.store.during = fail
    for timer_id in ("one", "odd", "two"):
        rig.put(timer_id)
    async with rig.open():
        await rig.runs.emptied()
    assert [ids for _, ids in rig.store.batches] == [["one"], ["two"]]
    assert (len(rig.runs), rig.runs.waiting) == (0, 0)
