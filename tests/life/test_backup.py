"""Timers out of an export run as if nothing had happened: those that are due once, those that have ended never."""

import json
from typing import Any

import pytest

from tests.engine.fleet import Calls, Fleet, Held, until
from timers.client.backup import Import, export
from timers.core.model import Status

pytestmark = pytest.mark.every_server


async def exported(fleet: Fleet) -> list[bytes]:
    return [line.encode() async for page in export(fleet.store) for line in page.lines]


async def imported(fleet: Fleet, lines: list[bytes], **options: Any) -> Import:
    """Import what was exported; no line of it may be bad."""
    bad: list[str] = []
    begun = Import(
        fleet.store,
        lines[0],
        tell=lambda number, why: bad.append(f"{number}: {why}"),
        **options,
    )
    for line in lines[1:]:
        await begun.take(line)
    report = await begun.end()
    assert (bad, report.trouble) == ([], None)
    return report


async def lose(fleet: Fleet) -> None:
    """Lose the whole db."""
    await fleet.redis.flushdb()
    await fleet.store.identity.renew()


async def test_what_was_due_meanwhile_runs_once_in_the_new_service(fleet: Fleet) -> None:
    for timer_id in ("a", "b", "c"):
        await fleet.client.create("note", timer_id, delay="0s", payload={"to": timer_id})
    lines = await exported(fleet)
    await lose(fleet)
    calls = Calls()
    await fleet.pod(calls, name="a")
    await fleet.pod(calls, name="b")
    assert (await imported(fleet, lines)).by_result["timers"] == {"restored": 3}
    for timer_id in ("a", "b", "c"):
        assert (await fleet.completed(timer_id)).payload == {"to": timer_id}
    assert (await imported(fleet, lines)).by_result["timers"] == {"kept": 3}
    assert sorted(calls.ids) == ["a", "b", "c"]


async def test_what_has_ended_does_not_run_again(fleet: Fleet) -> None:
    first = Calls()
    pod = await fleet.pod(first)
    await fleet.client.create("note", "done", delay="0s")
    before = await fleet.completed("done")
    await fleet.drain(pod)
    lines = await exported(fleet)
    await lose(fleet)
    again = Calls()
    await fleet.pod(again)
    await imported(fleet, lines)
    await fleet.client.create("note", "next", delay="0s")
    after = await fleet.completed("next")
    assert again.ids == ["next"]
    assert (await fleet.client.get("note", "done")).status is Status.COMPLETED
    assert after.token > before.token


async def test_a_run_that_was_under_way_begins_again_under_its_key(fleet: Fleet) -> None:
    held = Held()
    pod = await fleet.pod(held)
    await fleet.client.create("note", "a", delay="0s")
    await until(lambda: held.timers, "the run has begun")
    lines = await exported(fleet)
    await lose(fleet)
    await fleet.kill(pod)
    calls = Calls()
    await fleet.pod(calls)
    await imported(fleet, lines)
    await fleet.completed("a")
    assert calls.attempts == [2]
    assert calls.timers[0].idempotency_key == held.timers[0].idempotency_key
    assert calls.timers[0].token > held.timers[0].token


async def test_a_live_run_is_left_alone(fleet: Fleet) -> None:
    held = Held()
    await fleet.pod(held)
    await fleet.client.create("note", "a", delay="0s")
    await until(lambda: held.timers, "the run has begun")
    lines = await exported(fleet)
    assert (await imported(fleet, lines, if_exists="replace")).by_result["timers"] == {"running": 1}
    held.release.set()
    await fleet.completed("a")
    assert len(held) == 1


async def test_an_import_makes_no_late_timer_punctual(fleet: Fleet) -> None:
    """It is skipped as it would have been without the import."""
    await fleet.client.create("note", "a", delay="0s", missed="skip")
    header, *lines = await exported(fleet)
    hour_ago = [json.loads(line) for line in lines]
    for line in hour_ago:
        line |= {name: line[name] - 3_600_000 for name in ("created_ms", "due_ms") if name in line}
    await lose(fleet)
    await imported(fleet, [header, *(json.dumps(line).encode() for line in hour_ago)])
    calls = Calls()
    await fleet.pod(calls)
    timer = await fleet.completed("a")
    assert (len(calls), timer.history[0].cause) == (0, "skipped")


async def test_a_paused_prefix_stays_paused(fleet: Fleet) -> None:
    await fleet.client.create("note", "a", delay="0s")
    await fleet.client.pause("note")
    lines = await exported(fleet)
    await lose(fleet)
    await imported(fleet, lines)
    assert not (await fleet.store.claim(0, [("note", 10)], pod="x", lease_ms=1000, cause="sweep")).timers
    await fleet.client.resume("note")
    calls = Calls()
    await fleet.pod(calls)
    await fleet.completed("a")
    assert calls.ids == ["a"]
