"""Web hooks of real pods: retries, a receiver or a pod that dies in between, and a target that slows no other."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tests.engine.fleet import Calls, Fleet, notes, until
from tests.webhooks.receivers import hang, receiving, settings, speaking
from timers.errors import ConfigurationError
from timers.processor import load
from timers.settings import load_settings
from timers_processors.targets import Targets
from timers_processors.webhook import connections, processors

AT_ONCE: dict[str, Any] = {"retry": {"backoff": "fixed", "base": "1ms"}}


async def test_every_try_has_the_same_id_and_the_history_tells_each_answer(fleet: Fleet) -> None:
    await fleet.pod(*processors(settings()))
    armed: dict[str, Any] = {"traceparent": f"00-{'4b' * 16}-{'00f0' * 4}-01", **AT_ONCE}
    async with receiving(web.Response(status=500, text="try\nlater"), web.Response(text="thanks")) as receiver:
        await fleet.client.create("webhook", "a", delay=0, payload={"url": receiver.url, "body": {}}, **armed)
        timer = await fleet.completed("a", "webhook")
    first, second = receiver.received
    assert first.headers["traceparent"] == second.headers["traceparent"] == armed["traceparent"]
    assert first.headers["webhook-id"] == second.headers["webhook-id"]
    assert [first.headers["Timers-Attempt"], second.headers["Timers-Attempt"]] == ["1", "2"]
    assert int(first.headers["Timers-Token"]) < int(second.headers["Timers-Token"])
    host = f"127.0.0.1:{receiver.port}"
    assert f"will retry after Retry: {host} answered 500 Internal Server Error: try later" in notes(timer)
    assert notes(timer)[-1] == f"{host} answered 200 OK: thanks"


async def test_a_kilobyte_of_an_answer_is_in_the_history(fleet: Fleet) -> None:
    await fleet.pod(*processors(settings()))
    async with receiving(web.Response(text="x" * 2000)) as receiver:
        await fleet.client.create("webhook", "a", delay=0, payload={"url": receiver.url})
        timer = await fleet.completed("a", "webhook")
    assert notes(timer)[-1].endswith(": " + "x" * 1024)


async def test_a_receiver_that_dies_after_processing_gets_the_same_id_again(fleet: Fleet) -> None:
    ids: list[bytes] = []

    async def process_and_die(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(ids) > 1:
            writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        (line,) = [line for line in head.split(b"\r\n") if line.startswith(b"webhook-id:")]
        ids.append(line)
        await process_and_die(reader, writer)
        writer.close()

    listening = await asyncio.start_server(handle, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    await fleet.pod(*processors(settings()))
    await fleet.client.create("webhook", "a", delay=0, payload={"url": url}, **AT_ONCE)
    timer = await fleet.completed("a", "webhook")
    listening.close()
    assert len(ids) == 2
    assert ids[0] == ids[1]
    assert timer.failures == 1


async def test_what_a_killed_pod_was_calling_is_called_again_by_another(fleet: Fleet) -> None:
    hanging = asyncio.Event()

    async def hang_and_tell(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        hanging.set()
        await hang(reader, writer)

    async with receiving() as receiver, speaking(hang_and_tell) as hangs:
        dying = await fleet.pod(*processors(settings(webhook_targets=f"partner={hangs}")), name="dying")
        await fleet.client.create("partner", "a", delay=0, **AT_ONCE)
        await hanging.wait()
        await fleet.kill(dying)
        await fleet.pod(*processors(settings(webhook_targets=f"partner={receiver.url}")), name="heir")
        await fleet.expire_lease("a", "partner")
        await fleet.completed("a", "partner")
    (got,) = receiver.received
    assert got.headers["Timers-Attempt"] == "2"


async def test_a_target_that_hangs_starves_no_other(fleet: Fleet) -> None:
    targets = Targets(at_once=3, waiting=2, wait_seconds=0.05)
    pod = await fleet.pod(*processors(settings(), connections(settings(), targets)), concurrency=10)
    async with receiving() as quick, speaking(hang) as hangs:
        for number in range(40):
            await fleet.client.create("webhook", f"slow-{number}", delay=0, payload={"url": hangs})
        await until(lambda: pod.worker.runner.executing >= 3, "the slow ones run")
        for number in range(20):
            await fleet.client.create("webhook", f"quick-{number}", delay=0, payload={"url": quick.url})
        for number in range(20):
            await fleet.completed(f"quick-{number}", "webhook")
        slow = [await fleet.client.get("webhook", f"slow-{number}") for number in range(40)]
        assert {timer.status for timer in slow} <= {"running", "scheduled"}
        assert not any(timer.failures for timer in slow)
        pod.worker.shorten_drain()
        await fleet.drain(pod)


@pytest.mark.parametrize("prefix", ["webhook", "webhook-{}"])
async def test_many_targets_that_hang_together_left_no_room_for_other_processors(fleet: Fleet, prefix: str) -> None:
    given = settings(concurrency=10)
    async with AsyncExitStack() as targets:
        pod = await fleet.pod(Calls("other"), *processors(given), concurrency=given.concurrency)
        for number in range(20):
            url = await targets.enter_async_context(speaking(hang))
            await fleet.client.create(prefix.format(number), f"slow-{number}", delay=0, payload={"url": url})
        await until(lambda: pod.worker.runner.executing >= 5, "the slow ones run")
        await fleet.client.create("other", "a", delay=0)
        await fleet.completed("a", "other")
        assert not [timer async for timer in fleet.client.iterate(prefix="webhook*") if timer.failures]
        pod.worker.shorten_drain()
        await fleet.drain(pod)


TARGETS = {"TIMERS_WEBHOOK_TARGETS": "partner=https://partner.example/in,billing=https://billing.example"}


@pytest.mark.parametrize(("builtin", "others"), [("all", {"log", "send-message", "webhook"}), ("log", {"log"})])
def test_prefixes_of_the_settings_are_declared_like_any_other(
    monkeypatch: pytest.MonkeyPatch, builtin: str, others: set[str]
) -> None:
    for name, value in {**TARGETS, "TIMERS_BUILTIN": builtin}.items():
        monkeypatch.setenv(name, value)
    found = load_settings()
    registry = load(builtin=found.loaded, targets=dict(found.webhook_targets))
    assert set(registry.declared) == {"partner", "billing", *others}


def test_a_prefix_that_has_a_processor_is_no_target(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "billing_of_ours.py").write_text(
        "from timers import processor\n@processor('billing')\nasync def bill(timer, context): ...\n"
    )
    refused = "TIMERS_WEBHOOK_TARGETS: '{}' is not accepted; expected a prefix that has no processor; this one has {}"
    for prefix, origin in (("billing", "billing_of_ours:bill"), ("log", "timers_processors.log:log")):
        with pytest.raises(ConfigurationError) as caught:
            load(["billing_of_ours"], targets=["partner", prefix])
        assert str(caught.value) == refused.format(prefix, origin)
    assert "log" not in load(builtin=["send-message"], targets=["log"]).declared
