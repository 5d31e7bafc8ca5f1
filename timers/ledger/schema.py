"""Owns the tables of the ledger: what each is for, its columns and its indexes.

Times are epoch milliseconds of the Redis server's clock, as in records, except `at` of the inbox, which is the SQL
server's. All names begin with `timers_`, so that the ledger may lie in an application's own database. A change of a
table needs a migration, see `migrations/`. Statements with ON CONFLICT are SQLAlchemy's for PostgreSQL: SQLite has the
same syntax, and SQLAlchemy compiles them for it too.
"""

from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement

metadata: Final = sa.MetaData()

VERSION_TABLE: Final = "timers_schema"
"""Where Alembic keeps which migration the database has."""

UPGRADE: Final = "run `timers db upgrade`"

LIVE: Final = ("scheduled", "running")
PURGED: Final = "purged"
"""The status of a row whose timer was removed; it goes some time later. A record that is merely missing proves
nothing, so no row is deleted without this."""

# Names are ASCII: comparing bytes is cheaper than a language's order, and the same in every database.
_NAME: Final = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


class now_ms(FunctionElement[int]):  # noqa: N801 (named as SQL functions are)
    """The SQL server's time in epoch ms."""

    type = sa.BigInteger()
    inherit_cache = True


@compiles(now_ms, "postgresql")
def _now_postgresql(_element: now_ms, _compiler: SQLCompiler, **_: object) -> str:
    return "(extract(epoch from clock_timestamp()) * 1000)::bigint"


@compiles(now_ms, "sqlite")
def _now_sqlite(_element: now_ms, _compiler: SQLCompiler, **_: object) -> str:
    return "(CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER))"


class size_of(FunctionElement[int]):  # noqa: N801 (named as SQL functions are)
    """How many bytes a text has. PostgreSQL knows without reading it."""

    type = sa.BigInteger()
    inherit_cache = True


@compiles(size_of, "postgresql")
def _size_postgresql(element: size_of, compiler: SQLCompiler, **how: Any) -> str:
    return f"octet_length({compiler.process(element.clauses, **how)})"


@compiles(size_of, "sqlite")
def _size_sqlite(element: size_of, compiler: SQLCompiler, **how: Any) -> str:
    return f"length(CAST({compiler.process(element.clauses, **how)} AS BLOB))"


def _names(*columns: str) -> list[sa.Column[str]]:
    """Columns of the primary key."""
    return [sa.Column(column, _NAME, primary_key=True) for column in columns]


def _columns(kind: type[sa.Text] | type[sa.BigInteger] | type[sa.Integer], *columns: str) -> list[sa.Column[Any]]:
    return [sa.Column(column, kind, nullable=False) for column in columns]


def _index(name: str, where: sa.ColumnElement[bool], *columns: sa.Column[Any]) -> None:
    sa.Index(name, *columns, sqlite_where=where, postgresql_where=where)


timers: Final = sa.Table(
    "timers_timers",
    metadata,
    *_names("prefix", "id"),
    *_columns(sa.Integer, "shard"),
    *_columns(sa.Text, "status"),
    *_columns(sa.BigInteger, "version", "token", "attempt", "failures", "occurrence", "due", "created", "changed"),
    *_columns(sa.Text, "spec", "progress", "history"),
    sa.Column("pending", sa.Boolean, nullable=False, server_default=sa.false()),
)
"""A row for each timer: its record, `spec`, `progress` and `history` as the record has them. `pending`: Redis was away
when a caller armed it, and has yet to be given it."""

IS_LIVE: Final = timers.c.status.in_([sa.literal_column(f"'{status}'") for status in LIVE])
IS_GONE: Final = timers.c.status == sa.literal_column(f"'{PURGED}'")
IS_PENDING: Final[sa.ColumnElement[bool]] = sa.literal_column("timers_timers.pending")
"""Conditions as the partial indexes have them: SQLite uses one only for a statement with the very same text. With
parameters, or with `pending = 1` as SQLAlchemy says it there, it reads the whole table."""

_index("timers_timers_live", IS_LIVE, timers.c.shard, timers.c.due)
# Not by shard first, and not of a part: SQLite would use it for pages by name, and sort the whole shard for each.
sa.Index("timers_timers_changed", timers.c.changed, timers.c.shard)
_index("timers_timers_purged", IS_GONE, timers.c.changed, timers.c.shard)
_index("timers_timers_pending", timers.c.pending, timers.c.shard)

facts: Final = sa.Table("timers_facts", metadata, *_names("kind", "name"), *_columns(sa.Text, "value"))
"""What else a db needs to go on as before: `declared` prefixes, `paused` prefixes, API `key`s; and the `life` of each
shard, what comparisons found (`drift`), and when pods last followed (`agreed`)."""

epochs: Final = sa.Table(
    "timers_epochs",
    metadata,
    *_names("epoch", "server"),
    *_columns(sa.Integer, "shards"),
    *_columns(sa.BigInteger, "made", "seen"),
)
"""The dbs that have used this ledger, each as `<epoch>/<number>`, and on which Redis server: since when, and when a pod
last said so, both by the SQL server's clock."""

inbox: Final = sa.Table(
    "timers_inbox",
    metadata,
    sa.Column("seq", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), sa.Identity(), primary_key=True),
    *_columns(sa.Text, "prefix", "id", "action"),
    sa.Column("body", sa.Text, nullable=False, server_default="{}"),
    sa.Column("at", sa.BigInteger, nullable=False, server_default=now_ms()),
    sqlite_autoincrement=True,
)
"""What transactions ask for: rows are taken in order and deleted. `at` is when, by the SQL server's clock."""

sa.Index("timers_inbox_identity", inbox.c.prefix, inbox.c.id, inbox.c.seq)

refused: Final = sa.Table(
    "timers_inbox_refused",
    metadata,
    sa.Column("seq", sa.BigInteger, primary_key=True, autoincrement=False),
    *_columns(sa.Text, "prefix", "id", "action", "body"),
    *_columns(sa.BigInteger, "at"),
    *_columns(sa.Text, "problem"),
)
"""Rows of the inbox that could not be carried out, and why. A person deletes them."""

effects: Final = sa.Table(
    "timers_effects",
    metadata,
    *_names("prefix", "id"),
    sa.Column("created", sa.BigInteger, primary_key=True, autoincrement=False),
    *_columns(sa.BigInteger, "occurrence"),
    *_columns(sa.Text, "outcome"),
    *_columns(sa.BigInteger, "at"),
)
"""For `once`: the newest occurrence of a timer whose effects were committed, and how its run ended."""

sa.Index("timers_effects_at", effects.c.at)
