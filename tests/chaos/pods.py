"""Pods as real processes: start, pause, end and kill them."""

import asyncio
import json
import os
import signal
import subprocess
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final, Self

from redis.asyncio import Redis

from tests.chaos.processors import DIRECTORY_VARIABLE
from tests.chaos.proxy import Proxy
from tests.nursery import ROOT, Child, start_timers
from tests.servers import free_port
from tests.waiting import DEADLINE_SECONDS

_SERVE: Final = ("serve",)
_READY_TIMEOUT_S: Final = DEADLINE_SECONDS
_STOP_TIMEOUT_S: Final = DEADLINE_SECONDS
_POLL_S: Final = 0.02
_REGISTRY: Final = "timers:{pods}:seen"
_SIGNS_OF_A_START: Final = 2
_SHOWN_LOG_LINES: Final = 15

_EXPECTED_ERRORS: Final = frozenset({"event loop blocked", "event loop was blocked", "data was lost"})
"""What a pod may say at level `error` under faults: a paused one sees its loop stand still, any tells of a loss."""


async def until(happened: Callable[[], Awaitable[bool]], *, timeout_s: float, what: str) -> None:
    """Returns once `happened` returns True. Raises TimeoutError, which names `what`, after `timeout_s`."""
    try:
        async with asyncio.timeout(timeout_s):
            while not await happened():  # noqa: ASYNC110 (another process sets no event)
                await asyncio.sleep(_POLL_S)
    except TimeoutError:
        raise TimeoutError(f"{what} did not happen within {timeout_s} s") from None


class PodDied(Exception):
    """A pod ended without being told to."""


class Pod:
    """One running pod. `name` is unique in the whole run: a replacement has another name. A `narrow` one lacks a
    processor that others have."""

    def __init__(
        self,
        name: str,
        process: Child | subprocess.Popen[bytes],
        log: Path,
        *,
        narrow: bool,
        address: str,
        gate: Proxy | None,
        is_past: bool,
    ) -> None:
        """`gate` is its own way to the server, if it has one. `is_past` if it is of an earlier version."""
        self.name, self.narrow, self.address, self._gate, self.is_past = name, narrow, address, gate, is_past
        self._process = process
        self._log = log
        self._signs: set[float] = set()

    @classmethod
    def start(
        cls,
        name: str,
        directory: Path,
        settings: Mapping[str, str],
        *,
        narrow: bool = False,
        gate: Proxy | None = None,
        past: Path | None = None,
    ) -> Self:
        """Starts a pod that writes its witness file and log to `directory`. Does not wait until it works."""
        log, port = directory / f"{name}.log", str(free_port())
        said = {
            **settings,
            "TIMERS_HTTP_PORT": port,
            **({"PYTHONPATH": f"{past}{os.pathsep}{ROOT}"} if past else {}),
            **({"TIMERS_PROCESSORS": "tests.chaos.processors:chaos"} if narrow else {}),
        }
        with log.open("wb") as output:
            process = start_timers(_SERVE, directory, _environment(name, directory, said), output, output)
        return cls(
            name, process, log, narrow=narrow, address=f"http://127.0.0.1:{port}", gate=gate, is_past=past is not None
        )

    @property
    def gate(self) -> Proxy:
        """Its own way to the server."""
        assert self._gate is not None
        return self._gate

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    async def works(self, redis: Redis) -> bool:
        """True if it is registered and has started. Its first sign of life is part of its start, which fails if
        Redis goes away before the answer. Raises PodDied."""
        self.check_alive()
        sign: float | None = await redis.zscore(_REGISTRY, self.name)
        if sign is not None and len(self._signs) < _SIGNS_OF_A_START:
            self._signs.add(sign)
        return sign is not None and len(self._signs) == _SIGNS_OF_A_START

    async def ready(self, redis: Redis) -> None:
        """Waits until the pod works. Raises PodDied, with the end of its log, if it ends before."""
        await until(lambda: self.works(redis), timeout_s=_READY_TIMEOUT_S, what=f"the start of {self.name}")

    def check_alive(self) -> None:
        """Raises PodDied, with the end of its log, if it has ended."""
        if not self.alive:
            raise PodDied(f"{self.name} ended with {self._process.returncode}:\n{self.log_tail()}")

    def log_tail(self) -> str:
        """The last lines of its log."""
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-_SHOWN_LOG_LINES:])

    def send(self, signal_number: signal.Signals) -> None:
        """Sends a signal."""
        self._process.send_signal(signal_number)

    async def ended(self) -> int:
        """Waits for its end and returns its exit code, negative for a signal."""

        async def over() -> bool:
            return not self.alive

        await until(over, timeout_s=_STOP_TIMEOUT_S, what=f"the end of {self.name}")
        return self._process.wait()

    async def remove(self) -> None:
        """Kills it if it still runs."""
        if self.alive:
            self.send(signal.SIGKILL)
            await self.ended()


