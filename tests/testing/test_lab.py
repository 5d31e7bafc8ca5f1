"""The lab with which authors test processors: runs, re-arming, failures and timeouts."""

import asyncio
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from importlib import import_module

import pytest
from structlog.testing import capture_logs

from tests.engine.fleet import until
from tests.waiting import DEADLINE_SECONDS
from timers import (
    Armed,
    BlockingContext,
    ConfigurationError,
    Context,
    Done,
    Fail,
    InvalidInput,
    NewTimer,
    NoProcessor,
    Rearm,
    Retry,
    Status,
    Timer,
    processor,
)
from timers.testing import TimerLab, call


@processor("remind")
async def remind(timer: Timer, context: Context) -> Rearm | None:
    return Rearm(after="7d") if timer.payload == "weekly" else None


async def test_reminds_a_day_later(timer_lab: TimerLab) -> None:
    timer_lab.add(remind)
    await timer_lab.timers.create("remind", "a", delay="24h", payload={"user": 1})
    await timer_lab.advance("23h")
    assert timer_lab.runs == []
    await timer_lab.advance("1h")
    (run,) = timer_lab.runs
    assert (run.prefix, run.id, run.attempt, run.occurrence, run.payload) == ("remind", "a", 1, 1, {"user": 1})
    assert (run.status, run.error, run.at) == ("completed", None, timer_lab.now)
    assert (await timer_lab.timers.get("remind", "a")).status is Status.COMPLETED


async def test_a_year_of_weekly_re_arms_takes_no_time(timer_lab: TimerLab) -> None:
    timer_lab.add(remind)
    began = timer_lab.now
    await timer_lab.timers.create("remind", "a", delay="1h", payload="weekly")
    await timer_lab.advance("365d")
    assert [run.occurrence for run in timer_lab.runs] == list(range(1, 54))
    assert {(run.at - began).total_seconds() % (7 * 86_400) for run in timer_lab.runs} == {3600}


async def test_a_failure_is_tried_again_when_its_policy_says(timer_lab: TimerLab) -> None:
    @processor("partner", retry={"max_attempts": 3, "base": "10m", "backoff": "fixed"})
    async def partner(timer: Timer, context: Context) -> None:
        raise ConnectionError("partner is away")

    timer_lab.add(partner)
    began = timer_lab.now
    await timer_lab.timers.create("partner", "a", delay=0)
    await timer_lab.advance("1h")
    assert [(run.attempt, run.status, run.error) for run in timer_lab.runs] == [
        (attempt, "failed", "ConnectionError: partner is away") for attempt in (1, 2, 3)
    ]
    assert [(run.at - began).total_seconds() for run in timer_lab.runs] == [0, 600, 1200]
    assert (await timer_lab.timers.get("partner", "a")).status is Status.FAILED


async def test_what_holds_off_lets_the_others_wait(timer_lab: TimerLab) -> None:
    @processor("partner")
    async def partner(timer: Timer, context: Context) -> None:
        if timer_lab.now < up_at:
            raise Retry("partner is away", after="10m", snooze=True, hold_off="10m")

    timer_lab.add(partner)
    up_at = timer_lab.now + timedelta(minutes=15)
    for number in range(5):
        await timer_lab.timers.create("partner", f"n-{number}", delay=number)
    await timer_lab.advance("1h")
    assert [run.status for run in timer_lab.runs] == ["snoozed"] * 2 + ["completed"] * 5
    assert {timer.status for timer in [await timer_lab.timers.get("partner", f"n-{n}") for n in range(5)]} == {
        Status.COMPLETED
    }


async def test_a_run_that_takes_too_long_times_out(timer_lab: TimerLab) -> None:
    @processor("slow", timeout="30s", retry={"max_attempts": 1})
    async def slow(timer: Timer, context: Context) -> None:
        await asyncio.sleep(3600)

    timer_lab.add(slow)
    await timer_lab.timers.create("slow", "a", delay=0)
    await timer_lab.advance("29s")
    assert timer_lab.runs == []
    await timer_lab.advance("1s")
    (run,) = timer_lab.runs
    assert (run.status, run.error) == ("failed", "Timeout: the run took longer than its timeout of 30000 ms")


async def test_a_sleeping_processor_continues_when_the_clock_has_moved(timer_lab: TimerLab) -> None:
    @processor("naps")
    async def naps(timer: Timer, context: Context) -> Done:
        await asyncio.sleep(60)
        return Done("slept well")

    timer_lab.add(naps)
    await timer_lab.timers.create("naps", "a", delay="1h")
    await timer_lab.advance("1h")
    assert (await timer_lab.timers.get("naps", "a")).status is Status.RUNNING
    await timer_lab.advance("1m")
    assert (await timer_lab.timers.get("naps", "a")).history[0].note == "slept well"


