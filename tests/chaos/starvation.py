"""Measures from outside how long the processes of a run wait for a core: a pod without one cannot extend its leases,
and starts timers late."""

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from tests.chaos.timeline import EVERY_POD
from tests.chaos.witness import FaultKind, Witness

_SHARE: Final = 0.5
"""Share of half a lease spent waiting for a core. Below that a process has time to extend its leases."""

_SAMPLES: Final = 8
"""In half a lease."""

_NOTICED_MS: Final = 5


async def watch(witness: Witness, processes: Callable[[], Mapping[str, int]], lease_ms: int) -> None:
    """Until cancelled, writes how long each of `processes` (pod or `*` → pid) waited, eight times in half a lease, and
    a fault for each half lease that a thread of one spent waiting. All that a new thread has waited counts: a server
    that starts again may wait longest before it is first seen. What holds this watch up holds up all."""
    period_s = lease_ms / 2000 / _SAMPLES
    before = dict(waits_of(processes()))
    while True:
        waited, began = defaultdict[tuple[str, int], float](float), time.monotonic()
        for _ in range(_SAMPLES):
            since = time.monotonic()
            await asyncio.sleep(period_s)
            overslept_s, waits = time.monotonic() - since - period_s, dict(waits_of(processes()))
            added = {thread: wait_s - before.get(thread, 0.0) for thread, wait_s in waits.items()}
            for thread, waited_s in added.items():
                waited[thread] += waited_s
            for pod, waited_s in (*((pod, waited_s) for (pod, _), waited_s in added.items()), (EVERY_POD, overslept_s)):
                if (waited_ms := round(waited_s * 1000)) >= _NOTICED_MS:
                    witness.waited(pod, waited_ms)
            before |= waits
        lasted_s = time.monotonic() - began
        for (pod, tid), waited_s in waited.items():
            if waited_s >= _SHARE * lasted_s:
                proof = f"thread {tid} waited for a core for {waited_s:.1f} s of {lasted_s:.1f} s"
                witness.fault_off(witness.fault_on(FaultKind.STARVED, pod, proof))


def waits_of(processes: Mapping[str, int]) -> Iterator[tuple[tuple[str, int], float]]:
    """How many seconds each thread of each process was ready to run but had no core: the second figure of its schedstat
    (ns; Documentation/scheduler/sched-stats.rst of Linux). A pod's SQLite has a thread of its own. Leaves out what has
    ended or is not counted."""
    for pod, pid in processes.items():
        with suppress(OSError):
            for schedstat in Path(f"/proc/{pid}/task").glob("*/schedstat"):
                yield (pod, int(schedstat.parent.name)), int(schedstat.read_text().split()[1]) / 1e9
