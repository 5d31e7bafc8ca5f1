"""Owns the ledger of a world: one SQLite file, without threads. Each transaction takes a while, and may go wrong where
it begins and where it is committed."""

import asyncio
import sqlite3
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, closing, suppress
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, Self

from sqlalchemy import create_engine, event
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlalchemy.pool import NullPool, StaticPool

from tests.simulation import faults
from tests.simulation.faults import BEGIN, COMMIT
from tests.simulation.lives import Row
from tests.simulation.loop import Actor
from tests.simulation.network import Network
from timers.ledger.database import BUSY_SECONDS, Database
from timers.ledger.schema import PURGED, metadata
from timers.ledger.sqlite import begin
from timers.store.store import Identity

BEHIND_MS: Final = 7_654_321
"""By how much the clock of the SQL server is behind that of Redis."""

_JULIAN_EPOCH: Final = 2440587.5
_DAY_MS: Final = 86_400_000
_QUICK: Final = ("PRAGMA journal_mode=WAL", "PRAGMA synchronous=OFF")


class Ledger:
    """The database that all actors of a world share."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self.away_until = self.stalled_until = self.refuses_until = 0.0
        self._connections: dict[str, sqlite3.Connection] = {}
        self._writer: Actor | None = None
        self._waiting: deque[tuple[Actor, asyncio.Future[None]]] = deque()
        """Who wants to write next: SQLite has one writer."""
        self._folder = TemporaryDirectory(prefix="timers-world-")
        self._file = Path(self._folder.name) / "ledger.db"
        self._file.write_bytes(_without_rows())

    def connection_of(self, actor: Actor) -> sqlite3.Connection:
        """The connection of an actor's process."""
        if actor.name not in self._connections:
            made = sqlite3.connect(self._file, isolation_level=None, timeout=0, check_same_thread=False)
            for said in _QUICK:
                made.execute(said)
            made.create_function("julianday", 1, lambda _: _JULIAN_EPOCH + self._now_ms() / _DAY_MS)
            self._connections[actor.name] = made
        return self._connections[actor.name]

    def _now_ms(self) -> float:
        return self.network.server.now_us() / 1000 - BEHIND_MS

    async def may_write(self, actor: Actor) -> None:
        """Wait for the right to write."""
        if self._writer is None:
            self._writer = actor
            return
        turn: asyncio.Future[None] = self.network.loop.create_future()
        self._waiting.append((actor, turn))
        try:
            async with asyncio.timeout(BUSY_SECONDS):
                await turn
        except BaseException as error:
            self.has_written(actor)  # it may have come in this very moment
            if isinstance(error, TimeoutError):
                raise sqlite3.OperationalError("database is locked") from None
            raise

    def has_written(self, actor: Actor) -> None:
        """Give the right to write to the next one that still waits for it."""
        if self._writer is actor:
            self._writer = None
            while self._waiting and self._writer is None:
                following, turn = self._waiting.popleft()
                if not turn.done():
                    self._writer = following
                    turn.set_result(None)

    def hang_up(self, actor: Actor) -> None:
        """Its process has ended, and with it its transaction."""
        self._waiting = deque(each for each in self._waiting if each[0] is not actor)
        if actor.name in self._connections:
            self._connections.pop(actor.name).close()
        self.has_written(actor)

    def know(self, kind: str, name: str, value: str) -> None:
        """Have a fact from the beginning."""
        with closing(sqlite3.connect(self._file, isolation_level=None)) as before:
            before.execute("INSERT INTO timers_facts VALUES (?, ?, ?)", (kind, name, value))

    def rows(self) -> Mapping[Identity, Row]:
        """By name what is kept of each timer, without those that were removed."""
        found = self._read("SELECT prefix, id, status, created, version, occurrence, pending FROM timers_timers")
        return {(prefix, id_): Row(*row) for prefix, id_, *row in found if row[0] != PURGED}

    def waiting(self) -> int:
        """How many rows of the inbox nobody has carried out."""
        ((number,),) = self._read("SELECT count(*) FROM timers_inbox")
        return int(number)

    def _read(self, asked: str) -> list[Any]:
        with closing(sqlite3.connect(self._file)) as verdict:
            return verdict.execute(asked).fetchall()

    def close(self) -> None:
        """Close all connections and remove the file."""
        for connection in self._connections.values():
            connection.close()
        self._folder.cleanup()


class SimulatedDatabase(Database):
    """The ledger's database as an actor has it."""

    def __init__(self, ledger: Ledger, actor: Actor) -> None:
        super().__init__("sqlite+aiosqlite:////simulated")
        self.engine = _engine()
        self._ledger, self._actor = ledger, actor

    @asynccontextmanager
    async def transaction(self, *, writes: bool = True, looks: bool = False) -> AsyncIterator[AsyncConnection]:
        """See Database."""
        _DRIVER.set(_Driver(self._ledger, self._actor))
        async with super().transaction(writes=writes, looks=looks) as connection:
            yield connection


