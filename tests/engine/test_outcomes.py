"""Every way in which a run can end: the record tells it, attempts are counted, the pod goes on."""

import asyncio
import math
from collections.abc import Callable
from typing import Any

import pytest
from structlog.testing import capture_logs

from tests.engine.fleet import Calls, Fleet, notes, until
from tests.waiting import eventually
from timers.core.calls import RepeatFields, RetryFields
from timers.core.fields import encode
from timers.core.model import Timer
from timers.core.outcome import NOTE_LIMIT_CHARACTERS, Done, Fail, Rearm, Retry
from timers.processor import Context, processor

ONE_TRY = {"max_attempts": 1}
TWO_QUICK_TRIES: RetryFields = {"max_attempts": 2, "base": "1ms", "jitter": False}


class Unspeakable(Exception):
    """An exception whose `str` and `repr` fail."""

    def __str__(self) -> str:
        raise RuntimeError("no words")

    __repr__ = __str__


class Deadly(str):
    """A text that raises SystemExit when anything reads it."""

    __slots__ = ()

    def __str__(self) -> str:
        raise SystemExit("from a text")

    __repr__ = __len__ = __getitem__ = __format__ = isalnum = isprintable = split = __str__  # type: ignore[assignment]


class DeadlyToShow(Exception):
    """An exception whose `str` and `repr` raise SystemExit."""

    def __str__(self) -> str:
        raise SystemExit("from an exception")

    __repr__ = __str__


class Nameless:
    """A value whose `repr` fails."""

    def __repr__(self) -> str:
        raise RuntimeError("no name")


def raises(error: BaseException | type[BaseException]) -> Callable[[], Any]:
    def end() -> Any:
        raise error

    return end


RAISED: dict[str, tuple[Callable[[], Any], str, str]] = {
    "exception": (raises(ValueError("bad phone")), "ValueError", "bad phone"),
    "without text": (raises(KeyError()), "KeyError", "KeyError()"),
    "several lines": (raises(ValueError("one\ntwo\r\n three")), "ValueError", "one\ntwo\r\n three"),
    "huge text": (raises(ValueError("x" * 1_000_000)), "ValueError", "x" * 4000),
    "half a character": (raises(ValueError("no file \udcff")), "ValueError", "no file ?"),
    "no text to be had": (raises(Unspeakable()), "Unspeakable", "it has no text"),
    "system exit from its text": (raises(DeadlyToShow()), "DeadlyToShow", "it has no text"),
    "system exit from its argument": (raises(ValueError(Deadly("x"))), "ValueError", "it has no text"),
    "system exit from its reason": (raises(Fail(Deadly("x"))), "Fail", "it has no text"),
    "system exit": (raises(SystemExit(3)), "SystemExit", "3"),
    "keyboard interrupt": (raises(KeyboardInterrupt()), "KeyboardInterrupt", "KeyboardInterrupt()"),
    "generator exit": (raises(GeneratorExit()), "GeneratorExit", "GeneratorExit()"),
    "base exception": (raises(BaseException("odd")), "BaseException", "odd"),
    "cancelled": (raises(asyncio.CancelledError()), "CancelledError", "CancelledError()"),
    "group": (raises(ExceptionGroup("of", [ValueError("inner")])), "ExceptionGroup", "of (1 sub-exception)"),
}

RETURNED: dict[str, tuple[Callable[[], Any], str, str]] = {
    "text": (lambda: "done", "TypeError", "the processor returned str; it may return None, Done or Rearm"),
    "a class": (lambda: Rearm, "TypeError", "the processor returned type; it may return None, Done or Rearm"),
    "an exception": (Retry, "TypeError", "the processor returned Retry; it may return None, Done or Rearm"),
    "a note that is no text": (lambda: Done(5), "InvalidInput", "Done.note"),  # type: ignore[arg-type]  # what we test
    "re-arm without a time": (Rearm, "InvalidInput", "exactly one of after= and at="),
    "re-arm with two times": (lambda: Rearm(after="1s", at=5), "InvalidInput", "exactly one of after= and at="),
    "re-arm with a bad duration": (lambda: Rearm(after="soon"), "InvalidInput", "Rearm.after: 'soon'"),
    "re-arm with a negative one": (lambda: Rearm(after=-1), "InvalidInput", "Rearm.after: -1"),
    "re-arm at no number": (lambda: Rearm(after=math.nan), "InvalidInput", "Rearm.after: nan"),
    "re-arm beyond all time": (lambda: Rearm(after="900000d"), "InvalidInput", "Rearm.after: '900000d'"),
    "re-arm in more than ten years": (
        lambda: Rearm(at="2200-01-01T00:00:00Z"),
        "InvalidInput",
        "at most 10 years ahead",
    ),
    "re-arm at a time without offset": (lambda: Rearm(at="2026-11-21T10:00:00"), "InvalidInput", "Rearm.at"),
    "re-arm with a payload that is no JSON": (lambda: Rearm(after=0, payload={1, 2}), "InvalidInput", "Rearm.payload"),
    "re-arm with half a character": (lambda: Rearm(after=0, payload="\ud800"), "InvalidInput", "Rearm.payload"),
    "re-arm with a payload too large": (lambda: Rearm(after=0, payload="x" * 70_000), "InvalidInput", "65536 bytes"),
    "retry after nonsense": (lambda: Retry("later", after="soon"), "InvalidInput", "Retry.after: 'soon'"),
}


