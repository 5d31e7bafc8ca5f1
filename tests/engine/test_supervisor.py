"""The supervisor alone: nothing dies silently, and nothing survives a stop, in any order and at any moment."""

import asyncio
from collections.abc import Awaitable, Callable
from random import Random

import pytest
from structlog.testing import capture_logs

from tests.engine.fleet import until
from timers.engine import supervisor
from timers.engine.supervisor import STEADY_SECONDS, Supervisor
from timers.errors import Full, Unavailable
from timers.store.cooperative import side_by_side


class Part:
    """A service that does what the test says. It counts its live copies and its starts."""

    def __init__(self, live: Callable[[], Awaitable[None]] | None = None, name: str = "part") -> None:
        self.name = name
        self._live = live or asyncio.get_running_loop().create_future
        self.alive = self.most_alive = self.starts = 0

    async def run(self) -> None:
        self.starts += 1
        self.alive += 1
        self.most_alive = max(self.most_alive, self.alive)
        try:
            await self._live()
        finally:
            self.alive -= 1


@pytest.fixture(autouse=True)
def _pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """A service is started again at once."""
    for pause in ("FIRST", "LONGEST"):
        monkeypatch.setattr(supervisor, f"{pause}_PAUSE_SECONDS", 0.0)


def watching(*parts: Part) -> Supervisor:
    return Supervisor({part.name: part.run for part in parts})


def failing(error: BaseException | None) -> Callable[[], Awaitable[None]]:
    async def live() -> None:
        if error is not None:
            raise error

    return live


async def test_a_service_runs_until_it_is_stopped() -> None:
    part = Part()
    watched = watching(part)
    assert watched.states == {"part": "stopped"}
    watched.start()
    await until(lambda: part.alive, "it runs")
    assert watched.states == {"part": "running"}
    await watched.stop()
    assert (part.alive, part.starts) == (0, 1)
    assert watched.states == {"part": "stopped"}


@pytest.mark.parametrize("error", [None, Unavailable("away"), RuntimeError("broken"), asyncio.CancelledError()])
async def test_a_service_that_ended_is_started_again(error: BaseException | None) -> None:
    part = Part(failing(error))
    watched = watching(part)
    watched.start()
    await until(lambda: part.starts > 3, "it is started again")
    await watched.stop()


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (None, "restarting: it ended"),
        (asyncio.CancelledError(), "restarting: it cancelled itself"),
        (Unavailable("Redis is away"), "restarting: Redis is away"),
        (RuntimeError("broken"), "restarting: RuntimeError: broken"),
        (ExceptionGroup("of parts", [Unavailable("Redis is away"), Unavailable("again")]), "restarting: Redis is away"),
        (
            ExceptionGroup("of parts", [ExceptionGroup("inner", [Unavailable("Redis is away")])]),
            "restarting: Redis is away",
        ),
        (Full("Redis is full"), "waiting: Redis is full"),
    ],
)
async def test_the_state_says_why_a_service_is_started_again(
    monkeypatch: pytest.MonkeyPatch, error: BaseException | None, said: str
) -> None:
    monkeypatch.setattr(supervisor, "FIRST_PAUSE_SECONDS", 3600.0)
    watched = watching(Part(failing(error)))
    watched.start()
    await until(lambda: watched.states["part"].startswith(("restarting", "waiting")), "it has ended")
    assert watched.states["part"] == said
    await watched.stop()


@pytest.mark.parametrize("error", [Unavailable("away"), asyncio.CancelledError()])
async def test_a_part_of_a_service_that_ended_was_never_started_again(error: BaseException) -> None:
    """A `TaskGroup` takes a cancelled part for a finished one, so the sweep of one shard stopped for good."""
    shaky, steady = Part(failing(error)), Part()

    async def live() -> None:
        await side_by_side([steady.run(), shaky.run()])

    whole = Part(live)
    watched = watching(whole)
    watched.start()
    await until(lambda: whole.starts > 3, "the service is started again")
    await watched.stop()
    assert (whole.alive, steady.alive, steady.most_alive) == (0, 0, 1)


async def test_a_failing_service_leaves_the_others_alone() -> None:
    steady, shaky = Part(name="steady"), Part(failing(RuntimeError("again")), name="shaky")
    watched = watching(steady, shaky)
    watched.start()
    await until(lambda: shaky.starts > 3, "it was started again")
    assert (steady.starts, steady.alive) == (1, 1)
    await watched.stop()
    assert steady.alive == 0


