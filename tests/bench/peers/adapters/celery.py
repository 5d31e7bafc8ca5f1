"""Celery. https://docs.celeryq.dev/en/stable/userguide/optimizing.html: a high prefetch limit for many short tasks;
https://docs.celeryq.dev/en/stable/userguide/concurrency/: threads, so that one process does the work;
https://docs.celeryq.dev/en/stable/userguide/tasks.html: no results, no rate limits where they are not used;
acks_late and reject_on_worker_lost where a job must survive its worker;
https://docs.celeryq.dev/en/stable/getting-started/backends-and-brokers/redis.html: then the visibility timeout, an hour
by default and here 60 s, gives it to another, and must be longer than the longest delay."""

from celery import Celery

from tests.bench.peers.adapters.orders import SURE, URL, Job, Order, one_by_one, record, run, slow_in_thread, tick

app = Celery("bench", broker=URL)
app.conf.update(worker_prefetch_multiplier=128, worker_disable_rate_limits=True, task_ignore_result=True)
if SURE:
    app.conf.update(
        task_acks_late=True,
        task_reject_on_worker_lost=True,
        worker_prefetch_multiplier=1,
        broker_transport_options={"visibility_timeout": 60},
    )

TASKS = {name: app.task(job, name=name) for name, job in (("noop", tick), ("timed", record), ("slow", slow_in_thread))}


def arm(order: Order) -> float:
    """Arm what is ordered."""
    task = TASKS[order.job]

    def apply(job: Job) -> None:
        task.apply_async(job.args, eta=job.due, task_id=job.id)

    return one_by_one(apply, order.jobs(), order.warm_up)


def work() -> None:
    """Work until killed, without what several workers need of each other."""
    alone = ("--without-gossip", "--without-mingle", "--without-heartbeat")
    app.worker_main(["worker", "--loglevel=WARNING", "--pool=threads", "--concurrency=8", *alone])


if __name__ == "__main__":
    run(arm, work)
