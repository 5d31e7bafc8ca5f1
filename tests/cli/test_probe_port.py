"""Health, readiness and metrics of a pod on its probe port."""

import asyncio
import json
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientConnectionError, ClientSession
from redis import Redis

from tests.cli.commands import Process
from tests.servers import start_server
from tests.waiting import eventually
from timers.client import TimerClient
from timers.embedded import EmbeddedServer

Start = Callable[..., Process]

WORKER = {"TIMERS_PROCESSORS": "tests.cli.processors_for_pods", "TIMERS_LOG_FORMAT": "json", "TIMERS_ROLES": "worker"}


async def probes_of(pod: Process) -> str:
    """The URL of the pod's probe port, once the pod is ready."""

    async def look() -> str | None:
        assert pod.alive, pod.err
        lines = [json.loads(line) for line in pod.err.splitlines()]
        return next((line["probes"] for line in lines if line["event"] == "ready"), None)

    return await eventually(look, "the pod tells where its probes are")


async def asked(session: ClientSession, path: str) -> tuple[int, str]:
    """Status and body; 0 while nobody listens."""
    try:
        async with session.get(path) as answer:
            return answer.status, await answer.text()
    except ClientConnectionError:
        return 0, ""


async def test_a_worker_serves_health_readiness_and_metrics_without_a_key(
    start: Start, server: EmbeddedServer, redis: Redis
) -> None:
    redis.hset("timers:meta", "closed", "1")
    keys = {"TIMERS_API_KEYS": "", "TIMERS_HTTP_HOST": "0.0.0.0"}
    pod = start("serve", **WORKER, **keys, TIMERS_REDIS_URL=server.url, TIMERS_PROBE_PORT="0")
    async with ClientSession(await probes_of(pod)) as session:
        assert await asked(session, "/healthz") == (200, '{"status":"ok"}')

        async def is_ready() -> bool:
            status, ready = await asked(session, "/readyz")
            return (status, json.loads(ready)["ready"]) == (200, True)

        await eventually(is_ready, "it is ready, once it has subscribed")
        status, metrics = await asked(session, "/metrics")
        assert (status, "timers_ready 1.0" in metrics.splitlines()) == (200, True)
        for path in ("/", "/v1/timers", "/v1/stats", "/docs", "/openapi.json"):
            status, body = await asked(session, path)
            assert (status, json.loads(body)["type"]) == (404, "urn:timers:problem:no-such-address")
    pod.signal(signal.SIGTERM)
    assert (await asyncio.to_thread(pod.end)).code == 0


async def test_a_draining_worker_lives_and_is_not_ready(start: Start, server: EmbeddedServer, redis: Redis) -> None:
    redis.ping()
    pod = start("serve", **WORKER, TIMERS_REDIS_URL=server.url, TIMERS_PROBE_PORT="0", TIMERS_DRAIN_TIMEOUT="1h")
    async with ClientSession(await probes_of(pod)) as session, TimerClient(server.url) as client:
        await client.create("hold", "one", delay=0)

        async def runs() -> bool:
            return (await client.get("hold", "one")).status == "running"

        async def unready() -> bool:
            return (await asked(session, "/readyz"))[0] == 503

        await eventually(runs, "the timer runs")
        pod.signal(signal.SIGTERM)
        await eventually(unready, "the pod is not ready")
        assert "draining" in (await asked(session, "/readyz"))[1]
        assert (await asked(session, "/healthz"))[0] == 200
        pod.signal(signal.SIGTERM)
        assert (await asyncio.to_thread(pod.end)).code == 0


async def test_a_worker_that_starts_while_redis_is_away_lives_and_is_not_ready(start: Start, tmp_path: Path) -> None:
    away = await start_server("redis", tmp_path / "server")
    await away.stop()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    settings: dict[str, Any] = {"TIMERS_REDIS_URL": away.url, "TIMERS_PROBE_PORT": str(port)}
    pod = start("serve", **WORKER, **settings, TIMERS_START_TIMEOUT="1h")
    async with ClientSession(f"http://127.0.0.1:{port}") as session:

        async def lives() -> bool:
            return (await asked(session, "/healthz"))[0] == 200

        async def is_ready() -> bool:
            return (await asked(session, "/readyz"))[0] == 200

        await eventually(lives, "the pod lives")
        assert (await asked(session, "/readyz"))[0] == 503
        server = await start_server("redis", tmp_path / "server")
        await eventually(is_ready, "the pod is ready")
    pod.signal(signal.SIGTERM)
    assert (await asyncio.to_thread(pod.end)).code == 0
    await server.stop()


@pytest.mark.parametrize("roles", ["worker", "api"])
async def test_a_probe_port_in_use_is_named(start: Start, server: EmbeddedServer, redis: Redis, roles: str) -> None:
    redis.ping()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        settings = {**WORKER, "TIMERS_ROLES": roles, "TIMERS_HTTP_PORT": "0", "TIMERS_PROBE_PORT": port}
        line = start("serve", **settings, TIMERS_REDIS_URL=server.url).end().refusal()
    assert f"TIMERS_PROBE_PORT: {port} is not accepted; expected a port of 127.0.0.1 that is free to use" in line