async def test_a_processor_arms_and_cancels_others(timer_lab: TimerLab) -> None:
    @processor("signup")
    async def signup(timer: Timer, context: Context) -> None:
        await context.timers.create("remind", timer.id, delay="24h")

    @processor("verified")
    def verified(timer: Timer, context: BlockingContext) -> None:
        context.timers.cancel("remind", timer.id)

    timer_lab.add(signup, verified, remind)
    for user in ("a", "b"):
        await timer_lab.timers.create("signup", user, delay=0)
    await timer_lab.timers.create("verified", "b", delay="12h")
    await timer_lab.advance("2d")
    assert [(run.prefix, run.id) for run in timer_lab.runs] == [
        *(("signup", "a"), ("signup", "b"), ("verified", "b"), ("remind", "a"))
    ]


async def test_a_processor_learns_whether_the_timer_is_new(timer_lab: TimerLab) -> None:
    welcome = NewTimer.parse({"prefix": "remind", "id": "a", "delay": "24h", "if_exists": "keep"})
    armed: list[Armed] = []

    @processor("async")
    async def arms(timer: Timer, context: Context) -> None:
        armed.append(await context.timers.arm(welcome))

    @processor("plain")
    def arms_in_a_thread(timer: Timer, context: BlockingContext) -> None:
        armed.append(context.timers.arm(welcome, traceparent=None))

    timer_lab.add(arms, arms_in_a_thread, remind)
    await timer_lab.timers.create("async", "a", delay="1h")
    await timer_lab.timers.create("plain", "a", delay="2h")
    await timer_lab.advance("3h")
    assert [(run.status, run.error) for run in timer_lab.runs] == [("completed", None), ("completed", None)]
    assert [(each.how, each.timer.key) for each in armed] == [("created", "remind:a"), ("kept", "remind:a")]


async def test_what_is_no_processor_is_named(timer_lab: TimerLab) -> None:
    def remind(timer: Timer, context: BlockingContext) -> None: ...

    with pytest.raises(TypeError, match=r"remind.* is not a processor; is @processor missing"):
        await call(remind)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"remind.* is neither a processor nor a module"):
        timer_lab.add(remind)  # type: ignore[arg-type]


async def test_a_test_of_a_plain_function_never_ended() -> None:
    """The function's thread waited for more work, and at its end Python waits for all threads."""
    before = set(threading.enumerate())

    @processor("plain")
    def plain(timer: Timer, context: BlockingContext) -> None: ...

    with TimerLab() as lab:
        for user in ("a", "b"):
            lab.add(plain)
            await lab.timers.create("plain", user, delay="1h")
            await lab.advance("1h")
        assert [run.status for run in lab.runs] == ["completed", "completed"]
        made = set(threading.enumerate()) - before
    for thread in made:
        thread.join(DEADLINE_SECONDS)
    assert not any(thread.is_alive() for thread in made)


class Held:
    """What processors hold open, and their runs."""

    def __init__(self) -> None:
        self.log: list[str] = []

    @asynccontextmanager
    async def lifespan(self) -> AsyncIterator[None]:
        self.log.append("opened")
        yield
        await asyncio.sleep(0)
        self.log.append("closed")

    async def uses(self, lab: TimerLab, *, ends: bool = True) -> None:
        """A run in the lab, which waits for a day unless it is to end."""

        @processor("uses", lifespan=self.lifespan)
        async def use(timer: Timer, context: Context) -> None:
            try:
                await asyncio.sleep(0 if ends else 86_400)
            except asyncio.CancelledError:
                self.log.append("taken back")
                raise

        lab.add(use)
        await lab.timers.create("uses", str(len(self.log)), delay=0)
        await lab.advance("1s")


@pytest.fixture
def held() -> Iterator[Held]:
    """What is held open. Nothing is after the test's other fixtures have ended."""
    held = Held()
    yield held
    assert held.log == ["opened", "taken back", "closed"]


async def test_the_fixture_left_runs_and_lifespans_behind(held: Held, timer_lab: TimerLab) -> None:
    await held.uses(timer_lab, ends=False)
    assert held.log == ["opened"]


async def test_a_lab_leaves_what_processors_hold_open_before_its_block_is_over() -> None:
    held = Held()
    async with TimerLab() as lab:
        await held.uses(lab, ends=False)
    assert held.log == ["opened", "taken back", "closed"]


