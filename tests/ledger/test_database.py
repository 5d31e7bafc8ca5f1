"""The ledger's database: its tables, their versions, what it refuses, and its errors."""

import asyncio
import sqlite3
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Connection, text

from tests import postgres
from tests.engine.fleet import until
from tests.waiting import DEADLINE_SECONDS
from timers.errors import ConfigurationError, LedgerUnavailable
from timers.ledger import arm
from timers.ledger.database import CONNECTIONS, Database
from timers.ledger.effects import clean
from timers.ledger.schema import VERSION_TABLE, metadata


async def test_an_empty_database_is_refused_until_it_was_upgraded(ledger_url: str) -> None:
    database = Database(ledger_url)
    with pytest.raises(ConfigurationError, match=r"no tables of the ledger yet: run `timers db upgrade`"):
        await database.check()
    # A program that does not check learns it too.
    with pytest.raises(LedgerUnavailable, match=r"timers_inbox.*; run `timers db upgrade`"):
        await database.inbox_seconds()
    await database.upgrade()
    await database.check()
    await database.upgrade()
    await database.check()
    await database.close()


@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII"])
@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
async def test_a_database_that_cannot_hold_every_text_is_refused(driver: str, encoding: str) -> None:
    """One payload in another script kept all other timers from being copied."""
    template = f"template0 ENCODING '{encoding}' LC_COLLATE 'C' LC_CTYPE 'C'"
    database = Database(postgres.new_database(driver, copied_from=template))
    said = f"its encoding is {encoding}; make a database with ENCODING 'UTF8'"
    for attempt in (database.check, database.upgrade):
        with pytest.raises(ConfigurationError, match=said):
            await attempt()
    await database.close()


@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
async def test_the_encoding_that_a_role_asks_for_changes_nothing(driver: str) -> None:
    database = Database(postgres.new_database(driver))
    await database.upgrade()
    async with database.transaction() as tx:
        await tx.execute(text(f"ALTER DATABASE {database.engine.url.database} SET client_encoding = 'LATIN1'"))
    await database.engine.dispose()
    async with database.transaction() as tx:
        await tx.execute(text("INSERT INTO timers_facts VALUES ('paused', 'note', :said)"), {"said": "\u0436"})
        assert await tx.scalar(text("SELECT value FROM timers_facts")) == "\u0436"
    await database.close()


async def differences(database: Database) -> list[object]:
    def compare(connection: Connection) -> list[object]:
        options = {"version_table": VERSION_TABLE, "compare_server_default": False}
        return list(compare_metadata(MigrationContext.configure(connection, opts=options), metadata))

    async with database.transaction() as connection:
        return await connection.run_sync(compare)


async def test_the_migrations_make_the_tables_that_the_code_uses(database: Database) -> None:
    assert await differences(database) == []


async def test_the_migrations_make_them_of_those_of_the_first_version(ledger_url: str) -> None:
    database = Database(ledger_url)
    first = Path(__file__).with_name(f"first_{database.dialect}.sql").read_text()
    async with database.transaction() as connection:
        for statement in first.split(";\n"):
            await connection.execute(text(statement))
        await connection.execute(text("CREATE TABLE timers_schema (version_num VARCHAR(32) PRIMARY KEY)"))
        await connection.execute(text("INSERT INTO timers_schema VALUES ('0001')"))
    await database.upgrade()
    assert await differences(database) == []
    await database.close()


async def test_an_upgrade_makes_a_table_again_that_somebody_has_dropped(database: Database) -> None:
    async with database.transaction() as connection:
        await connection.execute(text("DROP TABLE timers_effects"))
    with pytest.raises(LedgerUnavailable, match=r"timers_effects.*; run `timers db upgrade`"):
        await clean(database)
    await database.upgrade()
    assert await differences(database) == []


@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
async def test_the_isolation_that_the_database_has_by_default_changes_nothing(driver: str) -> None:
    """Pods that took rows of the inbox at once failed, and counted their database as away."""
    database = Database(postgres.new_database(driver))
    name, asked = database.engine.url.database, text("SHOW transaction_isolation")
    async with database.transaction() as tx:
        await tx.execute(text(f"ALTER DATABASE {name} SET default_transaction_isolation = 'serializable'"))
    await database.engine.dispose()
    assert await database.do(lambda tx: tx.scalar(asked)) == "read committed"
    await database.close()


async def test_an_upgrade_with_nothing_to_do_waits_for_no_transaction_of_an_application() -> None:
    """All other transactions that wrote rows waited behind it."""
    database = Database(postgres.new_database())
    await database.upgrade()
    async with database.transaction() as application, asyncio.timeout(DEADLINE_SECONDS):
        await arm(application, "test", "a", delay="1h")
        await database.upgrade()
    await database.close()


async def test_all_tables_begin_with_timers(database: Database) -> None:
    assert {name.partition("_")[0] for name in (*metadata.tables, VERSION_TABLE)} == {"timers"}


