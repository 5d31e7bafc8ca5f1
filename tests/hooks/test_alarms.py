"""Alarms of real pods: one message for a thousand failures, one for the fleet, by every channel, and one at the end."""

import asyncio
import json
import os
import stat
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import pytest
from standardwebhooks import Webhook

from tests.engine.fleet import Calls, Fleet, Pod, until
from tests.hooks.test_hooks import SECRET, all_calls_made, dead, on_the_page
from tests.messages.mailbox import mailbox
from tests.waiting import eventually
from tests.webhooks.receivers import Received, receiving, settings
from timers import Fail
from timers.core.model import Timer
from timers.processor import Context
from timers.settings import Settings
from timers.store import alarms, keys
from timers.testing import call
from timers_processors.hooks import processors

DAY_MS: Final = 86_400_000
LASTING: Final[Mapping[str, int]] = {
    "alarm_gather_ms": 0,
    "alarm_calm_ms": DAY_MS,
    "alarm_over_ms": DAY_MS,
    "alarm_poll_ms": 20,
}
"""Told at once, and never over."""


async def give_up(_timer: Timer, _context: Context) -> None:
    raise Fail("no such user")


async def pod_of(
    fleet: Fleet, given: Settings, *calls: Calls, times: Mapping[str, int] = LASTING, **options: Any
) -> Pod:
    """A pod with these settings."""
    asked: dict[str, Any] = {"hooks": given.requested_hooks, "public_url": given.public_url, **times}
    return await fleet.pod(*calls, *processors(given), **asked, **options)


def of(received: Sequence[Received], kind: str) -> list[Received]:
    """The messages of one alarm. There may be another, because a pod on a busy machine may be deaf for a moment."""
    return [request for request in received if json.loads(request.body)["data"]["alarm"] == kind]


def said(received: Sequence[Received], kind: str) -> list[str]:
    """Of each message, whether the alarm began, goes on or ended."""
    return [json.loads(request.body)["data"]["state"] for request in of(received, kind)]


async def counted(fleet: Fleet, count: int) -> None:
    """Wait until the fleet has counted this many failures."""

    async def look() -> bool:
        alarm = await alarms.poll(fleet.store, "failed", gather_ms=DAY_MS, again_ms=DAY_MS, calm_ms=DAY_MS)
        return alarm is not None and alarm.count == count

    await eventually(look, f"{count} failures are counted")


async def test_a_thousand_failures_on_two_pods_are_one_alarm_and_one_end(fleet: Fleet) -> None:
    failing = Calls(act=give_up)
    async with receiving() as receiver:
        given = settings(alarms=receiver.url, hook_secrets=SECRET, public_url="https://timers.example")
        gathering = {"alarm_gather_ms": DAY_MS, "alarm_poll_ms": 20}
        pods = [await pod_of(fleet, given, failing, times=gathering, name=name) for name in ("a", "b")]
        await fleet.client.batch([{"prefix": "note", "id": f"n-{n}", "delay": 0} for n in range(1000)])
        await counted(fleet, 1000)
        assert of(receiver.received, "failed") == []
        for pod in pods:
            await fleet.drain(pod)
        calm = {"alarm_gather_ms": 0, "alarm_calm_ms": 0, "alarm_poll_ms": 20}
        for name in ("c", "d"):
            await pod_of(fleet, given, times=calm, name=name)
        await until(lambda: len(of(receiver.received, "failed")) == 2, "the alarm began and ended")
        await all_calls_made(fleet)
    assert said(receiver.received, "failed") == ["began", "ended"]
    began, ended = (Webhook(SECRET).verify(r.body, dict(r.headers)) for r in of(receiver.received, "failed"))
    assert began["data"]["text"] == "1,000 timers failed"
    assert ended["data"]["text"] == "over: 1,000 timers failed"
    assert began["data"]["prefixes"] == {"note": 1000}
    assert len(began["data"]["newest"]) == 5
    first = began["data"]["newest"][0]
    assert first["note"] == "gave up after Fail: no such user"
    assert first["url"] == f"https://timers.example/ui/timers/note/{first['id']}"
    shown = on_the_page(1)["data"]
    assert [set(began["data"]), set(first)] == [set(shown), set(shown["newest"][0])]

    async def forgotten() -> bool:
        return not await fleet.redis.exists(f"{keys.ALARMS_ROOT}failed")

    await eventually(forgotten, "the alarm is over")


