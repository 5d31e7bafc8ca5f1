"""docket. https://chrisguidry.github.io/docket/production: a concurrency of 50, a check each 100 ms;
`add_many` for batches; a job whose worker has died is delivered again after `redelivery_timeout`, here 10 s."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

from docket import Docket, Worker

from tests.bench.peers.adapters.orders import (
    CHUNK,
    KEEP,
    URL,
    Job,
    Order,
    on_fast_loop,
    one_by_one_awaited,
    record,
    run,
    slow,
    tick,
)

CONCURRENCY = 50
KEPT = {} if KEEP else {"execution_ttl": timedelta(0)}


async def noop() -> None:
    """Count."""
    tick()


async def timed(due_ms: float) -> None:
    """Write how late it is."""
    record(due_ms)


@asynccontextmanager
async def _docket() -> AsyncIterator[Docket]:
    async with Docket(name="bench", url=URL, **KEPT) as docket:
        docket.register(noop)
        docket.register(timed)
        docket.register(slow)
        yield docket


async def arm(order: Order) -> float:
    """Arm what is ordered."""
    async with _docket() as docket:
        if order.way == "single":

            async def add(job: Job) -> None:
                await docket.add(order.job, when=job.due, key=job.id)(*job.args)

            return await one_by_one_awaited(add, order.jobs(), order.warm_up)

        async def add_many(jobs: list[Job]) -> None:
            await docket.add_many(docket.call(order.job, when=job.due, key=job.id)(*job.args) for job in jobs)

        return await one_by_one_awaited(add_many, order.chunks(), order.warm_up // CHUNK)


async def _work() -> None:
    checked = timedelta(milliseconds=100)
    async with (
        _docket() as docket,
        Worker(
            docket,
            concurrency=CONCURRENCY,
            minimum_check_interval=checked,
            redelivery_timeout=timedelta(seconds=10),
        ) as worker,
    ):
        await worker.run_forever()


def work() -> None:
    """Work until killed."""
    asyncio.run(_work())


if __name__ == "__main__":
    on_fast_loop()
    run(arm, work)
