"""The real server of a run, always at the same address, which can be killed and restarted on its data."""

import asyncio
import shutil
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from tests.servers import ServerHandle, start_server
from timers.embedded import Family

_DATA: Final = Path("server") / "appendonlydir"

_FORGETFUL: Final = ("--notify-keyspace-events", "")
"""As a server that was configured by CONFIG SET comes back: without its notifications."""


class Server:
    """Use as `async with await Server.start(...) as server:`. `name` says what it is."""

    def __init__(self, handle: ServerHandle, family: Family, directory: Path, options: Sequence[str]) -> None:
        self._handle, self._family, self._directory, self._options = handle, family, directory, options
        self.url = handle.url
        self.name = f"{handle.family} {handle.version}"

    @classmethod
    async def start(cls, family: Family, directory: Path, options: Sequence[str] = ()) -> Self:
        """Starts it with its data in `directory`. `options` are further arguments, for restarts too."""
        return cls(await start_server(family, directory, *options), family, directory, options)

    @property
    def pid(self) -> int:
        return self._handle.pid

    async def restart(self, *, down_s: float) -> None:
        """Kills it as a crash would, starts another after `down_s` seconds, and returns when that one answers."""
        self._handle.kill()
        await asyncio.sleep(down_s)
        self._handle = await start_server(self._family, self._directory, *self._options, *_FORGETFUL)

    def keep(self, folder: Path) -> None:
        """Copy what is on its disk by now, as of an older moment for `return_with`."""
        shutil.copytree(self._directory / _DATA, folder)

    async def return_with(self, folder: Path | None, *, down_s: float) -> None:
        """Kill it, and start another after a time on an older copy of its data, or on none."""
        self._handle.kill()
        await asyncio.sleep(down_s)
        shutil.rmtree(self._directory / _DATA)
        if folder is not None:
            shutil.copytree(folder, self._directory / _DATA)
        self._handle = await start_server(self._family, self._directory, *self._options, *_FORGETFUL)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._handle.stop()
