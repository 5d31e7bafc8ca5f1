"""arq, as https://arq-docs.helpmanual.io says: many jobs at once (`max_jobs`), the rest as it comes."""

from arq import Worker, create_pool
from arq.connections import RedisSettings

from tests.bench.peers.adapters.orders import KEEP, URL, Job, Order, on_fast_loop, one_by_one_awaited, record, run, tick

SETTINGS = RedisSettings.from_dsn(URL)


async def noop(_context: object) -> None:
    """Count."""
    tick()


async def timed(_context: object, due_ms: float) -> None:
    """Write how late it is."""
    record(due_ms)


async def arm(order: Order) -> float:
    """Arm what is ordered."""
    pool = await create_pool(SETTINGS)

    async def enqueue(job: Job) -> None:
        await pool.enqueue_job(order.job, *job.args, _job_id=job.id, _defer_until=job.due)

    return await one_by_one_awaited(enqueue, order.jobs(), order.warm_up)


def work() -> None:
    """Work until killed."""
    Worker([noop, timed], redis_settings=SETTINGS, max_jobs=1000, keep_result=3600 if KEEP else 0).run()


if __name__ == "__main__":
    on_fast_loop()
    run(arm, work)