@pytest.mark.parametrize("plain", [False, True], ids=["async", "in a thread"])
@pytest.mark.parametrize("way", [*RAISED, *RETURNED])
async def test_a_bad_end_is_a_failed_attempt_and_the_pod_lives(fleet: Fleet, way: str, *, plain: bool) -> None:
    end, error, reason = {**RAISED, **RETURNED}[way]

    async def act(_timer: Timer, _context: Context) -> Any:
        return end()

    def act_plain(_timer: Timer, _context: Context) -> Any:
        return end()

    await fleet.pod(processor("bad", retry=ONE_TRY)(act_plain if plain else act), Calls())
    await fleet.client.create("bad", "x", delay=0)
    timer = await fleet.failed("x", "bad")
    assert (timer.attempt, timer.failures) == (1, 1)
    assert timer.last_error is not None
    assert timer.last_error["type"] == error
    assert reason in timer.last_error["reason"]
    await fleet.client.create("note", "after", delay=0)
    await fleet.completed("after")


async def test_the_last_error_has_the_traceback_and_the_attempt(fleet: Fleet) -> None:
    async def act(_timer: Timer, _context: Context) -> None:
        raise ValueError("deep down")

    await fleet.pod(Calls(act=act, retry=ONE_TRY))
    await fleet.client.create("note", "x", delay=0)
    timer = await fleet.failed("x")
    assert timer.last_error is not None
    assert timer.last_error["attempt"] == 1
    assert "in act" in timer.last_error["detail"]
    assert "ValueError: deep down" in timer.last_error["detail"]


async def test_a_failed_attempt_is_tried_again_and_the_success_ends_it(fleet: Fleet) -> None:
    async def act(timer: Timer, _context: Context) -> None:
        if timer.attempt < 3:
            raise ValueError(f"not yet {timer.attempt}")

    calls = Calls(act=act, retry={"max_attempts": 5, "base": "1ms"})
    await fleet.pod(calls)
    await fleet.client.create("note", "x", delay=0)
    timer = await fleet.completed("x")
    assert calls.attempts == [1, 2, 3]
    assert (timer.attempt, timer.failures) == (3, 2)
    assert [run.failures for run in calls.timers] == [0, 1, 2]
    assert notes(timer)[2] == "will retry after ValueError: not yet 1"
    assert len({context.idempotency_key for context in calls.contexts}) == 1
    tokens = [context.token for context in calls.contexts]
    assert tokens == sorted(set(tokens))


@pytest.mark.parametrize("most", [1, 2, 5])
async def test_it_fails_for_good_after_exactly_its_maximum_of_attempts(fleet: Fleet, most: int) -> None:
    async def act(_timer: Timer, _context: Context) -> None:
        raise ValueError("never")

    calls = Calls(act=act, retry={"max_attempts": most, "base": "1ms"})
    await fleet.pod(calls)
    await fleet.client.create("note", "x", delay=0)
    timer = await fleet.failed("x")
    assert calls.attempts == list(range(1, most + 1))
    assert (timer.attempt, timer.failures) == (most, most)
    assert notes(timer)[-1] == "gave up after ValueError: never"


async def test_the_timers_own_retry_overrides_the_processors(fleet: Fleet) -> None:
    async def act(_timer: Timer, _context: Context) -> None:
        raise ValueError("never")

    calls = Calls(act=act, retry={"max_attempts": 9, "base": "1ms"})
    await fleet.pod(calls)
    await fleet.client.create("note", "x", delay=0, retry=TWO_QUICK_TRIES)
    await fleet.failed("x")
    assert calls.attempts == [1, 2]


