"""Processors that pods of both versions load. Each run leaves a line in the file that `RUNS` names."""

import asyncio
import json
import os
from pathlib import Path
from typing import Any

from timers import Context, Timer, processor

RUNS = Path(os.environ["RUNS"])


def tell(timer: Timer, context: Context[Any]) -> None:
    """Say which pod runs what."""
    run = {
        "pod": os.environ["TIMERS_POD"],
        "key": context.idempotency_key,
        "timer": timer.key,
        "created": timer.created_ms,
        "occurrence": timer.occurrence,
        "payload": timer.payload,
    }
    with RUNS.open("a") as file:
        file.write(json.dumps(run) + "\n")


@processor("plain")
async def plain(timer: Timer, context: Context[Any]) -> None:
    """Run at once."""
    tell(timer, context)


@processor("mended", retry={"max_attempts": 2, "base": "50ms"})  # one try may end with its pod
async def mended(timer: Timer, context: Context[Any]) -> None:
    """Fail until somebody makes the file that the payload names."""
    tell(timer, context)
    if not Path(timer.payload["fails_until"]).exists():
        raise RuntimeError("not mended yet")


@processor("held", retry={"max_attempts": 9, "base": "100ms", "jitter": False})
async def held(timer: Timer, context: Context[Any]) -> None:
    """Run until somebody makes the file that the payload names."""
    tell(timer, context)
    while not Path(timer.payload["runs_until"]).exists():  # noqa: ASYNC110 (another process sets no event here)
        await asyncio.sleep(0.02)
