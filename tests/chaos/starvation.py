"""Measures from outside how long the processes of a run wait for a core: a pod without one cannot extend its leases,
and starts timers late."""

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
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
    a fault for each half lease that one spent waiting. What holds this watch up holds up all."""
    period_s = lease_ms / 2000 / _SAMPLES
    before = dict(_waits(processes()))
    while True:
        waited, began = defaultdict[tuple[str, int], float](float), time.monotonic()
        for _ in range(_SAMPLES):
            since = time.monotonic()
            await asyncio.sleep(period_s)
            overslept_s, waits = time.monotonic() - since - period_s, dict(_waits(processes()))
            for process, wait_s in waits.items():
                waited_s = wait_s - before.get(process, wait_s)
                waited[process] += waited_s
                waited_ms = round((waited_s + (overslept_s if process[0] == EVERY_POD else 0)) * 1000)
                if waited_ms >= _NOTICED_MS:
                    witness.waited(process[0], waited_ms)
            before = waits
        lasted_s = time.monotonic() - began
        for (pod, pid), waited_s in waited.items():
            if waited_s >= _SHARE * lasted_s:
                proof = f"pid {pid} waited for a core for {waited_s:.1f} s of {lasted_s:.1f} s"
                witness.fault_off(witness.fault_on(FaultKind.STARVED, pod, proof))


def _waits(processes: Mapping[str, int]) -> Iterator[tuple[tuple[str, int], float]]:
    """Seconds that each process was ready to run but had no core: the second figure of its main thread's schedstat (ns;
    Documentation/scheduler/sched-stats.rst of Linux). Leaves out processes that have ended or are not counted."""
    for pod, pid in processes.items():
        try:
            yield (pod, pid), int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9
        except OSError:
            continue