class _Driver:
    """A connection for one transaction, with what is used of aiosqlite's."""

    isolation_level = None

    def __init__(self, ledger: Ledger, actor: Actor) -> None:
        self._ledger, self._actor, self._network = ledger, actor, ledger.network
        self._connection = ledger.connection_of(actor)
        self._writes = False

    async def create_function(self, *_: Any, **__: Any) -> None:
        """Do without: the service calls none."""

    async def execute_fetchall(self, said: str, given: Sequence[Any] = ()) -> list[Any]:
        """As aiosqlite's."""
        if said.startswith("BEGIN"):
            await self._begin(writes=said != "BEGIN")
        return self._connection.execute(said, given).fetchall()

    def cursor(self) -> "_Cursor":
        """As aiosqlite's."""
        return _Cursor(self._connection.cursor())

    async def _begin(self, *, writes: bool) -> None:
        fault = await self._goes(BEGIN, writes=writes)
        if writes:
            await self._ledger.may_write(self._actor)
            self._writes = True
        if fault is not None and fault.kind == faults.FREEZES:
            self._network.freeze(self._actor, fault.seconds)
            await asyncio.sleep(0)

    async def commit(self) -> None:
        """As aiosqlite's."""
        if not self._writes:
            self._connection.rollback()
            return
        fault = await self._goes(COMMIT, writes=True)
        self._connection.commit()
        self._ends()
        kind, seconds = ("", 0.0) if fault is None else (fault.kind, fault.seconds)
        if kind == faults.DIES_AFTER:
            self._network.die(self._actor)
        if kind == faults.FREEZES:
            self._network.freeze(self._actor, seconds)
        await asyncio.sleep(self._network.delay() + (seconds if kind == faults.SLOW_ANSWER else 0.0))
        if kind == faults.LOST_ANSWER:
            raise sqlite3.OperationalError("disk I/O error")

    async def rollback(self) -> None:
        """As aiosqlite's."""
        with suppress(sqlite3.ProgrammingError):  # its process has ended
            self._connection.rollback()
        self._ends()

    async def close(self) -> None:
        """The process keeps its connection."""
        await self.rollback()

    def _ends(self) -> None:
        if self._writes:
            self._writes = False
            self._ledger.has_written(self._actor)

    async def _goes(self, moment: str, *, writes: bool) -> faults.Fault | None:
        """The way to the database, and what goes wrong there. Raises OperationalError where nothing is done."""
        network, ledger = self._network, self._ledger
        fault, now = network.faults.at(self._actor.name, moment), network.loop.time()
        kind, seconds = ("", 0.0) if fault is None else (fault.kind, fault.seconds)
        if fault is not None:
            network.says(fault)
        if kind == faults.AWAY:
            ledger.away_until = max(ledger.away_until, now + seconds)
        elif kind == faults.STALL:
            ledger.stalled_until = max(ledger.stalled_until, now + seconds)
        elif kind == faults.REFUSES:
            ledger.refuses_until = max(ledger.refuses_until, now + seconds)
        elif kind == faults.DIES_BEFORE:
            network.die(self._actor)
        slow = seconds if kind == faults.SLOW_REQUEST else 0.0
        await asyncio.sleep(max(network.delay() + slow, ledger.stalled_until - now))
        now = network.loop.time()
        if now < ledger.away_until or kind == faults.LOST_REQUEST:
            raise sqlite3.OperationalError("unable to open database file")
        if writes and now < ledger.refuses_until:
            raise sqlite3.OperationalError("attempt to write a readonly database")
        return fault


class _Cursor:
    """With what is used of aiosqlite's."""

    def __init__(self, cursor: sqlite3.Cursor) -> None:
        self._cursor = cursor

    async def __aenter__(self) -> Self:
        return self

    async def execute(self, said: str, given: Sequence[Any] = ()) -> Self:
        self._cursor.execute(said, given)
        return self

    async def executemany(self, said: str, given: Sequence[Any]) -> Self:
        self._cursor.executemany(said, given)
        return self

    async def fetchall(self) -> list[Any]:
        return self._cursor.fetchall()

    async def close(self) -> None:
        self._cursor.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cursor, name)


_DRIVER: Final[ContextVar[_Driver]] = ContextVar("tests.simulation.driver")


async def _driver() -> _Driver:
    return _DRIVER.get()


@cache
def _engine() -> AsyncEngine:
    """One for all worlds, which compiles each statement once."""
    engine = create_async_engine("sqlite+aiosqlite:////simulated", async_creator=_driver, poolclass=NullPool)
    event.listen(engine.sync_engine, "begin", begin)
    return engine


@cache
def _without_rows() -> bytes:
    """The file of a database with tables and no rows."""
    engine = create_engine("sqlite://", poolclass=StaticPool)
    metadata.create_all(engine)
    with engine.connect() as connection:
        driver: Any = connection.connection.dbapi_connection
        return bytes(driver.serialize())
