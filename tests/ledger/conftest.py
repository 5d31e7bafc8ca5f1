"""Databases for the tests of the ledger, and a fleet whose pods follow."""

import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import pytest
from sqlalchemy import make_url

from tests import postgres
from tests.engine.conftest import _short_logs, fleet, own, server, sharded
from timers.ledger.database import Database

__all__ = ["_short_logs", "fleet", "own", "server", "sharded"]

DIALECTS = ("sqlite", "postgresql")


_with_tables: Final = dict[str, str]()
"""By dialect, the database of this process with the tables of this version, of which tests get copies: to make the
tables costs more than many a test does with them."""


@pytest.fixture(params=DIALECTS)
async def ledger_url(request: pytest.FixtureRequest, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The URL of a database of each kind: with the tables of this version where a test uses `database`, else empty."""
    if "database" not in request.fixturenames:
        return _new(request.param, tmp_path)
    if request.param not in _with_tables:
        made = Database(_new(request.param, tmp_path_factory.mktemp("tables")))
        await made.upgrade()
        await made.close()
        _with_tables[request.param] = make_url(made.engine.url).database or ""
    return _new(request.param, tmp_path, copied_from=_with_tables[request.param])


def _new(dialect: str, folder: Path, *, copied_from: str | None = None) -> str:
    if dialect == "postgresql":
        return postgres.new_database(copied_from=copied_from) if copied_from else postgres.new_database()
    path = folder / "ledger.db"
    if copied_from:
        shutil.copy(copied_from, path)
    else:
        path.touch()
    return f"sqlite+aiosqlite:///{path}"


@pytest.fixture
async def database(ledger_url: str) -> AsyncIterator[Database]:
    """A database with the tables of this version."""
    database = Database(ledger_url)
    yield database
    await database.close()
