"""SAQ, as https://saq-py.readthedocs.io says: many jobs at once (`concurrency`). A job's time has whole seconds."""

import asyncio
import math

from saq import Queue, Worker

from tests.bench.peers.adapters.orders import KEEP, URL, Job, Order, on_fast_loop, one_by_one_awaited, record, run, tick

CONCURRENCY = 100
KEPT = {} if KEEP else {"ttl": -1}


async def noop(_context: object) -> None:
    """Count."""
    tick()


async def timed(_context: object, *, due_ms: float) -> None:
    """Write how late it is."""
    record(due_ms)


async def arm(order: Order) -> float:
    """Arm what is ordered."""
    queue = Queue.from_url(URL)

    async def enqueue(job: Job) -> None:
        arguments = {"due_ms": job.due_ms} if job.args else {}
        await queue.enqueue(order.job, key=job.id, scheduled=math.ceil(job.due_ms / 1000), **KEPT, **arguments)

    return await one_by_one_awaited(enqueue, order.jobs(), order.warm_up)


async def _work() -> None:
    await Worker(Queue.from_url(URL), [noop, timed], concurrency=CONCURRENCY).start()


def work() -> None:
    """Work until killed."""
    asyncio.run(_work())


if __name__ == "__main__":
    on_fast_loop()
    run(arm, work)
