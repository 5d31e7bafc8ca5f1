"""Owns what an application asks for in its own SQL transaction: a row of the inbox, which exists only if the
transaction is committed. Pods carry it out a moment later."""

import time
from collections.abc import Coroutine, Mapping
from typing import Any, Final, Literal, LiteralString, Unpack, overload

from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session
from sqlalchemy.orm import Session, scoped_session

from timers.core.calls import After, At, ByCron, ByLadder, ChangeFields, Delay, Time
from timers.core.fields import check_id, check_prefix
from timers.core.spec import Plain, Requested, check_request, own_due_ms
from timers.errors import FieldError, InvalidInput
from timers.ids import new_id
from timers.ledger.schema import inbox

Async = AsyncConnection | AsyncSession
Blocking = Connection | Session
Transaction = Async | Blocking
"""A transaction of the application, in SQLAlchemy."""

GivenAsync = Async | async_scoped_session[Any]
GivenBlocking = Blocking | scoped_session[Any]
Given = GivenAsync | GivenBlocking
"""A transaction, or what has a session for each thread, request or task, such as `db.session` of Flask-SQLAlchemy."""

Paramstyle = Literal["qmark", "numeric", "named", "format", "pyformat", "numeric_dollar"]
"""How a driver marks parameters: those of DB-API 2, and `$1` (asyncpg)."""

Statement = tuple[LiteralString, Any]
"""The text of a statement, and its parameters: a dict where they have names, else a tuple."""

_INTO: Final = "INSERT INTO timers_inbox (prefix, id, action, body) VALUES "
_TEXTS: Final[Mapping[Paramstyle, LiteralString]] = {
    "qmark": _INTO + "(?, ?, ?, ?)",
    "numeric": _INTO + "(:1, :2, :3, :4)",
    "named": _INTO + "(:prefix, :id, :action, :body)",
    "format": _INTO + "(%s, %s, %s, %s)",
    "pyformat": _INTO + "(%(prefix)s, %(id)s, %(action)s, %(body)s)",
    "numeric_dollar": _INTO + "($1, $2, $3, $4)",
}
_NAMED: Final = ("named", "pyformat")
_TX: Final = "a connection or session of SQLAlchemy; with any other library, execute a statement(…)"
_INSERT: Final = inbox.insert().inline()


@overload
def arm(tx: GivenAsync, prefix: str, id: str | None = None, **fields: Unpack[After]) -> Coroutine[Any, Any, str]: ...
@overload
def arm(tx: GivenAsync, prefix: str, id: str | None = None, **fields: Unpack[At]) -> Coroutine[Any, Any, str]: ...
@overload
def arm(tx: GivenAsync, prefix: str, id: str | None = None, **fields: Unpack[ByCron]) -> Coroutine[Any, Any, str]: ...
@overload
def arm(tx: GivenAsync, prefix: str, id: str | None = None, **fields: Unpack[ByLadder]) -> Coroutine[Any, Any, str]: ...
@overload
def arm(tx: GivenBlocking, prefix: str, id: str | None = None, **fields: Unpack[After]) -> str: ...
@overload
def arm(tx: GivenBlocking, prefix: str, id: str | None = None, **fields: Unpack[At]) -> str: ...
@overload
def arm(tx: GivenBlocking, prefix: str, id: str | None = None, **fields: Unpack[ByCron]) -> str: ...
@overload
def arm(tx: GivenBlocking, prefix: str, id: str | None = None, **fields: Unpack[ByLadder]) -> str: ...
def arm(tx: Given, prefix: str, id: str | None = None, **fields: Any) -> str | Coroutine[Any, Any, str]:
    """Arm a timer when this transaction is committed, and return its id. The keyword arguments are those of
    `TimerClient.create`; without an id one is made. A delay begins now. Raises InvalidInput before anything is written.
    What only Redis knows, such as that the timer exists already, is found after the commit; the row is then kept in
    `timers_inbox_refused`."""
    return _write(current(tx), _row("create", prefix, id, fields))


