"""Owns a benchmark's pods: processes that are started, asked for their CPU time, killed, and ended in order."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, Self

from redis.asyncio import Redis

from tests.chaos.pods import PodDied, until
from tests.waiting import DEADLINE_SECONDS

ROOT: Final = Path(__file__).parents[2]
READY_TIMEOUT_S: Final = DEADLINE_SECONDS
STOP_TIMEOUT_S: Final = DEADLINE_SECONDS

_SEEN: Final = "timers:{pods}:seen"
_EXPIRED: Final = "__keyevent@0__:expired"


class Pod:
    """One running pod."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, log: Path) -> None:
        self.name, self._process, self._log = name, process, log

    @classmethod
    async def start(cls, name: str, url: str, folder: Path, lease_ms: int) -> Self:
        """Start one, without waiting until it works. Its log and its starts go to `folder`."""
        log = folder / f"{name}.log"
        with log.open("wb") as output:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "tests.bench.pod", url, name, str(folder), str(lease_ms)),
                cwd=ROOT,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=output,
            )
        return cls(name, process, log)

    def check_alive(self) -> None:
        """Raises PodDied, with what it logged, if it has ended."""
        if self._process.returncode is not None:
            raise PodDied(f"{self.name} ended with {self._process.returncode}:\n{self._log.read_text()}")

    async def cpu_s(self) -> float:
        """CPU seconds it has used so far."""
        if self._process.stdin is None or self._process.stdout is None:
            raise ValueError("a pod is started with pipes")
        self._process.stdin.write(b"\n")
        return float(await self._process.stdout.readline())

    def memory_mib(self) -> float:
        """Its resident memory."""
        pages = Path(f"/proc/{self._process.pid}/statm").read_text().split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE") / 2**20

    async def kill(self) -> None:
        """SIGKILL; returns when the process is gone."""
        os.kill(self._process.pid, signal.SIGKILL)
        await self._process.wait()

    async def end(self) -> None:
        """Let it drain; returns when the process is gone. Raises PodDied if it had to be killed."""
        if self._process.returncode is not None or self._process.stdin is None:
            return
        self._process.stdin.close()
        try:
            async with asyncio.timeout(STOP_TIMEOUT_S):
                await self._process.wait()
        except TimeoutError:
            await self.kill()
            raise PodDied(f"{self.name} did not drain:\n{self._log.read_text()}") from None


class Pods:
    """The live pods of one measurement."""

    def __init__(self, url: str, redis: Redis, folder: Path, lease_ms: int) -> None:
        self._url, self._redis, self._folder, self._lease_ms = url, redis, folder, lease_ms
        self._started = 0
        self.live: list[Pod] = []

    async def start(self, number: int) -> None:
        """Start so many, and wait until all hear events and know of each other."""
        for _ in range(number):
            self._started += 1
            name = f"pod-{self._started}"
            self.live.append(await Pod.start(name, self._url, self._folder, self._lease_ms))
        await until(self._all_hear, timeout_s=READY_TIMEOUT_S, what="the subscriptions of all pods")
        since = await self._now_ms()

        async def all_seen() -> bool:
            seen = await self._redis.zmscore(_SEEN, [pod.name for pod in self.live])
            return all(score is not None and score > since for score in seen)

        await until(all_seen, timeout_s=READY_TIMEOUT_S, what="the signs of life of all pods")

    async def kill(self, pod: Pod) -> None:
        """`kill -9` one of them."""
        self.live.remove(pod)
        await pod.kill()

    async def cpu_s(self) -> float:
        """CPU seconds of all live pods."""
        return sum([await pod.cpu_s() for pod in self.live])

    async def end(self) -> None:
        """Drain all."""
        await asyncio.gather(*(pod.end() for pod in self.live))
        self.live.clear()

    async def _all_hear(self) -> bool:
        for pod in self.live:
            pod.check_alive()
        ((_, subscribers),) = await self._redis.pubsub_numsub(_EXPIRED)
        return int(subscribers) >= len(self.live)

    async def _now_ms(self) -> int:
        seconds, micros = await self._redis.time()
        return int(seconds) * 1000 + int(micros) // 1000


@asynccontextmanager
async def pods(url: str, redis: Redis, folder: Path, number: int, lease_ms: int) -> AsyncIterator[Pods]:
    """So many working pods for as long as the block lasts."""
    folder.mkdir()
    crew = Pods(url, redis, folder, lease_ms)
    try:
        await crew.start(number)
        yield crew
    finally:
        await crew.end()
