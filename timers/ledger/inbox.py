"""Owns the rows of the inbox: how pods take them, that each is done once and in order, and those that were refused.

A row is deleted by being taken, in the transaction that carries it out. Nobody reads up to a number: a row that is
committed later may have a lower one.
"""

import re
from collections.abc import Collection, Iterable, Sequence
from itertools import count
from operator import itemgetter
from typing import Any, Final, NamedTuple

import sqlalchemy as sa
from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement

from timers.ledger.many import among, execute, is_found
from timers.ledger.schema import inbox, now_ms, refused, size_of

TAKEN: Final = 500
"""The most rows of one transaction."""

TAKEN_BYTES: Final = 1 << 22
"""How much of the bodies one transaction takes, and at least one row: anybody may write bodies of any size, and a pod
may have half a GiB."""

CHANNEL: Final = "timers_inbox"

_TRIGGER: Final = (
    f"""CREATE OR REPLACE FUNCTION timers_inbox_notify() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN PERFORM pg_notify('{CHANNEL}', ''); RETURN NULL; END $$""",
    """CREATE OR REPLACE TRIGGER timers_inbox_notify AFTER INSERT ON timers_inbox
    FOR EACH STATEMENT EXECUTE FUNCTION timers_inbox_notify()""",
)
_NO_TRIGGER: Final = ("DROP FUNCTION IF EXISTS timers_inbox_notify CASCADE",)
_HAS_TRIGGER: Final = sa.text(
    "SELECT 1 FROM pg_trigger WHERE tgrelid = 'timers_inbox'::regclass AND tgname = 'timers_inbox_notify'"
)


class Taken(NamedTuple):
    """A row of the inbox. `age_ms` is how long ago it was written, by the SQL server's clock alone. `ended_by` is of
    which later row, by its mark, that cancels or purges what this one creates, and its action."""

    seq: int
    prefix: str
    id: str
    action: str
    body: str
    at: int
    age_ms: int
    ended_by: tuple[str, str] | None = None

    @property
    def mark(self) -> str:
        """What tells it from every other row, also of a database that begins to count anew."""
        return f"{self.seq}.{self.at}"


async def waited_ms(connection: AsyncConnection) -> int | None:
    """How long the first row has waited, by the SQL server's clock; None if there is none."""
    asked = sa.select(*inbox.c, now_ms()).order_by(inbox.c.seq).limit(1)
    first = (await connection.execute(asked)).first()
    return None if first is None else _taken(first).age_ms


async def waits_for(connection: AsyncConnection, identities: Sequence[tuple[str, str]]) -> bool:
    """Whether there are rows for one of these timers."""
    return bool(await execute(connection, _WAITING, identities))


async def take(connection: AsyncConnection, most: int = TAKEN, *, without: Collection[int] = ()) -> list[Taken]:
    """Take rows out that no other pod has, oldest first, as far as TAKEN_BYTES go: of each timer only the first, so
    that the others follow in order. Leaves those `without`, by number. If the transaction is undone they are back."""
    found = await connection.execute(_TAKE, {"most": most, "without": list(without)})
    return [_taken(row)._replace(ended_by=_ended_by(end)) for *row, end in sorted(found, key=itemgetter(0))]


async def put_back(connection: AsyncConnection, taken: Iterable[Taken]) -> None:
    """Put rows back that were taken in this transaction, as they were."""
    if some := [{name: value for name, value in row._asdict().items() if name in inbox.c} for row in taken]:
        await connection.execute(inbox.insert(), some)


async def has_others(connection: AsyncConnection, without: Collection[int]) -> bool:
    """Whether there are rows besides these, by number, and those that follow them; some pod may be carrying them
    out."""
    return (await connection.execute(_FIRSTS.limit(1), {"without": list(without)})).first() is not None


async def refuse(connection: AsyncConnection, problems: Sequence[tuple[Taken, str]]) -> None:
    """Keep rows with a problem where a person finds them."""
    if not problems:
        return
    rows = [{**row._asdict(), "problem": problem.replace("\0", "\ufffd")} for row, problem in problems]
    asked = sa.select(refused.c.seq).where(refused.c.seq.in_([row["seq"] for row in rows]))
    there = {seq for (seq,) in await connection.execute(asked)}
    if there:  # refused before and inserted again, or the inbox counts anew: both stay
        newest = (await connection.execute(sa.select(sa.func.max(refused.c.seq)))).scalar_one()
        free = count(max(newest, *(row["seq"] for row in rows)) + 1)
        rows = [{**row, "seq": next(free)} if row["seq"] in there else row for row in rows]
    await connection.execute(refused.insert(), [{c.name: row[c.name] for c in refused.c} for row in rows])


async def count_refused(connection: AsyncConnection) -> int:
    """How many rows were refused and not deleted since."""
    return (await connection.execute(sa.select(sa.func.count()).select_from(refused))).scalar_one()


async def last_refused(connection: AsyncConnection, most: int) -> list[tuple[str, str, str]]:
    """Prefix, id and problem of the newest rows that were refused."""
    asked = sa.select(refused.c.prefix, refused.c.id, refused.c.problem).order_by(refused.c.seq.desc()).limit(most)
    return [(row.prefix, row.id, row.problem) for row in await connection.execute(asked)]


