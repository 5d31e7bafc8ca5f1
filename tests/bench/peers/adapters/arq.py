"""arq, as https://arq-docs.helpmanual.io says: many jobs at once (`max_jobs`), the rest as it comes. A job whose worker
has died is tried again 10 s after its `job_timeout`, which is 300 s by default and here 10 s."""

from arq import Worker, create_pool
from arq.connections import RedisSettings

from tests.bench.peers.adapters import orders
from tests.bench.peers.adapters.orders import KEEP, URL, Job, Order, on_fast_loop, one_by_one_awaited, record, run, tick

SETTINGS = RedisSettings.from_dsn(URL)


async def noop(_context: object) -> None:
    """Count."""
    tick()


async def timed(_context: object, due_ms: float) -> None:
    """Write how late it is."""
    record(due_ms)


async def slow(_context: object, job_id: str, due_ms: float) -> None:
    """Take time."""
    await orders.slow(job_id, due_ms)


async def arm(order: Order) -> float:
    """Arm what is ordered."""
    pool = await create_pool(SETTINGS)

    async def enqueue(job: Job) -> None:
        await pool.enqueue_job(order.job, *job.args, _job_id=job.id, _defer_until=job.due)

    return await one_by_one_awaited(enqueue, order.jobs(), order.warm_up)


def work() -> None:
    """Work until killed."""
    kept = 3600 if KEEP else 0
    Worker([noop, timed, slow], redis_settings=SETTINGS, max_jobs=1000, keep_result=kept, job_timeout=10).run()


if __name__ == "__main__":
    on_fast_loop()
    run(arm, work)