async def test_retry_asks_for_another_try_after_its_own_delay(fleet: Fleet) -> None:
    async def act(timer: Timer, _context: Context) -> None:
        if timer.attempt == 1:
            raise Retry("the line is busy", after="60ms")

    calls = Calls(act=act, retry={"max_attempts": 2, "base": "1h"})
    await fleet.pod(calls)
    await fleet.client.create("note", "x", delay=0)
    timer = await fleet.completed("x")
    assert (timer.attempt, timer.failures) == (2, 1)
    first, second = calls.timers
    assert second.due_ms - first.history[0].at_ms >= 60
    assert second.last_error is not None
    assert second.last_error["reason"] == "the line is busy"


@pytest.mark.parametrize(("after", "error"), [("soon", "InvalidInput"), (Nameless(), "RuntimeError")])
async def test_a_run_whose_end_cannot_be_worked_out_is_a_failed_attempt(fleet: Fleet, after: Any, error: str) -> None:
    async def act(timer: Timer, _context: Context) -> None:
        if timer.attempt == 1:
            asked = Retry("later")
            asked.after = after
            raise asked

    calls = Calls(act=act, retry=TWO_QUICK_TRIES)
    await fleet.pod(calls)
    await fleet.client.create("note", "x", delay=0)
    timer = await fleet.completed("x")
    assert (timer.attempt, timer.failures) == (2, 1)
    assert calls.timers[1].last_error is not None
    assert calls.timers[1].last_error["type"] == error


class Unready(Retry):
    """As authors write one: it leaves out what the base class would set."""

    def __init__(self, seconds: float) -> None:
        self.after, self.snooze = seconds, True

    def __str__(self) -> str:
        return f"not ready for {self.after} s"


async def test_an_authors_own_kind_of_retry_is_one(fleet: Fleet) -> None:
    async def act(timer: Timer, _context: Context) -> None:
        if timer.attempt == 1:
            raise Unready(0.001)

    calls = Calls(act=act, retry={"max_attempts": 1})
    await fleet.pod(calls)
    await fleet.client.create("note", "x", delay=0)
    timer = await fleet.completed("x")
    assert (timer.attempt, timer.failures) == (2, 0)
    assert notes(timer)[2] == "snoozed: not ready for 0.001 s"


async def test_retry_counts_against_the_maximum(fleet: Fleet) -> None:
    async def act(_timer: Timer, _context: Context) -> None:
        raise Retry("again", after="1ms")

    calls = Calls(act=act, retry={"max_attempts": 3})
    await fleet.pod(calls)
    await fleet.client.create("note", "x", delay=0)
    await fleet.failed("x")
    assert calls.attempts == [1, 2, 3]


async def test_a_snooze_uses_up_no_attempt(fleet: Fleet) -> None:
    async def act(timer: Timer, _context: Context) -> None:
        if timer.attempt < 5:
            raise Retry("not there yet", after="1ms", snooze=True)
        raise ValueError("now it counts")

    calls = Calls(act=act, retry=TWO_QUICK_TRIES)
    await fleet.pod(calls)
    await fleet.client.create("note", "x", delay=0)
    timer = await fleet.failed("x")
    assert calls.attempts == [1, 2, 3, 4, 5, 6]
    assert (timer.attempt, timer.failures) == (6, 2)
    assert notes(timer)[2] == "snoozed: not there yet"


async def test_a_pod_holds_off_with_a_prefix_and_then_tries_one_at_a_time(fleet: Fleet) -> None:
    async def act(timer: Timer, _context: Context) -> None:
        if len(calls) < 4:
            raise Retry("the server is away", after="1h", snooze=True, hold_off="1h" if timer.id == "x" else "20ms")

    calls = Calls(act=act)
    pod = await fleet.pod(calls, Calls("other"))
    await fleet.client.create("note", "x", delay=0)
    await until(lambda: pod.worker.runner.held_off_ms("note"), "it holds off")
    for number in range(5):
        await fleet.client.create("note", f"n-{number}", delay=0)
    await fleet.client.create("other", "y", delay=0)
    await fleet.completed("y", "other")
    assert calls.ids == ["x"]
    assert (await fleet.client.get("note", "n-0")).attempt == 0
    pod.worker.runner._held_off["note"] = 0.0
    assert pod.worker.runner.room_of("note") == 1
    await fleet.redis.zadd("timers:{0}:blocked", {"note": 1}, xx=True)
    await until(lambda: len(calls) == 6, "after two more that waited the others run")
    assert sorted(calls.ids[1:]) == [f"n-{number}" for number in range(5)]
    assert pod.worker.runner.room_of("note") > 1


