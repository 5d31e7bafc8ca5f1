"""Dramatiq. https://dramatiq.io/guide.html: threads; https://dramatiq.io/advanced.html: how far a worker prefetches, in
variables that the catalogue sets."""

import threading
import time

import dramatiq
from dramatiq.brokers.redis import RedisBroker

from tests.bench.peers.adapters.orders import URL, Job, Order, one_by_one, record, run, tick

THREADS = 8

broker = RedisBroker(url=URL)
dramatiq.set_broker(broker)


ACTORS = {
    "noop": dramatiq.actor(tick, actor_name="noop", broker=broker),
    "timed": dramatiq.actor(record, actor_name="timed", broker=broker),
}


def arm(order: Order) -> float:
    """Arm what is ordered. A delay has whole milliseconds."""
    actor = ACTORS[order.job]

    def send(job: Job) -> None:
        message = actor.message(*job.args).copy(message_id=job.id)
        broker.enqueue(message, delay=max(0, int(job.due_ms - time.time() * 1000) + 1))

    return one_by_one(send, order.jobs(), order.warm_up)


def work() -> None:
    """Work until killed, as `dramatiq --processes 1 --threads 8` does."""
    dramatiq.Worker(broker, worker_threads=THREADS).start()
    threading.Event().wait()


if __name__ == "__main__":
    run(arm, work)