async def test_tables_of_a_later_version_are_refused_and_left_alone(database: Database) -> None:
    async with database.transaction() as connection:
        await connection.execute(text("UPDATE timers_schema SET version_num = '9999'"))
    with pytest.raises(ConfigurationError, match=r"of a later version \(9999, this one knows up to 0002\)"):
        await database.check()
    with pytest.raises(ConfigurationError, match="9999"):
        await database.upgrade()


def test_an_sqlite_that_does_not_know_the_statements_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 34, 1))
    with pytest.raises(ConfigurationError, match=r"expected 3\.35 or later"):
        Database("sqlite+aiosqlite:///ledger.db")


async def test_psycopg_and_a_missing_driver() -> None:
    database = Database(postgres.new_database("psycopg"))
    await database.upgrade()
    await database.check()
    await database.close()
    with pytest.raises(ConfigurationError, match="expected postgresql"):
        Database("postgresql+pg8000://x/y")


@pytest.mark.parametrize(
    ("url", "said"),
    [
        (
            "postgresql+asyncpg://u:hidden@127.0.0.1/x?sslmode=require",
            "'sslmode' is not accepted; .+ as in ssl=require",
        ),
        (
            "postgresql+asyncpg://u:hidden@127.0.0.1/x?foo=1",
            "'foo' is not accepted; postgresql\\+asyncpg knows no such",
        ),
        (
            "postgresql+psycopg://u:hidden@127.0.0.1/x?foo=1",
            "'foo' is not accepted; postgresql\\+psycopg knows no such",
        ),
        ("sqlite+aiosqlite:////f?timeout=abc", "'timeout' is not accepted; sqlite"),
        ("sqlite:////f", "the given value is not accepted; expected postgresql"),
        ("sqlite+aiosqlite:///:memory:", "the given value is not accepted; expected postgresql"),
        ("sqlite://", "the given value is not accepted; expected postgresql"),
        ("sqlite+aiosqlite:////f?mode=ro", "'mode' is not accepted; sqlite"),
        ("postgresql+asyncpg://u:hidden@127.0.0.1:abc/x", "the given value is not accepted; expected postgresql"),
        ("postgresql+asyncpg://u:hidden@127.0.0.1:99999/x", "the given value is not accepted; expected postgresql"),
        ("postgresql+psycopg://u:hidden@127.0.0.1:0/x", "the given value is not accepted; expected postgresql"),
        ("postgresql+asyncpg://u:hidden@/x?host=/run&port=abc", "the given value is not accepted; expected postgresql"),
    ],
)
def test_what_is_wrong_in_the_url_is_said_before_anything_is_opened(url: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=f"^TIMERS_LEDGER_URL: .*{said}") as caught:
        Database(url)
    assert "hidden" not in str(caught.value)


@pytest.mark.parametrize(
    "end", [f"@{'x' * 64}/x", "@127.0.0.1/x?command_timeout=soon", "@/x?host=/run&connection_class=x"]
)
async def test_what_only_the_driver_finds_in_the_url_is_no_outage(end: str) -> None:
    database = Database(f"postgresql+asyncpg://u:hidden{end}")
    with pytest.raises(ConfigurationError, match=r"^TIMERS_LEDGER_URL: its driver does not accept it: ") as caught:
        await database.ping()
    assert "hidden" not in str(caught.value)
    await database.close()


async def test_options_that_a_driver_knows_are_given_to_it() -> None:
    for driver, option in (("asyncpg", "ssl=disable"), ("asyncpg", "timeout=3"), ("psycopg", "sslmode=disable")):
        database = Database(f"{postgres.new_database(driver)}&{option}")
        await database.state()
        await database.close()


async def test_a_database_that_is_away_is_one_error_without_the_password(tmp_path: Path) -> None:
    for url in (f"sqlite+aiosqlite:///{tmp_path}/none/x.db", "postgresql+asyncpg://u:secret@127.0.0.1:1/x"):
        database = Database(url)
        with pytest.raises(LedgerUnavailable, match="the ledger is not available: ") as caught:
            await database.check()
        assert "secret" not in str(caught.value)
        await database.close()


async def test_callers_at_the_same_time_all_learn_at_once_why_the_database_is_away(tmp_path: Path) -> None:
    database = Database(f"sqlite+aiosqlite:///{tmp_path}/none/x.db")
    found = await asyncio.gather(*(database.ping() for _ in range(20)), return_exceptions=True)
    assert {str(each) for each in found} == {f"the ledger is not available: there is no folder {tmp_path}/none"}
    await database.close()


