"""`timers get --explain`: the record alone tells why a timer was late, ran twice or did not run."""

import re

import pytest

from tests.engine.fleet import Act, Calls, Fleet, Held, notes, until
from tests.life.past import make_older
from tests.members import announce, sign_off
from tests.waiting import eventually
from timers.client.fleet import read_story
from timers.core.durations import format_time
from timers.core.explain import Attempt, attempts, explain
from timers.core.model import HistoryEntry, Progress, Status, Timer
from timers.core.outcome import Done, Fail, Retry
from timers.engine.intake import Intake
from timers.processor import Context, Result

HOUR_MS = 3_600_000
LATE = r"late by 30 m( \d+ s)? at attempt 1: "
SWEPT = "its event did not arrive in time"
STARTED = "its pod had just started, and looked for everything that was due"
LOST = "the previous run's lease had expired: its pod died, hung or could not reach Redis"


async def answers(fleet: Fleet, prefix: str = "note") -> list[str]:
    """What is said about the timer besides its history."""
    timer = await fleet.client.get(prefix, "x")
    return (await read_story(fleet.store, timer))[len(timer.history) :]


async def only_attempt(fleet: Fleet) -> Attempt:
    """The only start of the timer."""
    (attempt,) = attempts((await fleet.client.get("note", "x")).history)
    return attempt


async def rescued(fleet: Fleet) -> Timer:
    """The timer `x`, once another pod has run it again because its first pod was killed during the run."""
    held = Held()
    dying = await fleet.pod(held)
    await fleet.client.create("note", "x", delay=0)
    await until(lambda: len(held) == 1, "it runs")
    await fleet.kill(dying)
    await fleet.expire_lease("x")
    await fleet.pod(Calls(), name="b")
    return await fleet.completed("x")


class TestCause:
    async def test_of_an_event(self, fleet: Fleet) -> None:
        await fleet.pod(Calls(), grace_ms=HOUR_MS)
        for timer_id in ("first", "x"):
            # The second is armed after the sweep that follows the subscription.
            await fleet.client.create("note", timer_id, delay="50ms")
            await fleet.completed(timer_id)
        assert notes(await fleet.client.get("note", "x")) == ["created", "event", "completed"]

    async def test_of_the_start_of_a_pod(self, fleet: Fleet) -> None:
        await fleet.client.create("note", "x", delay="30m")
        await make_older(fleet, "note", "x", HOUR_MS)
        await fleet.pod(Calls())
        assert notes(await fleet.completed("x")) == ["created", "sweep at the start of its pod", "completed"]

    async def test_of_an_event_that_was_lost(self, fleet: Fleet) -> None:
        """A sweep named four causes at once: a lost event, Redis or the pods down, no room."""
        await fleet.pod(Calls())
        await fleet.client.create("note", "x", delay="1s")
        await fleet.redis.delete("note:{0}:x")
        timer = await fleet.completed("x")
        assert timer.history[-2].cause == "sweep"
        assert any(f": {SWEPT}" in line for line in explain(timer, timer.updated_ms))

    async def test_of_a_rescue(self, fleet: Fleet) -> None:
        timer = await rescued(fleet)
        assert [(entry.pod, entry.note) for entry in timer.history[:2]] == [("b", "completed"), ("b", "rescue")]
        assert f"started again, attempt 2: {LOST}" in await answers(fleet)

    async def test_of_a_manual_action(self, fleet: Fleet) -> None:
        await fleet.client.create("note", "x", delay="1h")
        await fleet.client.fire("note", "x")
        await fleet.client.cancel("note", "x")
        await fleet.client.retry("note", "x")
        await fleet.pod(Calls())
        timer = await fleet.completed("x")
        assert notes(timer)[:4] == ["created", "fired on request", "cancelled", "retried on request"]


