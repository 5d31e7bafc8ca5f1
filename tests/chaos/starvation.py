"""Measures from outside how long the processes of a run wait for a core: a pod without one cannot extend its leases."""

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

from tests.chaos.witness import FaultKind, Witness

_SHARE: Final = 0.5
"""Share of half a lease spent waiting for a core. Below that a process has time to extend its leases."""


async def watch(witness: Witness, processes: Callable[[], Mapping[str, int]], lease_ms: int) -> None:
    """Until cancelled, writes a fault for each half lease that one of `processes` (pod or `*` → pid) spent waiting."""
    before, since = dict(_waits(processes())), time.monotonic()
    while True:
        await asyncio.sleep(lease_ms / 2000)
        now, waits = time.monotonic(), dict(_waits(processes()))
        for (pod, pid), wait_s in waits.items():
            waited_s = wait_s - before.get((pod, pid), wait_s)
            if waited_s >= _SHARE * (now - since):
                proof = f"pid {pid} waited for a core for {waited_s:.1f} s of {now - since:.1f} s"
                witness.fault_off(witness.fault_on(FaultKind.STARVED, pod, proof))
        before, since = waits, now


def _waits(processes: Mapping[str, int]) -> Iterator[tuple[tuple[str, int], float]]:
    """Seconds that each process was ready to run but had no core: the second figure of its main thread's schedstat (ns;
    Documentation/scheduler/sched-stats.rst of Linux). Leaves out processes that have ended or are not counted."""
    for pod, pid in processes.items():
        try:
            yield (pod, pid), int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9
        except OSError:
            continue
