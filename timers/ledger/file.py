"""Owns noticing that the file of an SQLite database was removed or replaced while it was open: what is written then is
in a file that nobody can open again."""

import os
import sqlite3
from contextlib import closing
from pathlib import Path

from timers.ledger.schema import VERSION_TABLE


class OpenFile:
    """The file that is open, if any is; a database in memory has none."""

    def __init__(self) -> None:
        self._path, self._opened = "", (0, 0)

    def opened(self, path: str) -> None:
        """The file at this path was opened."""
        self._path, self._opened = path, _identity(path)

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


def _identity(path: str) -> tuple[int, int]:
    try:
        found = os.stat(path)  # noqa: PTH116 (a Path costs more than the call)
    except OSError:
        return 0, 0
    return found.st_dev, found.st_ino
