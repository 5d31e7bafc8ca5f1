"""What applications write into the inbox: checked before, in their own transaction, by any driver."""

import asyncio
import json
import sqlite3
import sys
from datetime import UTC, datetime, timedelta
from enum import Enum
from pathlib import Path
from typing import Any, Final

import asyncpg
import psycopg
import pytest
from sqlalchemy import create_engine, make_url, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from tests import postgres
from timers.core.spec import Request, check_request, read_request
from timers.errors import InvalidInput
from timers.ledger import arm, cancel, statement
from timers.ledger.database import Database
from timers.ledger.schema import inbox


async def rows(database: Database) -> list[tuple[str, str, str, Any]]:
    async with database.transaction() as connection:
        found = await connection.execute(inbox.select().order_by(inbox.c.seq))
        return [(row.prefix, row.id, row.action, json.loads(row.body)) for row in found]


async def test_a_row_exists_only_if_its_transaction_is_committed(database: Database) -> None:
    async with database.engine.begin() as connection:
        assert await arm(connection, "note", "a", delay="24h", payload={"n": 1}) == "a"
        await cancel(connection, "note", "b")
        await connection.rollback()
    async with AsyncSession(database.engine) as session, session.begin():
        made = await arm(session, "note", delay=timedelta(hours=1), if_exists="replace")
        assert await cancel(session, "note", "b") == "b"
    assert len(made) == 22
    assert await rows(database) == [
        ("note", made, "create", {"delay": "1h", "if_exists": "replace"}),
        ("note", "b", "cancel", {}),
    ]


async def test_sync_transactions_return_at_once(database: Database, ledger_url: str) -> None:
    url = make_url(ledger_url)
    driver = {"sqlite": "sqlite", "postgresql": "postgresql+psycopg"}[database.dialect]
    engine = create_engine(url.set(drivername=driver))
    with engine.begin() as connection:
        assert arm(connection, "note", "a", due_at=datetime(2030, 1, 1, tzinfo=UTC)) == "a"
    with Session(engine) as session, session.begin():
        assert cancel(session, "note", "a") == "a"
    engine.dispose()
    assert [row[1:3] for row in await rows(database)] == [("a", "create"), ("a", "cancel")]


async def test_bad_values_are_refused_before_anything_is_written(database: Database) -> None:
    async with database.transaction() as connection:
        with pytest.raises(InvalidInput, match="delay: 'soon'"):
            await arm(connection, "note", "a", delay="soon")
        with pytest.raises(InvalidInput, match=r"due_at: '2099-01-01.*expected a time at most 10 years ahead"):
            await arm(connection, "note", "a", due_at="2099-01-01T00:00:00Z")
        with pytest.raises(InvalidInput, match=r"prefix: 'timers\.x'"):
            await arm(connection, "timers.x", "a", delay="1h")
        with pytest.raises(InvalidInput, match=r"prefix: 'No'.*id: ''"):
            await cancel(connection, "No", "")
    assert await rows(database) == []


async def test_what_is_no_transaction_of_sqlalchemy_is_refused(database: Database, ledger_url: str) -> None:
    """psycopg's AsyncConnection took the row, and nobody awaited it: `arm` returned an id, and nothing was armed."""

    class Cursor:
        async def execute(self, *_: object) -> None: ...

    engine = create_async_engine(ledger_url)
    async with engine.connect() as connection, connection.begin() as begun:
        others: list[Any] = [Cursor(), engine, begun, None]
        for tx in others:
            with pytest.raises(InvalidInput, match=r"^tx: .*SQLAlchemy.*statement"):
                await arm(tx, "note", "a", delay="1h")
            with pytest.raises(InvalidInput, match=r"^tx: "):
                await cancel(tx, "note", "a")
    await engine.dispose()
    assert await rows(database) == []


@pytest.mark.parametrize("action", ["create", "change", "reschedule"])
def test_no_statement_asks_for_a_time_that_the_inbox_would_refuse(action: Any) -> None:
    assert statement("note", "a", action=action, due_at=datetime.now(UTC) + timedelta(days=3_652))
    with pytest.raises(InvalidInput, match=r"^due_at: .*expected a time at most 10 years ahead$"):
        statement("note", "a", action=action, due_at=datetime.now(UTC) + timedelta(days=3_654))


class Kind(str, Enum):  # noqa: UP042 (many programs have such)
    """Names of an application."""

    REMINDER = "note"


@pytest.mark.parametrize("action", ["create", "cancel"])
def test_a_statement_has_the_text_of_a_name_also_of_a_member_of_an_enum(action: Any) -> None:
    """A driver may send another text for it: psycopg sends the name of the member."""
    fields = {"delay": "1h"} if action == "create" else {}
    _, (prefix, timer_id, *_) = statement(Kind.REMINDER, Kind.REMINDER, action=action, **fields)  # type: ignore[call-overload]
    assert (type(prefix), prefix) == (type(timer_id), timer_id) == (str, "note")


FIELDS: list[dict[str, Any]] = [
    {"delay": 90.5, "payload": {"text": "ü\u0000", "deep": [1, None]}, "tags": ["a"], "metadata": {"k": "v"}},
    {"due_at": "2030-01-01T00:00:00Z", "retry": {"max_attempts": 3, "base": timedelta(seconds=1)}, "timeout": "5s"},
    {"repeat": {"cron": "0 9 * * *", "timezone": "Europe/Berlin", "count": 3}, "missed": {"grace": "1m"}},
    {"retry": {"backoff": ["5s", timedelta(minutes=1)]}, "if_exists": "keep", "payload": None},
    {"delay": "P1M", "traceparent": f"00-{'1' * 32}-{'2' * 16}-01", "repeat": {"every": "DAILY", "until": 2**41}},
]


