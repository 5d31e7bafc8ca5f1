"""Owns a peer's processes during one measurement: those that arm, and those that work."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Final

from tests.bench.peers.adapters.orders import Order
from tests.bench.peers.catalogue import Peer
from tests.bench.peers.environments import ROOT, command, environment

ARM_TIMEOUT_S: Final = 600.0
END_TIMEOUT_S: Final = 5.0


class AdapterFailed(Exception):
    """A peer's program ended with an error; the message is its last line."""


class Crew:
    """The programs of one peer, on one server. `kept`: what has ended is kept as the peer does by default. `sure`: jobs
    are to survive their workers. `runs` is the file in which `slow` jobs write their begins and ends."""

    def __init__(self, peer: Peer, url: str, folder: Path, *, kept: bool, sure: bool = False) -> None:
        self._peer, self._log, self._starts = peer, folder / "log", folder / "starts"
        self._count = folder / "count"
        self.runs = folder / "runs"
        files = {"PEER_STARTS": str(self._starts), "PEER_COUNT": str(self._count), "PEER_RUNS": str(self.runs)}
        settings = {"PEER_URL": url, "PEER_KEEP": str(int(kept)), "PEER_SURE": str(int(sure)), **files}
        self._environment: Mapping[str, str] = {**environment(peer), **settings, **peer.settings}

    async def arm(self, order: Order) -> float:
        """Seconds that it took, without starting the program. Raises AdapterFailed."""
        with self._log.open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *command(self._peer, "arm"),
                cwd=ROOT,
                env=self._environment,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
            )
        try:
            async with asyncio.timeout(ARM_TIMEOUT_S):
                said, _ = await process.communicate(json.dumps(asdict(order)).encode())
        except TimeoutError:
            process.kill()
            raise AdapterFailed(f"{order.count:,} jobs were not armed within {ARM_TIMEOUT_S:g} s") from None
        if process.returncode:
            raise AdapterFailed(self._last_words())
        return float(json.loads(said)["seconds"])

    @asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        """Its workers run while the block lasts. Raises AdapterFailed if one ended by itself."""
        processes = [await self.start() for _ in range(self._peer.workers)]
        try:
            yield
            if any(process.returncode is not None for process in processes):
                raise AdapterFailed(self._last_words())
        finally:
            await asyncio.gather(*map(end, processes))

    def late_ms(self) -> list[float]:
        """How late each `timed` job started so far."""
        return [float(line) for line in self._starts.read_text().splitlines()] if self._starts.exists() else []

    def ticks(self) -> int:
        """How many `noop` jobs ran so far."""
        return int.from_bytes(self._count.read_bytes(), "little") if self._count.exists() else 0

    def forget(self) -> None:
        """Start a new list of starts, before any is ordered."""
        if self._starts.exists():
            os.truncate(self._starts, 0)

    async def start(self) -> asyncio.subprocess.Process:
        """One more worker, in a process group of its own."""
        with self._log.open("ab") as log:
            return await asyncio.create_subprocess_exec(
                *command(self._peer, "work"),
                cwd=ROOT,
                env=self._environment,
                stdin=asyncio.subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _last_words(self) -> str:
        lines = self._log.read_text(errors="replace").strip().splitlines() or ["it said nothing"]
        return lines[-1][:160]


async def end(process: asyncio.subprocess.Process) -> None:
    """Ends a worker with all processes that it started."""
    if process.stdin is not None:
        process.stdin.close()
    try:
        async with asyncio.timeout(END_TIMEOUT_S):
            await process.wait()
    except TimeoutError:
        os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
