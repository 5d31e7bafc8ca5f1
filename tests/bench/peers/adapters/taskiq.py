"""taskiq. https://taskiq-python.github.io/guide/cli.html: a worker process and a scheduler, which has to look for new
schedules each second instead of each minute; https://github.com/taskiq-python/taskiq-redis: the list of schedules."""

import os
import signal
import subprocess

from taskiq import TaskiqScheduler
from taskiq_redis import ListQueueBroker, ListRedisScheduleSource

from tests.bench.peers.adapters.orders import URL, Job, Order, on_fast_loop, one_by_one_awaited, record, run, tick

MODULE = f"{__package__}.taskiq"

broker = ListQueueBroker(URL)
source = ListRedisScheduleSource(URL)
scheduler = TaskiqScheduler(broker, [source])


async def _noop() -> None:
    """Count."""
    tick()


async def _timed(due_ms: float) -> None:
    """Write how late it is."""
    record(due_ms)


TASKS = {"noop": broker.task(task_name="noop")(_noop), "timed": broker.task(task_name="timed")(_timed)}


async def arm(order: Order) -> float:
    """Arm what is ordered."""
    task = TASKS[order.job]

    async def schedule(job: Job) -> None:
        await task.kicker().with_schedule_id(job.id).schedule_by_time(source, job.due, *job.args)

    return await one_by_one_awaited(schedule, order.jobs(), order.warm_up)


def work() -> None:
    """Work until killed. No results are kept, as without a result backend."""
    quiet = ("--log-level", "WARNING")
    scheduling = ("taskiq", "scheduler", f"{MODULE}:scheduler", "--update-interval", "1", *quiet)
    working = ("taskiq", "worker", f"{MODULE}:broker", "--workers", "1", "--max-prefetch", "100", *quiet)
    subprocess.Popen(scheduling, stdin=subprocess.DEVNULL)
    subprocess.run(working, stdin=subprocess.DEVNULL, check=False)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    on_fast_loop()
    run(arm, work)
