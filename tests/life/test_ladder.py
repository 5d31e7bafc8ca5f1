"""The published design's ladder: waits of 5 s, 30 s, 60 s …; armed at 10:00:00, done at the third try."""

import pytest

from tests.engine.fleet import Calls, Fleet
from tests.life.past import make_older
from tests.waiting import eventually
from timers.core.durations import parse_time
from timers.core.model import Status, Timer
from timers.core.outcome import Rearm
from timers.processor import Context

LADDER = ["5s", "30s", "60s", "10m", "30m", "1h", "6h", "1d", "2d"]
SECOND_MS = 1000


async def waiting(fleet: Fleet, failures: int) -> Timer:
    """The timer, once it waits for its next try after this many failures."""

    async def look() -> Timer | None:
        timer = await fleet.client.get("note", "x")
        return timer if (timer.status, timer.failures) == (Status.SCHEDULED, failures) else None

    found = await eventually(look, f"it waits after failure {failures}")
    assert found is not None
    return found


async def test_two_failures_and_a_success_are_three_tries_5_then_30_then_60_seconds_apart(fleet: Fleet) -> None:
    """10:00:00 armed, 10:00:05 fails, 10:00:35 fails, 10:01:35 succeeds. From the end of each try to the next due time
    the waits are exact to the millisecond. The test does not wait: it makes the timer older."""

    async def act(timer: Timer, _context: Context) -> None:
        if timer.attempt < 3:
            raise ConnectionError("refused")

    calls = Calls(act=act)
    armed = await fleet.client.create("note", "x", retry={"backoff": LADDER})
    waits_ms = [armed.due_ms - armed.created_ms]
    await make_older(fleet, "note", "x", waits_ms[0])
    await fleet.pod(calls)
    for failures in (1, 2):
        timer = await waiting(fleet, failures)
        assert timer.last_error is not None
        waits_ms.append(timer.due_ms - parse_time(timer.last_error["at"], "at"))
        await make_older(fleet, "note", "x", waits_ms[-1])
    assert waits_ms == [5 * SECOND_MS, 30 * SECOND_MS, 60 * SECOND_MS]
    timer = await fleet.completed("x")
    assert (calls.attempts, timer.attempt, timer.failures) == ([1, 2, 3], 3, 2)


@pytest.mark.parametrize("ends", [Rearm(after="1h"), Rearm(after="1h", payload={"n": 1})], ids=["kept", "given"])
async def test_what_a_processor_does_to_its_payload_is_forgotten(fleet: Fleet, ends: Rearm) -> None:
    async def act(timer: Timer, _context: Context) -> Rearm:
        timer.payload["edited"] = object()
        return ends

    await fleet.client.create("note", "x", retry={"backoff": ["1ms", "1s"]}, payload={"n": 1}, metadata={"m": "1"})
    await fleet.pod(Calls(act=act))

    async def armed_again() -> bool:
        timer = await fleet.client.get("note", "x")
        return (timer.status, timer.occurrence, timer.payload) == (Status.SCHEDULED, 2, {"n": 1})

    await eventually(armed_again, "it is armed again with the payload that it had")
