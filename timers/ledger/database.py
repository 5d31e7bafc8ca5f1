"""Owns the connection to the ledger's database: how it is opened, its errors, and the state of its tables."""

import asyncio
import inspect
import os
import re
import socket
import sqlite3
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator
from contextlib import asynccontextmanager, contextmanager
from math import inf
from pathlib import Path
from secrets import token_hex
from typing import Any, Final, NamedTuple, TypeVar

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import URL, Connection, Text, event, false, make_url, text, update
from sqlalchemy.engine.interfaces import Dialect
from sqlalchemy.exc import ArgumentError, DBAPIError, DisconnectionError, NoSuchModuleError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlalchemy.pool import ConnectionPoolEntry

from timers.errors import ConfigurationError, LedgerUnavailable, shown
from timers.ledger.facts import older
from timers.ledger.inbox import set_notify, waited_ms
from timers.ledger.schema import UPGRADE, VERSION_TABLE, metadata, timers
from timers.ledger.sqlite import SqliteFile, begin
from timers.logs import request_id
from timers.setting_values import LEDGER_URL

T = TypeVar("T")

BUSY_SECONDS: Final = 5.0
"""How long a call waits for a connection, and on SQLite for another writer."""

SLOW_SECONDS: Final = 0.5
"""A database that is well has answered by then."""

LONGEST_SECONDS: Final = 30.0
"""How long a transaction may take. A connection that is dead without a sign would keep callers for a quarter of an
hour."""

END_SECONDS: Final = 1.0
"""How long a transaction may take to end whose caller was cancelled, or whose connection was cut."""

REST_SECONDS: Final = 1.0
"""A connection that nobody has used for so long is tried before it is used: its server may have closed it since."""

CONNECTIONS: Final = 8
"""The most connections of one process. Callers at the same time share transactions."""

SQLITE: Final = (3, 35)
"""Earlier ones know no RETURNING, and take too few parameters in a statement."""

MAX_PORT: Final = 65_535

_TRIED_AT: Final = "tried at"
_MIGRATIONS: Final = Path(__file__).with_name("migrations")
_ERRORS: Final[tuple[type[Exception], ...]] = (SQLAlchemyError, sqlite3.Error, OSError, TimeoutError)
_AWAY: Final = "the ledger is not available"
_LACKING: Final = text("""
    SELECT wanted || ' on ' || name
    FROM unnest(CAST(:names AS text[])) name, unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) wanted
    WHERE NOT has_table_privilege(name, wanted)
""")
_ONE_UPGRADE: Final = text(f"SELECT pg_advisory_xact_lock(hashtext('{VERSION_TABLE}'))")
"""Waits until no other upgrade is under way. There may be no table yet to lock."""

_ROOM: Final = {"postgresql": 1 << 10, "sqlite": 1 << 16}
"""How large the row is by which to see whether there is room: on SQLite more than any page has left. PostgreSQL keeps
what is undone until it cleans up."""

ROOM_SECONDS: Final = 30.0
"""How often a look makes sure that there is room, while nothing is wrong: PostgreSQL cleans up after it."""

_LACKS: Final = re.compile(r"no such (table|column)|(relation|column) .+ does not exist")
_ENCODING: Final = "UTF8"
"""The only one that holds every text: in another, one timer's payload would keep all others from being copied."""

# PgBouncer gives each transaction another connection, which does not know the statements prepared on the one before.
_UNPREPARED: Final[dict[str, dict[str, Any]]] = {
    "asyncpg": {"statement_cache_size": 0, "prepared_statement_cache_size": 0, "timeout": BUSY_SECONDS},
    "psycopg": {"prepare_threshold": None, "connect_timeout": int(BUSY_SECONDS), "client_encoding": _ENCODING},
}


