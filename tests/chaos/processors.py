"""The processor that the pods run. It does what the payload says, and reports it to the witness."""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, Final, TypedDict

from tests.chaos.witness import Attempt, Outcome, Witness
from timers import Context, Retry, RetryPolicy, Timer, processor

DIRECTORY_VARIABLE: Final = "CHAOS_WITNESS_DIR"
PREFIX: Final = "chaos"
SERIAL: Final = "chaos-serial"
"""Runs one timer at a time, and not on all pods."""
ONCE: Final = "chaos-once"
"""Has an effect in SQL (`effects.py`)."""
CAPPED: Final = "chaos-capped"
"""Its callers have a quota."""
CAP: Final = 5
"""How many of its timers may be scheduled or run at once."""
PREFIXES: Final = (PREFIX, SERIAL, ONCE, CAPPED)
_PREFIXES: Final = {"serial-": SERIAL, "once-": ONCE, "capped-": CAPPED}
MAX_ATTEMPTS: Final = 5
RETRY: Final = RetryPolicy(max_attempts=MAX_ATTEMPTS, backoff="fixed", base="200ms")


class Behaviour(TypedDict, total=False):
    """What a payload may ask for: how long to run and to block the event loop, how many failures, and how many first
    attempts to hang in. With `slots` the timer repeats, that many times in all."""

    run_ms: int
    block_ms: int
    fail_first: int
    hang_first: int
    slots: int


@cache
def _witness() -> Witness:
    return Witness(Path(os.environ[DIRECTORY_VARIABLE]), os.environ["TIMERS_POD"])


def prefix_of(timer_id: str) -> str:
    """The prefix of a timer of this name."""
    kind, dash, _ = timer_id.partition("-")
    return _PREFIXES.get(kind + dash, PREFIX)


@processor(PREFIX, retry=RETRY)
async def chaos(timer: Timer, context: Context) -> None:
    """See `run`."""
    await run(timer, context, PREFIX)


@processor(SERIAL, retry=RETRY, concurrency=1)
async def chaos_serial(timer: Timer, context: Context) -> None:
    """See `run`."""
    await run(timer, context, SERIAL)


@processor(CAPPED, retry=RETRY)
async def chaos_capped(timer: Timer, context: Context) -> None:
    """See `run`."""
    await run(timer, context, CAPPED)


async def run(
    timer: Timer,
    context: Context[Any],
    called: str,
    effect: Callable[[], Awaitable[None]] | None = None,
    ended_by: tuple[type[BaseException], ...] = (),
) -> None:
    """Reports its start, takes effect if there is one, behaves as the payload asks, and reports its end. What it
    raises of `ended_by` is a success."""
    attempt = Attempt(
        timer=f"{timer.prefix}/{timer.id}",
        occurrence=timer.occurrence,
        attempt=timer.attempt,
        token=context.token,
        due_ms=timer.due_ms,
        processor=called,
        key=context.idempotency_key,
    )
    _witness().start(attempt)
    outcome = Outcome.FAILED
    try:
        if effect is not None:
            await effect()
        await _behave(timer)
        outcome = Outcome.DONE
    except ended_by:
        outcome = Outcome.DONE
        raise
    except Retry as asked:
        outcome = Outcome.SNOOZED if asked.snooze else Outcome.FAILED
        raise
    except asyncio.CancelledError:
        outcome = _why_cancelled(context)
        raise
    finally:
        _witness().end(attempt, outcome)


async def _behave(timer: Timer) -> None:
    behaviour: Behaviour = timer.payload or {}  # the value of a bare key that expired before a pod saw it is lost
    if timer.attempt <= behaviour.get("hang_first", 0):
        await asyncio.Event().wait()
    time.sleep(behaviour.get("block_ms", 0) / 1000)  # noqa: ASYNC251 (the fault)
    await asyncio.sleep(behaviour.get("run_ms", 0) / 1000)
    if timer.failures < behaviour.get("fail_first", 0):
        raise RuntimeError(f"told to fail {behaviour['fail_first']} times")


def _why_cancelled(context: Context[Any]) -> Outcome:
    over = context.deadline is not None and datetime.now(UTC) >= context.deadline
    return Outcome.TIMED_OUT if over else Outcome.HANDED_BACK