async def test_pauses_double_up_to_the_longest_and_start_over_after_a_steady_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pauses: list[float] = []
    clock = 0.0
    ran = iter([0.0] * 7 + [STEADY_SECONDS + 1, 0.0])
    ended = asyncio.Event()

    async def live() -> None:
        nonlocal clock
        clock += next(ran)

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 9:
            ended.set()
            await asyncio.get_running_loop().create_future()

    loop = asyncio.get_running_loop()
    monkeypatch.undo()
    watched = Supervisor({"part": Part(live).run})
    with monkeypatch.context() as patched:
        patched.setattr(loop, "time", lambda: clock)
        patched.setattr(asyncio, "sleep", sleep)
        watched.start()
        await ended.wait()
    await watched.stop()
    assert pauses == [0.05, 0.1, 0.2, 0.4, 0.5, 0.5, 0.5, 0.05, 0.1]


async def test_the_log_says_once_for_each_reason_that_a_service_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    reasons = iter(["refused"] * 3 + ["loading"] * 3 + ["refused", "loading"] * 3)
    part = Part()

    async def live() -> None:
        reason = next(reasons, "refused")
        if part.starts > 20:  # a minute later
            monkeypatch.setattr("timers.logs.REMINDER_SECONDS", 0.0)
        if part.starts > 22:
            await asyncio.Event().wait()
        raise Unavailable(reason)

    part._live = live
    watched = watching(part)
    with capture_logs() as logs:
        watched.start()
        await until(lambda: part.starts > 22, "it was started again")
        await watched.stop()
    assert [log["reason"] for log in logs] == ["refused", "loading", "refused", "refused"]


async def test_start_and_stop_are_idempotent() -> None:
    part = Part()
    watched = watching(part)
    await watched.stop()
    watched.start()
    watched.start()
    await until(lambda: part.alive, "it runs")
    await asyncio.gather(watched.stop(), watched.stop())
    await watched.stop()
    assert (part.starts, part.alive) == (1, 0)


async def test_it_can_be_started_again_after_a_stop() -> None:
    part = Part()
    watched = watching(part)
    for round_number in range(1, 4):
        watched.start()
        await until(lambda: part.alive, "it runs")
        assert part.starts == round_number
        await watched.stop()
    assert part.most_alive == 1


async def test_a_stop_before_the_first_turn_starts_nothing() -> None:
    part = Part()
    watched = watching(part)
    watched.start()
    await watched.stop()
    assert part.alive == 0
    assert watched.states == {"part": "stopped"}


async def test_a_service_that_answers_its_cancellation_by_returning_is_not_started_again() -> None:
    async def live() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            return

    part = Part(live)
    await _stopped_in_its_run(part)
    assert (part.starts, part.alive) == (1, 0)


async def test_a_service_that_fails_while_it_is_stopped_is_not_started_again() -> None:
    async def live() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            raise Unavailable("nobody there to say good-bye to")

    part = Part(live)
    await _stopped_in_its_run(part)
    assert (part.starts, part.alive) == (1, 0)


async def test_a_stop_is_not_lost_when_a_part_of_a_service_fails_at_the_same_time() -> None:
    """The `TaskGroup` then raises the failure, and the cancellation is lost."""
    began, fails = asyncio.Event(), asyncio.Event()

    async def a_part() -> None:
        began.set()
        await fails.wait()
        raise Unavailable("in the same moment")

    async def live() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(a_part())

    part = Part(live)
    watched = watching(part)
    watched.start()
    await began.wait()
    fails.set()
    await asyncio.sleep(0)  # the part fails in the same turn of the loop in which the service is stopped
    await asyncio.wait_for(watched.stop(), 10)
    assert part.alive == 0


async def _stopped_in_its_run(part: Part) -> None:
    watched = watching(part)
    watched.start()
    await until(lambda: part.alive, "it runs")
    await asyncio.wait_for(watched.stop(), 10)
    assert watched.states == {"part": "stopped"}


@pytest.mark.parametrize("seed", range(20))
async def test_racing_starts_and_stops_leave_one_of_each_or_none(seed: int) -> None:
    chance = Random(seed)

    async def live() -> None:
        for _ in range(chance.randrange(4)):
            await asyncio.sleep(0)
        if chance.random() < 0.5:
            raise chance.choice([RuntimeError("broken"), Unavailable("away")])

    parts = [Part(live, name=f"part-{number}") for number in range(3)]
    watched = watching(*parts)

    async def caller() -> None:
        for _ in range(20):
            if chance.random() < 0.5:
                watched.start()
            else:
                await watched.stop()
            for _ in range(chance.randrange(3)):
                await asyncio.sleep(0)

    await asyncio.gather(*[caller() for _ in range(4)])
    await asyncio.wait_for(watched.stop(), 10)
    assert [part.alive for part in parts] == [0, 0, 0]
    watched.start()
    await until(lambda: all(part.alive or part.starts for part in parts), "all run again")
    await watched.stop()
    assert max(part.most_alive for part in parts) == 1
    assert [part.alive for part in parts] == [0, 0, 0]
