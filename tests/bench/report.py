"""Owns how figures are shown: what they were measured under, and each benchmark as a table or as JSON."""

import importlib.metadata
import math
import os
import platform
import statistics
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tests.bench.stage import Stage

Cell = str | float
Row = tuple[Cell, ...]

_SETTINGS: Final = (
    *("appendonly", "appendfsync", "save", "maxmemory", "maxmemory-policy", "hz", "active-expire-effort"),
    *("notify-keyspace-events", "io-threads"),
)


@dataclass(frozen=True, slots=True)
class Column:
    """One figure. Over several runs its cell is their median, or what `of_runs` makes of them."""

    name: str
    digits: int = 0
    of_runs: Callable[[Sequence[float]], float] = statistics.median


def worst(name: str, digits: int = 0) -> Column:
    """A column that shows the largest of all runs."""
    return Column(name, digits, max)


@dataclass(frozen=True, slots=True)
class Benchmark:
    """One thing measured. `measure` answers one row a case; words in a row are the same in every run."""

    name: str
    title: str
    columns: tuple[Column, ...]
    measure: Callable[[Stage], Awaitable[Sequence[Row]]]
    not_covered: str
    server_options: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Measured:
    """A benchmark on one server: the rows of each run."""

    benchmark: Benchmark
    server: str
    settings: str
    runs: Sequence[Sequence[Row]]

    def rows(self) -> list[Row]:
        """The runs made one."""
        return [self._combined(same) for same in zip(*self.runs, strict=True)]

    def _combined(self, rows: Sequence[Row]) -> Row:
        cells = zip(self.benchmark.columns, zip(*rows, strict=True), strict=True)
        return tuple(_of_runs(column, of_all) for column, of_all in cells)

    def table(self) -> str:
        """As text: the columns under each other, numbers to the right."""
        columns = self.benchmark.columns
        lines = [tuple(c.name for c in columns), *(tuple(map(_shown, columns, row)) for row in self.rows())]
        widths = [max(map(len, parts)) for parts in zip(*lines, strict=True)]
        text = ["  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in lines]
        heading = f"{self.benchmark.name} on {self.server}: {self.benchmark.title}"
        ending = f"server: {self.settings}\nnot covered: {self.benchmark.not_covered}\n"
        return "\n".join([heading, *text, ending])

    def to_json(self) -> dict[str, Any]:
        """The table and the rows of every run; what never came is null."""
        return {
            "benchmark": self.benchmark.name,
            "title": self.benchmark.title,
            "server": self.server,
            "settings": self.settings,
            "columns": [column.name for column in self.benchmark.columns],
            "rows": [_finite(row) for row in self.rows()],
            "runs": [[_finite(row) for row in rows] for rows in self.runs],
            "not_covered": self.benchmark.not_covered,
        }


def _of_runs(column: Column, cells: Sequence[Cell]) -> Cell:
    numbers = [cell for cell in cells if not isinstance(cell, str)]
    return column.of_runs(numbers) if numbers else cells[0]


def _shown(column: Column, cell: Cell) -> str:
    if isinstance(cell, str):
        return cell
    return f"{cell:,.{column.digits}f}" if math.isfinite(cell) else "never"


def _finite(row: Row) -> list[Cell | None]:
    return [cell if isinstance(cell, str) or math.isfinite(cell) else None for cell in row]


async def settings_of(stage: Stage) -> str:
    """What the server is set to."""
    chosen = await stage.redis.config_get(*_SETTINGS)
    return " ".join(f"{name}={value or '-'}" for name, value in sorted(chosen.items()))


def surroundings() -> dict[str, Any]:
    """The machine and the programs; the load average shows who else was busy."""
    return {
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "packages": {name: importlib.metadata.version(name) for name in ("redis", "hiredis", "uvloop")},
        "machine": f"{platform.system()} {platform.machine()}",
        "cores": os.cpu_count(),
        "load": [round(load, 2) for load in os.getloadavg()],
    }