class TestLate:
    async def test_after_an_outage(self, fleet: Fleet) -> None:
        await fleet.client.create("note", "x", delay="30m")
        await make_older(fleet, "note", "x", HOUR_MS)
        await fleet.pod(Calls())
        await fleet.completed("x")
        (late,) = await answers(fleet)
        assert re.match(LATE + re.escape(STARTED), late)
        assert late.endswith(f"queue {(await only_attempt(fleet)).queue_ms} ms)")

    async def test_because_its_prefix_was_paused(self, fleet: Fleet) -> None:
        await fleet.client.create("note", "x", delay="30m")
        await make_older(fleet, "note", "x", HOUR_MS)
        await fleet.client.pause("note")
        await fleet.client.resume("note")
        await fleet.pod(Calls())
        await fleet.completed("x")
        assert re.match(LATE + "its prefix was paused from 20", (await answers(fleet))[0])

    async def test_because_its_pod_was_busy(self, fleet: Fleet) -> None:
        """It was claimed in time, but called late."""
        start = HistoryEntry(HOUR_MS, Status.RUNNING, 1, "a", "event", lateness_ms=3)
        end = HistoryEntry(HOUR_MS, Status.COMPLETED, 1, "a", "completed", claim_ms=1, queue_ms=5000, run_ms=7)
        timer = (await fleet.client.create("note", "x", delay="1h"))._replace(
            status=Status.COMPLETED, history=(end, start)
        )
        story = explain(timer, HOUR_MS)
        assert story[1].endswith("completed on a: completed (event 2 ms, claim 1 ms, queue 5000 ms, run 7 ms)")
        assert story[2] == (
            "late by 5 s at attempt 1: its pod a was busy, and called the processor 5 s after the claim "
            "(event 2 ms, claim 1 ms, queue 5000 ms)"
        )

    @pytest.mark.parametrize("cause", ["event", "late-look", "sweep"])
    async def test_because_its_pod_had_no_room(self, fleet: Fleet, cause: str) -> None:
        """A pod heard of it in time, and claimed it late."""
        start = HistoryEntry(HOUR_MS, Status.RUNNING, 1, "a", cause, lateness_ms=7050)
        end = HistoryEntry(HOUR_MS, Status.COMPLETED, 1, "a", "completed", claim_ms=7047, queue_ms=1, run_ms=7)
        timer = (await fleet.client.create("note", "x", delay="1h"))._replace(
            status=Status.COMPLETED, history=(end, start)
        )
        assert explain(timer, HOUR_MS)[2] == (
            "late by 7 s at attempt 1: its pod knew that it was due, but had no room for another run until then "
            "(event 3 ms, claim 7047 ms, queue 1 ms)"
        )

    @pytest.mark.parametrize(
        ("cause", "why"),
        [
            ("event", "its expired event arrived"),
            ("late-look", "the pod responsible for its event did not claim it"),
            ("room", "its queue was at its concurrency limit"),
            ("rate", "its queue's rate limit did not allow it earlier"),
        ],
    )
    async def test_for_each_cause_of_a_claim(self, fleet: Fleet, cause: str, why: str) -> None:
        await fleet.client.create("note", "x", delay="30m")
        await make_older(fleet, "note", "x", HOUR_MS)
        await fleet.store.claim(0, [("note", 1)], pod="a", lease_ms=HOUR_MS, cause=cause)
        running, late = await answers(fleet)
        assert running == "running on a"
        assert re.match(LATE, late)
        assert why in late


