"""`timers replay`: shows the timers of a window of time, then arms them again in order and at a given pace."""

import asyncio
from dataclasses import replace
from itertools import pairwise
from random import Random
from typing import Any

import pytest

from tests.cli.commands import CommandLine
from tests.store.acts import an_end, armed, claim, finished, settle
from tests.waiting import eventually, patient
from timers.client import TimerClient, actions, open_store
from timers.client.actions import PAGE, Replayed
from timers.core.decide import decide
from timers.core.durations import format_time, parse_time
from timers.core.model import Status, Timer
from timers.core.outcome import Failed, Missed
from timers.core.policies import RetryPolicy
from timers.embedded import EmbeddedServer
from timers.errors import Unavailable
from timers.store.servers import connect
from timers.store.store import Settlement, Store

NOON_MS = parse_time("2026-01-05T12:00:00Z")
MINUTE_MS = 60_000

WINDOW = ("--from", "2026-01-05T12:00:00Z", "--to", "2026-01-05T13:00:00Z")


class Past:
    """Timers that were due some minutes after noon, and how they ended."""

    def __init__(self, url: str) -> None:
        self._url = url

    def ended(self, timer_id: str, minute: int, status: Status, prefix: str = "mail") -> None:
        async def live(store: Store) -> None:
            await finished(store, timer_id, status, prefix=prefix, due=_due(minute))

        self._in_store(live)

    def skipped(self, timer_id: str, minute: int) -> None:
        async def live(store: Store) -> None:
            await armed(store, timer_id, prefix="mail", due=_due(minute), spec={"missed": "skip"})
            (timer,) = await claim(store, prefix="mail")
            left_out = decide(timer, Missed(7_000), timer.due_ms, RetryPolicy(), None)  # type: ignore[arg-type]
            await settle(store, Settlement(timer, left_out))

        self._in_store(live)

    def retried(self, timer_id: str, minute: int) -> None:
        """It failed twice, and its second try was hours after its due time."""

        async def live(store: Store) -> None:
            policy = RetryPolicy(max_attempts=2, backoff="fixed", base="1ms")
            await armed(store, timer_id, prefix="mail", due=_due(minute))
            for failures in (1, 2):

                async def claimed() -> list[Timer]:
                    return await claim(store, prefix="mail")

                (timer,) = await eventually(claimed, "it is due")
                now_ms = await store.now_ms()
                await settle(store, Settlement(timer, decide(timer, Failed("Error", "no"), now_ms, policy, Random())))
                assert (await store.get([("mail", timer_id)]))[0].failures == failures  # type: ignore[union-attr]

        self._in_store(live)

    def waiting(self, timer_id: str, minute: int) -> None:
        async def live(store: Store) -> None:
            await armed(store, timer_id, prefix="mail", due=_due(minute))

        self._in_store(live)

    def timer(self, timer_id: str, prefix: str = "mail") -> Timer:
        async def read() -> Timer:
            async with TimerClient(self._url) as client:
                return await client.get(prefix, timer_id)

        return asyncio.run(read())

    def run(self, timer_id: str) -> None:
        """Another pod that runs what the replay armed, before the replay looks again."""

        async def live(store: Store) -> None:
            (timer,) = await claim(store, most=1, prefix="mail")
            assert timer.id == timer_id
            await settle(store, an_end(timer))

        self._in_store(live)

    def _in_store(self, live: Any) -> None:
        async def within() -> None:
            connections = connect(patient(self._url))
            try:
                await live(await open_store(connections))
            finally:
                await connections.close()

        asyncio.run(within())


def _due(minute: int) -> str:
    return f"@{NOON_MS + minute * MINUTE_MS}"


@pytest.fixture
def past(server: EmbeddedServer, timers: CommandLine) -> Past:
    made = Past(server.url)
    made.ended("third", 50, Status.FAILED)
    made.ended("first", 10, Status.UNHANDLED)
    made.skipped("second", 30)
    made.ended("done", 20, Status.COMPLETED)
    made.ended("too-early", -1, Status.FAILED)
    made.ended("too-late", 60, Status.FAILED)
    made.ended("other", 40, Status.FAILED, prefix="push")
    return made


