"""What the adapters share: what they are told, the two jobs, and how they end. They run in their peers' environments,
so this needs the standard library alone.

`python -m tests.bench.peers.adapters.NAME arm` takes an order as JSON on its input and prints `{"seconds": 1.2}`; with
`work` it works until its input ends. What both need besides is in the environment.
"""

import asyncio
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from itertools import islice
from mmap import mmap
from random import Random
from typing import Any, Final, Literal, TypeVar

T = TypeVar("T")

URL: Final = os.environ.get("PEER_URL", "redis://127.0.0.1:6379/0")
KEEP: Final = os.environ.get("PEER_KEEP") == "1"
"""Whether what has ended is kept as long as the peer keeps it by default, or not at all."""

SURE: Final = os.environ.get("PEER_SURE") == "1"
"""Whether a job is to survive its worker, as far as the peer's documents say how, though that may make it slower."""

SLOW_S: Final = 0.3
"""How long a `slow` job takes."""

CHUNK: Final = 1000


@dataclass(frozen=True, slots=True)
class Job:
    """One job: its id of 22 characters, when it is due, and what its function is called with."""

    id: str
    due_ms: float
    args: tuple[float | str, ...]

    @property
    def due(self) -> datetime:
        """When, as a time in UTC."""
        return datetime.fromtimestamp(self.due_ms / 1000, UTC)


@dataclass(frozen=True, slots=True)
class Order:
    """So many jobs, due at random over a span. `timed` writes how late it starts, `slow` its begin and end, `noop`
    counts. The first `warm_up`, a multiple of CHUNK, are not in the time."""

    way: Literal["bulk", "single"]
    job: Literal["noop", "timed", "slow"]
    tag: str
    count: int
    first_ms: float
    over_ms: float
    warm_up: int = 0

    def jobs(self) -> Iterator[Job]:
        """The jobs, made one by one."""
        rng = Random(self.tag)
        for i in range(self.count):
            due_ms = self.first_ms + int(rng.random() * self.over_ms)
            job_id = f"{self.tag}{i:0{22 - len(self.tag)}}"
            args: dict[str, tuple[float | str, ...]] = {"timed": (due_ms,), "slow": (job_id, due_ms)}
            yield Job(job_id, due_ms, args.get(self.job, ()))

    def chunks(self) -> Iterator[list[Job]]:
        """The jobs in lists of a thousand."""
        jobs = self.jobs()
        while chunk := list(islice(jobs, CHUNK)):
            yield chunk


def record(due_ms: float) -> None:
    """What a `timed` job does: write how late it starts as one line to the file of starts."""
    os.write(_starts(), f"{time.time() * 1000 - due_ms:.3f}\n".encode())


async def slow(job_id: str, due_ms: float) -> None:
    """What a `slow` job does: write its begin and its end as lines to the file of runs, and take time in between."""
    begun(job_id, due_ms)
    await asyncio.sleep(SLOW_S)
    ended(job_id, due_ms)


def slow_in_thread(job_id: str, due_ms: float) -> None:
    """The same as a plain function."""
    begun(job_id, due_ms)
    time.sleep(SLOW_S)
    ended(job_id, due_ms)


def begun(job_id: str, due_ms: float) -> None:
    """A `slow` job begins."""
    os.write(_runs(), f"begun {job_id} {due_ms} {time.time() * 1000:.3f}\n".encode())


def ended(job_id: str, due_ms: float) -> None:
    """A `slow` job has had its effect."""
    os.write(_runs(), f"ended {job_id} {due_ms} {time.time() * 1000:.3f}\n".encode())


def tick() -> None:
    """What a `noop` job does: count, in a file that the driver looks into, for a peer may hold jobs outside Redis."""
    global _ticks  # noqa: PLW0603 (the one worker process counts)
    with _ticking:
        _ticks += 1
        _counter()[:8] = _ticks.to_bytes(8, "little")


_ticks = 0
_ticking = threading.Lock()


@cache
def _starts() -> int:
    return os.open(os.environ["PEER_STARTS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)


@cache
def _runs() -> int:
    return os.open(os.environ["PEER_RUNS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)


@cache
def _counter() -> mmap:
    descriptor = os.open(os.environ["PEER_COUNT"], os.O_RDWR | os.O_CREAT, 0o600)
    os.truncate(descriptor, 8)
    return mmap(descriptor, 8)


def on_fast_loop() -> None:
    """Have asyncio run on uvloop from now on, as our pods do, whether the peer does so by itself or not."""
    import uvloop

    uvloop.install()


def one_by_one(arm: Callable[[T], object], items: Iterator[T], warm_up: int) -> float:
    """Seconds that it takes to arm these, each after the one before, without the first few."""
    for item in islice(items, warm_up):
        arm(item)
    begin = time.perf_counter()
    for item in items:
        arm(item)
    return time.perf_counter() - begin


async def one_by_one_awaited(
    arm: Callable[[T], Coroutine[Any, Any, object]], items: Iterator[T], warm_up: int
) -> float:
    """As `one_by_one`, each answer awaited."""
    for item in islice(items, warm_up):
        await arm(item)
    begin = time.perf_counter()
    for item in items:
        await arm(item)
    return time.perf_counter() - begin


def run(
    arm: Callable[[Order], float | Coroutine[Any, Any, float]], work: Callable[[], object], *, ends_itself: bool = False
) -> None:
    """Do what the command line says. `work` is killed at the end of the input, unless it ends itself then."""
    if sys.argv[1] == "arm":
        took = arm(Order(**json.load(sys.stdin)))
        print(json.dumps({"seconds": asyncio.run(took) if asyncio.iscoroutine(took) else took}))
        return
    if not ends_itself:
        threading.Thread(target=_end_with_input, daemon=True).start()
    work()


def _end_with_input() -> None:
    """Kill this process and those that it started, which are in its process group, once nobody waits for them. A forked
    child closes `sys.stdin`, which would wait for a thread that reads it, so this reads the descriptor."""
    os.read(0, 1)
    os.killpg(0, signal.SIGKILL)
