"""Owns `once`: the effects of an occurrence of a timer, committed exactly once, however often the occurrence runs.

A row for each timer has its newest occurrence whose effects were committed, written in the same transaction as they. So
of several runs of one occurrence, one after the other or at the same time, one commits.
"""

from collections.abc import AsyncIterator, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
    nullcontext,
)
from typing import Any, Final, NamedTuple, TypeVar, overload

import sqlalchemy as sa
from sqlalchemy import Connection
from sqlalchemy.dialects.postgresql import Insert, insert
from sqlalchemy.exc import DBAPIError

from timers.core.outcome import AlreadyDone, Done, Rearm, Retry, decode_outcome, encode_outcome
from timers.errors import FieldError, InvalidInput
from timers.ledger.database import Database
from timers.ledger.many import SAVED, delete_some
from timers.ledger.requests import Async, Blocking, Given, GivenAsync, GivenBlocking, current
from timers.ledger.schema import effects, now_ms
from timers.processor import BlockingContext, Context

WAIT_MS: Final = 2000
"""How long a run waits for another of the same occurrence that is inside its transaction. Less than a lease."""

AGAIN_SECONDS: Final = 0.5
"""When it tries again after that, without a failure."""

KEPT_MS: Final = 90 * 86_400_000
"""How long a row is kept after its occurrence: far longer than a run may take to come back."""

End = TypeVar("End", bound=Done | Rearm)

_WAITED: Final = "another run of this occurrence is still in its transaction"
_OWN: Final = "a transaction that does nothing else before: async with engine.begin() as tx, once(tx, context): …"


class Effects:
    """What `once` gives to its block."""

    def __init__(self) -> None:
        self.outcome: Done | Rearm | None = None

    def ends(self, outcome: End) -> End:
        """Say in the block how the run ends, unless it is simply done, so that another run of the occurrence ends
        so too: `return effects.ends(Rearm(after="1d"))`. Returns the outcome."""
        self.outcome = outcome
        return outcome


class _Run(NamedTuple):
    """An occurrence of a timer, and an attempt to be the one that commits."""

    prefix: str
    id: str
    created: int
    occurrence: int

    @property
    def row(self) -> sa.ColumnElement[bool]:
        return (effects.c.prefix == self.prefix) & (effects.c.id == self.id) & (effects.c.created == self.created)


@overload
def once(tx: GivenAsync, context: Context[Any]) -> AbstractAsyncContextManager[Effects]: ...
@overload
def once(tx: GivenBlocking, context: BlockingContext[Any] | Context[Any]) -> AbstractContextManager[Effects]: ...
def once(
    tx: Given, context: Context[Any] | BlockingContext[Any]
) -> AbstractAsyncContextManager[Effects] | AbstractContextManager[Effects]:
    """Let the block's SQL take effect once for this occurrence of the timer, with the commit of `tx`. A run of an
    occurrence that is done does not enter the block, and ends as the run that did it; so a run has one block. Raises
    InvalidInput for a `tx` that cannot be undone as a whole."""
    prefix, _, rest = context.idempotency_key.partition(":")
    timer_id, created, occurrence = rest.rsplit(":", 2)
    run = _Run(prefix, timer_id, int(created), int(occurrence))
    own = current(tx)
    return _once_async(own, run) if isinstance(own, Async) else _once(own, run)


@contextmanager
def _once(tx: Blocking, run: _Run) -> Iterator[Effects]:
    begun = _begin(tx, run)
    done = Effects()
    yield done
    _end(tx, run, done, begun)


@asynccontextmanager
async def _once_async(tx: Async, run: _Run) -> AsyncIterator[Effects]:
    begun = await tx.run_sync(_begin, run)
    done = Effects()
    yield done
    await tx.run_sync(_end, run, done, begun)


def _begin(tx: Blocking, run: _Run) -> object:
    """Take the row. Returns the transaction."""
    if not tx.in_transaction():
        raise _misused("it has not begun a transaction")
    if tx.in_nested_transaction():
        raise _misused("it is in a nested transaction (a savepoint)")
    connection = tx if isinstance(tx, Connection) else tx.connection()
    if connection.dialect.name not in {"postgresql", "sqlite"}:
        raise _misused(f"{connection.dialect.name} is not PostgreSQL or SQLite")
    _check(connection)
    try:
        is_first = _take(connection, run)
    except DBAPIError as error:
        if not _waited(error):
            raise
        raise Retry(_WAITED, after=AGAIN_SECONDS, snooze=True) from error
    if not is_first:
        text = connection.execute(sa.select(effects.c.outcome).where(run.row)).scalar_one()
        raise AlreadyDone(decode_outcome(text))
    return tx.get_transaction()