class SchemaState(NamedTuple):
    """Which migration the database has, the newest that this version has, whether it has one of a later version, and
    its encoding."""

    found: str | None
    newest: str
    is_later: bool
    encoding: str = _ENCODING

    @property
    def is_foreign(self) -> bool:
        """Whether an upgrade does not help."""
        return self.is_later or self.encoding != _ENCODING

    @property
    def problem(self) -> str | None:
        """Why this version cannot use the database; None if it can."""
        if self.encoding != _ENCODING:
            return f"its encoding is {self.encoding}; make a database with ENCODING '{_ENCODING}'"
        if self.found == self.newest:
            return None
        if self.found is None:
            return f"it has no tables of the ledger yet: {UPGRADE}"
        if not self.is_later:
            return f"its tables are of an earlier version ({self.found}, this one needs {self.newest}): {UPGRADE}"
        return f"its tables are of a later version ({self.found}, this one knows up to {self.newest}): use that version"


Work = Callable[[AsyncConnection], Awaitable[T]]


class Database:
    """The ledger's database. Safe to share within an event loop. Every call raises LedgerUnavailable while the
    database is away."""

    def __init__(self, url: str) -> None:
        """Opens nothing yet. Raises ConfigurationError for a URL that cannot be used, without its password."""
        self._file = SqliteFile()
        self.engine = _engine(url, self._file)
        self.dialect = self.engine.dialect.name
        self._free = asyncio.Semaphore(1 if self.dialect == "sqlite" else CONNECTIONS)
        self.failures = 0
        """How often an access has failed: behind its URL there may be another server since, which lacks the last
        commits."""
        if self.dialect == "postgresql":
            event.listen(self.engine.sync_engine, "checkin", _rest)
            event.listen(self.engine.sync_engine, "checkout", self._after_rest)
        self._failed: str | None = None
        self._has_no_room: str | None = None
        """Why the last look found that no row could be added. Other accesses do not tell that there is room again: most
        of what pods write while nothing happens changes no row."""
        self._room_until = 0.0
        """Until then there was room when last looked, and no access has failed since."""
        self._older: str | None = None
        """Why it is used for nothing but to look again: it was set back, and what was removed since would come back."""
        self._under_way: list[tuple[float, str | None]] = []
        """Since when, and the request for which, if it is for one."""

    def _after_rest(self, driver: Any, record: ConnectionPoolEntry, _lent: object) -> None:
        """Raises DisconnectionError, for which the pool opens another, for a connection that does not work any more."""
        if time.monotonic() < record.info.get(_TRIED_AT, inf):
            return
        dialect = self.engine.dialect
        try:
            dialect.do_ping(driver)
        except dialect.loaded_dbapi.Error as error:
            self.failures += 1
            raise DisconnectionError from error

    @property
    def trouble(self) -> str | None:
        """Why an access did not work, if none that writes has worked since, or that one has had no answer for long, or
        that no row can be added. None if all is well."""
        waited = time.monotonic() - min((began for began, _ in self._under_way), default=inf)
        late = f"{_AWAY}: no answer for {waited:.0f} s" if waited > BUSY_SECONDS else None
        return late or self._older or self._failed or self._has_no_room

    def requests_waiting(self) -> frozenset[str]:
        """The ids of the requests whose accesses have had no answer for more than a moment."""
        before = time.monotonic() - SLOW_SECONDS
        return frozenset(request for began, request in self._under_way if request is not None and began < before)

    async def close(self) -> None:
        """Close all connections."""
        await self.engine.dispose()
        await self._file.closed(BUSY_SECONDS)

    @asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        """The right to one of its connections: who waits for the pool itself does not learn that an attempt to connect
        has failed."""
        try:
            async with asyncio.timeout(BUSY_SECONDS):
                await self._free.acquire()
        except TimeoutError:
            raise LedgerUnavailable(f"{_AWAY}: all connections were busy for {BUSY_SECONDS:g} s") from None
        try:
            yield
        finally:
            self._free.release()

    @asynccontextmanager
    async def transaction(self, *, writes: bool = True, looks: bool = False) -> AsyncIterator[AsyncConnection]:
        """A transaction, committed at the end. On SQLite one that `writes` has the only right to write from the
        start. One that `looks` whether the database was set back is let through although it was."""
        if self._older and not looks:
            raise LedgerUnavailable(self._older)
        access = time.monotonic(), request_id.get()
        self._under_way.append(access)
        try:
            with translated():
                async with self.place():
                    if not self._file.is_there:
                        await self._reopen()
                    async with self.engine.execution_options(writes=writes).begin() as connection:
                        yield connection
            if writes:  # it may be read while nothing can be written
                self._failed = None
        except LedgerUnavailable as error:
            self._failed, self._room_until = str(error), 0.0
            self.failures += 1
            raise
        finally:
            self._under_way.remove(access)

    async def _reopen(self) -> None:
        """Close SQLite's file, which was removed or replaced, so that the one in its place is opened next. Raises
        LedgerUnavailable until there is one with the ledger's tables."""
        await self.engine.dispose()
        if not await asyncio.to_thread(self._file.has_successor):
            raise LedgerUnavailable(f"{_AWAY}: its file was removed or replaced; put it back, or {UPGRADE}")

    async def do(self, work: Work[T], *, writes: bool = True, looks: bool = False) -> T:
        """Do something in a transaction of its own. If it takes LONGEST_SECONDS, raises LedgerUnavailable, and it may
        have been committed. A caller that is cancelled waits a moment for it, because a connection cannot be used again
        after a call that nobody waits for."""
        drivers = list[Any]()
        doing = asyncio.create_task(self._do(work, writes, looks, drivers))
        try:
            if (await asyncio.wait({doing}, timeout=LONGEST_SECONDS))[0]:
                return doing.result()
        except asyncio.CancelledError:
            await asyncio.wait({doing}, timeout=END_SECONDS)
            await _end(doing, drivers)
            raise
        await _end(doing, drivers)
        raise LedgerUnavailable(f"{_AWAY}: no answer for {LONGEST_SECONDS:g} s")

    async def _do(self, work: Work[T], writes: bool, looks: bool, drivers: list[Any]) -> T:
        async with self.transaction(writes=writes, looks=looks) as connection:
            if self.dialect == "postgresql":
                drivers.append((await connection.get_raw_connection()).driver_connection)
            return await work(connection)

    async def do_unless_older(self, told_ms: int | None, work: Work[T]) -> T:
        """As `do`. If the database says that pods followed last long before the time that Redis was told, raises
        LedgerUnavailable, and so does every other access until it is asked again. None changes nothing about that."""

        async def look(connection: AsyncConnection) -> T:
            if told_ms is not None:
                self._older = await older(connection, told_ms)
            if self._older:
                raise LedgerUnavailable(self._older)
            return await work(connection)

        return await self.do(look, looks=True)

    async def ping(self, told_ms: int | None = None) -> None:
        """Make sure that the database answers, lets this user do with each table what pods do, and lets timers be
        written: many keep answering while they are set to read-only, or their disk is full. If it is said what Redis
        was told, also that it was not set back."""
        await self.do_unless_older(told_ms, self._look)

    async def _look(self, connection: AsyncConnection) -> None:
        await _try(connection)
        if time.monotonic() < self._room_until:
            return
        try:
            with translated():
                await _add(connection)
        except LedgerUnavailable as error:
            self._has_no_room = str(error)
            raise
        self._has_no_room, self._room_until = None, time.monotonic() + ROOM_SECONDS

    async def inbox_seconds(self) -> float:
        """How long the first row of the inbox has waited; 0 if there is none."""
        return (await self.do(waited_ms, writes=False) or 0) / 1000

    async def state(self) -> SchemaState:
        """The state of the tables. Changes nothing."""
        found, encoding = await self.do(_found, writes=False, looks=True)
        script = ScriptDirectory(str(_MIGRATIONS))
        newest = script.get_current_head() or ""
        known = {None, *(revision.revision for revision in script.walk_revisions())}
        return SchemaState(found, newest, found not in known, encoding)

    async def check(self) -> None:
        """Raises ConfigurationError, with what to do, unless the tables are those of this version."""
        if (problem := (await self.state()).problem) is not None:
            raise ConfigurationError(f"TIMERS_LEDGER_URL: the database cannot be used; {problem}")

    async def upgrade(self, *, notify: bool = True) -> None:
        """Bring the tables to the state of this version. With `notify`, a row of the inbox wakes the pods, where the
        database can do that. Makes SQLite's file. Raises ConfigurationError for a database that it does not help."""
        self._file.is_made = True
        state = await self.state()
        if state.is_foreign:
            raise ConfigurationError(f"TIMERS_LEDGER_URL: the database cannot be used; {state.problem}")
        async with self.transaction() as connection:
            await connection.run_sync(_upgrade, notify=notify)


