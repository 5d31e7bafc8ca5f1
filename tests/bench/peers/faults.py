"""`python -m tests.bench.peers.faults [NAME …]`: what becomes of delayed jobs when workers or the server fail."""

import asyncio
import os
import signal
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Annotated, Any, Final

import typer
from redis.asyncio import Redis

from tests.bench.peers.adapters.orders import SLOW_S, Order
from tests.bench.peers.catalogue import PEERS, Peer
from tests.bench.peers.crew import AdapterFailed, Crew, end
from tests.bench.peers.environments import CannotInstall, install
from tests.servers import ServerHandle, free_port, start_server

NAMES: Final = ("ours", "bullmq", "arq", "saq", "celery", "docket", "apscheduler")
ALONE: Final = ("apscheduler",)
"""Two workers of it would each run every job."""

JOBS: Final = 300
LEAD_S: Final = 20.0
SPREAD_S: Final = 12.0
FIRST_S, SECOND_S = 3.0, 7.0
"""When faults happen, from the first due time."""
STALL_S: Final = 15.0
DOWN_S: Final = 1.0
CAP_S: Final = 120.0
"""How long after the last due time a job may still end; later, it counts as lost."""
LOOK_S: Final = 0.1


@dataclass(slots=True)
class Scene:
    """A server, and the workers of one peer on it."""

    crew: Crew
    server: ServerHandle
    folder: Path
    port: int
    workers: list[asyncio.subprocess.Process] = field(default_factory=list)


async def _nothing(_scene: Scene) -> None:
    """To compare with."""


async def _kill(scene: Scene) -> None:
    """SIGKILL of a worker, which is replaced at once."""
    worker = scene.workers.pop(0)
    os.killpg(worker.pid, signal.SIGKILL)
    await worker.wait()
    scene.workers.append(await scene.crew.start())


async def _stall(scene: Scene) -> None:
    """SIGSTOP of a worker, and SIGCONT after a while."""
    worker = scene.workers[0]
    os.killpg(worker.pid, signal.SIGSTOP)
    await asyncio.sleep(STALL_S)
    os.killpg(worker.pid, signal.SIGCONT)


async def _cut(scene: Scene) -> None:
    """All connections are cut."""
    async with Redis(port=scene.port) as redis:
        for kind in ("normal", "pubsub"):
            await redis.client_kill_filter(_type=kind)


async def _restart(scene: Scene) -> None:
    """SIGKILL of the server, which is started again with its append-only file."""
    scene.server.kill()
    await asyncio.sleep(DOWN_S)
    scene.server = await _server(scene.folder, scene.port)


async def _keep(scene: Scene) -> None:
    """Start a worker anew when it ends by itself, as whatever runs it in production does."""
    while True:
        for place, worker in enumerate(scene.workers):
            if worker.returncode is not None:
                scene.workers[place] = await scene.crew.start()
        await asyncio.sleep(LOOK_S)


Fault = Callable[[Scene], Awaitable[None]]
FAULTS: Final[Mapping[str, tuple[Fault, tuple[float, ...]]]] = {
    "none": (_nothing, (FIRST_S,)),
    "kill": (_kill, (FIRST_S, SECOND_S)),
    "stall": (_stall, (FIRST_S,)),
    "cut": (_cut, (FIRST_S, SECOND_S)),
    "restart": (_restart, (FIRST_S,)),
}
"""What is done, and when, in seconds from the first due time."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Of the jobs: how many had no effect in time, began too early, had their effect twice or more; how late they
    began, and the longest that one took from due to its effect besides its own time, in ms."""

    lost: int
    early: int
    twice: int
    late_p50_ms: float
    worst_ms: float

    @classmethod
    def of(cls, lines: Sequence[str], jobs: int) -> "Verdict":
        """The verdict on what `slow` jobs have written."""
        begun: dict[str, float] = {}
        ended: defaultdict[str, list[float]] = defaultdict(list)
        early = set()
        for line in lines:
            what, job, due_ms, at_ms = line.split()
            late_ms = float(at_ms) - float(due_ms)
            if what == "begun":
                begun.setdefault(job, late_ms)
                if late_ms < 0:
                    early.add(job)
            else:
                ended[job].append(late_ms)
        twice = sum(number > 1 for number in Counter({job: len(ends) for job, ends in ended.items()}).values())
        worst = max((min(ends) - SLOW_S * 1000 for ends in ended.values()), default=0.0)
        return cls(jobs - len(ended), len(early), twice, median(begun.values()) if begun else 0.0, worst)

    @property
    def cells(self) -> tuple[str, ...]:
        """For a row of the table."""
        counts = (str(self.lost), str(self.early), str(self.twice))
        return (*counts, f"{self.late_p50_ms:,.0f}", f"{self.worst_ms / 1000:,.1f}")


