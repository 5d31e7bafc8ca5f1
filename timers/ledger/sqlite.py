"""Owns how SQLite's file is opened, and noticing that it was removed or replaced while it was open: what is written
then is in a file that nobody can open again."""

import asyncio
import os
import sqlite3
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from threading import Thread, current_thread
from typing import Any
from weakref import WeakSet

from sqlalchemy import Connection

from timers.errors import ConfigurationError
from timers.ledger.schema import UPGRADE, VERSION_TABLE


class SqliteFile:
    """The file that is open, if any is; a database in memory has none."""

    def __init__(self) -> None:
        self.is_made = False
        """Whether opening makes a file that is not there."""
        self._path, self._opened = "", (0, 0)
        self._threads = WeakSet[Thread]()

    def open(self, *given: Any, **options: Any) -> sqlite3.Connection:
        """A connection whose commits are on the disk when they return, and whose readers do not wait for the writer.
        Runs in the connection's thread."""
        self._threads.add(current_thread())
        self._find(Path(given[0]))
        connection = _Connection(*given, **options)
        connection.isolation_level = None  # `begin` begins the transactions
        # The inbox may have text that is not UTF-8. The driver would refuse all rows for it.
        connection.text_factory = partial(str, encoding="utf-8", errors="replace")
        for pragma in ("journal_mode=WAL", "synchronous=FULL"):
            connection.execute(f"PRAGMA {pragma}").close()
        self._path = connection.execute("PRAGMA database_list").fetchone()[2]
        self._opened = _identity(self._path)
        return connection

    def _find(self, path: Path) -> None:
        """Raises OperationalError, or ConfigurationError if only the file is missing and none is made."""
        if not path.is_absolute():  # in memory
            return
        if not path.parent.is_dir():  # it may be mounted later
            raise sqlite3.OperationalError(f"there is no folder {path.parent}")
        if not (self.is_made or path.exists()):
            raise ConfigurationError(f"TIMERS_LEDGER_URL: there is no file {path}; correct the path, or {UPGRADE}")

    async def closed(self, seconds: float) -> None:
        """Wait for the threads of the connections. The driver does not wait for that of one which could not be opened:
        it would tell an event loop that has ended by then."""
        for thread in list(self._threads):
            if thread.is_alive():
                await asyncio.to_thread(thread.join, seconds)

    @property
    def is_there(self) -> bool:
        """Whether the path still leads to it. Costs a microsecond."""
        return not self._path or _identity(self._path) == self._opened

    def has_successor(self) -> bool:
        """Whether another file with the ledger's tables is there instead. Makes none."""
        try:
            with closing(sqlite3.connect(f"{Path(self._path).as_uri()}?mode=rw", uri=True)) as other:
                return other.execute(f"SELECT 1 FROM {VERSION_TABLE}").fetchone() is not None  # noqa: S608 (a constant)
        except sqlite3.Error:
            return False


def begin(connection: Connection) -> None:
    """A transaction that reads first and then writes would fail if another wrote in between."""
    said = "BEGIN IMMEDIATE" if connection.get_execution_options().get("writes", True) else "BEGIN"
    driver: Any = connection.connection.dbapi_connection
    driver.run_async(lambda sqlite: sqlite.execute_fetchall(said))  # SQLAlchemy's way waits for its thread three times


class _Connection(sqlite3.Connection):
    """A connection that ends its transaction when it is closed. SQLite itself would keep it, and its lock, for as long
    as somebody holds a statement with rows left, such as a caller that was cancelled."""

    def close(self) -> None:
        with suppress(sqlite3.ProgrammingError):  # it is closed already
            self.rollback()
        super().close()


def _identity(path: str) -> tuple[int, int]:
    try:
        found = os.stat(path)  # noqa: PTH116 (a Path costs more than the call)
    except OSError:
        return 0, 0
    return found.st_dev, found.st_ino
