"""RQ. https://github.com/rq/rq/blob/master/docs/benchmark.md: `SimpleWorker` for very short jobs starts no process for
each; https://python-rq.org/docs/scheduling: its scheduler; https://python-rq.org/docs: jobs in a pipeline."""

from redis import Redis
from rq import Queue, SimpleWorker

from tests.bench.peers.adapters.orders import CHUNK, KEEP, URL, Job, Order, one_by_one, record, run, tick

JOBS = {"noop": f"{__package__}.rq.noop", "timed": f"{__package__}.rq.timed"}
KEPT = {} if KEEP else {"result_ttl": 0}


def noop() -> None:
    """Count."""
    tick()


def timed(due_ms: float) -> None:
    """Write how late it is."""
    record(due_ms)


def arm(order: Order) -> float:
    """Arm what is ordered."""
    redis = Redis.from_url(URL)
    queue = Queue("bench", connection=redis)
    function = JOBS[order.job]

    def enqueue(job: Job, **more: object) -> None:
        queue.enqueue_at(job.due, function, *job.args, job_id=job.id, **KEPT, **more)

    def enqueue_all(jobs: list[Job]) -> None:
        with redis.pipeline() as pipe:
            for job in jobs:
                enqueue(job, pipeline=pipe)
            pipe.execute()

    if order.way == "single":
        return one_by_one(enqueue, order.jobs(), order.warm_up)
    return one_by_one(enqueue_all, order.chunks(), order.warm_up // CHUNK)


def work() -> None:
    """Work until killed."""
    redis = Redis.from_url(URL)
    SimpleWorker([Queue("bench", connection=redis)], connection=redis).work(
        logging_level="WARNING", with_scheduler=True
    )


if __name__ == "__main__":
    run(arm, work)