async def test_a_plain_block_leaves_it_to_the_loop() -> None:
    held = Held()
    with TimerLab() as lab:
        await held.uses(lab, ends=False)
    await until(lambda: held.log == ["opened", "taken back", "closed"], "they are left")


async def test_labs_side_by_side_each_have_their_own_clock() -> None:
    """The clock of the lab that was opened last was the clock of all: the others ran nothing, without a word."""

    async def year(start: datetime) -> int:
        async with TimerLab(start=start) as lab:
            lab.add(remind)
            await lab.timers.create("remind", "a", delay="1h")
            await opened.wait()
            await lab.advance("1h")
            (run,) = lab.runs
            return run.at.year

    opened = asyncio.Barrier(3)
    starts = [datetime(year, 1, 1, tzinfo=UTC) for year in (2020, 2031, 2029)]
    assert await asyncio.gather(*map(year, starts)) == [2020, 2031, 2029]


async def test_a_lab_that_closes_before_a_later_one_leaves_that_its_sleep() -> None:
    """It put back what it had found, and the later one then put its own back for good."""
    sleep = asyncio.sleep

    @processor("sleeps")
    async def sleeps(timer: Timer, context: Context) -> None:
        await asyncio.sleep(DEADLINE_SECONDS * 100)

    first, second = TimerLab(), TimerLab()
    first.__enter__()
    with second:
        second.add(sleeps)
        await second.timers.create("sleeps", "a", delay=0)
        first.__exit__()
        await second.advance("1d")
        assert [run.status for run in second.runs] == ["completed"]
    assert asyncio.sleep is sleep


def test_a_lab_serves_one_loop_after_the_other(timer_lab: TimerLab) -> None:
    """As in a test without a loop, which calls `asyncio.run` for each step. Services of the first loop failed on the
    second, again and again."""

    async def one_day(user: str) -> None:
        await timer_lab.timers.create("remind", user, delay="1h")
        await timer_lab.advance("1d")

    timer_lab.add(remind)
    with capture_logs() as logs:
        for user in ("a", "b"):
            asyncio.run(one_day(user))
    assert [run.id for run in timer_lab.runs] == ["a", "b"]
    assert logs == []


async def test_a_lab_that_is_not_open_says_so() -> None:
    """One that was closed advanced, and ran nothing."""
    lab = TimerLab()
    with pytest.raises(RuntimeError, match="not open"):
        lab.add(remind)
    async with lab:
        lab.add(remind)
        await lab.timers.create("remind", "a", delay="1h")
    with pytest.raises(RuntimeError, match="not open"):
        await lab.advance("1h")


async def test_other_processors_leave_the_lifespans_of_those_before(timer_lab: TimerLab) -> None:
    held = Held()
    for _ in range(2):
        await held.uses(timer_lab)
    assert held.log == ["opened", "closed", "opened"]


async def test_a_cron_runs_at_its_times(timer_lab: TimerLab) -> None:
    timer_lab.add(remind)
    await timer_lab.timers.create("remind", "a", repeat={"cron": "0 9 * * *", "timezone": "Europe/Berlin", "count": 3})
    await timer_lab.advance("10d")
    assert len(timer_lab.runs) == 3
    assert {run.at.minute for run in timer_lab.runs} == {0}


async def test_one_at_a_time_in_the_order_of_due_times(timer_lab: TimerLab) -> None:
    order: list[str] = []

    @processor("mail", concurrency=1)
    async def mail(timer: Timer, context: Context) -> None:
        order.append(f"{timer.id} begins")
        await asyncio.sleep(5)
        order.append(f"{timer.id} ends")

    timer_lab.add(mail)
    await timer_lab.timers.create("mail", "b", delay="2s")
    await timer_lab.timers.create("mail", "a", delay="1s")
    await timer_lab.advance("1m")
    assert order == ["a begins", "a ends", "b begins", "b ends"]


async def test_the_lab_waits_for_work_in_real_time(timer_lab: TimerLab) -> None:
    @processor("io", timeout="10s")
    async def io(timer: Timer, context: Context) -> None:
        await asyncio.to_thread(time.sleep, 0.05)

    timer_lab.add(io)
    await timer_lab.timers.create("io", "a", delay="1h")
    await timer_lab.advance("1h")
    assert [run.status for run in timer_lab.runs] == ["completed"]


