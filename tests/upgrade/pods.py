"""Pods of an earlier version and of this checkout, as processes on one db, and calls to their APIs."""

import asyncio
import json
import signal
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import ClientSession

from tests.cli.commands import Ended, Process
from tests.cli.test_pods import until_ready, url_of
from tests.install.environment import ROOT
from tests.waiting import eventually

Json = dict[str, Any]


@dataclass(slots=True)
class Version:
    """A version of the service: the folders that Python finds it in, first to last."""

    name: str
    path: Sequence[Path]


@dataclass(slots=True)
class Pod:
    """A pod with an API, and the key with which the test calls it."""

    version: Version
    url: str
    process: Process
    key: str = ""

    async def take(self, key: str) -> None:
        """Call with this key from now on. Wait until the pod knows it."""
        self.key = key

        async def known() -> bool:
            return (await self.ask("GET", "/timers"))[0] == 200

        await eventually(known, "the pod knows the key")

    async def ask(self, method: str, path: str, body: Json | None = None) -> tuple[int, Any]:
        """Call its API. Returns the status and the answer."""
        headers = {"Authorization": f"Bearer {self.key}"} if self.key else {}
        async with (
            ClientSession(self.url, headers=headers) as session,
            session.request(method, f"/v1{path}", json=body) as answer,
        ):
            return answer.status, await answer.json()

    async def call(self, method: str, path: str, body: Json | None = None) -> Json:
        """As `ask`, for a call that must succeed. Returns the answer."""
        status, answer = await self.ask(method, path, body)
        assert status in (200, 201), (method, path, status, answer)
        found: Json = answer
        return found


@dataclass(slots=True)
class Site:
    """What all pods of a test share: the server, settings, and a folder."""

    folder: Path
    settings: dict[str, str]
    started: list[Process] = field(default_factory=list)

    @property
    def runs(self) -> list[Json]:
        """What the pods' processors have run, in order."""
        file = self.folder / "runs"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    def begin(self, version: Version, *arguments: str, kind: type[Process] = Process, **settings: str) -> Process:
        """Start a version's command, or another program with that version."""
        folder = self.folder / f"process-{len(self.started)}"
        folder.mkdir()
        path = ":".join(map(str, (*version.path, ROOT)))
        given = {"PYTHONPATH": path, "RUNS": str(self.folder / "runs"), **self.settings, **settings}
        self.started.append(kind(folder, *arguments, **given))
        return self.started[-1]

    async def command(self, version: Version, *arguments: str) -> Ended:
        """Run a version's command to its end."""
        return await asyncio.to_thread(self.begin(version, *arguments).end)

    async def pod(self, version: Version) -> Pod:
        """Start a pod of the version's name, and wait until it is ready."""
        process = self.begin(version, "serve", TIMERS_POD=version.name, TIMERS_PROCESSORS="tests.upgrade.processors")
        pod = Pod(version, await url_of(process), process)
        await until_ready(pod.url)
        return pod

    async def key(self, version: Version, *options: str) -> str:
        """Make an API key with a version's command."""
        ended = await self.command(version, "keys", "make", "-o", "json", *options)
        assert ended.code == 0, ended
        made: str = ended.json["key"]
        return made

    def close(self) -> None:
        """Kill what still runs."""
        for process in self.started:
            process.kill()


async def leave(pod: Pod) -> None:
    """End a pod in order."""
    pod.process.signal(signal.SIGTERM)
    ended = await asyncio.to_thread(pod.process.end)
    assert ended.code == 0, ended.err
