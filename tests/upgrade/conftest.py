"""The versions, and a site for their pods."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.chaos.versions import unpacked
from tests.engine.conftest import server
from tests.install.environment import ROOT
from tests.servers import ServerHandle
from tests.upgrade.pods import Site, Version

__all__ = ["server"]


@pytest.fixture(scope="session")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> Version:
    """The version at 9b6d3bc."""
    return Version("earlier", [unpacked(tmp_path_factory.mktemp("9b6d3bc"))])


@pytest.fixture
def newer() -> Version:
    """This checkout."""
    return Version("newer", [ROOT, ROOT / "processors"])


@pytest.fixture
async def site(server: ServerHandle, tmp_path: Path) -> AsyncIterator[Site]:
    made = Site(
        tmp_path,
        {
            "TIMERS_REDIS_URL": server.url,
            "TIMERS_ROLES": "api,worker",
            "TIMERS_API_KEYS": "stored",
            "TIMERS_HTTP_PORT": "0",
            "TIMERS_LOG_FORMAT": "json",
            "TIMERS_LEASE": "1s",
            "TIMERS_DRAIN_TIMEOUT": "200ms",
            "TIMERS_ADOPT_EVERY": "100ms",
            "TIMERS_WEBHOOK_ALLOW": "127.0.0.0/8",
        },
    )
    yield made
    made.close()
