"""Test processors without a server, on a clock that the test moves. Needs the extra `testing`.

::

    async def test_reminds_a_day_later(timer_lab):
        timer_lab.add(remind)
        await timer_lab.timers.create("remind", "a", delay="24h", payload={"user": 1})
        await timer_lab.advance("24h")
        (run,) = timer_lab.runs
        assert run.status == "completed"

The fixture `timer_lab` comes with the package's pytest plugin. `call` calls one processor, without a lab.
"""

import inspect
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any
from unittest.mock import create_autospec

from timers.core.calls import TimerCalls
from timers.core.durations import parse_time
from timers.core.fields import decode
from timers.core.model import Status, Timer
from timers.core.spec import encode_payload
from timers.errors import ConfigurationError
from timers.logs import get_logger
from timers.processor import Context, Processor, Result

try:
    import fakeredis  # noqa: F401
    import lupa  # noqa: F401
except ImportError as error:
    raise ConfigurationError(f"timers.testing needs {error.name}: pip install 'redis-timers[testing]'") from error

from timers.testing.lab import LabRun, TimerLab

__all__ = ["LabRun", "TimerLab", "call"]


async def call(
    processor: Processor,
    *,
    prefix: str | None = None,
    id: str = "test",
    payload: Any = None,
    due_at: datetime | str | int | None = None,
    attempt: int = 1,
    occurrence: int = 1,
    metadata: Mapping[str, str] | None = None,
    state: Any = None,
) -> Result:
    """Call the processor for a timer with these fields. Returns what the processor returns, and raises what it raises,
    and InvalidInput for a payload that is no JSON; the processor gets what JSON makes of it.
    `prefix` is the processor's own by default; `state` is what its lifespan would give. `context.timers` refuses every
    call."""
    if not isinstance(processor, Processor):
        raise TypeError(f"{processor!r} is not a processor; is @processor missing?")
    refusing: Any = create_autospec(TimerCalls, instance=True)
    for refused in (refusing.create, refusing.arm, refusing.get, refusing.cancel):
        refused.side_effect = AssertionError("context.timers needs a lab: see timers.testing.TimerLab")
    now_ms = parse_time(datetime.now(UTC) if due_at is None else due_at)
    timer = Timer(
        prefix=prefix or processor.prefix,
        id=id,
        status=Status.RUNNING,
        due_ms=now_ms,
        version=2,
        token=1,
        attempt=attempt,
        failures=attempt - 1,
        occurrence=occurrence,
        created_ms=now_ms,
        updated_ms=now_ms,
        spec={"payload": decode(encode_payload(payload)), "metadata": dict(metadata or {})},
    )
    log = get_logger("timers.processor")
    result = processor.function(timer, Context(timer.token, timer.idempotency_key, None, log, state, refusing))
    outcome: Result = await result if inspect.isawaitable(result) else result
    return outcome
