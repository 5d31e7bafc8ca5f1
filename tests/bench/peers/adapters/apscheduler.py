"""APScheduler 3. https://apscheduler.readthedocs.io/en/3.x/userguide.html: a Redis job store, a pool of threads.

https://apscheduler.readthedocs.io/en/3.x/faq.html: a job store belongs to one process, and a scheduler that runs takes
no notice of jobs that another process adds. So jobs are armed by a paused scheduler, then the worker is started.
"""

import threading
from urllib.parse import urlsplit

from apscheduler.executors.pool import ThreadPoolExecutor
from apscheduler.jobstores.redis import RedisJobStore
from apscheduler.schedulers.background import BackgroundScheduler

from tests.bench.peers.adapters.orders import URL, Job, Order, one_by_one, record, run, slow_in_thread, tick

JOBS = {name: f"{__package__}.apscheduler:{name}" for name in ("noop", "timed", "slow")}


def noop() -> None:
    """Count."""
    tick()


def timed(due_ms: float) -> None:
    """Write how late it is."""
    record(due_ms)


def slow(job_id: str, due_ms: float) -> None:
    """Take time."""
    slow_in_thread(job_id, due_ms)


def _scheduler() -> BackgroundScheduler:
    place = urlsplit(URL)
    store = RedisJobStore(host=place.hostname, port=place.port)
    return BackgroundScheduler(
        jobstores={"default": store},
        executors={"default": ThreadPoolExecutor(20)},
        job_defaults={"misfire_grace_time": None},
        timezone="UTC",
    )


def arm(order: Order) -> float:
    """Arm what is ordered."""
    scheduler = _scheduler()
    scheduler.start(paused=True)

    def add(job: Job) -> None:
        scheduler.add_job(JOBS[order.job], "date", run_date=job.due, args=job.args, id=job.id)

    return one_by_one(add, order.jobs(), order.warm_up)


def work() -> None:
    """Work until killed."""
    _scheduler().start()
    threading.Event().wait()


if __name__ == "__main__":
    run(arm, work)