Transacting = Database | AsyncConnection
"""What does something in a transaction: the database in one of its own, a connection in the one that is open."""


async def do(where: Transacting, work: Work[T], *, writes: bool = True) -> T:
    """As `Database.do`."""
    return await (work(where) if isinstance(where, AsyncConnection) else where.do(work, writes=writes))


async def _end(doing: asyncio.Task[Any], drivers: list[Any]) -> None:
    """End a transaction that gets no answer. Its driver asks the server to stop: one that waits for a lock would not
    notice that its connection is cut, and keep its place. If that gets no answer either, the connection is cut."""
    doing.cancel()
    await asyncio.wait({doing}, timeout=END_SECONDS)
    for driver in drivers if not doing.done() else ():
        if hasattr(driver, "terminate"):  # asyncpg
            driver.terminate()
        else:  # psycopg
            with socket.socket(fileno=os.dup(driver.fileno())) as way:
                way.shutdown(socket.SHUT_RDWR)
        await asyncio.wait({doing}, timeout=END_SECONDS)
    doing.cancel()
    await asyncio.gather(doing, return_exceptions=True)


async def _try(connection: AsyncConnection) -> None:
    """Raises LedgerUnavailable for a right that is missing."""
    if connection.dialect.name == "postgresql":
        lacking = (await connection.execute(_LACKING, {"names": list(metadata.tables)})).scalars().all()
        if lacking:
            raise LedgerUnavailable(f"{_AWAY}: its user lacks {', '.join(lacking)}")
    await connection.execute(update(timers).values(shard=0).where(false()))


