"""Faults of the server and of connections to it. The witness gets each with the proof that it took effect."""

import asyncio
import os
import signal
from pathlib import Path

from redis.asyncio import Redis
from redis.exceptions import ResponseError

from tests.chaos.proxy import PATIENCE_S, Proxy
from tests.chaos.server import Server
from tests.chaos.timeline import ALL, EVERY_POD
from tests.chaos.witness import FaultKind, Witness


async def cut_subscribers(witness: Witness, redis: Redis) -> None:
    """CLIENT KILL TYPE pubsub."""
    fault = witness.fault_on(FaultKind.PUBSUB, EVERY_POD)
    cut = await redis.client_kill_filter(_type="pubsub")
    witness.fault_off(fault, f"{cut} subscriptions cut" if cut else "")


async def hang_up(witness: Witness, redis: Redis) -> None:
    """CLIENT KILL TYPE normal: every connection but the subscribers' and this one."""
    fault = witness.fault_on(FaultKind.DISCONNECT, EVERY_POD)
    cut = await redis.client_kill_filter(_type="normal")
    witness.fault_off(fault, f"{cut} connections cut" if cut else "")


async def forget_scripts(witness: Witness, redis: Redis) -> None:
    """SCRIPT FLUSH."""
    fault = witness.fault_on(FaultKind.SCRIPTS, EVERY_POD)
    before = int((await redis.info("memory"))["number_of_cached_scripts"])
    await redis.script_flush()
    witness.fault_off(fault, f"{before} scripts forgotten" if before else "")


async def freeze(witness: Witness, redis: Redis, *, seconds: float) -> None:
    """CLIENT PAUSE: for a time the server answers nobody, and nothing expires."""
    fault = witness.fault_on(FaultKind.PARTITION, EVERY_POD)
    begin = asyncio.get_running_loop().time()
    await redis.client_pause(round(seconds * 1000))
    await redis.ping()
    waited_s = asyncio.get_running_loop().time() - begin
    witness.fault_off(fault, f"an answer took {waited_s:.3f} s" if waited_s >= seconds / 2 else "")


async def hold(witness: Witness, server: Server, *, seconds: float) -> None:
    """SIGSTOP, and SIGCONT after a time: no connection breaks, nothing is answered."""
    fault = witness.fault_on(FaultKind.PARTITION, EVERY_POD)
    os.kill(server.pid, signal.SIGSTOP)
    await asyncio.sleep(seconds)
    state = Path(f"/proc/{server.pid}/stat").read_text().rpartition(")")[2].split()[0]
    os.kill(server.pid, signal.SIGCONT)
    witness.fault_off(fault, f"pid {server.pid} was in state T for {seconds:.3f} s" if state == "T" else "")


async def slow_down(witness: Witness, proxy: Proxy, redis: Redis, *, delay_s: float, seconds: float) -> None:
    """Each reply takes longer by `delay_s`."""
    fault = witness.fault_on(FaultKind.SLOW, EVERY_POD)
    before = int((await redis.info("stats"))["total_commands_processed"])
    proxy.delay_s = delay_s
    await asyncio.sleep(seconds)
    proxy.delay_s = 0.0
    answered = int((await redis.info("stats"))["total_commands_processed"]) - before
    witness.fault_off(fault, f"{answered} commands, replies {delay_s:.3f} s late" if answered else "")


async def fill(witness: Witness, redis: Redis, *, seconds: float) -> None:
    """The server's memory is full for a time: it refuses what needs more."""
    fault = witness.fault_on(FaultKind.MEMORY, EVERY_POD)
    used = int((await redis.info("memory"))["used_memory"])
    await redis.config_set("maxmemory", used // 2)
    proof = await _refused(redis)
    await asyncio.sleep(seconds)
    await redis.config_set("maxmemory", 0)
    witness.fault_off(fault, proof)


async def refuse(witness: Witness, redis: Redis, *, seconds: float) -> None:
    """The server writes nothing for a time, as when a snapshot has failed. It is read, and subscriptions stay."""
    fault = witness.fault_on(FaultKind.PARTITION, EVERY_POD)
    await redis.config_set("min-replicas-to-write", 1)
    proof = await _refused(redis)
    await asyncio.sleep(seconds)
    await redis.config_set("min-replicas-to-write", 0)
    witness.fault_off(fault, proof)


async def _refused(redis: Redis) -> str:
    """What the server says to a write that needs memory, if it refuses it."""
    try:
        await redis.set("filling", "")
    except ResponseError as error:
        return str(error)
    await redis.delete("filling")
    return ""


async def restart(witness: Witness, server: Server, *, down_s: float) -> None:
    """SIGKILL, and a new server on the same data after a time."""
    fault = witness.fault_on(FaultKind.PARTITION, EVERY_POD)
    before = server.pid
    await server.restart(down_s=down_s)
    witness.fault_off(fault, f"pid {before} killed, pid {server.pid} in its place" if server.pid != before else "")


async def lose_reply(
    witness: Witness, proxy: Proxy, script: str, *, at_least: int = 0, patience_s: float = PATIENCE_S
) -> None:
    """Lose the next reply to a script, after the server has run it."""
    fault = witness.fault_on(FaultKind.DISCONNECT, EVERY_POD)
    lost = await proxy.lose_reply(script, at_least=at_least, patience_s=patience_s)
    witness.fault_off(fault, f"{lost} bytes lost that answered {script}" if lost else "")


async def empty(witness: Witness, redis: Redis, kind: FaultKind, *, lag_ms: int = 0) -> None:
    """FLUSHALL: a `loss` if a ledger gives the data back, which is behind by so much, else as `power`."""
    fault = witness.fault_on(kind, EVERY_POD, lag_ms=lag_ms)
    before = await redis.dbsize()
    await redis.flushall()
    witness.fault_off(fault, f"{ALL} {before} keys lost")


async def go_back(witness: Witness, server: Server, folder: Path | None, *, down_s: float, lag_ms: int = 0) -> None:
    """SIGKILL, and another server in its place with an older copy of the data, or with none."""
    faults = [witness.fault_on(kind, EVERY_POD, lag_ms=lag_ms) for kind in (FaultKind.LOSS, FaultKind.PARTITION)]
    before = server.pid
    await server.return_with(folder, down_s=down_s)
    for fault in faults:
        witness.fault_off(fault, f"pid {before} killed, pid {server.pid} in its place with {folder or 'nothing'}")
