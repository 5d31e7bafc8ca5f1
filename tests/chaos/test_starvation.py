"""How long the kernel says that processes waited for a core."""

import asyncio
import os
import sys
from asyncio.subprocess import Process
from pathlib import Path

from tests.chaos import starvation
from tests.chaos.witness import Event, FaultKind, Kind, Witness, read_history
from tests.waiting import eventually

SPIN = """
import os, threading
os.sched_setaffinity(0, {0})
def spin():
    while True: pass
threading.Thread(target=spin).start()
"""


async def spinning() -> Process:
    return await asyncio.create_subprocess_exec(sys.executable, "-S", "-c", SPIN)


async def test_processes_that_share_a_core_are_found_starved_and_an_idle_one_is_not(tmp_path: Path) -> None:
    witness = Witness(tmp_path, "driver")
    busy = [await spinning() for _ in range(4)]
    pids = {f"busy-{number}": process.pid for number, process in enumerate(busy)}
    idle = await asyncio.create_subprocess_exec("sleep", "600")
    processes = {**pids, "idle": idle.pid, "gone": 2**22 + os.getpid()}
    watching = asyncio.create_task(starvation.watch(witness, lambda: processes, lease_ms=400))

    async def found() -> list[Event]:
        return [event for event in read_history(tmp_path) if event.kind is Kind.FAULT_ON]

    try:
        faults = await eventually(found, "a process was starved")
    finally:
        watching.cancel()
        for process in (*busy, idle):
            process.kill()
            await process.wait()
        witness.close()
    assert {fault.fault for fault in faults} == {FaultKind.STARVED}
    assert {fault.pod for fault in faults} <= set(pids)
    assert all(" waited for a core" in fault.proof for fault in faults)
    assert not any(f"thread {pids[fault.pod]} " in fault.proof for fault in faults)  # they spin in another thread
