"""Owns statements that write or read many rows at once, in one step of the database.

SQLite's driver gives the interpreter's lock away for each row, and its thread hands over to the event loop several
times a statement. Where the loop has work, and other processes the cores, each of these waits for its turn: a thousand
rows took a hundred times as long as one value that has them all, and other writers waited meanwhile.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection

from timers.core.fields import decode, encode

Statement = sa.Insert | sa.Select[Any]

_ROWS: Final = "rows"
_NAMED: Final = sqlite.dialect(paramstyle="named")


def rows_given(dialect: str, fields: Mapping[str, type]) -> sa.FromClause:
    """The rows that a statement is given: a list of lists in JSON, or an array for each column, so that the statement
    is the same for any number of rows."""
    if dialect == "sqlite":
        each = sa.func.json_each(sa.bindparam(_ROWS, type_=sa.Text)).table_valued("value")
        parts = [sa.func.json_extract(each.c.value, f"$[{place}]").label(name) for place, name in enumerate(fields)]
        return sa.select(*parts).subquery()
    arrays = [
        sa.cast(sa.bindparam(name), postgresql.ARRAY(sa.BigInteger if kind is int else sa.Text))
        for name, kind in fields.items()
    ]
    return sa.func.unnest(*arrays).table_valued(*fields).render_derived()


async def execute(connection: AsyncConnection, statement: Statement, rows: Sequence[Any]) -> Sequence[Any]:
    """Execute a constant statement with `rows_given`, named tuples of its fields. Returns what it returns."""
    if connection.dialect.name == "sqlite":
        text, parameters = _compiled(statement)
        driver: Any = (await connection.get_raw_connection()).driver_connection
        found: Sequence[Any] = await driver.execute_fetchall(text, {**parameters, _ROWS: encode(rows)})
        return found
    arrays = dict(zip(rows[0]._fields, map(list, zip(*rows, strict=True)), strict=True))
    done = await connection.execute(statement, arrays)
    return done.all() if done.returns_rows else ()


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


@cache
def _compiled(statement: Statement) -> tuple[str, Mapping[str, Any]]:
    compiled = statement.compile(dialect=_NAMED)
    return str(compiled), compiled.params