@overload
def cancel(tx: GivenAsync, prefix: str, id: str) -> Coroutine[Any, Any, str]: ...
@overload
def cancel(tx: GivenBlocking, prefix: str, id: str) -> str: ...
def cancel(tx: Given, prefix: str, id: str) -> str | Coroutine[Any, Any, str]:
    """Cancel a timer when this transaction is committed, and return its id. Raises InvalidInput. Until a pod has done
    it, the timer may still start."""
    return _write(current(tx), _row("cancel", prefix, id, {}))


@overload
def statement(
    prefix: str, id: str | None = None, *, paramstyle: Paramstyle = "format", **fields: Unpack[After]
) -> Statement: ...
@overload
def statement(
    prefix: str, id: str | None = None, *, paramstyle: Paramstyle = "format", **fields: Unpack[At]
) -> Statement: ...
@overload
def statement(
    prefix: str, id: str | None = None, *, paramstyle: Paramstyle = "format", **fields: Unpack[ByCron]
) -> Statement: ...
@overload
def statement(
    prefix: str, id: str | None = None, *, paramstyle: Paramstyle = "format", **fields: Unpack[ByLadder]
) -> Statement: ...
@overload
def statement(prefix: str, id: str, *, action: Plain, paramstyle: Paramstyle = "format") -> Statement: ...
@overload
def statement(
    prefix: str, id: str, *, action: Literal["reschedule"], paramstyle: Paramstyle = "format", delay: Delay
) -> Statement: ...
@overload
def statement(
    prefix: str, id: str, *, action: Literal["reschedule"], paramstyle: Paramstyle = "format", due_at: Time
) -> Statement: ...
@overload
def statement(
    prefix: str,
    id: str,
    *,
    action: Literal["change"],
    paramstyle: Paramstyle = "format",
    **fields: Unpack[ChangeFields],
) -> Statement: ...
def statement(
    prefix: str,
    id: str | None = None,
    *,
    action: Requested = "create",
    paramstyle: Paramstyle = "format",
    **fields: Any,
) -> Statement:
    """The statement that asks for a timer, or for another action, and its parameters, for a cursor of any DB-API driver
    (`cursor.execute(*statement(…))`). Raises InvalidInput."""
    if paramstyle not in _TEXTS:
        raise InvalidInput.of("paramstyle", paramstyle, " or ".join(_TEXTS))
    row = _row(action, prefix, id, fields)
    return _TEXTS[paramstyle], row if paramstyle in _NAMED else tuple(row.values())


def _row(action: Requested, prefix: str, id: str | None, fields: Mapping[str, Any]) -> dict[str, str]:
    given = new_id() if id is None and action == "create" else id
    request = check_request(prefix, given, action, fields)
    spec = request.change if request.new is None else request.new
    if spec is not None:
        own_due_ms(spec, time.time() * 1000)  # raises for one that is too far ahead
    return {"prefix": check_prefix(prefix), "id": check_id(given), "action": action, "body": request.body}


def current(tx: object) -> Transaction:
    """The transaction itself: of what has several sessions, the one of the caller. Raises InvalidInput for anything
    else, because a driver's own connection may take the statement and never execute it."""
    own: object = tx() if isinstance(tx, async_scoped_session | scoped_session) else tx
    if isinstance(own, Transaction):
        return own
    kind = type(own)
    raise InvalidInput([FieldError("tx", f"{kind.__module__}.{kind.__qualname__}", _TX)])


def _write(tx: Transaction, row: dict[str, str]) -> str | Coroutine[Any, Any, str]:
    if isinstance(tx, Async):
        return _written(tx, row)
    tx.execute(_INSERT, row)
    return row["id"]


async def _written(tx: Async, row: dict[str, str]) -> str:
    await tx.execute(_INSERT, row)
    return row["id"]
