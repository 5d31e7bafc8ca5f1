"""Pods that die: each is a process that is started again."""

import signal
from pathlib import Path

from tests.cli.commands import Process


class Pods:
    """Two pods; one that was killed is started again."""

    def __init__(self, folder: Path, **settings: str) -> None:
        self._folder, self._settings = folder, settings
        self.started = 0
        self._live = [self._start(), self._start()]

    def _start(self) -> Process:
        self.started += 1
        folder = self._folder / str(self.started)
        folder.mkdir()
        settings = {"TIMERS_ROLES": "worker", "TIMERS_HTTP_PORT": "0", "TIMERS_BUILTIN": "none", **self._settings}
        return Process(folder, "serve", TIMERS_POD=f"p{self.started}", **settings)

    def set(self, **settings: str) -> None:
        """Of the pods that are started from now on."""
        self._settings |= settings

    def revive(self) -> None:
        self._live = [pod if pod.alive else self._start() for pod in self._live]

    def send(self, number: signal.Signals) -> None:
        self._live[0].signal(number)

    def kill(self) -> None:
        for pod in self._live:
            pod.kill()