def main(
    names: Annotated[list[str] | None, typer.Argument(help=f"of {', '.join(NAMES)}; default: all")] = None,
    *,
    fault: Annotated[list[str] | None, typer.Option(help=f"of {', '.join(FAULTS)}; default: all")] = None,
) -> None:
    """Make the same faults for each scheduler, and say what became of its jobs."""
    asyncio.run(_tell(names or NAMES, fault or list(FAULTS)))


async def _tell(names: Sequence[str], faults: Sequence[str]) -> None:
    print(
        "| scheduler | fault | lost | early | twice | late p50 ms | worst s |\n|---|---|---|---|---|---|---|",
        flush=True,
    )
    for name in names:
        for fault in faults:
            try:
                await install(PEERS[name])
                cells: Sequence[str] = (await verdict(PEERS[name], fault)).cells
            except (AdapterFailed, CannotInstall) as error:
                cells = (str(error),)
            print(f"| {name} | {fault} | {' | '.join(cells)} |", flush=True)


async def verdict(peer: Peer, fault: str) -> Verdict:
    """Arms the jobs, makes the fault while they become due, and waits until all have ended or the time is over. Raises
    AdapterFailed."""
    make, moments = FAULTS[fault]
    with tempfile.TemporaryDirectory(prefix="timers-peers-") as folder:
        scene = await _scene(peer, Path(folder))
        keeping = asyncio.create_task(_keep(scene))
        try:
            first_ms = (time.time() + LEAD_S) * 1000
            order = Order("single" if peer.no_bulk else "bulk", "slow", "faults-", JOBS, first_ms, SPREAD_S * 1000)
            if not peer.arms_first:
                await _begin(scene, peer)
            await scene.crew.arm(order)
            if peer.arms_first:
                await _begin(scene, peer)
            if time.time() * 1000 > first_ms:
                raise AdapterFailed("the jobs were not armed before they were due; this machine is too busy")
            for moment in moments:
                await asyncio.sleep(first_ms / 1000 + moment - time.time())
                await make(scene)
            return await _watched(scene.crew, first_ms / 1000 + SPREAD_S + CAP_S)
        finally:
            keeping.cancel()
            await asyncio.gather(*map(end, scene.workers))
            await scene.server.stop()


async def _scene(peer: Peer, folder: Path) -> Scene:
    port = free_port()
    server = await _server(folder, port)
    crew = Crew(peer, f"redis://127.0.0.1:{port}/0", folder, kept=True, sure=True)
    return Scene(crew, server, folder, port)


async def _server(folder: Path, port: int) -> ServerHandle:
    return await start_server("redis", folder, "--port", str(port), "--bind", "127.0.0.1")


async def _begin(scene: Scene, peer: Peer) -> None:
    scene.workers += [await scene.crew.start() for _ in range(1 if peer.name in ALONE else 2)]


async def _watched(crew: Crew, until_s: float) -> Verdict:
    while True:
        lines: Any = crew.runs.read_text().splitlines() if crew.runs.exists() else []
        found = Verdict.of(lines, JOBS)
        if time.time() > until_s or not found.lost:
            await asyncio.sleep(0 if found.lost else STALL_S)  # an effect may yet come a second time
            return Verdict.of(crew.runs.read_text().splitlines() if crew.runs.exists() else [], JOBS)
        await asyncio.sleep(LOOK_S)


if __name__ == "__main__":
    print(f"Two workers, {JOBS} jobs of {SLOW_S:g} s due over {SPREAD_S:g} s, lost after {CAP_S:g} s.", file=sys.stderr)
    typer.run(main)