class TestSplit:
    """How the lateness splits into event, claim and queue, and how long the run took."""

    async def test_of_a_timer_whose_event_was_heard(self, fleet: Fleet) -> None:
        await fleet.pod(Calls())
        await fleet.client.create("note", "x", delay="50ms")
        ended = (await fleet.completed("x")).history[0]
        attempt = await only_attempt(fleet)
        assert attempt.event_ms is not None
        assert attempt.event_ms + (attempt.claim_ms or 0) == attempt.waited_ms
        assert ended.to_json()["run_ms"] == attempt.run_ms
        assert ended.to_json()["queue_ms"] == attempt.queue_ms

    async def test_of_a_timer_that_a_sweep_found(self, fleet: Fleet) -> None:
        """The event was missing, not the claim."""
        await fleet.client.create("note", "x", delay="30m")
        await make_older(fleet, "note", "x", HOUR_MS)
        await fleet.pod(Calls())
        await fleet.completed("x")
        attempt = await only_attempt(fleet)
        assert attempt.event_ms is not None
        assert attempt.event_ms > attempt.waited_ms / 2

    async def test_of_a_timer_that_waited_for_room(self) -> None:
        """Its event was heard long before, so the whole wait counts for the claim."""
        start = HistoryEntry(HOUR_MS, Status.RUNNING, 1, "a", "room", lateness_ms=900)
        end = HistoryEntry(HOUR_MS, Status.COMPLETED, 1, "a", "completed", queue_ms=0, run_ms=7)
        (attempt,) = attempts([end, start])
        assert (attempt.event_ms, attempt.claim_ms) == (None, 900)
        intake = Intake()
        for cause, is_known in [("event", True), ("sweep", True), ("room", False), ("rate", False)]:
            intake.mark_all(0, "note", cause)
            ((ask,),) = intake.take(1)
            assert (ask.known_at is not None) is is_known

    async def test_of_each_try(self, fleet: Fleet) -> None:
        await fleet.pod(Calls(act=first_time(break_down), retry={"base": "1ms"}))
        await fleet.client.create("note", "x", delay=0)
        first, second = attempts((await fleet.completed("x")).history)
        assert first.ended is not None
        assert (first.ended.cause, first.ended.run_ms) == ("retry", first.run_ms)
        assert second.start.at_ms - second.waited_ms >= first.ended.at_ms

    async def test_of_a_rescue(self, fleet: Fleet) -> None:
        """The first run has no end. The second waited from the start of the first."""
        lost, second = attempts((await rescued(fleet)).history)
        assert (lost.event_ms, lost.queue_ms, lost.ended) == (None, None, second.start)
        assert (second.event_ms, second.claim_ms) == (None, None)
        assert second.waited_ms == second.start.at_ms - lost.start.at_ms
        assert second.ended is not None
        assert second.run_ms == second.ended.run_ms

    async def test_a_rescue_shows_no_claim_time_that_the_record_lacks(self, fleet: Fleet) -> None:
        timer = await rescued(fleet)
        assert timer.history[0].claim_ms is None
        (ended,) = [line for line in explain(timer, timer.updated_ms) if " completed on b" in line]
        assert re.search(r"\(queue \d+ ms, run \d+ ms\)$", ended)

    async def test_a_rescued_run_names_its_pods_end_as_the_last_error(self, fleet: Fleet) -> None:
        """It said "unknown", or what had failed before."""
        await fleet.client.create("note", "x", delay=0)
        lost, again = start_of(1, "a"), start_of(2, "b", "rescue")
        timer = (await fleet.client.get("note", "x"))._replace(
            status=Status.RUNNING, attempt=2, failures=1, history=(again, lost)
        )
        said = "failed attempts: 1; the last error: its pod a died or lost the lease during attempt 1"
        assert said in explain(timer, HOUR_MS)
        assert said not in explain(timer._replace(status=Status.COMPLETED), HOUR_MS)  # its end says it
        earlier = {"type": "Fail", "reason": "before", "at": format_time(lost.at_ms - 1), "attempt": 0}
        assert said in explain(timer._replace(progress=Progress(earlier)), HOUR_MS)
        later = {"type": "Fail", "reason": "after", "at": format_time(lost.at_ms + 1), "attempt": 1}
        assert "the last error: after" in explain(timer._replace(progress=Progress(later)), HOUR_MS)[-1]

    async def test_of_a_timer_that_nobody_ran(self, fleet: Fleet) -> None:
        await fleet.client.create("note", "x", delay="30m", missed="skip")
        await make_older(fleet, "note", "x", HOUR_MS)
        await fleet.pod(Calls())
        assert "run_ms" not in (await fleet.completed("x")).history[0].to_json()


def start_of(attempt: int, pod: str, cause: str = "event") -> HistoryEntry:
    return HistoryEntry(HOUR_MS + attempt, Status.RUNNING, attempt, pod, cause, lateness_ms=1)


def first_time(act: Act) -> Act:
    """Does `act` at the first attempt, and nothing at the second."""

    async def once(timer: Timer, context: Context) -> Result:
        return await act(timer, context) if timer.attempt == 1 else None

    return once


async def break_down(_timer: Timer, _context: Context) -> None:
    raise ValueError("broken")


async def snooze(_timer: Timer, _context: Context) -> None:
    raise Retry("asleep", after="1ms", snooze=True)


class TestTwice:
    @pytest.mark.parametrize(
        ("act", "why"), [(break_down, "will retry after ValueError: broken"), (snooze, "snoozed: asleep")]
    )
    async def test_by_its_processor(self, fleet: Fleet, act: Act, why: str) -> None:
        await fleet.pod(Calls(act=first_time(act), retry={"base": "1ms"}))
        await fleet.client.create("note", "x", delay=0)
        await fleet.completed("x")
        assert f"started again, attempt 2: {why}" in await answers(fleet)

    async def test_by_a_drain(self, fleet: Fleet) -> None:
        held = Held()
        leaving = await fleet.pod(held, drain_timeout_ms=0)
        await fleet.client.create("note", "x", delay=0)
        await until(lambda: len(held) == 1, "it runs")
        await fleet.drain(leaving)
        await fleet.pod(Calls(), name="b")
        timer = await fleet.completed("x")
        assert timer.failures == 0
        assert f"started again, attempt 2: {notes(timer)[2]}" in await answers(fleet)
        assert notes(timer)[2].startswith("handed back")

    async def test_by_hand(self, fleet: Fleet) -> None:
        await fleet.pod(Calls(act=first_time(break_down), retry={"max_attempts": 1}))
        await fleet.client.create("note", "x", delay=0)
        await fleet.failed("x")
        await fleet.client.retry("note", "x")
        await fleet.completed("x")
        why = "gave up after ValueError: broken; retried on request"
        assert f"started again, attempt 2: {why}" in await answers(fleet)