@pytest.mark.parametrize("fields", FIELDS)
def test_a_row_says_the_same_as_the_call(fields: dict[str, Any]) -> None:
    asked = check_request("note", "a", "create", fields)
    assert read_request("note", "a", "create", asked.body) == asked
    assert asked.new is not None
    assert asked.new.spec() == read_request("note", "a", "create", asked.body).new.spec()  # type: ignore[union-attr]


@pytest.mark.parametrize("fields", [{"payload": None}, {"delay": "1h", "tags": None, "retry": {"base": 1}}])
def test_a_change_keeps_what_is_to_be_removed(fields: dict[str, Any]) -> None:
    asked = check_request("note", "a", "change", fields)
    assert read_request("note", "a", "change", asked.body) == asked
    assert asked.change is not None
    assert asked.change.model_fields_set == fields.keys()


@pytest.mark.parametrize(
    ("action", "body", "problem"),
    [
        ("create", "{", "body: '{' is not accepted; expected JSON"),
        ("create", "[]", "expected an object"),
        ("create", '{"delay": "1h", "id": "b"}', "id: 'b' is not accepted; expected no such field here"),
        ("create", "{}", "exactly one of delay and due_at"),
        ("create", '{"delay": "1h", "traceparent": "x"}', "traceparent"),
        ("explode", "{}", "action: 'explode' is not accepted; expected one of create, reschedule"),
        ("cancel", '{"delay": 1}', "delay: 1 is not accepted; expected no field, because cancel takes none"),
        ("reschedule", '{"payload": 1}', "payload: 1 is not accepted; expected one of the fields delay, due_at"),
        ("reschedule", "{}", "exactly one of delay and due_at"),
        ("change", "{}", "at least one of"),
    ],
)
def test_what_a_row_cannot_ask_for(action: str, body: str, problem: str) -> None:
    with pytest.raises(InvalidInput, match=problem.replace("{", r"\{")):
        read_request("note", "a", action, body)


def test_plain_actions() -> None:
    assert [check_request("note", "a", action, {}) for action in ("cancel", "retry", "fire", "purge")] == [
        Request("cancel"),
        Request("retry"),
        Request("fire"),
        Request("purge"),
    ]


async def test_a_cursor_of_any_driver(tmp_path: Path) -> None:
    database = Database(f"sqlite+aiosqlite:///{tmp_path}/x.db")
    await database.upgrade()
    plain = sqlite3.connect(tmp_path / "x.db")
    plain.execute(*statement("note", "a", delay="1h", paramstyle="qmark"))
    plain.execute(*statement("note", "b", action="cancel", paramstyle="named"))
    plain.commit()
    plain.close()
    assert [row[:3] for row in await rows(database)] == [("note", "a", "create"), ("note", "b", "cancel")]
    with pytest.raises(InvalidInput, match="paramstyle: 'percent' is not accepted; expected qmark or numeric or"):
        statement("note", "a", delay="1h", paramstyle="percent")  # type: ignore[call-overload]
    await database.close()

    url = postgres.new_database()
    database = Database(url)
    await database.upgrade()
    place = make_url(url)
    host, name = str(place.query["host"]), str(place.database)
    with psycopg.connect(host=host, user="postgres", dbname=name) as connection, connection.cursor() as cursor:
        cursor.execute(*statement("note", "a", delay="1h"))
        cursor.execute(*statement("note", "b", action="reschedule", delay=5, paramstyle="pyformat"))
    other = await asyncpg.connect(host=host, user="postgres", database=name)
    sql, values = statement("note", "c", action="change", payload=1, paramstyle="numeric_dollar")
    await other.execute(sql, *values)
    await other.close()
    assert await rows(database) == [
        ("note", "a", "create", {"delay": "1h"}),
        ("note", "b", "reschedule", {"delay": 5}),
        ("note", "c", "change", {"payload": 1}),
    ]
    await database.close()


async def test_django(database: Database, ledger_url: str) -> None:
    """In a process of its own, because Django's settings are those of a process."""
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", _DJANGO, ledger_url)
    assert await process.wait() == 0
    assert await rows(database) == [("note", "a", "create", {"delay": "1h"})]


_DJANGO: Final = """
import sys

from django.conf import settings
from django.db import connection, transaction
from sqlalchemy import make_url

from timers.ledger import statement

url = make_url(sys.argv[1])
if url.get_backend_name() == "sqlite":
    place = {"ENGINE": "django.db.backends.sqlite3", "NAME": url.database}
else:
    place = {"ENGINE": "django.db.backends.postgresql", "NAME": url.database, "HOST": url.query["host"]}
    place["USER"] = "postgres"
settings.configure(DATABASES={"default": place})
with transaction.atomic(), connection.cursor() as cursor:
    cursor.execute(*statement("note", "a", delay="1h"))
try:
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(*statement("note", "b", delay="1h"))
        raise KeyError
except KeyError:
    pass
connection.close()
"""


async def test_rows_of_any_language(database: Database) -> None:
    async with database.transaction() as connection:
        said = "INSERT INTO timers_inbox (prefix, id, action) VALUES ('note', 'a', 'cancel')"
        await connection.execute(text(said))
    assert await rows(database) == [("note", "a", "cancel", {})]
