"""Pods with different processors, as processes: who runs what, what `timers prefixes` shows, forgetting a prefix."""

import json
import signal
from collections.abc import Callable
from functools import partial
from typing import Any

from redis import Redis

from tests.cli.commands import Process
from tests.waiting import eventually
from timers.client import TimerClient
from timers.embedded import EmbeddedServer

Start = Callable[..., Process]

WHOSE = {
    "log-x": "log",
    "login-check": "login-check",
    "send-message": "send-message",
    "send-message-vip-24h": "send-message-vip",
}


async def completed_by(client: TimerClient, prefix: str, timer_id: str) -> str | None:
    """The processor that ran the timer, once it is completed."""

    async def look() -> bool:
        return (await client.get(prefix, timer_id)).status == "completed"

    await eventually(look, f"{prefix}:{timer_id} is completed")
    return (await client.get(prefix, timer_id)).history[1].processor


async def each_knows_the_other(client: TimerClient) -> None:
    """Wait for two signs of life of both pods. Then each knows the other's declarations."""
    for name in set(WHOSE.values()):
        await eventually(lambda name=name: client.owner(name), f"{name} is declared")  # type: ignore[misc]
    for _ in range(2):
        seen = {member.pod: member.seen_ms for member in await client.pods()}

        async def again(seen: dict[str, int] = seen) -> bool:
            return all(member.seen_ms > seen[member.pod] for member in await client.pods())

        await eventually(again, "both pods have given another sign of life")


async def each_runs_its_own(client: TimerClient) -> None:
    for prefix in WHOSE:
        await client.batch([{"prefix": prefix, "id": f"n{n}", "delay": n / 20} for n in range(10)])
    for prefix, owner in WHOSE.items():
        assert {await completed_by(client, prefix, f"n{n}") for n in range(10)} == {owner}


def prefixes(command: Start) -> dict[str, Any]:
    return {view["prefix"]: view for view in command("prefixes", "-o", "json").end().json}


def people_see_who_serves_what(command: Start) -> None:
    shown = prefixes(command)
    assert {name: shown[name]["processor"] for name in WHOSE} == WHOSE
    assert (shown["send-message-vip-24h"]["pods"], shown["log-x"]["pods"]) == (["two"], ["one"])
    checks = {check["check"]: check for check in command("doctor", "-o", "json").end().json}
    assert checks["settings"]["said"] == "TIMERS_RETENTION: 14d on one and 1d on two"
    refused = command("prefixes", "forget", "send-message-vip").end().refusal()
    assert "declared by the live pods two" in refused


async def what_a_gone_pod_declared_waits_until_it_is_forgotten(client: TimerClient, command: Start) -> None:
    armed = command("create", "send-message-vip", "later", "--in", "0s").end()
    assert (armed.code, armed.err) == (0, "")
    away = prefixes(command)["send-message-vip"]
    assert (away["processor"], away["pods"], away["away"]) == ("send-message-vip", [], True)
    assert command("prefixes", "forget", "send-message-vip").end().code == 0
    assert await completed_by(client, "send-message-vip", "later") == "send-message"
    unknown = command("prefixes", "forget", "send-message-vip").end().refusal()
    assert "no pod has declared the prefix 'send-message-vip'" in unknown


async def test_a_pod_with_the_built_in_processors_ran_what_was_for_longer_ones(
    start: Start, server: EmbeddedServer, redis: Redis
) -> None:
    redis.ping()
    command = partial(start, TIMERS_REDIS_URL=server.url, TIMERS_LOG_FORMAT="json")
    longer = {
        "TIMERS_RETENTION": "1d",
        "TIMERS_PROCESSORS": "tests.cli.processors_for_pods",
        "TIMERS_BUILTIN": "none",
    }
    one = command("serve", "--roles", "worker", TIMERS_POD="one")
    two = command("serve", "--roles", "worker", TIMERS_POD="two", **longer)
    async with TimerClient(server.url) as client:
        await each_knows_the_other(client)
        await each_runs_its_own(client)
        people_see_who_serves_what(command)
        two.signal(signal.SIGTERM)
        assert two.end().code == 0
        await what_a_gone_pod_declared_waits_until_it_is_forgotten(client, command)
    fired = [line for line in map(json.loads, one.err.splitlines()) if line["event"] == "timer fired"]
    assert {(line["prefix"], line["processor"]) for line in fired} == {("log-x", "log")}
