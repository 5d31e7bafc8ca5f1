"""Huey. https://huey.readthedocs.io/en/latest/consumer.html: worker threads; the scheduler looks once a second."""

from huey import RedisHuey

from tests.bench.peers.adapters.orders import KEEP, URL, Job, Order, one_by_one, record, run, tick

THREADS = 8

huey = RedisHuey("bench", url=URL, results=KEEP)


TASKS = {"noop": huey.task(name="noop")(tick), "timed": huey.task(name="timed")(record)}


def arm(order: Order) -> float:
    """Arm what is ordered."""
    task = TASKS[order.job]

    def schedule(job: Job) -> None:
        task.schedule(args=job.args, eta=job.due, id=job.id)

    return one_by_one(schedule, order.jobs(), order.warm_up)


def work() -> None:
    """Work until killed."""
    huey.create_consumer(workers=THREADS, periodic=False).run()


if __name__ == "__main__":
    run(arm, work)