def replayed(timers: CommandLine, *options: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = timers("replay", *WINDOW, *options, "-o", "json").json
    return found


def test_a_dry_run_shows_what_would_run_and_when_and_changes_nothing(timers: CommandLine, past: Past) -> None:
    before = past.timer("first")
    shown = timers("replay", *WINDOW, "--rate", "10/s", "--dry-run", "-o", "json")
    assert shown.err == "timers: 4 would run, 10/s\n"
    found = shown.json
    assert [(each["id"], each["status"], each["result"]) for each in found] == [
        ("first", "unhandled", ""),
        ("second", "completed", ""),
        ("other", "failed", ""),
        ("third", "failed", ""),
    ]
    assert found[0]["due_at"] == format_time(NOON_MS + 10 * MINUTE_MS)
    runs = [parse_time(each["runs_at"]) for each in found]
    assert {later - earlier for earlier, later in pairwise(runs)} == {100}
    assert past.timer("first") == before


def test_a_window_may_be_given_from_now(timers: CommandLine, past: Past) -> None:
    hours = (parse_time(past.timer("first").to_json()["updated_at"]) - NOON_MS) // (60 * MINUTE_MS) + 2
    shown = timers("replay", "--from", f"-{hours}h", "--to", "0s", "--prefix", "ma*", "--dry-run", "-o", "json")
    assert [each["id"] for each in shown.json] == ["too-early", "first", "second", "third", "too-late"]


def test_a_replay_arms_them_again_in_their_order_and_at_the_pace(timers: CommandLine, past: Past) -> None:
    done = timers("replay", *WINDOW, "--prefix", "mail", "--rate", "1/m", "-o", "json")
    assert done.err == "timers: 3 of 3 armed, 1/m\n"
    assert [each["result"] for each in done.json] == ["armed"] * 3
    found = [past.timer(name) for name in ("first", "second", "third")]
    assert [(timer.status, timer.failures, timer.history[0].note) for timer in found] == [
        (Status.SCHEDULED, 0, "replayed")
    ] * 3
    assert {later.due_ms - earlier.due_ms for earlier, later in pairwise(found)} == {MINUTE_MS}
    assert [format_time(timer.due_ms) for timer in found] == [each["runs_at"] for each in done.json]
    for name, prefix in (("done", "mail"), ("too-early", "mail"), ("too-late", "mail"), ("other", "push")):
        assert past.timer(name, prefix).status is not Status.SCHEDULED


def test_completed_timers_run_once_more_only_on_request(timers: CommandLine, past: Past) -> None:
    before = past.timer("done")
    found = replayed(timers, "--completed")
    assert [each["id"] for each in found] == ["first", "done", "second", "other", "third"]
    again = past.timer("done")
    assert (again.occurrence, again.attempt) == (before.occurrence + 1, 0)


def test_a_replay_that_is_repeated_arms_nothing_twice(timers: CommandLine, past: Past) -> None:
    assert len(replayed(timers, "--rate", "1/h")) == 4
    assert timers("replay", *WINDOW).err == "timers: 0 of 0 armed, 100/s\n"
    past.run("first")
    assert replayed(timers) == []


def test_waiting_and_cancelled_timers_are_left_alone(timers: CommandLine, server: EmbeddedServer) -> None:
    past = Past(server.url)
    past.waiting("waits", 5)
    past.waiting("cancelled", 6)
    timers("cancel", "mail", "cancelled")
    assert replayed(timers, "--completed") == []


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (("--from", "noon", "--to", "2026-01-05T13:00:00Z"), "--from"),
        (("--from", "2026-01-05T12:00:00Z", "--to", "2026-01-05T12:00:00Z"), "--to"),
        ((*WINDOW, "--rate", "fast"), "--rate"),
    ],
)
def test_a_bad_option_is_named(timers: CommandLine, options: tuple[str, ...], named: str) -> None:
    assert named in timers("replay", *options).refusal(2)


def test_a_timer_that_was_retried_is_found_by_the_time_when_it_was_due_first(timers: CommandLine, past: Past) -> None:
    """Each retry moves the due time, so a failed timer was never in the window of the outage that failed it."""
    past.retried("again", 5)
    assert past.timer("again").due_ms > NOON_MS + 60 * MINUTE_MS
    found = replayed(timers, "--prefix", "mail")
    assert [each["id"] for each in found] == ["again", "first", "second", "third"]
    assert found[0]["due_at"] == format_time(NOON_MS + 5 * MINUTE_MS)
    timer = past.timer("again")
    assert (timer.status, timer.first_due_ms) == (Status.SCHEDULED, timer.due_ms)
    assert timer.last_error is not None
    assert replayed(timers, "--prefix", "mail") == []


async def test_a_replay_that_breaks_off_says_how_many_timers_were_armed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def arm(_store: Store, planned: Replayed) -> Replayed:
        if planned.runs_ms == PAGE:
            raise Unavailable("cut")
        return replace(planned, result="armed")

    monkeypatch.setattr(actions, "_arm_again", arm)
    nothing: Any = None
    with pytest.raises(Unavailable, match=f"cut; {PAGE} timers were done before that"):
        await actions.arm_again(nothing, [Replayed(nothing, number) for number in range(PAGE + 1)])
