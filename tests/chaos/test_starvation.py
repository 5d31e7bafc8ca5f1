"""How long the kernel says that processes waited for a core."""

import asyncio
import os
import signal
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
        """Once a thread that spins is among them: the first one of a process waits too while that starts."""
        faults = [event for event in read_history(tmp_path) if event.kind is Kind.FAULT_ON]
        return faults if any(f"thread {pids.get(fault.pod)} " not in fault.proof for fault in faults) else []

    try:
        faults = await eventually(found, "a thread was starved")
    finally:
        watching.cancel()
        for process in (*busy, idle):
            process.kill()
            await process.wait()
        witness.close()
    assert {fault.fault for fault in faults} == {FaultKind.STARVED}
    assert {fault.pod for fault in faults} <= set(pids)
    assert all(" waited for a core" in fault.proof for fault in faults)


async def test_what_a_process_waited_before_it_was_first_seen_counts(tmp_path: Path) -> None:
    witness = Witness(tmp_path, "driver")
    busy = [await spinning() for _ in range(4)]
    seen = dict[str, int]()
    watching = asyncio.create_task(starvation.watch(witness, lambda: seen, lease_ms=400))

    async def waits_ms() -> float | None:
        waited_s = sum(wait_s for _, wait_s in starvation.waits_of({"busy": busy[0].pid}))
        return waited_s * 1000 if waited_s > 0.2 else None

    try:
        await eventually(waits_ms, "it has waited for a core")
        for process in busy:
            process.send_signal(signal.SIGSTOP)
        before_ms = await waits_ms()
        seen["busy"] = busy[0].pid
        assert before_ms is not None

        async def is_written() -> bool:
            written_ms = sum(event.waited_ms for event in read_history(tmp_path) if event.pod == "busy")
            return written_ms >= before_ms - 10

        await eventually(is_written, "its waits are written, of one thread after the other")
    finally:
        watching.cancel()
        for process in busy:
            process.kill()
            await process.wait()
        witness.close()
