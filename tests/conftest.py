"""Owns the servers that the tests of a session share: one of a kind, started when first asked for."""

import signal
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from hypothesis import HealthCheck, settings

from tests.servers import Kind, ServerHandle, start_kind

# A shell starts what runs in the background with SIGINT ignored, and so would be every command that a test starts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# How long an example takes says only how busy the machine is.
settings.register_profile("suite", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("suite")


class SharedServers:
    """Servers for tests that leave them as they were, apart from the data of the db they use."""

    def __init__(self, folders: pytest.TempPathFactory) -> None:
        self._folders = folders
        self._running: dict[Kind, ServerHandle] = {}

    async def of(self, kind: Kind) -> ServerHandle:
        """The server of that kind. Skips the test, or fails it in CI, where the machine has none."""
        if kind not in self._running:
            folder = self._folders.mktemp(kind)
            self._running[kind] = await start_kind(kind, folder, "--enable-debug-command", "yes")
        return self._running[kind]

    async def stop(self) -> None:
        for server in self._running.values():
            await server.stop()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def servers(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[SharedServers]:
    """The session's servers."""
    shared = SharedServers(tmp_path_factory)
    yield shared
    await shared.stop()
