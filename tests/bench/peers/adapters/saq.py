"""SAQ, as https://saq-py.readthedocs.io says: many jobs at once (`concurrency`). A job's time has whole seconds. One
whose worker has died is swept up after its `timeout` and tried again if it has `retries` left."""

import asyncio
import math

from saq import Queue, Worker

from tests.bench.peers.adapters import orders
from tests.bench.peers.adapters.orders import (
    KEEP,
    SURE,
    URL,
    Job,
    Order,
    on_fast_loop,
    one_by_one_awaited,
    record,
    run,
    tick,
)

CONCURRENCY = 100
KEPT = {} if KEEP else {"ttl": -1}


async def noop(_context: object) -> None:
    """Count."""
    tick()


async def timed(_context: object, *, due_ms: float) -> None:
    """Write how late it is."""
    record(due_ms)


async def slow(_context: object, *, job_id: str, due_ms: float) -> None:
    """Take time."""
    await orders.slow(job_id, due_ms)


async def arm(order: Order) -> float:
    """Arm what is ordered."""
    queue, again = Queue.from_url(URL), {"retries": 3, "timeout": 10} if SURE else {}

    async def enqueue(job: Job) -> None:
        arguments = dict(zip(("due_ms", "job_id"), reversed(job.args), strict=False)) | again
        await queue.enqueue(order.job, key=job.id, scheduled=math.ceil(job.due_ms / 1000), **KEPT, **arguments)

    return await one_by_one_awaited(enqueue, order.jobs(), order.warm_up)


async def _work() -> None:
    await Worker(Queue.from_url(URL), [noop, timed, slow], concurrency=CONCURRENCY).start()


def work() -> None:
    """Work until killed."""
    asyncio.run(_work())


if __name__ == "__main__":
    on_fast_loop()
    run(arm, work)
