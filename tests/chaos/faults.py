"""What is done to the pods, each fault written to the witness with the proof that it took effect."""

import asyncio
import random
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from redis.asyncio import Redis

from tests.chaos.pods import Pod, Pods, until
from tests.chaos.timeline import EVERY_POD
from tests.chaos.witness import FaultKind, Witness

_SIGNAL_TIMEOUT_S = 5.0


async def kill(witness: Witness, pod: Pod) -> None:
    """SIGKILL; returns when the process is gone."""
    fault = witness.fault_on(FaultKind.KILL, pod.name)
    pod.send(signal.SIGKILL)
    code = await pod.ended()
    witness.fault_off(fault, f"pid {pod.pid} ended with {code}" if code == -signal.SIGKILL else "")


async def stop(witness: Witness, pod: Pod) -> int:
    """SIGTERM; returns the exit code when the pod has drained."""
    fault = witness.fault_on(FaultKind.STOP, pod.name)
    pod.send(signal.SIGTERM)
    code = await pod.ended()
    witness.fault_off(fault, f"pid {pod.pid} ended with {code}")
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


async def _is_stopped(pid: int) -> bool:
    """Whether the kernel shows the process as stopped: the field after the name in parentheses (proc(5))."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


@dataclass(frozen=True, slots=True)
class Kills:
    """When pods are killed, in seconds since the begin, and who draws the victims."""

    at_s: tuple[float, ...]
    rng: random.Random

    @classmethod
    def drawn(cls, number: int, within_s: float, rng: random.Random) -> "Kills":
        """So many kills at random moments of a span of time."""
        return cls(tuple(sorted(rng.uniform(0, within_s) for _ in range(number))), rng)

    async def do(self, witness: Witness, pods: Pods) -> None:
        """Kills a random pod at each moment and starts another in its place."""
        loop = asyncio.get_running_loop()
        begin = loop.time()
        for at_s in self.at_s:
            await asyncio.sleep(begin + at_s - loop.time())
            victim = self.rng.choice(pods.live)
            victim.check_alive()
            await kill(witness, victim)
            await pods.replace(victim)


async def cut_subscribers(witness: Witness, redis: Redis, *, every_s: float) -> None:
    """Cuts every subscription again and again until cancelled: one fault in the history, with the count as proof."""
    fault = witness.fault_on(FaultKind.PUBSUB, EVERY_POD)
    rounds = cut = 0
    try:
        while True:
            cut += await redis.client_kill_filter(_type="pubsub")
            rounds += 1
            await asyncio.sleep(every_s)
    finally:
        witness.fault_off(fault, f"{cut} subscriptions cut in {rounds} rounds" if cut else "")