class Pods:
    """The pods of one run. The number stays the same: a pod that ends is replaced under a new name.

    `settings` are added to the settings that all pods need. With `gated` each has a proxy of its own.
    """

    def __init__(
        self, redis_url: str, redis: Redis, directory: Path, settings: Mapping[str, str], *, gated: bool = False
    ) -> None:
        self._redis, self._directory, self._gated, self._gates = redis, directory, gated, AsyncExitStack()
        self._redis_url = redis_url
        self.past: Path | None = None
        """Where an earlier version is, which pods have unless something else is said."""
        self._settings = {"TIMERS_REDIS_URL": redis_url, **settings}
        self._started = 0
        self.live: list[Pod] = []

    async def start(self, number: int, *, some_narrow: bool = False) -> None:
        """Starts a number of pods and waits until all of them work. With `some_narrow` every other one is."""
        for place in range(number):
            await self.add(narrow=some_narrow and place % 2 == 1)
        await self.ready()

    async def add(self, *, narrow: bool = False, past: bool = True) -> Pod:
        """Starts one more pod, of the earlier version if there is one, without waiting for it."""
        self._started += 1
        gate = await self._gates.enter_async_context(Proxy(self._redis_url)) if self._gated else None
        settings = self._settings | ({"TIMERS_REDIS_URL": gate.url} if gate else {})
        pod = Pod.start(
            f"pod-{self._started}",
            self._directory,
            settings,
            narrow=narrow,
            gate=gate,
            past=self.past if past else None,
        )
        self.live.append(pod)
        return pod

    def named(self, name: str) -> Pod:
        """The live pod with this name."""
        return next(pod for pod in self.live if pod.name == name)

    async def replace(self, pod: Pod) -> Pod:
        """Forgets `pod`, which has ended, and starts another of its kind."""
        self.live.remove(pod)
        return await self.add(narrow=pod.narrow, past=pod.is_past)

    async def ready(self) -> None:
        """Waits until all live pods work. Raises PodDied."""
        for pod in self.live:
            await pod.ready(self._redis)

    async def one_to_spare(self) -> list[Pod]:
        """Waits until at least two pods work, and returns those that do. Raises PodDied."""
        working: list[Pod] = []

        async def enough() -> bool:
            working[:] = [pod for pod in self.live if await pod.works(self._redis)]
            return len(working) > 1

        await until(enough, timeout_s=_READY_TIMEOUT_S, what="the work of two pods")
        return working

    async def healed(self) -> None:
        """Waits until all live pods have given another sign of life. Raises PodDied."""
        seconds, micros = await self._redis.time()
        since_ms = seconds * 1000 + micros / 1000

        async def signed() -> bool:
            for pod in self.live:
                pod.check_alive()
            seen = await self._redis.zmscore(_REGISTRY, [pod.name for pod in self.live])
            return all(score is not None and score > since_ms for score in seen)

        await until(signed, timeout_s=_READY_TIMEOUT_S, what="a sign of life of every pod")

    def complaints(self) -> list[str]:
        """The errors that the run's pods logged, each with the pod's name."""
        logs = sorted(self._directory.glob("*.log"))
        return [f"{log.stem}: {line}" for log in logs for line in _errors(log.read_text(errors="replace"))]

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for pod in self.live:
            await pod.remove()
        await self._gates.aclose()


def _errors(text: str) -> Iterator[str]:
    """Complete lines that report an error, and lines that are no log lines at all, such as those of a traceback."""
    for line in text.split("\n")[:-1]:
        try:
            said = json.loads(line)
        except ValueError:
            yield line
            continue
        if said["level"] in {"error", "critical"} and said["event"] not in _EXPECTED_ERRORS:
            yield line


def _environment(name: str, directory: Path, settings: Mapping[str, str]) -> dict[str, str]:
    ours = {
        "PYTHONPATH": str(ROOT),
        "TIMERS_PROCESSORS": "tests.chaos.processors",
        "TIMERS_POD": name,
        "TIMERS_ROLES": "worker",
        "TIMERS_LOG_LEVEL": "warning",
        "TIMERS_LOG_FORMAT": "json",
        DIRECTORY_VARIABLE: str(directory),
    }
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("TIMERS_")}
    return inherited | ours | dict(settings)
