"""Owns statements that write or read many rows at once, in one step of the database.

SQLite's driver gives the interpreter's lock away for each row that it reads or that `executemany` writes, and its
thread hands over to the event loop several times a statement. Where the loop has work, and other processes the cores,
each of these waits for its turn: a thousand rows took a hundred times as long as in one step, and other writers waited
meanwhile. So a statement writes all its rows, and reads them in one value.
"""

from collections.abc import Collection, Mapping, Sequence
from functools import cache
from itertools import chain
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection

from timers.core.fields import decode, encode

Statement = sa.Insert | sa.Select[Any]

_ROWS: Final = "rows_given"
"""Stands in a statement for the rows that SQLite is given with it."""


def rows_given(dialect: str, fields: Mapping[str, type]) -> sa.FromClause:
    """The rows that a statement is given: values on SQLite; elsewhere an array for each column, so that the statement
    is the same for any number of rows."""
    if dialect == "sqlite":
        parts: list[sa.Label[Any]] = [
            sa.literal_column(f"column{place}").label(name) for place, name in enumerate(fields, 1)
        ]
        return sa.select(*parts).select_from(sa.table(_ROWS)).subquery()
    arrays = [
        sa.cast(sa.bindparam(name), postgresql.ARRAY(sa.BigInteger if kind is int else sa.Text))
        for name, kind in fields.items()
    ]
    return sa.func.unnest(*arrays).table_valued(*fields).render_derived()


async def execute(connection: AsyncConnection, statement: Statement, rows: Sequence[Any]) -> Sequence[Any]:
    """Execute a constant statement with `rows_given`, named tuples of its fields; it changes nothing more if one of
    them comes again. Returns what it returns."""
    if connection.dialect.name == "sqlite":
        driver: Any = (await connection.get_raw_connection()).driver_connection
        # Of few lengths, because a statement costs more to prepare than to execute.
        length = 1 << (len(rows) - 1).bit_length()
        filled = [*rows, *[rows[-1]] * (length - len(rows))]
        found: Sequence[Any] = await driver.execute_fetchall(
            _with_rows(statement, length, len(rows[0])), [*chain.from_iterable(filled)]
        )
        return found
    arrays = dict(zip(rows[0]._fields, map(list, zip(*rows, strict=True)), strict=True))
    done = await connection.execute(statement, arrays)
    return done.all() if done.returns_rows else ()


def among(
    connection: AsyncConnection, columns: Sequence[sa.Column[Any]], wanted: Collection[Sequence[Any]]
) -> sa.ColumnElement[bool]:
    """Whether a row is one of those that are wanted, any number of them, by these columns. SQLite uses no index where
    they stand in the statement: it would read the whole table."""
    if connection.dialect.name == "sqlite":
        each = sa.func.json_each(encode(list(wanted))).table_valued("value")
        given = sa.select(*(sa.func.json_extract(each.c.value, f"$[{place}]") for place in range(len(columns))))
    else:
        arrays = [
            sa.cast([row[place] for row in wanted], postgresql.ARRAY(sa.BigInteger if kind is int else sa.Text))
            for place, kind in enumerate(column.type.python_type for column in columns)
        ]
        given = sa.select(*sa.func.unnest(*arrays).table_valued(*(c.name for c in columns)).render_derived().c)
    return sa.tuple_(*columns).in_(given)


async def fetch(connection: AsyncConnection, asked: sa.Select[Any]) -> list[tuple[Any, ...]]:
    """The rows of numbers and texts that are asked for; on SQLite in any order."""
    if connection.dialect.name == "sqlite":
        return of_json((await connection.execute(as_json(asked))).scalar_one())
    return [tuple(row) for row in await connection.execute(asked)]


def as_json(asked: sa.Select[Any]) -> sa.Select[Any]:
    """What asks SQLite for the same rows, in any order, in one value."""
    each = asked.subquery()
    return sa.select(sa.func.json_group_array(sa.func.json_array(*each.c)))


def of_json(value: str) -> list[tuple[Any, ...]]:
    """The rows that `as_json` has asked for."""
    return [*map(tuple, decode(value))]


def _with_rows(statement: Statement, rows: int, columns: int) -> str:
    row = f"({', '.join('?' * columns)})"
    return _compiled(statement).replace(_ROWS, f"(VALUES {', '.join([row] * rows)})")


@cache
def _compiled(statement: Statement) -> str:
    return str(statement.compile(dialect=sqlite.dialect(), compile_kwargs={"literal_binds": True}))
