"""A server that belongs to one test, which can crash it, hang it and restart it on the same data."""

import os
import signal
from pathlib import Path

from tests.servers import ServerHandle, start_server
from timers.embedded import Family


class OwnServer:
    """One server at one URL, up or down. Every write is on disk before its answer, unless the options differ."""

    def __init__(self, family: Family, folder: Path, *options: str) -> None:
        self._family, self._folder = family, folder
        self._options = options or ("--appendfsync", "always")
        self._running: ServerHandle | None = None
        self.url = ""

    async def up(self) -> None:
        """Start or restart it."""
        self._running = await start_server(self._family, self._folder, *self._options)
        self.url = self._running.url

    @property
    def pid(self) -> int:
        """Its process. Only while it is up."""
        assert self._running is not None, "the server is up"
        return self._running.pid

    def down(self) -> None:
        """Kill it. A second call does nothing."""
        if self._running is not None:
            self._running.kill()
            self._running = None

    def hang(self) -> None:
        """Stop it from answering, with its connections open."""
        self._signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """Let it answer again after `hang`."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)
