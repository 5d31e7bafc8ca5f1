"""Owns the servers that the tests of a session share: one a family, started when first asked for."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.servers import ServerHandle, start_server
from timers.embedded import Family


class SharedServers:
    """Servers for tests that leave them as they were, apart from the data of the db they use."""

    def __init__(self, folders: pytest.TempPathFactory) -> None:
        self._folders = folders
        self._running: dict[Family, ServerHandle] = {}

    async def of(self, family: Family) -> ServerHandle:
        """The family's server. Skips the test, or fails it in CI, where the machine has none."""
        if family not in self._running:
            folder = self._folders.mktemp(family)
            self._running[family] = await start_server(family, folder, "--enable-debug-command", "yes")
        return self._running[family]

    async def stop(self) -> None:
        for server in self._running.values():
            await server.stop()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def servers(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[SharedServers]:
    """The session's servers."""
    shared = SharedServers(tmp_path_factory)
    yield shared
    await shared.stop()
