"""The processor that the pods run. It does what the payload says, and reports it to the witness."""

import asyncio
import os
import time
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Final, TypedDict

from tests.chaos.witness import Attempt, Outcome, Witness
from timers import Context, Timer, processor

DIRECTORY_VARIABLE: Final = "CHAOS_WITNESS_DIR"
PREFIX: Final = "chaos"
MAX_ATTEMPTS: Final = 5


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


@processor(PREFIX, retry={"max_attempts": MAX_ATTEMPTS, "backoff": "fixed", "base": "200ms"})
async def chaos(timer: Timer, context: Context) -> None:
    """Reports its start, behaves as the payload asks, and reports its end."""
    run = Attempt(
        timer=f"{timer.prefix}/{timer.id}",
        occurrence=timer.occurrence,
        attempt=timer.attempt,
        token=context.token,
        due_ms=timer.due_ms,
    )
    _witness().start(run)
    outcome = Outcome.FAILED
    try:
        await _behave(timer)
        outcome = Outcome.DONE
    except asyncio.CancelledError:
        outcome = _why_cancelled(context)
        raise
    finally:
        _witness().end(run, outcome)


async def _behave(timer: Timer) -> None:
    behaviour: Behaviour = timer.payload or {}  # the value of a bare key that expired before a pod saw it is lost
    if timer.attempt <= behaviour.get("hang_first", 0):
        await asyncio.Event().wait()
    time.sleep(behaviour.get("block_ms", 0) / 1000)  # noqa: ASYNC251 (the fault)
    await asyncio.sleep(behaviour.get("run_ms", 0) / 1000)
    if timer.failures < behaviour.get("fail_first", 0):
        raise RuntimeError(f"told to fail {behaviour['fail_first']} times")


def _why_cancelled(context: Context) -> Outcome:
    over = context.deadline is not None and datetime.now(UTC) >= context.deadline
    return Outcome.TIMED_OUT if over else Outcome.HANDED_BACK