async def _add(connection: AsyncConnection) -> None:
    """Add a timer, of a name that no timer can have, and undo it."""
    row: dict[str, Any] = {column.name: "" if isinstance(column.type, Text) else 0 for column in timers.c}
    row |= {"id": token_hex(8), "spec": "x" * _ROOM[connection.dialect.name], "pending": False}
    undone = await connection.begin_nested()
    await connection.execute(timers.insert(), row)
    await undone.rollback()


async def _found(connection: AsyncConnection) -> tuple[str | None, str]:
    """Its revision and its encoding."""
    said = await connection.scalar(text("SHOW server_encoding")) if connection.dialect.name == "postgresql" else None
    return await connection.run_sync(_revision), said or _ENCODING


def _revision(connection: Connection) -> str | None:
    return MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE}).get_current_revision()


def _upgrade(connection: Connection, *, notify: bool) -> None:
    if connection.dialect.name == "postgresql":
        connection.execute(_ONE_UPGRADE)  # a second one finds done what the first has done, and not half of it
    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS))
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
    metadata.create_all(connection)  # what somebody has dropped since: every error says that an upgrade makes it
    set_notify(connection, notify=notify)


def _engine(url: str, file: SqliteFile) -> AsyncEngine:
    try:
        parsed = make_url(url)
        engine = _sqlite(parsed, file) if parsed.get_backend_name() == "sqlite" else _postgresql(parsed)
    except (ArgumentError, NoSuchModuleError, KeyError, ValueError):
        raise ConfigurationError(f"TIMERS_LEDGER_URL: the given value is not accepted; expected {LEDGER_URL}") from None
    except ImportError as error:
        rule = "is missing: pip install 'redis-timers[ledger]'"
        raise ConfigurationError(f"TIMERS_LEDGER_URL: the package {error.name} {rule}") from error
    event.listen(engine.sync_engine, "do_connect", _connect)
    return engine


