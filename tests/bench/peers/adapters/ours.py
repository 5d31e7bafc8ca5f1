"""The service itself, with the pod of the other benchmarks, measured as the peers are."""

import asyncio
import os
from typing import Final

import uvloop

from tests.bench.peers.adapters import orders
from tests.bench.peers.adapters.orders import CHUNK, KEEP, SURE, URL, Job, Order, one_by_one_awaited, record, run, tick
from tests.bench.pod import RETENTION_MS, serve
from tests.members import declare
from timers import Context, Timer, processor
from timers.app import collect_garbage_rarely
from timers.client import client_over, open_store
from timers.logs import configure
from timers.processor import Registry
from timers.store.servers import connect

SHARDS: Final = int(os.environ.get("PEER_SHARDS", "1"))
LEASE_MS: Final = 10_000 if SURE else 30_000


@processor("bench-noop")
async def noop(timer: Timer, context: Context) -> None:
    """Count."""
    tick()


@processor("bench-timed")
async def timed(timer: Timer, context: Context) -> None:
    """Write how late it is."""
    record(timer.due_ms)


@processor("bench-slow")
async def slow(timer: Timer, context: Context) -> None:
    """Take time."""
    await orders.slow(timer.id, timer.due_ms)


async def arm(order: Order) -> float:
    """Arm what is ordered, as docs/reference.md says of many timers."""
    collect_garbage_rarely()
    store = await open_store(connect(URL), shards=SHARDS)
    await declare(store, "bench-noop", "bench-timed", "bench-slow")
    prefix = f"bench-{order.job}"
    async with client_over(store) as client:

        async def create(job: Job) -> None:
            await client.create(prefix, job.id, due_at=int(job.due_ms))

        async def batch(jobs: list[Job]) -> None:
            results = await client.batch([{"prefix": prefix, "id": job.id, "due_at": int(job.due_ms)} for job in jobs])
            if refused := [result for result in results if isinstance(result, Exception)]:
                raise refused[0]

        if order.way == "single":
            return await one_by_one_awaited(create, order.jobs(), order.warm_up)
        return await one_by_one_awaited(batch, order.chunks(), order.warm_up // CHUNK)


def work() -> None:
    """Work until the input ends."""
    configure("json", "warning")
    collect_garbage_rarely()
    retention_ms = RETENTION_MS if KEEP else 0
    asyncio.run(serve(URL, f"pod-{os.getpid()}", Registry([noop, timed, slow]), LEASE_MS, retention_ms, shards=SHARDS))


if __name__ == "__main__":
    uvloop.install()
    run(arm, work, ends_itself=True)