async def present(connection: AsyncConnection, marks: Iterable[str]) -> set[str]:
    """Which of these rows are still there."""
    seqs = [int(seq) for mark in marks if (seq := mark.partition(".")[0]).isdigit()]
    found = await connection.execute(sa.select(inbox.c.seq, inbox.c.at).where(inbox.c.seq.in_(seqs)))
    return {f"{seq}.{at}" for seq, at in found}


def set_notify(connection: Connection, *, notify: bool) -> None:
    """Let each statement that inserts rows notify the pods, or let none. Only a change waits for the transactions that
    have written rows, and others wait for it meanwhile."""
    if connection.dialect.name == "postgresql" and notify != (connection.execute(_HAS_TRIGGER).first() is not None):
        for statement in _TRIGGER if notify else _NO_TRIGGER:
            connection.execute(sa.text(statement))


def _taken(row: Any) -> Taken:
    """SQLite takes a value of any type. A row whose time is none is as if it were written now."""
    seq, *values, at, now = row
    prefix, timer_id, action, body = map(_text, values)
    at = at if isinstance(at, int) else now
    return Taken(seq, prefix, timer_id, action, body, at, max(now - at, 0))


def _ended_by(end: Any) -> tuple[str, str] | None:
    found = _END_OF_CREATE.fullmatch(end) if isinstance(end, str) else None
    return None if found is None else (found[1], found[2])


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


class _is_first(FunctionElement[bool]):  # noqa: N801 (named as SQL functions are)
    """Whether no earlier row of the same timer is there. Each is asked in the index: of a plain NOT EXISTS, PostgreSQL
    makes a join that compares all rows of one timer with each other."""

    type = sa.Boolean()
    inherit_cache = True


@compiles(_is_first, "postgresql")
def _first_postgresql(_element: _is_first, _compiler: SQLCompiler, **_: object) -> str:
    """Whether the row before it in the index is of another timer."""
    return """(
        SELECT (earlier.prefix, earlier.id) = (timers_inbox.prefix, timers_inbox.id) FROM timers_inbox AS earlier
        WHERE (earlier.prefix, earlier.id, earlier.seq) < (timers_inbox.prefix, timers_inbox.id, timers_inbox.seq)
        ORDER BY earlier.prefix DESC, earlier.id DESC, earlier.seq DESC LIMIT 1
    ) IS NOT TRUE"""


@compiles(_is_first, "sqlite")
def _first_sqlite(_element: _is_first, _compiler: SQLCompiler, **_: object) -> str:
    return """NOT EXISTS (
        SELECT 1 FROM timers_inbox AS earlier WHERE earlier.prefix = timers_inbox.prefix
        AND earlier.id = timers_inbox.id AND earlier.seq < timers_inbox.seq
    )"""


# Of a deleted row's texts as they are, SQLite 3.40 finds no others in an index, but of what is made of them it does.
# The order has all of the index's columns: else PostgreSQL may read all later rows, of whatever timer.
_END: Final[sa.ColumnElement[str]] = sa.literal_column("""(
    SELECT CAST(later.seq AS TEXT) || '.' || CAST(later.at AS TEXT) || ' ' || later.action
    FROM timers_inbox AS later WHERE timers_inbox.action = 'create'
    AND (later.prefix, later.id, later.seq) > (timers_inbox.prefix || '', timers_inbox.id || '', timers_inbox.seq)
    AND (later.prefix, later.id) <= (timers_inbox.prefix || '', timers_inbox.id || '')
    AND later.action IN ('cancel', 'purge', 'retry') ORDER BY later.prefix, later.id, later.seq LIMIT 1
)""")
"""Mark and action of the first later row that ends the timer of a create, or arms it once it has ended."""

_ASIDE: Final = inbox.c.seq.in_(sa.bindparam("without", expanding=True))
_FIRSTS: Final = sa.select(inbox.c.seq).where(~_ASIDE, _is_first()).order_by(inbox.c.seq)
_SIZED: Final = _FIRSTS.add_columns(size_of(inbox.c.body).label("size"))
_FREE: Final = _SIZED.limit(sa.bindparam("most")).with_for_update(skip_locked=True, of=inbox).subquery()
_UNTIL: Final = sa.func.sum(_FREE.c.size).over(order_by=_FREE.c.seq)
_FITTING: Final = sa.select(_FREE.c.seq, (_UNTIL - _FREE.c.size).label("before")).subquery()
_TAKEN: Final = sa.select(_FITTING.c.seq).where(_FITTING.c.before < TAKEN_BYTES)
_END_OF_CREATE: Final = re.compile(r"([0-9]+\.-?[0-9]+) (cancel|purge)")  # a retry would arm it again
_TAKE: Final = inbox.delete().where(is_found(inbox.c.seq, _TAKEN)).returning(*inbox.c, now_ms(), _END)
_WAITING: Final = sa.select(inbox.c.seq).where(among(inbox.c.prefix, inbox.c.id))
