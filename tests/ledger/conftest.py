"""Databases for the tests of the ledger, and a fleet whose pods follow."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests import postgres
from tests.engine.conftest import _short_logs, fleet, own, server, sharded
from timers.ledger.database import Database

__all__ = ["_short_logs", "fleet", "own", "server", "sharded"]

DIALECTS = ("sqlite", "postgresql")


@pytest.fixture(params=DIALECTS)
def ledger_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty database of each kind."""
    return f"sqlite+aiosqlite:///{tmp_path}/ledger.db" if request.param == "sqlite" else postgres.new_database()


@pytest.fixture
async def database(ledger_url: str) -> AsyncIterator[Database]:
    """A database with the tables of this version."""
    database = Database(ledger_url)
    await database.upgrade()
    yield database
    await database.close()
