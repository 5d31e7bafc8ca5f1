"""Lifecycle hooks of real pods: what a receiver gets of each change, in which order, and after which crashes."""

import asyncio
import json
import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from standardwebhooks import Webhook, WebhookVerificationError

from tests.api.harness import running_api
from tests.engine.fleet import Calls, Fleet, Pod, until
from tests.servers import ServerHandle
from tests.unit.samples import START_MS, NoTimers, a_context, a_timer
from tests.waiting import eventually
from tests.webhooks.receivers import Received, hang, receiving, settings, speaking
from timers import Fail, InvalidInput, Rearm, Retry
from timers.core.hooks import EVENTS, NAMES, letter_of
from timers.core.model import Status, Timer
from timers.processor import Context, find
from timers.settings import Settings, load_settings
from timers.store import keys, outbox
from timers.store.membership import Membership
from timers_processors.hooks import SOON_SECONDS, in_turn, processors
from timers_processors.webhook import processors as webhook_processors

PAGE = Path(__file__).parents[2] / "docs" / "hooks.md"
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
OTHER_SECRET = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD"


def on_the_page(number: int) -> Any:
    """The body of a hook (0) or an alarm (1) that the page shows."""
    return json.loads(re.findall(r"```json\n(.+?)```", PAGE.read_text("utf-8"), re.DOTALL)[number])


async def pod_of(fleet: Fleet, given: Settings, *calls: Calls, **options: Any) -> Pod:
    """A pod with these settings."""
    return await fleet.pod(
        *calls, *processors(given), hooks=given.requested_hooks, public_url=given.public_url, **options
    )


async def posting(fleet: Fleet, given: Settings) -> None:
    """From now on changes for these settings are posted, and there is no pod to take them."""
    await dead(fleet, await pod_of(fleet, given, name="dying"))


async def dead(fleet: Fleet, pod: Pod) -> None:
    """Kill a pod, and remove its sign of life so that no pod waits for it."""
    await fleet.kill(pod)
    await Membership(fleet.store).leave(pod.name)


def told(received: Sequence[Received], timer_id: str = "a") -> list[str]:
    """The changes of a timer that arrived, in order of arrival."""
    bodies = [json.loads(request.body) for request in received]
    return [body["type"] for body in bodies if body["data"]["id"] == timer_id]


async def all_calls_made(fleet: Fleet) -> None:
    """Wait until the outbox is empty and no call is waiting."""

    async def look() -> bool:
        if await outbox.first(fleet.store, 0, 1):
            return False
        calls = fleet.client.iterate(prefix="timers.*", status=["scheduled", "running"])
        return not [call async for call in calls] and not [t async for t in fleet.client.iterate(status="running")]

    await eventually(look, "all calls are made")


@pytest.mark.parametrize("line", ["arcfux * ", "arcfux * a\nb", "arcfux * note"])
async def test_what_another_program_put_among_the_hooks_stopped_all_calls(fleet: Fleet, line: str) -> None:
    """Without a prefix the calls could not be armed. With one of ordinary timers each call led to three more."""
    note = Calls()
    await fleet.redis.hset(keys.HOOKS, line, 2**52)
    async with receiving() as receiver:
        await pod_of(fleet, settings(hooks=f"completed@note={receiver.url}"), note)
        await fleet.client.create("note", "a", delay=0)
        await until(lambda: receiver.received, "the end of the timer is told")
        await all_calls_made(fleet)
    assert note.ids == ["a"]
    await fleet.redis.delete(keys.HOOKS, f"{keys.root(0)}hooks")


async def test_every_event_of_a_life_is_called_in_order_and_signed(fleet: Fleet) -> None:
    async def once_failing(timer: Timer, _context: Context) -> None:
        if timer.attempt == 1:
            raise Retry("not yet", after=0)

    async with receiving() as receiver:
        given = settings(hooks=f"all@note*={receiver.url}", hook_secrets=SECRET, public_url="https://timers.example/")
        await pod_of(fleet, given, Calls(act=once_failing))
        await fleet.client.create("note", "a", delay=0, payload={"secret": 1}, metadata={"order": "7"})
        await until(lambda: len(receiver.received) == 5, "all is told")
    names = ["armed", "started", "retried", "started", "completed"]
    assert told(receiver.received) == [f"timer.{name}" for name in names]
    bodies = [Webhook(SECRET).verify(r.body, dict(r.headers)) for r in receiver.received]
    assert [body["data"]["version"] for body in bodies] == [1, 2, 3, 4, 5]
    assert [body["data"]["attempt"] for body in bodies] == [0, 1, 1, 2, 2]
    retried = bodies[2]["data"]
    assert (retried["prefix"], retried["id"], retried["status"]) == ("note", "a", "scheduled")
    assert retried["last_error"]["reason"] == "not yet"
    shown = on_the_page(0)
    assert [set(bodies[2]), set(retried), set(retried["last_error"])] == [
        set(shown),
        set(shown["data"]),
        set(shown["data"]["last_error"]),
    ], "as on the page"
    assert retried["metadata"] == {"order": "7"}
    assert retried["url"] == "https://timers.example/ui/timers/note/a"
    assert not any("payload" in body["data"] or "secret" in str(body) for body in bodies)