class TestNotRun:
    async def test_because_it_is_not_due(self, fleet: Fleet) -> None:
        timer = await fleet.client.create("note", "x", delay="1h")
        (said,) = explain(timer, timer.due_ms - 5)[1:]
        assert said == "not run yet: due in 5 ms"

    async def test_because_nobody_takes_it(self, fleet: Fleet) -> None:
        await fleet.client.create("note", "x", delay=0)
        (said,) = await answers(fleet)
        assert said.endswith("no live pod serves 'note' with the processor 'note'; start one")

    @pytest.mark.parametrize(
        ("said", "limits"),
        [
            ("the prefix 'note' has been paused since 20", ""),
            ("no live pod serves 'note' with the processor 'note'; start one", ""),
            ("its queue is at its limit (3 at once); it is tried again at 20", "3 at once"),
            ("the pods that serve it have not had room yet: a-pod", ""),
        ],
    )
    async def test_because_something_keeps_it(self, fleet: Fleet, said: str, limits: str) -> None:
        """What the record does not tell is read from the db."""
        await fleet.client.create("note", "x", delay=0)
        if "paused" in said:
            await fleet.client.pause("note")
        elif limits:
            await fleet.store.block(fleet.store.shard_of("note", "x"), {"note": HOUR_MS})

        async def told() -> bool:
            """The pod gives a new sign of life each time, so that it counts as alive on a slow machine too."""
            await announce(fleet.store, "a-pod", processors=["note"], settings={"limits of note": limits})
            if "no live pod" in said:
                await sign_off(fleet.store, "a-pod")
            (answer,) = await answers(fleet)
            return f"and not claimed: {said}" in answer

        await eventually(told, said)

    async def test_because_nobody_served_it(self, fleet: Fleet) -> None:
        await fleet.pod(Calls("mail"), unhandled_after_ms=1)
        await fleet.client.create("note", "x", delay=0)
        await fleet.reached(Status.UNHANDLED, "x")
        assert await answers(fleet) == ["not run: no live pod served 'note'; start one and retry it"]

    async def test_because_it_was_cancelled(self, fleet: Fleet) -> None:
        await fleet.client.create("note", "x", delay="1h")
        await fleet.client.cancel("note", "x")
        assert await answers(fleet) == ["not run: it was cancelled"]

    async def test_because_it_would_have_been_too_late(self, fleet: Fleet) -> None:
        """It was claimed, which its history shows, but it did not run."""
        await fleet.client.create("note", "x", delay="30m", missed="skip")
        await make_older(fleet, "note", "x", HOUR_MS)
        calls = Calls()
        await fleet.pod(calls)
        timer = await fleet.completed("x")
        assert len(calls) == 0
        assert (await answers(fleet))[0] == f"not run: {notes(timer)[-1]}"
        assert notes(timer)[-1].startswith("skipped: 18")

    async def test_because_the_processor_decided_not_to(self, fleet: Fleet) -> None:
        async def check(_timer: Timer, _context: Context) -> Done:
            return Done("skipped: no phone number")

        await fleet.pod(Calls(act=check))
        await fleet.client.create("note", "x", delay=0)
        await fleet.completed("x")
        timer = await fleet.client.get("note", "x")
        assert " completed on a: skipped: no phone number (" in explain(timer, 0)[2]

    async def test_because_it_has_failed(self, fleet: Fleet) -> None:
        async def give_up(_timer: Timer, _context: Context) -> None:
            raise Fail("no such user")

        await fleet.pod(Calls(act=give_up))
        await fleet.client.create("note", "x", delay=0)
        await fleet.failed("x")
        assert (await answers(fleet))[0].startswith("given up after 1 failed attempt; the last error: no such user (")