async def test_no_thread_outlives_the_close_of_a_database_that_could_not_be_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("timers.ledger.database.BUSY_SECONDS", 1.5)

    def connections() -> set[threading.Thread]:
        return {thread for thread in threading.enumerate() if "_connection_worker_thread" in thread.name}

    before = connections()
    with sqlite3.connect(tmp_path / "x.db", isolation_level=None) as other:
        other.execute("BEGIN EXCLUSIVE")
        database = Database(f"sqlite+aiosqlite:///{tmp_path}/x.db")
        asking = asyncio.create_task(database.ping())
        await until(lambda: connections() != before, "it opens")
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        await database.close()
        assert connections() == before
    other.close()


async def test_a_commit_that_fails_stands_in_nobodys_way(tmp_path: Path) -> None:
    """SQLite keeps the transaction open then, as where the disk is full."""
    database = Database(f"sqlite+aiosqlite:///{tmp_path}/ledger.db")
    await database.upgrade()
    async with database.engine.connect() as connection:  # the only one
        driver: Any = (await connection.get_raw_connection()).driver_connection
        await driver.execute_fetchall("PRAGMA foreign_keys = ON")
    async with database.transaction() as connection:
        await connection.execute(text("CREATE TABLE late (a INTEGER PRIMARY KEY)"))
        deferred = "CREATE TABLE early (a INTEGER REFERENCES late (a) DEFERRABLE INITIALLY DEFERRED)"
        await connection.execute(text(deferred))

    for _ in range(2):
        with pytest.raises(LedgerUnavailable, match="FOREIGN KEY constraint failed"):
            await database.do(lambda connection: connection.execute(text("INSERT INTO early VALUES (1)")))
    await database.do(lambda connection: connection.execute(text("INSERT INTO late VALUES (1)")))
    assert await database.do(lambda connection: connection.scalar(text("SELECT count(*) FROM early"))) == 0
    assert database.trouble is None
    await database.close()


async def test_sqlite_writes_to_the_disk_before_a_commit_returns(tmp_path: Path) -> None:
    (tmp_path / "x.db").touch()
    database = Database(f"sqlite+aiosqlite:///{tmp_path}/x.db")
    async with database.transaction() as connection:
        assert (await connection.execute(text("PRAGMA journal_mode"))).scalar() == "wal"
        assert (await connection.execute(text("PRAGMA synchronous"))).scalar() == 2  # FULL
    await database.close()


async def test_a_connection_that_is_closed_keeps_no_lock_although_a_statement_has_rows_left(tmp_path: Path) -> None:
    """As a caller leaves it that was cancelled."""
    database = Database(f"sqlite+aiosqlite:///{tmp_path}/ledger.db")
    await database.upgrade()
    held = list[object]()
    async with database.transaction() as connection:
        driver: Any = (await connection.get_raw_connection()).driver_connection
        held.append(await driver.execute("SELECT 1 UNION ALL SELECT 2"))
        await driver.close()
        with closing(sqlite3.connect(tmp_path / "ledger.db", timeout=0)) as other:
            other.execute("BEGIN IMMEDIATE")
    await database.close()


@pytest.mark.parametrize("replaced", [False, True])
async def test_a_file_that_was_removed_or_replaced_is_not_written_to(tmp_path: Path, replaced: bool) -> None:
    path, spare = tmp_path / "x.db", tmp_path / "spare.db"
    databases = [Database(f"sqlite+aiosqlite:///{file}") for file in (path, spare)]
    for each in databases:
        await each.upgrade()
    database, other = databases
    await other.close()
    for end in ("", "-wal", "-shm"):
        Path(f"{path}{end}").unlink()
    if replaced:
        sqlite3.connect(path).close()
        path.touch()
    for _ in range(2):
        with pytest.raises(LedgerUnavailable, match="its file was removed or replaced; put it back, or run `timers db"):
            await database.ping()
    assert path.exists() == replaced
    spare.replace(path)
    await database.check()
    async with database.transaction() as connection:
        await connection.execute(text("INSERT INTO timers_facts VALUES ('a', 'b', 'c')"))
    with sqlite3.connect(path) as found:
        assert found.execute("SELECT count(*) FROM timers_facts").fetchone() == (1,)
    found.close()
    await database.close()


@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
async def test_a_connection_that_its_server_has_closed_meanwhile_fails_no_call(
    driver: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a restart of the server, or its `idle_session_timeout`, the first call of each process failed. That some of
    its commits may be gone is still noticed."""
    monkeypatch.setattr("timers.ledger.database.REST_SECONDS", 0.0)
    database = Database(postgres.new_database(driver))
    await database.upgrade()
    await asyncio.gather(*(database.ping() for _ in range(CONNECTIONS)))
    other = Database(database.engine.url.render_as_string())
    said = "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE pid <> pg_backend_pid()"
    async with other.transaction() as tx:
        await tx.execute(text(f"{said} AND datname = current_database()"))
    await other.close()
    assert database.failures == 0
    await asyncio.gather(*(database.ping() for _ in range(CONNECTIONS)))
    assert database.failures > 0
    assert database.trouble is None
    await database.close()
