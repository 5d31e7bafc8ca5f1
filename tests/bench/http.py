"""Measures the HTTP API: creates one a request beside a bare handler in the same process, and batches."""

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Final
from urllib.parse import urlsplit

from tests.bench.arming import PAYLOAD
from tests.bench.pods import ROOT
from tests.bench.report import Benchmark, Column, Row
from tests.bench.stage import Stage

CONNECTIONS: Final = 16
BATCH: Final = 1000
TURN: Final = 500

_COLUMNS: Final = (
    Column("call"),
    Column("timers/s"),
    Column("pod's CPU µs/timer", 1),
    Column("timers/s of its core"),
    Column("of the bare handler", 2),
)


def benchmark(single: int, batched: int) -> Benchmark:
    """The benchmark for so many timers one a request and so many in batches."""
    return Benchmark(
        "http",
        f"{single:,} timers one a request over {CONNECTIONS} connections, {batched:,} in batches of {BATCH:,} over 4; "
        "one API process without workers. The bare handler reads the same JSON, checks it with the same model, "
        "and answers",
        _COLUMNS,
        partial(_measure, single, batched),
        "TLS, authentication, several API processes",
    )


@dataclass(frozen=True, slots=True)
class _Pod:
    """A running pod: its API, the bare handler, and its pipes."""

    api: str
    bare: str
    process: asyncio.subprocess.Process

    async def cpu_s(self) -> float:
        """CPU seconds used so far."""
        if self.process.stdin is None or self.process.stdout is None:
            raise ValueError("a pod is started with pipes")
        self.process.stdin.write(b"\n")
        return float(await self.process.stdout.readline())


@asynccontextmanager
async def _pod(url: str) -> AsyncIterator[_Pod]:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.bench.http_pod", url), cwd=ROOT, stdin=pipe, stdout=pipe
    )
    if process.stdin is None or process.stdout is None:
        raise ValueError("a pod is started with pipes")
    try:
        api, bare = (await process.stdout.readline()).decode().split()
        yield _Pod(api, bare, process)
    finally:
        process.stdin.close()
        await process.wait()


async def _measure(single: int, batched: int, stage: Stage) -> list[Row]:
    async with _pod(stage.server.url) as pod:
        prefix = stage.fresh("noop")
        requests = [_request("/v1/timers", "application/json", body) for body in _singles(prefix, single)]
        bare, api = await _in_turns(pod, requests)
        rows = [_row("bare handler", single, bare, bare), _row("POST /v1/timers", single, api, bare)]
        for kind, media in (("JSON", "application/json"), ("NDJSON", "application/x-ndjson")):
            bodies = _batches(stage.fresh("noop"), batched, lines=kind == "NDJSON")
            taken = await _timed(pod, pod.api, [_request("/v1/timers/batch", media, body) for body in bodies], 4)
            rows.append(_row(f"POST /v1/timers/batch, {kind}", batched, taken, bare, batched / single))
    return rows


def _row(call: str, timers: int, taken: tuple[float, float], bare: tuple[float, float], more: float = 1) -> Row:
    elapsed_s, cpu_s = taken
    return call, timers / elapsed_s, cpu_s / timers * 1e6, timers / cpu_s, bare[0] * more / elapsed_s


async def _in_turns(pod: _Pod, requests: Sequence[bytes]) -> tuple[tuple[float, float], tuple[float, float]]:
    """As `_timed`, of the bare handler and of the API, a few requests each in turn: a host that is slower for a second
    is so for both."""
    of_bare, of_api = list[tuple[float, float]](), list[tuple[float, float]]()
    for start in range(0, len(requests), TURN):
        some = requests[start : start + TURN]
        of_bare.append(await _timed(pod, pod.bare, some, CONNECTIONS))
        of_api.append(await _timed(pod, pod.api, some, CONNECTIONS))
    return _summed(of_bare), _summed(of_api)


def _summed(taken: Sequence[tuple[float, float]]) -> tuple[float, float]:
    return sum(elapsed_s for elapsed_s, _ in taken), sum(cpu_s for _, cpu_s in taken)


async def _timed(pod: _Pod, url: str, requests: Sequence[bytes], connections: int) -> tuple[float, float]:
    """Seconds and CPU seconds of the pod for all requests."""
    cpu_s, begin = await pod.cpu_s(), time.perf_counter()
    waiting = iter(requests)
    await asyncio.gather(*(_send(url, waiting) for _ in range(connections)))
    elapsed_s = time.perf_counter() - begin
    return elapsed_s, await pod.cpu_s() - cpu_s


async def _send(url: str, waiting: Iterator[bytes]) -> None:
    """Send requests over one connection until none is left; the client must cost little, so it reads no more of HTTP
    than it must. Raises ValueError for an answer that is no success."""
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port, limit=1 << 20)
    for request in waiting:
        writer.write(request)
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length: ", 1)[1].split(b"\r\n", 1)[0])
        body = await reader.readexactly(length)
        if not head.startswith(b"HTTP/1.1 20") or b'"problem"' in body:
            raise ValueError(f"refused: {head!r} {body[:500]!r}")
    writer.close()


def _request(path: str, media: str, body: bytes) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: {media}\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def _singles(prefix: str, number: int) -> Iterator[bytes]:
    return (json.dumps(timer).encode() for timer in _timers(prefix, number))


def _batches(prefix: str, number: int, *, lines: bool) -> Iterator[bytes]:
    timers = list(_timers(prefix, number))
    for start in range(0, number, BATCH):
        some: Sequence[object] = timers[start : start + BATCH]
        yield "\n".join(map(json.dumps, some)).encode() if lines else json.dumps({"timers": some}).encode()


def _timers(prefix: str, number: int) -> Iterator[dict[str, object]]:
    for i in range(number):
        yield {"prefix": prefix, "id": f"user-{i:07}", "delay": "1d", "payload": PAYLOAD}
