"""The claimer alone: what it does while Redis is away, and how much it asks for at a time."""

import asyncio
import gc
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import pytest

from tests.engine.fleet import options_of, until
from timers import Context, Timer
from timers.core.policies import NO_LIMITS, Limits
from timers.engine.claimer import ROUNDS, Claimer
from timers.engine.intake import CLAIM_BATCH, Intake
from timers.engine.pod import Pod
from timers.errors import Unavailable
from timers.processor import Registry, processor
from timers.store.permits import Permit
from timers.store.servers import connect
from timers.store.store import Claimed, Identity, Store


@processor("note")
async def _note(_timer: Timer, _context: Context) -> None:
    """Do nothing."""


class _Away(Store):
    """A store whose claims all fail once so many are in progress: one fails then, the others at `rest`."""

    def __init__(self, together: int = ROUNDS) -> None:
        super().__init__(connect("redis://nowhere.invalid"))
        self._together = asyncio.Barrier(together)
        self.rest = asyncio.Event()

    async def claim(
        self,
        shard: int,
        wanted: Sequence[tuple[str, int]],
        *,
        pod: str,
        lease_ms: int,
        cause: str,
        in_order: bool = False,
        processors: Mapping[str, str] = {},
    ) -> Claimed:
        if await self._together.wait() > 0:
            await self.rest.wait()
        raise Unavailable("away")


class _FakeRunner:
    """A runner with room for everything."""

    room = 1_000

    async def room_free(self, _taken: Callable[[], int]) -> None:
        """Return at once."""

    def room_changed(self) -> None:
        """Ignore it."""

    def room_of(self, _prefix: str) -> int:
        return self.room

    def held_off_ms(self, _prefix: str) -> int:
        return 0

    def limits_of(self, _prefix: str) -> Limits:
        return NO_LIMITS


async def test_task_exception_was_never_retrieved_when_two_claims_fail() -> None:
    told: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: told.append(context))
    intake = Intake()
    intake.mark_all(0, "note", "sweep", deep=True)
    store = _Away()
    pod = Pod(store, Registry([_note]), options_of())
    claimer = Claimer(pod, intake, cast("Any", _FakeRunner()))
    with pytest.raises(Unavailable):
        await claimer.run()
    store.rest.set()
    await until(lambda: claimer.is_idle, "the other claim has failed too")
    gc.collect()
    assert told == []


async def test_what_a_claim_that_failed_had_taken_off_is_marked_again() -> None:
    """A bare key had expired and its claim failed: nobody else knew that its timer was due."""
    again: list[Callable[[], None]] = []
    intake = Intake(later=lambda _seconds, mark: again.append(mark))
    intake.mark_all(0, "note", "event")
    pod = Pod(_Away(together=1), Registry([_note]), options_of())
    with pytest.raises(Unavailable):
        await Claimer(pod, intake, cast("Any", _FakeRunner())).run()
    assert intake.take(_FakeRunner.room, limited=False) == []
    for mark in again:
        mark()
    (asks,) = intake.take(_FakeRunner.room, limited=False)
    assert [(ask.shard, ask.prefix, ask.cause) for ask in asks] == [(0, "note", "event")]


class _Rescuing(Store):
    """A store in which another pod has rescued every orphan already. It records how many each call asked for."""

    def __init__(self) -> None:
        super().__init__(connect("redis://nowhere.invalid"))
        self.asked: list[int] = []

    async def rescue(
        self,
        shard: int,
        orphans: Sequence[Identity],
        *,
        pod: str,
        lease_ms: int,
        processors: Mapping[str, str] = {},
    ) -> Claimed:
        self.asked.append(len(orphans))
        return Claimed([], [], {})


class _Taker(_FakeRunner):
    held: frozenset[Identity] = frozenset()

    def start(self, _shard: int, _claimed: Claimed, _asked_at: float, _permits: Sequence[Permit]) -> None:
        """Ignore it, because nothing was rescued."""


async def test_a_script_that_rescues_takes_no_more_than_one_that_claims() -> None:
    store, intake = _Rescuing(), Intake()
    for number in range(2 * CLAIM_BATCH + 1):
        intake.mark_orphan(0, ("note", str(number)))
    claimer = Claimer(Pod(store, Registry([_note]), options_of()), intake, cast("Any", _Taker()))
    claiming = asyncio.create_task(claimer.run())
    await until(lambda: sum(store.asked) == 2 * CLAIM_BATCH + 1, "all were asked for")
    claiming.cancel()
    await asyncio.gather(claiming, return_exceptions=True)
    assert max(store.asked) <= CLAIM_BATCH


async def test_a_prefix_that_is_held_off_while_it_is_claimed_from_is_asked_for_nothing() -> None:
    """The claim under way has taken the room of before, and the script fails if it is asked for fewer than none."""
    intake, runner, store = Intake(), _FakeRunner(), _Away()
    claimer = Claimer(Pod(store, Registry([_note]), options_of()), intake, cast("Any", runner))
    with claimer._asking({"note": 5}):
        assert claimer._room_of("note") == _FakeRunner.room - 5
        runner.room_of = lambda _prefix: 0  # type: ignore[method-assign]
        assert claimer._room_of("note") == 0
