"""The servers that all tests of a session share: one of each kind, started when first needed."""

import signal
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from hypothesis import HealthCheck, settings

from tests.servers import Kind, ServerHandle, start_kind

# A shell ignores SIGINT in background jobs, and every command that a test starts would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The time that an example takes only shows how busy the machine is.
settings.register_profile("suite", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("suite")


class SharedServers:
    """Servers for tests that change nothing in them but the data of the db they use."""

    def __init__(self, folders: pytest.TempPathFactory) -> None:
        self._folders = folders
        self._running: dict[Kind, ServerHandle] = {}

    async def of(self, kind: Kind) -> ServerHandle:
        """The server of this kind. If the machine has none, the test is skipped, or fails in CI."""
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
