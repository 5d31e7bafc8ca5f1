"""Owns statements that write or read many rows at once, in one step of the database.

SQLite's driver gives the interpreter's lock away for each row that it reads or that `executemany` writes, and its
thread hands over to the event loop several times a statement. Where the loop has work, and other processes the cores,
each of these waits for its turn: a thousand rows took a hundred times as long as in one step, and other writers waited
meanwhile. So a statement writes all its rows, and reads them in one value.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from itertools import chain
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement

from timers.core.fields import decode

Statement = sa.Select[Any] | sa.Insert | sa.Update | sa.Delete

SAVED: Final = 1000
"""The most rows of one statement."""

_ROWS: Final = "rows_given"
"""Stands in a statement for the rows that SQLite is given with it."""


class _Given(FunctionElement[Any]):
    """Rows with the columns `column1`, `column2` …: from an array for each of them, so that the statement is the same
    for any number of rows; on SQLite from values."""

    inherit_cache = True


@compiles(_Given, "postgresql")
def _given_postgresql(element: _Given, compiler: SQLCompiler, **how: Any) -> str:
    names = ", ".join(f"column{place}" for place in range(1, len(element.clauses) + 1))
    return f"(SELECT * FROM unnest({compiler.process(element.clauses, **how)}) AS given ({names}))"  # noqa: S608 (no text from outside)


@compiles(_Given, "sqlite")
def _given_sqlite(_element: _Given, _compiler: SQLCompiler, **_: object) -> str:
    return _ROWS


def rows_given(fields: Mapping[str, type]) -> sa.FromClause:
    """The rows that a statement is given."""
    columns = {f"column{place}": name for place, name in enumerate(fields, 1)}
    kinds = [postgresql.ARRAY(sa.BigInteger if kind is int else sa.Text) for kind in fields.values()]
    arrays = [sa.cast(sa.bindparam(column), kind) for column, kind in zip(columns, kinds, strict=True)]
    given = _Given(*arrays).table_valued(*columns)
    return sa.select(*(given.c[column].label(name) for column, name in columns.items())).subquery()


def among(*columns: sa.Column[Any]) -> sa.ColumnElement[bool]:
    """Whether a row is one of those that a statement is given, by these columns. For mere values SQLite would read the
    whole table instead of an index."""
    given = rows_given({column.name: column.type.python_type for column in columns})
    return sa.tuple_(*columns).in_(sa.select(*given.c))


class is_found(FunctionElement[Any]):  # noqa: N801 (named as SQL functions are)
    """Whether a column has one of the values that a query finds, which is asked once. Of a plain IN, PostgreSQL asks it
    again for each row of a table that it takes to be empty, as it was when it was last vacuumed."""

    inherit_cache = True  # and no type: of a Boolean, SQLite compares the result instead of using an index

    def __init__(self, column: sa.ColumnElement[Any], asked: sa.Select[Any]) -> None:
        super().__init__(column, asked.scalar_subquery())


@compiles(is_found, "postgresql")
def _found_postgresql(element: is_found, compiler: SQLCompiler, **how: Any) -> str:
    column, asked = (compiler.process(clause, **how) for clause in element.clauses)
    return f"{column} = ANY (ARRAY{asked})"


@compiles(is_found, "sqlite")
def _found_sqlite(element: is_found, compiler: SQLCompiler, **how: Any) -> str:
    column, asked = (compiler.process(clause, **how) for clause in element.clauses)
    return f"{column} IN {asked}"


class _place(FunctionElement[Any]):  # noqa: N801 (named as SQL functions are)
    """Where a row lies, in a statement about one table."""

    inherit_cache = True


@compiles(_place, "postgresql")
def _place_postgresql(_element: _place, _compiler: SQLCompiler, **_: object) -> str:
    return "ctid"


@compiles(_place, "sqlite")
def _place_sqlite(_element: _place, _compiler: SQLCompiler, **_: object) -> str:
    return "rowid"


def delete_some(table: sa.Table, *where: sa.ColumnElement[bool]) -> sa.Delete:
    """Deletes SAVED rows at most, without those that others have locked."""
    old = sa.select(_place()).select_from(table).where(*where).limit(SAVED).with_for_update(skip_locked=True)
    return sa.delete(table).where(is_found(_place(), old))


async def execute(connection: AsyncConnection, statement: Statement, rows: Sequence[Sequence[Any]]) -> Sequence[Any]:
    """Execute a constant statement with `rows_given`; it changes nothing more if one of them comes again. Returns what
    it returns; on SQLite the rows of a SELECT in any order, and perhaps more than once."""
    found = list[Any]()
    for start in range(0, len(rows), SAVED):
        some = rows[start : start + SAVED]
        if connection.dialect.name == "sqlite":
            found += await _in_sqlite(connection, statement, some)
        else:
            arrays = {f"column{place}": list(values) for place, values in enumerate(zip(*some, strict=True), 1)}
            done = await connection.execute(statement, arrays)
            found += done.all() if done.returns_rows else ()
    return found


async def _in_sqlite(connection: AsyncConnection, statement: Statement, rows: Sequence[Sequence[Any]]) -> Sequence[Any]:
    driver: Any = (await connection.get_raw_connection()).driver_connection
    # Of few lengths, because a statement costs more to prepare than to execute.
    length = 1 << (len(rows) - 1).bit_length()
    filled = [*rows, *[rows[-1]] * (length - len(rows))]
    row = f"({', '.join('?' * len(rows[0]))})"
    text = _compiled(statement).replace(_ROWS, f"(VALUES {', '.join([row] * length)})")
    found: Sequence[Any] = await driver.execute_fetchall(text, [*chain.from_iterable(filled)])
    return _of_json(found[0][0]) if isinstance(statement, sa.Select) else found


@cache
def _compiled(statement: Statement) -> str:
    said = _as_json(statement) if isinstance(statement, sa.Select) else statement
    return str(said.compile(dialect=sqlite.dialect(), compile_kwargs={"literal_binds": True}))


async def fetch(connection: AsyncConnection, asked: sa.Select[Any]) -> list[tuple[Any, ...]]:
    """The rows of numbers and texts that are asked for; on SQLite in any order."""
    if connection.dialect.name == "sqlite":
        return _of_json((await connection.execute(_as_json(asked))).scalar_one())
    return [tuple(row) for row in await connection.execute(asked)]


def _as_json(asked: sa.Select[Any]) -> sa.Select[Any]:
    """What asks SQLite for the same rows, in any order, in one value."""
    each = asked.subquery()
    return sa.select(sa.func.json_group_array(sa.func.json_array(*each.c)))


def _of_json(value: str) -> list[tuple[Any, ...]]:
    return [*map(tuple, decode(value))]
