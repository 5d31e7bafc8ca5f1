"""One pod of a benchmark as a process of its own: a real worker with the benchmarks' processors.

Run as `python -m tests.bench.pod URL NAME FOLDER LEASE_MS`. Each line on its input is answered with the CPU seconds it
has used; the end of the input drains it, so that no pod outlives who started it.
"""

import asyncio
import os
import sys
import time
from pathlib import Path
from typing import Final

import uvloop

from tests.bench.starts import line_of
from timers import Context, Timer, processor
from timers.app import collect_garbage_rarely
from timers.client import client_over, open_store
from timers.engine.pod import WorkerOptions
from timers.engine.worker import Worker
from timers.ledger.database import Database
from timers.logs import configure
from timers.processor import Processor, Registry
from timers.store.servers import connect

CONCURRENCY: Final = 1000
RETENTION_MS: Final = 24 * 3600 * 1000
DRAIN_TIMEOUT_MS: Final = 2000
LEDGER: Final = "BENCH_LEDGER"
"""The environment variable with the URL of the ledger, if there is one."""


@processor("bench-noop")
async def noop(timer: Timer, context: Context) -> None:
    """Does nothing: what is left is the service's own cost."""


def witnessed(starts: Path) -> tuple[Processor, Processor]:
    """Processors that write each start to a file before anything else, so that a `kill -9` loses none."""
    descriptor = os.open(starts, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    @processor("bench-timed")
    async def timed(timer: Timer, context: Context) -> None:
        os.write(descriptor, line_of(timer, time.time() * 1000))

    @processor("bench-hang")
    async def hang(timer: Timer, context: Context) -> None:
        """Its first attempt lasts until its pod is killed."""
        os.write(descriptor, line_of(timer, time.time() * 1000))
        if timer.attempt == 1:
            await asyncio.Event().wait()

    return timed, hang


async def serve(
    url: str,
    name: str,
    registry: Registry,
    lease_ms: int,
    retention_ms: int = RETENTION_MS,
    *,
    shards: int | None = None,
) -> None:
    """Work until the input ends. `shards` None means as many as the db has."""
    store = await open_store(connect(url), shards=shards)
    ledger_url = os.environ.get(LEDGER) or None
    ledger = None if ledger_url is None else Database(ledger_url)
    options = WorkerOptions(name, CONCURRENCY, lease_ms, retention_ms, DRAIN_TIMEOUT_MS, ledger=ledger)
    worker = Worker(store, registry, client_over(store, ledger=ledger_url), options)
    await worker.start()
    await answer_with_cpu()
    await worker.drain()
    await store.connections.close()


async def answer_with_cpu() -> None:
    """Answer each line on the input with the CPU seconds used so far, to the end of the input."""
    questions = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(questions), sys.stdin)
    async for _ in questions:
        print(time.process_time(), flush=True)


if __name__ == "__main__":
    configure("json", "warning")
    collect_garbage_rarely()
    _, redis_url, pod, own_folder, lease = sys.argv
    processors = (noop, *witnessed(Path(own_folder) / f"{pod}.starts"))
    uvloop.run(serve(redis_url, pod, Registry(processors), int(lease)))