async def test_a_hold_off_that_a_success_ends_holds_up_nothing_any_more(fleet: Fleet) -> None:
    """The queue stayed blocked for as long as the processor had asked for."""
    release = asyncio.Event()

    async def act(timer: Timer, _context: Context) -> None:
        if timer.id == "under-way":
            await release.wait()
        if timer.id == "away":
            raise Retry("the server is away", after="1h", hold_off="1h")

    calls = Calls(act=act)
    await fleet.pod(calls)

    async def is_blocked() -> bool:
        return await fleet.redis.zscore("timers:{0}:blocked", "note") is not None

    async def goes_on() -> bool:
        return not await is_blocked()

    await fleet.client.create("note", "under-way", delay=0)
    await until(lambda: len(calls) == 1, "one runs")
    await fleet.client.create("note", "away", delay=0)
    await until(lambda: len(calls) == 2, "another finds the server away")
    await fleet.client.create("note", "waits", delay=0)
    await eventually(is_blocked, "the pod holds off")
    release.set()
    await fleet.completed("waits")
    await eventually(goes_on, "other pods may take what is due")


async def test_a_pod_that_held_off_and_has_ended_held_up_the_next_for_an_hour(fleet: Fleet) -> None:
    async def act(_timer: Timer, _context: Context) -> None:
        raise Retry("the server is away", after="1h", hold_off="1h")

    async def is_blocked() -> bool:
        return await fleet.redis.zscore("timers:{0}:blocked", "note") is not None

    away, back = Calls(act=act), Calls()
    pod = await fleet.pod(away)
    await fleet.client.create("note", "away", delay=0)
    await until(lambda: pod.worker.runner.held_off_ms("note"), "it holds off")
    await fleet.client.create("note", "waits", delay=0)
    await eventually(is_blocked, "nothing of the queue may start")
    await fleet.drain(pod)
    await fleet.pod(back, name="b")
    await fleet.completed("waits")
    assert (away.ids, back.ids) == (["away"], ["waits"])


async def test_fail_gives_up_at_once_whatever_attempts_are_left(fleet: Fleet) -> None:
    async def act(_timer: Timer, _context: Context) -> None:
        raise Fail("no such user")

    calls = Calls(act=act, retry={"max_attempts": 9, "base": "1ms"})
    await fleet.pod(calls)
    await fleet.client.create("note", "x", delay=0)
    timer = await fleet.failed("x")
    assert calls.attempts == [1]
    assert timer.last_error is not None
    assert (timer.last_error["type"], timer.last_error["reason"]) == ("Fail", "no such user")


async def test_a_failed_timer_that_is_retried_runs_again(fleet: Fleet) -> None:
    async def act(timer: Timer, _context: Context) -> None:
        if timer.attempt == 1:
            raise Fail("first")

    calls = Calls(act=act)
    await fleet.pod(calls)
    await fleet.client.create("note", "x", delay=0)
    failed = await fleet.failed("x")
    await fleet.client.retry("note", "x")
    timer = await fleet.completed("x")
    assert calls.attempts == [1, 2]
    assert timer.token > failed.token
    assert timer.failures == 0


async def test_done_leaves_its_note(fleet: Fleet) -> None:
    async def act(_timer: Timer, _context: Context) -> Done:
        return Done("skipped: no\nphone \udcff")

    await fleet.pod(Calls(act=act))
    await fleet.client.create("note", "x", delay=0)
    assert notes(await fleet.completed("x"))[-1] == "skipped: no phone"


@pytest.mark.parametrize("repeat", [None, {"every": "1h", "count": 1}])
async def test_a_note_whose_str_raises_system_exit_ended_the_pod(fleet: Fleet, repeat: Any) -> None:
    async def act(_timer: Timer, _context: Context) -> Done:
        return Done(Deadly("not so deadly"))

    await fleet.pod(Calls(act=act))
    await fleet.client.create("note", "x", delay=0, repeat=repeat)
    assert notes(await fleet.completed("x"))[-1] == "not so deadly"


async def test_a_payload_that_changed_after_it_was_returned_left_the_run_without_an_end(fleet: Fleet) -> None:
    payload: dict[str, Any] = {"round": 2}

    async def act(timer: Timer, _context: Context) -> Rearm | None:
        if timer.payload:
            return None
        again = Rearm(after=0, payload=payload)
        payload["round"] = {"a set is no JSON"}
        return again

    calls = Calls(act=act)
    await fleet.pod(calls)
    await fleet.client.create("note", "x", delay=0)
    await fleet.completed("x")
    assert [timer.payload for timer in calls.timers] == [None, {"round": 2}]


