"""The sample timer and the sample context of the unit tests."""

from collections.abc import Awaitable, Mapping
from typing import Any

import structlog

from timers.core.calls import Armed, Timers
from timers.core.durations import parse_time
from timers.core.model import Status, Timer
from timers.core.spec import NewTimer
from timers.processor import Context, Processor, Result


def at(clock: str, day: str = "2026-11-21") -> int:
    """Epoch ms of a UTC wall time such as `10:00:05`."""
    return parse_time(f"{day}T{clock}Z")


START_MS = at("10:00:00")


def a_timer(*, due_ms: int = START_MS, spec: dict[str, Any] | None = None, **changes: Any) -> Timer:
    """A timer in its first run: armed at 09:00, due and claimed at 10:00, unless the arguments differ."""
    armed_ms = at("09:00:00")
    timer = Timer(
        prefix="reminder",
        id="user-42",
        status=Status.RUNNING,
        due_ms=due_ms,
        version=2,
        token=7,
        attempt=1,
        failures=0,
        occurrence=1,
        created_ms=armed_ms,
        updated_ms=due_ms,
        spec=spec or {},
    )
    return timer._replace(**changes)


class NoTimers(Timers):
    """The client for a processor that must not touch other timers."""

    async def _create(self, prefix: str, id: str | None, fields: Mapping[str, Any]) -> Timer:
        raise AssertionError("not to be called")

    async def arm(self, new: NewTimer, *, traceparent: str | None = None) -> Armed:
        raise AssertionError("not to be called")

    async def get(self, prefix: str, id: str) -> Timer:
        raise AssertionError("not to be called")

    async def cancel(self, prefix: str, id: str, *, version: int | None = None, purge: bool = False) -> Timer:
        raise AssertionError("not to be called")


def a_context(timer: Timer, state: Any = None) -> Context[Any]:
    """The context that the engine gives a processor with `timer`. It logs with structlog's own configuration."""
    return Context(
        token=timer.token,
        idempotency_key=timer.idempotency_key,
        deadline=None,
        log=structlog.get_logger(),
        state=state,
        timers=NoTimers(),
    )


async def run(processor: Processor, timer: Timer, state: Any = None) -> Result:
    """Run the processor for the timer, with `state` from its lifespan, and return its result."""
    result = processor(timer, a_context(timer, state))
    return await result if isinstance(result, Awaitable) else result