@pytest.mark.parametrize("asked", ["hooks", "alarms"])
async def test_a_webhook_cannot_forge_what_a_hook_or_an_alarm_says(fleet: Fleet, asked: str) -> None:
    """Whoever may arm a web hook chooses its body. Neither the secret of hooks nor an id like theirs is to be had."""

    async def give_up(_timer: Timer, _context: Context) -> None:
        raise Fail("no")

    async with receiving() as receiver:
        url = f"failed@note={receiver.url}" if asked == "hooks" else receiver.url
        given = settings(webhook_secrets=SECRET, hook_secrets=OTHER_SECRET, **{asked: url})
        pod = await fleet.pod(
            Calls(act=give_up),
            *webhook_processors(given),
            *processors(given),
            hooks=given.requested_hooks,
            alarm_gather_ms=0,
            alarm_calm_ms=86_400_000,
            alarm_over_ms=86_400_000,
            alarm_poll_ms=20,
        )
        await fleet.client.create("note", "a", delay=0)
        await until(lambda: receiver.received, "the failure is told")
        real = receiver.received[0]
        body = {**json.loads(real.body), "type": "note.failed"}
        await fleet.client.create("webhook", "forged", delay=0, payload={"url": receiver.url, "body": body})
        await fleet.completed("forged", "webhook")
        await fleet.drain(pod)
    forged = next(request for request in receiver.received if b"note.failed" in request.body)
    assert Webhook(OTHER_SECRET).verify(real.body, dict(real.headers))
    assert Webhook(SECRET).verify(forged.body, dict(forged.headers))
    for secret, request in (SECRET, real), (OTHER_SECRET, forged):
        with pytest.raises(WebhookVerificationError):
            Webhook(secret).verify(request.body, dict(request.headers))
    assert real.headers["webhook-id"].startswith("hook_")
    assert forged.headers["webhook-id"].startswith("msg_")


async def test_failed_cancelled_and_unhandled_are_called_with_the_payload_on_request(fleet: Fleet) -> None:
    async def give_up(_timer: Timer, _context: Context) -> None:
        raise Fail("no")

    async with receiving() as receiver:
        given = settings(hooks=f"failed+cancelled+unhandled+payload@*={receiver.url}")
        away = await fleet.pod(Calls("away"), name="away")
        await fleet.drain(away)
        await pod_of(fleet, given, Calls(act=give_up), unhandled_after_ms=200)
        await fleet.client.create("note", "a", delay=0, payload=1)
        await fleet.client.create("note", "b", delay="1h", payload=2)
        await fleet.client.create("away", "c", delay=0, payload=3)
        await fleet.client.cancel("note", "b")
        await until(lambda: len(receiver.received) == 3, "all is told")
    bodies = [json.loads(request.body) for request in receiver.received]
    assert {(body["type"], body["data"]["id"], body["data"]["payload"]) for body in bodies} == {
        ("timer.failed", "a", 1),
        ("timer.cancelled", "b", 2),
        ("timer.unhandled", "c", 3),
    }


async def test_a_call_that_fails_holds_up_the_later_ones_of_its_timer_and_no_other(fleet: Fleet) -> None:
    down = [web.Response(status=503, headers={"Retry-After": "1"}), web.Response()]
    async with receiving(*down) as receiver:
        await pod_of(fleet, settings(hooks=f"armed+cancelled@note={receiver.url}"), Calls())
        await fleet.client.create("note", "a", delay="1h")
        await until(lambda: receiver.received, "the first try has been made")
        await fleet.client.cancel("note", "a")
        await fleet.client.create("note", "b", delay="1h")
        await until(lambda: len(receiver.received) == 4, "all is told")
    assert told(receiver.received) == ["timer.armed", "timer.armed", "timer.cancelled"]
    first, second = (r for r in receiver.received if b"timer.armed" in r.body and b'"id":"a"' in r.body)
    assert first.headers["webhook-id"] == second.headers["webhook-id"]
    assert told(receiver.received, "b") == ["timer.armed"]