async def test_a_processor_that_returns_an_awaitable_is_awaited(fleet: Fleet) -> None:
    ended = []

    async def later(timer: Timer) -> Rearm | None:
        await asyncio.sleep(0)
        ended.append(timer.id)
        return None

    @processor("lambda")
    def plain(timer: Timer, _context: Context) -> Any:
        return later(timer)

    await fleet.pod(plain)
    await fleet.client.create("lambda", "x", delay=0)
    await fleet.completed("x", "lambda")
    assert ended == ["x"]


@pytest.mark.parametrize(
    "result",
    [{"charged": 5, "who": "\u00e4"}, [1, [2]], "text", 0, False, "", {}, "x" * 4094],
    ids=lambda r: repr(r)[:20],
)
async def test_the_result_of_a_run_is_kept_with_the_timer_and_in_its_history(fleet: Fleet, result: Any) -> None:
    async def act(_timer: Timer, _context: Context) -> Done:
        return Done(result=result)

    await fleet.pod(Calls(act=act))
    await fleet.client.create("note", "x", delay=0)
    timer = await fleet.completed("x")
    assert timer.result == timer.to_json()["result"] == result
    assert type(timer.result) is type(result)
    assert timer.history[0].note == f"result {encode(result)}"[:NOTE_LIMIT_CHARACTERS]


@pytest.mark.parametrize(
    ("result", "why"),
    [
        ("x" * 4095, "Done.result: '4097 bytes' is not accepted; expected at most 4096 bytes as JSON"),
        ({1, 2}, "Done.result: {1, 2} is not accepted; expected a JSON value"),
        (math.nan, "Done.result: nan is not accepted; expected a JSON value"),
        (Nameless(), "it raised RuntimeError when it was read"),
    ],
    ids=["too large", "a set", "not a number", "nameless"],
)
async def test_a_result_that_cannot_be_kept_makes_no_run_happen_again(fleet: Fleet, result: Any, why: str) -> None:
    async def act(_timer: Timer, _context: Context) -> Done:
        return Done("sent", result)

    calls = Calls(act=act)
    await fleet.pod(calls)
    with capture_logs() as logs:
        await fleet.client.create("note", "x", delay=0)
        timer = await fleet.completed("x")
    assert (timer.result, calls.attempts, timer.failures) == (None, [1], 0)
    assert timer.history[0].note.startswith(f"sent; its result was not kept: {why}")
    assert [log["timer"] for log in logs if log["event"] == "result of a run not kept"] == ["note:x"]


async def test_a_repeat_shows_the_result_of_its_newest_completed_run(fleet: Fleet) -> None:
    async def act(timer: Timer, _context: Context) -> Done | None:
        if timer.occurrence == 2:
            raise Fail("no")
        return Done(result={"run": timer.occurrence}) if timer.occurrence < 4 else None

    seen: list[Any] = []
    calls = Calls(act=act)
    await fleet.pod(calls)
    repeat: RepeatFields = {"every": "1ms", "count": 4, "mode": "fixed_delay"}
    await fleet.client.create("note", "x", delay=0, repeat=repeat)
    timer = await fleet.completed("x")
    seen = [run.result for run in calls.timers]
    assert seen == [None, {"run": 1}, {"run": 1}, {"run": 3}]
    assert timer.result is None
    assert [entry.note for entry in timer.history if entry.cause == "completed"] == [
        "completed", 'result {"run":3}', 'result {"run":1}',
    ]  # fmt: skip


async def test_a_policy_that_is_changed_to_allow_no_more_attempts_keeps_the_error(fleet: Fleet) -> None:
    broken = Calls(act=lambda _timer, _context: raises(ValueError("bad phone"))(), retry={"base": "1h"})
    await fleet.pod(broken)
    await fleet.client.create("note", "x", delay=0)

    async def retries() -> bool:
        return bool((await fleet.client.list(status="retrying")).items)

    await eventually(retries, "the first attempt has failed")
    await fleet.client.change("note", "x", retry={"max_attempts": 1}, delay=0)
    timer = await fleet.failed("x")
    assert (len(broken), timer.attempt, timer.failures) == (1, 1, 1)
    assert notes(timer)[-1] == "gave up after its retry policy was changed to allow no more attempts"
    assert timer.last_error is not None
    assert (timer.last_error["type"], timer.last_error["reason"]) == ("ValueError", "bad phone")