def _sqlite(url: URL, file: SqliteFile) -> AsyncEngine:
    """Raises ValueError for a driver that cannot be awaited, and for a database in memory, which keeps nothing."""
    if url.get_driver_name() != "aiosqlite" or url.database == ":memory:":
        raise ValueError(url.drivername)
    if sqlite3.sqlite_version_info < SQLITE:
        raise ConfigurationError(
            f"TIMERS_LEDGER_URL: Python has SQLite {sqlite3.sqlite_version}; expected 3.35 or later"
        )
    _check_options(url, ())
    # One connection: SQLite has one writer, and 16 that compete for it are slower than one.
    options = {"timeout": BUSY_SECONDS, "factory": file.open}
    engine = create_async_engine(url, connect_args=options, pool_size=1, max_overflow=0)
    event.listen(engine.sync_engine, "begin", begin)
    return engine


def _postgresql(url: URL) -> AsyncEngine:
    """Raises ValueError for a port that is none."""
    if url.port is not None and not 0 < url.port <= MAX_PORT:
        raise ValueError(url.port)
    driver = url.get_driver_name()
    options = _UNPREPARED[driver]
    _check_options(url, _asyncpg_options() if driver == "asyncpg" else _psycopg_options())
    # The statements are made for it. At another one, which the database may have as its default, they would fail
    # wherever two processes write at once.
    level = "READ COMMITTED"
    return create_async_engine(url, connect_args=options, pool_size=CONNECTIONS, max_overflow=0, isolation_level=level)


def _check_options(url: URL, known: Collection[str]) -> None:
    """Raises ConfigurationError for an option that its driver does not know. A driver would refuse it at the first
    connection, or ignore it."""
    for name in url.query:
        if name not in known:
            is_ssl = name == "sslmode" and "ssl" in known
            rule = "calls it ssl, as in ssl=require" if is_ssl else "knows no such option"
            raise ConfigurationError(
                f"TIMERS_LEDGER_URL: the option {shown(name)} is not accepted; {url.drivername} {rule}"
            )


def _asyncpg_options() -> Collection[str]:
    from asyncpg import connect  # noqa: PLC0415 (with SQLite nobody needs it)

    return {*inspect.signature(connect).parameters, "prepared_statement_cache_size"}


def _psycopg_options() -> Collection[str]:
    from psycopg.pq import Conninfo  # noqa: PLC0415 (not every ledger has this driver)

    return {option.keyword.decode() for option in Conninfo.get_defaults()}


def _rest(_driver: object, record: ConnectionPoolEntry) -> None:
    record.info[_TRIED_AT] = time.monotonic() + REST_SECONDS


def _connect(dialect: Dialect, _record: object, given: Any, options: Any) -> Any:
    """A connection. Raises ConfigurationError for a value in the URL that only its driver can judge."""
    try:
        return dialect.connect(*given, **options)
    except (TypeError, ValueError, OverflowError) as error:
        raise ConfigurationError(f"TIMERS_LEDGER_URL: its driver does not accept it: {error}") from error


@contextmanager
def translated(*drivers: type[Exception]) -> Iterator[None]:
    """Raises LedgerUnavailable for every error of the database or of the way to it. `drivers` are the errors of a
    driver that is called without SQLAlchemy."""
    try:
        yield
    except _ERRORS + drivers as error:
        cause = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
        reason = " ".join(str(cause).split()) or type(cause).__name__
        if _LACKS.search(reason):
            reason += f"; {UPGRADE}"
        raise LedgerUnavailable(f"{_AWAY}: {reason}") from error