@pytest.mark.parametrize("behind_seconds", [-7200, 7200])
async def test_a_call_waits_for_the_one_before_whatever_the_pods_clock_says(
    monkeypatch: pytest.MonkeyPatch, behind_seconds: int
) -> None:
    class Before(NoTimers):
        async def get(self, prefix: str, id: str) -> Timer:
            return a_timer(prefix=prefix, id=id, status=Status.SCHEDULED, due_ms=START_MS + 30_000)

    monkeypatch.setattr("time.time", lambda: START_MS / 1000 - behind_seconds)
    call = a_timer(spec={"payload": {"after": "first"}})
    with pytest.raises(Retry) as waits:
        await in_turn(call, a_context(call)._replace(timers=Before()))
    assert (waits.value.after, waits.value.snooze) == (30 + SOON_SECONDS, True)


async def test_changes_posted_without_live_pods_are_called_by_the_next_pod(fleet: Fleet) -> None:
    async with receiving() as receiver:
        given = settings(hooks=f"armed+cancelled@note={receiver.url}")
        await posting(fleet, given)
        for number in range(20):
            await fleet.client.create("note", f"n-{number}", delay="1h")
            await fleet.client.cancel("note", f"n-{number}")
        assert len(await outbox.first(fleet.store, 0, 100)) == 40
        await pod_of(fleet, given, name="heir")
        await until(lambda: len(receiver.received) == 40, "all is told")
        await all_calls_made(fleet)
    for number in range(20):
        assert told(receiver.received, f"n-{number}") == ["timer.armed", "timer.cancelled"]


async def test_a_pod_killed_between_arming_the_calls_and_emptying_the_outbox_doubles_none(fleet: Fleet) -> None:
    async with receiving() as receiver:
        given = settings(hooks=f"armed+cancelled@note={receiver.url}")
        await posting(fleet, given)
        await fleet.client.create("note", "a", delay="1h")
        await fleet.client.cancel("note", "a")
        stream = f"{keys.root(0)}outbox"
        entries: Any = await fleet.redis.xrange(stream)
        await pod_of(fleet, given, name="heir")
        await all_calls_made(fleet)
        for _, fields in entries:  # as they stay there until a pod takes them
            await fleet.redis.xadd(stream, fields)
        await all_calls_made(fleet)
    assert told(receiver.received) == ["timer.armed", "timer.cancelled"]