async def test_a_pod_killed_before_it_knows_of_its_message_sends_no_second(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    armed = asyncio.Event()

    async def hang_forever(*_: object) -> None:
        armed.set()
        await asyncio.Event().wait()

    async with receiving() as receiver:
        given = settings(alarms=receiver.url)
        with monkeypatch.context() as patched:
            patched.setattr(alarms, "sent", hang_forever)
            dying = await pod_of(fleet, given, Calls(act=give_up), name="dying")
            await fleet.client.create("note", "a", delay=0)
            await armed.wait()
            await dead(fleet, dying)
        await pod_of(fleet, given, name="heir")

        async def known() -> bool:
            alarm = await alarms.poll(fleet.store, "failed", gather_ms=0, again_ms=DAY_MS, calm_ms=DAY_MS)
            return alarm is not None and alarm.number == 1

        await eventually(known, "the message is known to be armed")
        await all_calls_made(fleet)
    assert len({request.headers["webhook-id"] for request in of(receiver.received, "failed")}) == 1


async def test_an_ongoing_alarm_sends_more_messages_only_with_more_failures(fleet: Fleet) -> None:
    async with receiving() as receiver:
        times = {**LASTING, "alarm_again_ms": 0}
        await pod_of(fleet, settings(alarms=receiver.url), Calls(act=give_up), times=times)
        for number in range(3):
            await fleet.client.create("note", f"n-{number}", delay=0)
            await until(lambda count=number + 1: len(of(receiver.received, "failed")) == count, "it is told")  # type: ignore[misc]
        await all_calls_made(fleet)
    assert said(receiver.received, "failed") == ["began", "goes on", "goes on"]
    assert [json.loads(request.body)["data"]["count"] for request in of(receiver.received, "failed")] == [1, 2, 3]


async def test_an_alarm_comes_by_mail_with_links(fleet: Fleet) -> None:
    async with mailbox() as box:
        given = settings(
            alarms="mailto:ops@example.org",
            smtp_url=f"smtp://127.0.0.1:{box.port}",
            mail_from="timers@example.org",
            public_url="https://timers.example",
        )
        pod = await pod_of(fleet, given, Calls(act=give_up))
        await fleet.client.create("note", "a", delay=0)
        await until(lambda: [mail for mail in box.mails if "failed" in mail["Subject"]], "the mail is there")
        await fleet.drain(pod)
    (mail,) = [mail for mail in box.mails if "failed" in mail["Subject"]]
    assert (mail["To"], mail["Subject"]) == ("ops@example.org", "[timers] 1 timer failed")
    text = mail.get_content().replace("\r\n", "\n")
    assert "note:a: gave up after Fail: no such user\nhttps://timers.example/ui/timers/note/a" in text


@pytest.mark.parametrize("has_outbox", [False, True])
async def test_an_alarm_that_no_mail_server_took_does_not_count_as_sent(
    fleet: Fleet, tmp_path: Path, has_outbox: bool
) -> None:
    await pod_of(
        fleet, settings(alarms="mailto:ops@example.org", outbox=tmp_path if has_outbox else None), Calls(act=give_up)
    )
    await fleet.client.create("note", "a", delay=0)

    async def ended() -> Timer | None:
        messages = fleet.client.iterate(prefix="timers.alarm-*", status=["completed", "failed"])
        return next(iter([timer async for timer in messages]), None)

    message = await eventually(ended, "the message has ended")
    assert message is not None
    if has_outbox:
        (file,) = tmp_path.iterdir()
        assert f"written to {file}, not sent" in [entry.note for entry in message.history]
    else:
        assert "TIMERS_SMTP_URL is not set" in str(message.last_error)


async def test_a_command_gets_the_alarm_and_none_of_the_settings_and_is_tried_again(
    fleet: Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIMERS_REDIS_URL", "redis://:secret@host")
    command = tmp_path / "tell"
    command.write_text(f"#!/bin/sh\ncat >{tmp_path}/body.$$\nenv >{tmp_path}/env\n: >{tmp_path}/ran\nexit 3\n")
    command.chmod(command.stat().st_mode | stat.S_IXUSR)
    await pod_of(fleet, settings(alarms=f"exec:{command}"), Calls(act=give_up))
    await fleet.client.create("note", "a", delay=0)

    async def retried() -> Timer | None:
        calls = [
            timer
            async for timer in fleet.client.iterate(prefix="timers.*", status="scheduled")
            if timer.failures and "failed-" in timer.id
        ]
        return next(iter(calls), None)

    call = await eventually(retried, "the command is to be tried again")
    assert call is not None
    assert call.last_error is not None
    assert call.last_error["reason"] == f"{command} ended with 3"
    assert any('"text":"1 timer failed"' in body.read_text() for body in tmp_path.glob("body.*"))
    assert "secret" not in (tmp_path / "env").read_text()


async def test_a_command_that_does_not_end_leaves_nothing_running(tmp_path: Path) -> None:
    """What it has started, once it has read the alarm, holds a pipe open until it is gone."""
    pipe, command = tmp_path / "pipe", tmp_path / "tell"
    os.mkfifo(pipe)
    command.write_text(f"#!/bin/sh\ncat >/dev/null\nsleep 600 >{pipe} &\nwait\n")
    command.chmod(command.stat().st_mode | stat.S_IXUSR)
    (tell,) = processors(settings(alarms=f"exec:{command}"))
    telling = asyncio.create_task(call(tell, payload={"body": {}}))
    with await asyncio.to_thread(pipe.open) as reader:
        os.set_blocking(reader.fileno(), False)
        telling.cancel()
        await asyncio.gather(telling, return_exceptions=True)

        async def is_closed() -> bool:
            with suppress(BlockingIOError):
                return os.read(reader.fileno(), 1) == b""
            return False

        await eventually(is_closed, "nobody has the pipe")


async def test_timers_that_nobody_serves_are_an_alarm_of_their_own(fleet: Fleet) -> None:
    async with receiving() as receiver:
        await fleet.drain(await fleet.pod(Calls("away"), name="away"))
        await pod_of(fleet, settings(alarms=receiver.url), unhandled_after_ms=200)
        await fleet.client.create("away", "a", delay=0)
        await until(lambda: of(receiver.received, "unhandled"), "it is told")
    assert said(receiver.received, "unhandled") == ["began"]


async def test_timers_that_wait_too_long_are_an_alarm_until_they_have_run(fleet: Fleet) -> None:
    async with receiving() as receiver:
        await fleet.drain(await fleet.pod(Calls("away"), name="away"))
        times = {"alarm_gather_ms": 0, "alarm_over_ms": 0, "alarm_overdue_ms": 500, "alarm_poll_ms": 20}
        await pod_of(fleet, settings(alarms=receiver.url), times=times, unhandled_after_ms=DAY_MS)
        await fleet.client.create("away", "a", delay=0)
        await until(lambda: of(receiver.received, "overdue"), "it is told")
        serving = await fleet.pod(Calls("away"), name="back")
        await until(lambda: "ended" in said(receiver.received, "overdue"), "it is over")
        await fleet.drain(serving)
    assert said(receiver.received, "overdue")[0] == "began"


async def test_timers_that_keep_failing_are_an_alarm_with_their_error_until_they_run(fleet: Fleet) -> None:
    tried = asyncio.Event()

    async def act(timer: Timer, _context: Context) -> None:
        tried.set()
        if timer.failures < 1:
            raise ConnectionError("mail is down")

    async with receiving() as receiver:
        given = settings(alarms=receiver.url)
        times = {"alarm_gather_ms": 0, "alarm_calm_ms": 0, "alarm_failing_ms": 0, "alarm_poll_ms": 20}
        calls = Calls(act=act, retry={"backoff": ["1h", "1h"]})
        await pod_of(fleet, given, calls, times=times)
        await fleet.client.create("note", "a", delay=0)
        await until(lambda: of(receiver.received, "retrying"), "it is told")
        await fleet.client.fire("note", "a")
        await fleet.completed("a")
        await until(lambda: "ended" in said(receiver.received, "retrying"), "it is over")
    first = json.loads(of(receiver.received, "retrying")[0].body)["data"]
    assert first["state"] == "began"
    assert "1 of note, the first since" in first["newest"][0]["note"]
    assert "ConnectionError: mail is down" in first["newest"][0]["note"]


async def test_a_long_attempt_does_not_end_the_alarm_about_its_timer(fleet: Fleet) -> None:
    release = asyncio.Event()

    async def act(timer: Timer, _context: Context) -> None:
        if timer.failures == 0:
            raise ConnectionError("mail is down")
        await release.wait()

    async with receiving() as receiver:
        times = {**LASTING, "alarm_over_ms": 0, "alarm_failing_ms": 0}
        calls = Calls(act=act, retry={"backoff": ["1h", "1h"]})
        pod = await pod_of(fleet, settings(alarms=receiver.url), calls, times=times)
        await fleet.client.create("note", "a", delay=0)
        await until(lambda: of(receiver.received, "retrying"), "it is told")
        await fleet.client.fire("note", "a")
        await until(lambda: len(calls) == 2, "it is tried again")
        await pod.worker._hooks.check_alarms()
        assert "retrying" in [alarm.kind for alarm in await alarms.active(fleet.store)]
        release.set()
        await fleet.completed("a")


async def test_lost_data_is_an_alarm_until_somebody_knows(fleet: Fleet) -> None:
    async with receiving() as receiver:
        times = {"alarm_gather_ms": 0, "alarm_over_ms": 0, "alarm_poll_ms": 20}
        pod = await pod_of(fleet, settings(alarms=receiver.url), Calls(), times=times)
        await fleet.client.create("note", "a", delay="1h")
        await until(lambda: pod.store.identity.armed, "the pod knows of it")
        await fleet.redis.flushdb()
        await until(lambda: of(receiver.received, "lost"), "it is told")
        await fleet.store.identity.acknowledge()
        await until(lambda: "ended" in said(receiver.received, "lost"), "it is over")
    began, ended = (request.body for request in of(receiver.received, "lost"))
    assert "the db was lost or replaced" in json.loads(began)["data"]["newest"][0]["note"]
    assert json.loads(ended)["data"]["text"] == "over: the loss of data was acknowledged"


async def test_a_deaf_pod_is_an_alarm_until_it_hears(fleet: Fleet) -> None:
    async with receiving() as receiver:
        times = {"alarm_gather_ms": 0, "alarm_over_ms": 0, "alarm_poll_ms": 20}
        await pod_of(fleet, settings(alarms=receiver.url), times=times)
        await fleet.redis.config_set("notify-keyspace-events", "")
        await until(lambda: of(receiver.received, "deaf"), "it is told")
        await fleet.redis.config_set("notify-keyspace-events", "Ex")
        await until(lambda: "ended" in said(receiver.received, "deaf"), "it is over")
    assert said(receiver.received, "deaf")[0] == "began"


async def test_an_alarm_is_forgotten_once_nobody_is_to_be_told(fleet: Fleet) -> None:
    """Otherwise the dashboard would show it for ever, and a target of later would hear of it as new."""
    async with receiving() as receiver:
        alarmed = await pod_of(fleet, settings(alarms=receiver.url), Calls(act=give_up), name="alarmed")
        other = await fleet.pod(Calls(), name="other")
        await fleet.client.create("note", "a", delay=0)
        await until(lambda: of(receiver.received, "failed"), "it is told")
        await fleet.drain(alarmed)
        await other.worker._hooks.check_alarms()
        assert await alarms.active(fleet.store)
        await fleet.drain(other)
        await fleet.pod(name="without", forget_hooks_ms=1, alarm_poll_ms=20)

        async def forgotten() -> bool:
            return not await alarms.active(fleet.store)

        await eventually(forgotten, "no alarm is left")


async def count(fleet: Fleet, first: int, last: int, shard: int = 0) -> None:
    """A pod counts these entries of an outbox."""
    entries = [(f"1700000000000-{number}".encode(), "note") for number in range(first, last + 1)]
    newest = [{"note": f"{shard}-{number}", "url": None} for number in range(first, last + 1)][-5:]
    await alarms.count(fleet.store, "failed", newest, shard, entries)


async def named(fleet: Fleet) -> list[str]:
    """The timers that the alarm names."""
    (alarm,) = await alarms.active(fleet.store)
    return [str(each["note"]) for each in alarm.newest]


async def test_pods_that_drain_an_outbox_at_once_count_each_failure_once(fleet: Fleet) -> None:
    """For a moment after a start, two pods may believe that they lead."""
    for first, last in ((1, 10), (1, 12), (1, 8), (9, 12), (13, 13)):
        await count(fleet, first, last)
    await count(fleet, 1, 2, shard=1)
    (alarm,) = await alarms.active(fleet.store)
    assert (alarm.count, alarm.by_prefix) == (15, {"note": 15})


async def test_the_newest_five_are_named_however_few_a_pod_counts_at_a_time(fleet: Fleet) -> None:
    await count(fleet, 1, 2)
    assert await named(fleet) == ["0-1", "0-2"]
    for number in (3, 4, 5, 6):
        await count(fleet, number, number)
    await count(fleet, 1, 1, shard=1)
    assert await named(fleet) == ["0-3", "0-4", "0-5", "0-6", "1-1"]
    await count(fleet, 4, 7)
    assert await named(fleet) == ["0-4", "0-5", "0-6", "1-1", "0-7"]


async def test_failures_during_the_last_message_begin_the_next_alarm(fleet: Fleet) -> None:
    at_once = {"gather_ms": 0, "again_ms": 0, "calm_ms": 0}
    await count(fleet, 1, 2)
    began = await alarms.poll(fleet.store, "failed", **at_once)
    assert began is not None
    assert (began.what, began.number, began.count) == ("began", 0, 2)
    await alarms.sent(fleet.store, began, "began")
    ended = await alarms.poll(fleet.store, "failed", **at_once)
    assert ended is not None
    assert (ended.what, ended.number) == ("ended", 1)

    numbers = iter(range(3, 1_000_000))

    async def noted_later() -> bool:
        number = next(numbers)
        await count(fleet, number, number)
        now = await alarms.poll(fleet.store, "failed", **at_once)
        return now is not None and now.noted_ms > ended.noted_ms

    await eventually(noted_later, "a failure of a later millisecond")
    await alarms.sent(fleet.store, ended, "ended")
    following = await alarms.poll(fleet.store, "failed", **at_once)
    assert following is not None
    assert (following.what, following.number) == ("began", 0)
    assert following.since_ms > ended.since_ms
    assert following.count >= 1
    assert "0-2" not in await named(fleet)