def _end(tx: Blocking, run: _Run, done: Effects, begun: object) -> None:
    if tx.in_transaction() and tx.get_transaction() is not begun:
        raise _misused("its block has ended it and begun another")
    if done.outcome is None:
        return
    with nullcontext() if tx.in_transaction() else tx.begin():  # the block may have committed it
        tx.execute(effects.update().where(run.row).values(outcome=encode_outcome(done.outcome)))


def _misused(how: str) -> InvalidInput:
    return InvalidInput([FieldError("tx", how, _OWN)])


def _waited(error: DBAPIError) -> bool:
    """Whether it is the end of waiting for a lock."""
    state = getattr(error.orig, "sqlstate", None)
    return state == "55P03" if state else "database is locked" in str(error.orig)


def _check(connection: Connection) -> None:
    pooled = connection.connection
    driver: Any = pooled.driver_connection
    if connection.dialect.name == "sqlite":
        by_hand = driver.isolation_level is None  # the driver begins no transactions: the application does, or nobody
        commits, begun = by_hand and not driver.in_transaction, not by_hand and driver.in_transaction
    else:
        commits = connection.dialect.detect_autocommit_setting(pooled.dbapi_connection)  # type: ignore[arg-type]
        # SQLAlchemy's drivers tell the server of a transaction with its first statement.
        if hasattr(driver, "is_in_transaction"):
            begun = driver.is_in_transaction()
        else:
            begun = hasattr(driver, "info") and driver.info.transaction_status != 0
    if commits:
        raise _misused("its isolation level is AUTOCOMMIT")
    if begun:
        raise _misused("it has executed a statement already")


def _take(connection: Connection, run: _Run) -> bool:
    """Whether this run is the first. One that waits for another does so for a bounded time."""
    values = {**run._asdict(), "outcome": encode_outcome(Done())}
    if connection.dialect.name == "postgresql":
        return connection.execute(_TAKE_POSTGRESQL, {**values, "wait": f"{WAIT_MS}ms"}).first() is not None
    (was,) = connection.exec_driver_sql("PRAGMA busy_timeout").one()
    connection.exec_driver_sql(f"PRAGMA busy_timeout = {min(was, WAIT_MS)}")
    try:
        return connection.execute(_TAKE_SQLITE, values).first() is not None
    finally:
        connection.exec_driver_sql(f"PRAGMA busy_timeout = {was}")


_NAMES: Final = (*_Run._fields, "outcome")
_ROW: Final = sa.select(*(sa.bindparam(name, type_=effects.c[name].type) for name in _NAMES), now_ms())


def _newest(chosen: sa.Select[Any]) -> Insert:
    """Take the row unless it has this occurrence, or a later one."""
    made = insert(effects).from_select([*_NAMES, "at"], chosen)
    new = made.excluded
    return made.on_conflict_do_update(
        index_elements=["prefix", "id", "created"],
        set_={name: new[name] for name in ("occurrence", "outcome", "at")},
        where=new.occurrence > effects.c.occurrence,
    )


_TAKE_SQLITE: Final = _newest(_ROW.where(sa.true())).returning(effects.c.occurrence)

# In one round trip: bound the wait for another run, take the row, which is not made before, and put the bound back.
_SETTING: Final = sa.literal("lock_timeout")
_BOUND: Final = sa.func.set_config(_SETTING, sa.bindparam("wait", type_=sa.Text), sa.true())
_BEFORE: Final = sa.select(sa.func.current_setting(_SETTING).label("was"), _BOUND.label("set")).cte("before")
_PUT_BACK: Final = sa.func.set_config(_SETTING, sa.select(_BEFORE.c.was).scalar_subquery(), sa.true())
_TAKE_POSTGRESQL: Final = _newest(_ROW.where(_BEFORE.c.set.is_not(None))).returning(_PUT_BACK)


async def clean(database: Database) -> None:
    """Delete rows that nobody needs any more, batch after batch."""
    gone = delete_some(effects, effects.c.at < now_ms() - KEPT_MS)
    while (await database.do(lambda connection: connection.execute(gone))).rowcount >= SAVED:
        pass