async def test_a_pod_killed_before_it_has_armed_the_calls_loses_none(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with receiving() as receiver:
        given = settings(hooks=f"armed+cancelled@note={receiver.url}")
        pod, arming = await pod_of(fleet, given, name="dying"), asyncio.Event()

        async def hang_forever(*_: object) -> None:
            arming.set()
            await asyncio.Event().wait()

        monkeypatch.setattr(pod.store, "arm", hang_forever)
        await fleet.client.create("note", "a", delay="1h")
        await arming.wait()
        await fleet.client.cancel("note", "a")
        await dead(fleet, pod)
        assert receiver.received == []
        await pod_of(fleet, given, name="heir")
        await until(lambda: len(receiver.received) == 2, "all is told")
    assert told(receiver.received) == ["timer.armed", "timer.cancelled"]


async def test_pods_with_other_settings_neither_lose_nor_double_calls(fleet: Fleet) -> None:
    async with receiving() as first, receiving() as second:
        both = f"completed@note={first.url}"
        await pod_of(fleet, settings(hooks=f"{both},failed+completed@note={second.url}"), Calls(), name="a")
        await pod_of(fleet, settings(hooks=both), name="b")
        await fleet.pod(name="c")
        for number in range(30):
            await fleet.client.create("note", f"n-{number}", delay=0)
        await until(lambda: min(len(first.received), len(second.received)) >= 30, "all is told")
        await all_calls_made(fleet)
    for receiver in (first, second):
        assert sorted(json.loads(r.body)["data"]["id"] for r in receiver.received) == sorted(
            f"n-{number}" for number in range(30)
        )


async def test_each_timers_calls_come_in_order_also_where_they_lie_in_several_shards(server: ServerHandle) -> None:
    fleet = await Fleet.over(server.url, shards=4)
    async with receiving() as receiver:
        given = settings(hooks=f"armed+started+completed@note={receiver.url}")
        await pod_of(fleet, given, Calls(), name="a")
        await pod_of(fleet, given, Calls(), name="b")
        for number in range(20):
            await fleet.client.create("note", f"n-{number}", delay=0)
        await until(lambda: len(receiver.received) >= 60, "all is told")
        await fleet.close()
    for number in range(20):
        assert told(receiver.received, f"n-{number}") == ["timer.armed", "timer.started", "timer.completed"]


async def test_a_hook_outlives_its_pods_until_it_is_removed(fleet: Fleet) -> None:
    async with receiving() as receiver:
        given = settings(hooks=f"armed@note={receiver.url}")
        asking = await pod_of(fleet, given, name="asking")
        other = await fleet.pod(name="other")
        await fleet.drain(asking)
        await fleet.client.create("note", "a", delay="1h")
        asking = await pod_of(fleet, given, name="asking again")
        await until(lambda: receiver.received, "it is told")
        assert set(told(receiver.received)) == {"timer.armed"}
        await fleet.drain(asking)
        await fleet.drain(other)
        await fleet.pod(name="forgetful", forget_hooks_ms=1)

        async def taken_back() -> bool:
            return not await fleet.redis.exists(f"{keys.root(0)}hooks", keys.HOOKS)

        await eventually(taken_back, "the hook is taken back")
        await fleet.client.create("note", "b", delay="1h")
        assert await outbox.first(fleet.store, 0, 1) == []
        views = [*await fleet.client.prefixes(), *await fleet.client.prefixes("timers.*")]
        assert [view.prefix for view in views if view.declaration is not None] == ["note"]


async def test_lost_hooks_of_a_db_that_was_emptied_are_asked_for_again(fleet: Fleet) -> None:
    async with receiving() as receiver:
        await pod_of(fleet, settings(hooks=f"armed@note={receiver.url}"), Calls())
        await fleet.redis.flushdb()

        async def asked_again() -> bool:
            return await fleet.redis.exists(f"{keys.root(0)}hooks", f"{keys.PODS_ROOT}declared") == 2

        await eventually(asked_again, "the hook is asked for and the prefix declared again")
        await fleet.client.create("note", "a", delay="1h")
        await until(lambda: receiver.received, "it is told")
        assert set(told(receiver.received)) == {"timer.armed"}


async def test_a_receiver_that_hangs_delays_no_other_and_no_timer(fleet: Fleet) -> None:
    async with receiving() as quick, speaking(hang) as hangs:
        asked = f"armed+completed@note={hangs},armed+completed@note={quick.url}"
        pod = await pod_of(fleet, settings(hooks=asked), Calls())
        for number in range(10):
            await fleet.client.create("note", f"n-{number}", delay=0)
        for number in range(10):
            await fleet.completed(f"n-{number}")
        await until(lambda: len(quick.received) == 20, "the other is told all")
        pod.worker.shorten_drain()
        await fleet.drain(pod)


@pytest.mark.parametrize("asked", ["hooks", "alarms"])
@pytest.mark.parametrize("status", [400, 401, 403, 404])
async def test_a_call_is_tried_again_whose_receiver_has_another_secret(fleet: Fleet, asked: str, status: int) -> None:
    """It failed for good at once: what a hook or an alarm had to say was lost."""

    async def give_up(_timer: Timer, _context: Context) -> None:
        raise Fail("no")

    async with receiving(web.Response(status=status)) as receiver:
        url = f"failed@note={receiver.url}" if asked == "hooks" else receiver.url
        await pod_of(fleet, settings(**{asked: url}), Calls(act=give_up), alarm_gather_ms=0, alarm_poll_ms=20)
        await fleet.client.create("note", "a", delay=0)

        async def tried() -> Timer | None:
            calls = fleet.client.iterate(prefix="timers.*", status=["scheduled", "failed"])
            return next(iter([timer async for timer in calls if timer.failures]), None)

        call = await eventually(tried, "the call was made")
    assert call is not None
    assert call.status is Status.SCHEDULED
    assert call.last_error is not None
    assert f"answered {status} " in call.last_error["reason"]


async def test_calls_to_private_addresses_are_refused_and_seen(fleet: Fleet) -> None:
    async with receiving() as receiver:
        await pod_of(fleet, settings(hooks=f"armed@note={receiver.url}", webhook_allow="10.0.0.0/8"))
        await fleet.client.create("note", "a", delay="1h")

        async def refused() -> Timer | None:
            return next(iter([timer async for timer in fleet.client.iterate(prefix="timers.*", status="failed")]), None)

        call = await eventually(refused, "the call has failed")
    assert call is not None
    assert "only for hosts in TIMERS_WEBHOOK_ALLOW" in call.last_error["reason"] if call.last_error else False
    assert receiver.received == []


async def test_scripts_and_records_agree_on_what_a_change_tells(fleet: Fleet) -> None:
    async def by_id(timer: Timer, _context: Context) -> Rearm | None:
        match timer.id, timer.attempt:
            case ("retries" | "snoozes") as kind, 1:
                raise Retry("again", after=0, snooze=kind == "snoozes")
            case "fails", _:
                raise Fail("no")
            case "re-arms", _ if timer.occurrence == 1:
                return Rearm(after=0)
        return None

    names = ("retries", "snoozes", "fails", "re-arms", "repeats", "cancelled")
    async with receiving() as receiver:
        await pod_of(fleet, settings(hooks=f"all@note={receiver.url}"), Calls(act=by_id))
        for name in names:
            repeat: dict[str, Any] = {"repeat": {"every": "1h", "count": 2}} if name == "repeats" else {}
            await fleet.client.create("note", name, delay="1h", **repeat)
            await (fleet.client.cancel if name == "cancelled" else fleet.client.fire)("note", name)
        await until(lambda: told(receiver.received, "repeats")[-1:] == ["timer.completed"], "one of a repeat is done")
        await fleet.client.cancel("note", "repeats")
        for name in names:
            await eventually(partial(ended, fleet, name), f"{name} has ended")
        await all_calls_made(fleet)
        for name in names:
            timer = await fleet.client.get("note", name)
            letters = [letter_of(entry) for entry in reversed(timer.history)]
            expected = [f"timer.{NAMES[letter]}" for letter in letters if letter]
            # A call that is tried again can be between two statuses while `all_calls_made` looks at them in turn.
            await until(lambda: len(told(receiver.received, name)) >= len(expected), f"{name} is told")  # noqa: B023
            assert told(receiver.received, name) == expected
    events = {kind for name in names for kind in told(receiver.received, name)}
    assert events == {f"timer.{name}" for name in EVENTS if name != "unhandled"}


async def ended(fleet: Fleet, timer_id: str) -> bool:
    """True if a timer has ended."""
    return (await fleet.client.get("note", timer_id)).status.finished


async def test_nobody_else_makes_or_changes_the_services_own_timers(fleet: Fleet) -> None:
    with pytest.raises(InvalidInput, match=r"does not begin with 'timers\.'"):
        await fleet.client.create("timers.hook-1", "a", delay=0)
    with pytest.raises(InvalidInput, match=r"does not begin with 'timers\.'"):
        await fleet.client.change("timers.hook-1", "a", payload=1)


async def test_without_retention_the_end_is_still_called(fleet: Fleet) -> None:
    async with receiving() as receiver:
        given = settings(hooks=f"completed+cancelled@note={receiver.url}")
        await pod_of(fleet, given, Calls(), retention_ms=0)
        await fleet.client.create("note", "a", delay=0)
        await until(lambda: receiver.received, "it is told")
    assert told(receiver.received) == ["timer.completed"]


def test_targets_are_shown_without_possible_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIMERS_HOOKS", "failed@*=https://user:secret@ops.example:444/secret?token=secret")
    monkeypatch.setenv("TIMERS_ALARMS", "mailto:someone@example.org,exec:/bin/sh")
    shown = {found.origin.partition(":")[2] for found, _ in find(builtin=load_settings().loaded)}
    assert {"ops.example:444", "s***@example.org", "/bin/sh"} <= shown


async def test_an_outbox_that_nobody_drains_is_seen_in_the_metrics_until_a_pod_comes(fleet: Fleet) -> None:
    async with receiving() as receiver, running_api(fleet.url, []) as api:
        given = settings(hooks=f"armed@note={receiver.url}")
        await posting(fleet, given)
        assert "timers_outbox_entries 0.0" in await api.text("/metrics")
        for timer_id in "ab":
            await fleet.client.create("note", timer_id, delay="1h")
        await fleet.store.connections.commands.set(f"{keys.root(0)}unposted", 3)  # as a full outbox does
        text = await api.text("/metrics")
        assert "timers_outbox_entries 2.0" in text
        found = re.search(r"^timers_outbox_seconds (\S+)$", text, re.MULTILINE)
        assert found is not None
        assert 0 <= float(found[1]) < 3600
        pod = await pod_of(fleet, given, Calls())
        await until(lambda: pod.seen.left_out == 3, "the pod counts what the outbox has not taken")
        await all_calls_made(fleet)
        assert "timers_outbox_entries 0.0" in await api.text("/metrics")
