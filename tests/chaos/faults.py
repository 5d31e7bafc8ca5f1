"""Faults of pods. The witness gets each with the proof that it took effect."""

import asyncio
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from tests.chaos.pods import Pod, until
from tests.chaos.proxy import Moment
from tests.chaos.witness import FaultKind, Witness
from tests.waiting import DEADLINE_SECONDS

_SIGNAL_TIMEOUT_S: Final = DEADLINE_SECONDS


async def kill(witness: Witness, pod: Pod) -> None:
    """SIGKILL; returns when the process is gone."""
    fault = witness.fault_on(FaultKind.KILL, pod.name)
    pod.send(signal.SIGKILL)
    code = await pod.ended()
    witness.fault_off(fault, f"pid {pod.pid} ended with {code}" if code == -signal.SIGKILL else "")


async def stop(witness: Witness, pod: Pod) -> int:
    """SIGTERM; returns the exit code when the pod has drained. Any code but 0 becomes a finding."""
    fault = witness.fault_on(FaultKind.STOP, pod.name)
    pod.send(signal.SIGTERM)
    code = await pod.ended()
    witness.fault_off(fault, f"pid {pod.pid} ended with {code}", exit_code=code)
    return code


@asynccontextmanager
async def paused(witness: Witness, pod: Pod) -> AsyncIterator[None]:
    """SIGSTOP for as long as the block lasts, then SIGCONT."""
    fault = witness.fault_on(FaultKind.PAUSE, pod.name)
    pod.send(signal.SIGSTOP)
    proof = ""
    try:
        await until(lambda: _is_stopped(pod.pid), timeout_s=_SIGNAL_TIMEOUT_S, what=f"the stop of {pod.name}")
        proof = f"pid {pod.pid} was in state T"
        yield
    finally:
        pod.send(signal.SIGCONT)
        witness.fault_off(fault, proof)


@asynccontextmanager
async def throttled(witness: Witness, pod: Pod) -> AsyncIterator[None]:
    """A tenth of a core for as long as the block lasts: the pod is stopped for 90 ms of each 100."""
    fault, stops, ended = witness.fault_on(FaultKind.QUOTA, pod.name), 0, asyncio.Event()

    async def throttle() -> None:
        nonlocal stops
        while not ended.is_set():
            stops += 1
            pod.send(signal.SIGSTOP)
            await asyncio.sleep(0.09)
            pod.send(signal.SIGCONT)
            await asyncio.sleep(0.01)

    throttling = asyncio.create_task(throttle())
    try:
        yield
    finally:
        ended.set()
        await throttling
        witness.fault_off(fault, f"stopped {stops} times")


@asynccontextmanager
async def cut_off(witness: Witness, pod: Pod) -> AsyncIterator[None]:
    """Nothing passes between this pod and the server for as long as the block lasts."""
    fault = witness.fault_on(FaultKind.PARTITION, pod.name)
    async with pod.gate.shut():
        yield
        held = pod.gate.held
    witness.fault_off(fault, f"{held} bytes held up" if held else "")


async def kill_at(witness: Witness, pods: Sequence[Pod], script: str, moment: Moment) -> Pod:
    """SIGKILL of the first of the pods that calls a script, at a moment of that call; of the first pod if none calls
    it in time. Returns the victim."""
    catching = {pod.name: pod.gate.catch(script, moment) for pod in pods}
    for caught in asyncio.as_completed(list(catching.values())):
        if await caught:
            break
    for task in catching.values():
        task.cancel()
    await asyncio.wait(catching.values())
    called = [pod for pod in pods if catching[pod.name].result()]
    victim, where = (called[0], f", {moment} {script}") if called else (pods[0], "")
    for other in called[1:] if moment != "after" else ():  # it called the script at the same moment
        witness.fault_off(witness.fault_on(FaultKind.DISCONNECT, other.name, f"its connection ended{where}"))
    fault = witness.fault_on(FaultKind.KILL, victim.name)
    victim.send(signal.SIGKILL)
    code = await victim.ended()
    witness.fault_off(fault, f"pid {victim.pid} ended with {code}{where}" if code == -signal.SIGKILL else "")
    return victim


async def _is_stopped(pid: int) -> bool:
    """True if the kernel shows the process as stopped: the field after the name in parentheses (proc(5))."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
