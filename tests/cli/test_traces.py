"""Traces of a pod as a process: OpenTelemetry is imported only if it is asked for; then spans go where asked."""

import asyncio
import json
import signal
from collections.abc import Callable
from pathlib import Path

from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from redis import Redis

from tests.cli.commands import Process
from tests.waiting import eventually
from tests.webhooks.receivers import receiving
from timers import Status, TimerClient
from timers.embedded import EmbeddedServer

Start = Callable[..., Process]

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"

PROCESSORS = """
import sys
from timers import Context, Done, Timer, processor

@processor("tell")
async def tell(timer: Timer, context: Context) -> Done:
    # The rest is imported by the client of Redis where it is installed.
    names = ("opentelemetry.sdk.trace", "opentelemetry.exporter", "opentelemetry.trace.propagation.tracecontext")
    return Done(f"imported: {sorted(name for name in sys.modules if name.startswith(names))}")
"""


async def note_of_a_pod(server: EmbeddedServer, start: Start, folder: Path, **settings: str) -> tuple[Process, str]:
    """Run a timer on a pod as a process, end the pod, and return the note of the run."""
    (folder / "telling.py").write_text(PROCESSORS)
    path = {"PYTHONPATH": f"{folder}:{Path(__file__).parents[2]}"}
    pod = start(
        "serve", TIMERS_REDIS_URL=server.url, TIMERS_ROLES="worker", TIMERS_PROCESSORS="telling", **path, **settings
    )

    async def is_up() -> bool:
        assert pod.alive, pod.err
        return '"event": "ready"' in pod.err

    await eventually(is_up, "the pod is up")
    async with TimerClient(server.url) as timers:
        made = await timers.create("tell", delay=0, traceparent=f"00-{TRACE}-00f067aa0ba902b7-01")

        async def look() -> str | None:
            timer = await timers.get("tell", made.id)
            return timer.history[0].note if timer.status is Status.COMPLETED else None

        note = await eventually(look, "it has run")
    pod.signal(signal.SIGTERM)
    assert (await asyncio.to_thread(pod.end)).code == 0
    return pod, note


async def test_a_pod_that_traces_nothing_imports_nothing_of_it(
    server: EmbeddedServer, redis: Redis, start: Start, tmp_path: Path
) -> None:
    _, note = await note_of_a_pod(server, start, tmp_path)
    assert note == "imported: []"


async def test_a_pod_without_the_extra_says_so_and_runs(
    server: EmbeddedServer, redis: Redis, start: Start, tmp_path: Path
) -> None:
    (tmp_path / "opentelemetry.py").write_text("raise ImportError('not installed')\n")
    pod, note = await note_of_a_pod(server, start, tmp_path, OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:9")
    assert note == "imported: []"
    (line,) = [json.loads(line) for line in pod.err.splitlines() if "the extra is missing" in line]
    assert (line["level"], line["install"]) == ("warning", "redis-timers[otel]")


async def test_a_pod_sends_its_spans_to_the_endpoint_of_the_environment_before_it_ends(
    server: EmbeddedServer, redis: Redis, start: Start, tmp_path: Path
) -> None:
    async with receiving(web.Response()) as collector:
        await note_of_a_pod(server, start, tmp_path, OTEL_EXPORTER_OTLP_ENDPOINT=collector.url, TIMERS_POD="here")
    (sent,) = collector.received
    assert sent.path == "/v1/traces"
    (resource,) = ExportTraceServiceRequest.FromString(sent.body).resource_spans
    named = {each.key: each.value.string_value for each in resource.resource.attributes}
    assert (named["service.name"], named["service.instance.id"]) == ("timers", "here")
    (span,) = resource.scope_spans[0].spans
    assert (span.name, span.links[0].trace_id.hex()) == ("run tell", TRACE)