async def test_work_that_takes_real_time_does_not_time_out(
    timer_lab: TimerLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither in a thread nor in the loop."""
    monkeypatch.setattr("timers.testing.lab.PATIENCE_SECONDS", 0.02)

    @processor("plain", timeout="10s")
    def plain(timer: Timer, context: BlockingContext) -> None:
        time.sleep(0.1)

    @processor("blocks", timeout="10s")
    async def blocks(timer: Timer, context: Context) -> None:
        time.sleep(0.1)  # noqa: ASYNC251 (it must not, and does)
        await asyncio.to_thread(len, ())

    timer_lab.add(plain, blocks)
    for prefix in ("plain", "blocks"):
        await timer_lab.timers.create(prefix, "a", delay="1h")
        await timer_lab.advance("2h")
    assert [run.status for run in timer_lab.runs] == ["completed", "completed"]


async def test_a_run_shows_the_payload_that_it_began_with(timer_lab: TimerLab) -> None:
    @processor("edits")
    async def edits(timer: Timer, context: Context) -> None:
        timer.payload["list"].append(2)

    timer_lab.add(edits)
    await timer_lab.timers.create("edits", "a", delay="1h", payload={"list": [1]})
    await timer_lab.advance("1h")
    (run,) = timer_lab.runs
    assert run.payload == {"list": [1]}


async def test_a_processor_that_is_called_gets_a_payload_as_json_keeps_it() -> None:
    @processor("keys")
    async def keys(timer: Timer, context: Context) -> Done:
        return Done(",".join(timer.payload))

    assert await call(keys, payload={1: "one"}) == Done("1")
    with pytest.raises(InvalidInput):
        await call(keys, payload={"a": object()})


async def test_a_prefix_that_no_processor_serves_is_refused(timer_lab: TimerLab) -> None:
    timer_lab.add(remind)
    with pytest.raises(NoProcessor):
        await timer_lab.timers.create("remindd", "a", delay="1h")


async def test_all_processors_of_a_module_are_added(timer_lab: TimerLab) -> None:
    timer_lab.add(sys.modules[__name__])
    await timer_lab.timers.create("remind", "a", delay="1h")
    await timer_lab.advance("1h")
    assert [run.status for run in timer_lab.runs] == ["completed"]


async def test_one_processor_is_called_by_itself() -> None:
    assert await call(remind, payload="weekly") == Rearm(after="7d")
    assert await call(remind) is None

    @processor("odd")
    def odd(timer: Timer, context: BlockingContext) -> Done:
        if timer.attempt > 1:
            raise Fail("twice")
        return Done(context.idempotency_key)

    assert await call(odd, id="x", occurrence=3, due_at=5) == Done("odd:x:5:3")
    with pytest.raises(Fail, match="twice"):
        await call(odd, attempt=2)

    @processor("asks")
    async def asks(timer: Timer, context: Context) -> None:
        if not timer.metadata:
            raise Retry("no metadata")
        await context.timers.get("remind", "a")

    with pytest.raises(Retry):
        await call(asks)
    with pytest.raises(AssertionError, match="TimerLab"):
        await call(asks, metadata={"a": "b"})


async def test_a_timer_that_was_purged_and_armed_again_has_another_idempotency_key(timer_lab: TimerLab) -> None:
    """The lab's clock stands still, so both are armed in the same millisecond."""
    seen: list[str] = []

    @processor("sees")
    async def sees(_timer: Timer, context: Context) -> None:
        seen.append(context.idempotency_key)

    timer_lab.add(sees)
    for _ in range(3):
        await timer_lab.timers.create("sees", "a", delay=0)
        await timer_lab.advance(0)
        await timer_lab.timers.cancel("sees", "a", purge=True)
    assert len(set(seen)) == 3


@pytest.mark.parametrize("start", [datetime(2026, 11, 21), datetime(9990, 1, 1, tzinfo=UTC)])  # noqa: DTZ001
def test_a_clock_begins_at_a_time_that_timers_can_have(start: datetime) -> None:
    """One without a zone began at another moment on each machine, and after 2200 no timer ever ran."""
    with pytest.raises(InvalidInput, match=r"^start: "):
        TimerLab(start=start)
    aware = datetime(2030, 11, 21, tzinfo=UTC)
    assert TimerLab(start=aware).now == aware


@pytest.mark.parametrize("package", ["fakeredis", "lupa"])
def test_without_the_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    for name in [*sys.modules]:
        if name == package or name.startswith("timers.testing"):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ConfigurationError) as refused:
        import_module("timers.testing")
    assert str(refused.value) == f"timers.testing needs {package}: pip install 'redis-timers[testing]'"
