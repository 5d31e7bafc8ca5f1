"""Rows never go back: a newer state of a timer wins, in whatever order states arrive."""

import re
from collections.abc import Awaitable, Callable
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event, select, text

from timers.ledger import effects, rows
from timers.ledger.database import Database
from timers.ledger.inbox import take, waits_for
from timers.ledger.many import execute
from timers.ledger.rows import FORGET_REMOVED, TAKE_BACK, NewRow, Row, find, insert, save, tombstone, waiting
from timers.ledger.schema import PURGED, metadata, timers

FIRST = Row("p", "a", 0, "scheduled", 1, 0, 0, 0, 1, 2000, 1000, 1000, '{"payload":"ü"}', "", "")


def state(**changes: object) -> Row:
    return FIRST._replace(**changes)  # type: ignore[arg-type]


async def kept(database: Database) -> list[tuple[object, ...]]:
    async with database.transaction() as connection:
        found = await connection.execute(select(*(timers.c[name] for name in Row._fields)).order_by(timers.c.id))
        return [tuple(row) for row in found]


@pytest.mark.parametrize("together", [True, False])
async def test_the_newest_state_wins_in_every_order(database: Database, together: bool) -> None:
    states = [
        FIRST,
        state(status="completed", version=3),
        state(status="failed", version=3, changed=1001),
        tombstone("p", "a", 0, version=4, created=1000, at_ms=5000),
        state(created=7000, version=1, changed=7000),
    ]
    for order in permutations(range(len(states))):
        async with database.transaction() as connection:
            await connection.execute(timers.delete())
            for batch in [order] if together else [[place] for place in order]:
                await save(connection, [states[place] for place in batch])
        assert await kept(database) == [tuple(states[-1])]


async def test_of_one_version_that_two_losses_have_made_twice_the_later_stays(database: Database) -> None:
    first, second = state(version=1001, changed=5000), state(version=1001, changed=6000)
    for order in permutations([first, second]):
        async with database.transaction() as connection:
            await connection.execute(timers.delete())
            for row in order:
                await save(connection, [row])
            await save(connection, order)
        assert await kept(database) == [tuple(second)]


async def test_a_tombstone_stays_against_what_came_before_it(database: Database) -> None:
    gone = tombstone("p", "a", 0, version=4, created=1000, at_ms=5000)
    async with database.transaction() as connection:
        await save(connection, [gone, state(version=3)])
        await save(connection, [state(version=2)])
    ((_, _, _, status, *_),) = await kept(database)
    assert status == PURGED


async def test_a_batch_of_any_size_is_written(database: Database) -> None:
    rows = [state(id=f"{number:05}") for number in range(2500)]
    async with database.transaction() as connection:
        await save(connection, rows)
        await save(connection, [])
    assert await kept(database) == [tuple(row) for row in rows]


async def test_only_new_and_removed_timers_are_inserted(database: Database) -> None:
    gone = tombstone("p", "gone", 0, version=4, created=1000, at_ms=5000)
    async with database.transaction() as connection:
        await save(connection, [FIRST, gone])
        there = (("a", 1005, 1), ("b", 1000, 1), ("gone", 1000, 1), ("b", 1000, 2))
        wanted = [NewRow("p", name, 0, due, created, "{}", "") for name, created, due in there]
        later = NewRow("p", "gone", 0, 1, 1001, "{}", "")
        assert await insert(connection, wanted) == {("p", "b")}
        assert await insert(connection, [later]) == {("p", "gone")}
        assert await insert(connection, [*wanted, later]) == set()
    assert [(row[1], row[9], row[10]) for row in await kept(database)] == [
        ("a", FIRST.due, 1000),
        ("b", 1, 1000),
        ("gone", 1, 1001),
    ]


async def test_sqlite_takes_one_step_for_many_rows(tmp_path: Path) -> None:
    """In each the interpreter's lock is given away and must be had again, while other writers wait."""
    database = Database(f"sqlite+aiosqlite:///{tmp_path}/ledger.db")
    await database.upgrade()
    names = [f"{number:03}" for number in range(500)]
    steps, rows_read = list[str](), list[object]()

    def count(_cursor: object, row: object) -> object:
        rows_read.append(row)
        return row

    async with database.transaction() as connection:
        driver: Any = (await connection.get_raw_connection()).driver_connection
        await driver.set_trace_callback(steps.append)
        driver.row_factory = count
        await save(connection, [state(id=name) for name in names])
        assert len(await insert(connection, [NewRow("q", name, 0, 1, 1000, "{}", "") for name in names])) == 500
        assert len(await find(connection, [("p", name) for name in names])) == 500
    assert [step.split(maxsplit=1)[0] for step in steps] == ["INSERT", "SELECT", "INSERT", "SELECT", "COMMIT"]
    assert len(rows_read) == 2
    await database.close()


async def test_sqlite_reads_no_whole_table_to_find_some_rows(tmp_path: Path) -> None:
    database = Database(f"sqlite+aiosqlite:///{tmp_path}/ledger.db")
    await database.upgrade()
    names, steps = [("p", f"{number}") for number in range(3)], list[str]()
    async with database.transaction() as connection:
        await save(connection, [state(id=name) for _, name in names])
        driver: Any = (await connection.get_raw_connection()).driver_connection
        await driver.set_trace_callback(steps.append)
        assert set(await find(connection, names[1:])) == set(names[1:])
        assert await waiting(connection, names) == set()
        assert not await waits_for(connection, names)
        await execute(connection, FORGET_REMOVED, names)
        await execute(connection, TAKE_BACK, [(*names[0], FIRST.created), (*names[1], FIRST.created + 1)])
        await driver.set_trace_callback(None)
        assert len(steps) >= 5
        for step in steps:
            plan = [row[-1] for row in await driver.execute_fetchall(f"EXPLAIN QUERY PLAN {step}")]
            assert not [each for each in plan if each.startswith("SCAN timers_") and "INDEX" not in each], step
    assert {row[1] for row in await kept(database)} == {"1", "2"}
    await database.close()


NAMES = "autoindex_timers_timers_1|timers_timers_pkey"
LATER = r"later USING INDEX timers_inbox_identity \(\(prefix,id\)>|Bitmap Index Scan on timers_inbox_identity"


async def plan_of(database: Database, act: Callable[[Database], Awaitable[object]]) -> str:
    """How the database carries out the statement of this act, with its parameters: SQLite does not look at them."""
    said = list[tuple[str, Any]]()

    def note(_connection: object, _cursor: object, statement: str, parameters: Any, *_: object) -> None:
        said.append((statement, parameters))

    event.listen(database.engine.sync_engine, "before_cursor_execute", note)
    await act(database)
    event.remove(database.engine.sync_engine, "before_cursor_execute", note)
    ((statement, parameters),) = said
    async with database.transaction() as connection:
        driver: Any = (await connection.get_raw_connection()).driver_connection
        if database.dialect == "sqlite":
            found = await driver.execute_fetchall(f"EXPLAIN QUERY PLAN {statement}", parameters)
        else:
            found = await driver.fetch(f"EXPLAIN {statement}", *parameters)
    return "\n".join(row[-1] for row in found)


@pytest.mark.parametrize(
    ("act", "index"),
    [
        (lambda database: rows.pending(database, [0, 1]), "timers_timers_pending"),
        (lambda database: rows.pending(database, [0], without=["q"]), "timers_timers_pending"),
        (lambda database: rows.count_live(database, 0), "timers_timers_live"),
        (lambda database: rows.page(database, 0, "p", "04900"), NAMES),
        (lambda database: rows.page_of_ages(database, 0, "p", "04900"), NAMES),
        (lambda database: rows.page(database, 0, "", "", since_ms=5950), "timers_timers_changed"),
        (lambda database: rows.page_of_gone(database, 0, 5950, "", ""), "timers_timers_purged"),
        (lambda database: database.do(take), LATER),
        (lambda database: rows.clean(database, [0], 5050), "timers_timers_purged"),
    ],
)
async def test_what_a_pod_asks_again_and_again_reads_an_index(
    database: Database, act: Callable[[Database], Awaitable[object]], index: str
) -> None:
    """Of a ledger with millions of rows nearly all are of timers that ended long ago."""
    ended = [state(id=f"{each:05}", status="completed", changed=1000 + each) for each in range(5000)]
    gone = [tombstone("p", f"gone-{each}", 0, version=4, created=1000, at_ms=5000 + each) for each in range(990)]
    async with database.transaction() as connection:
        await save(connection, [*ended, *gone, FIRST])
        if database.dialect == "postgresql":  # as it does by itself
            await connection.execute(text("ANALYZE timers_timers"))
    plan = await plan_of(database, act)
    assert re.search(index, plan)


@pytest.mark.parametrize(
    ("act", "table"),
    [
        (lambda database: database.do(take), "timers_inbox"),
        (lambda database: rows.clean(database, [0], 5050), "timers_timers"),
        (effects.clean, "timers_effects"),
    ],
)
async def test_many_rows_that_come_at_once_are_not_compared_with_each_other(
    database: Database, act: Callable[[Database], Awaitable[object]], table: str
) -> None:
    """PostgreSQL takes a table for empty that was so when it was last vacuumed, until it looks again after a minute."""
    if database.dialect == "postgresql":
        engine = database.engine.execution_options(isolation_level="AUTOCOMMIT")
        async with engine.connect() as connection:
            row = dict.fromkeys(("prefix", "id", "action"), "a") if table == "timers_inbox" else FIRST._asdict()
            row = {**row, "at": 0, "outcome": "done"}
            known = {column.name: row[column.name] for column in metadata.tables[table].c if column.name in row}
            await connection.execute(metadata.tables[table].insert(), known)
            await connection.execute(metadata.tables[table].delete())
            await connection.execute(text(f"VACUUM (ANALYZE, TRUNCATE FALSE) {table}"))
    plan = await plan_of(database, act)
    assert "Join" not in plan
    assert "timers_inbox_pkey on timers_inbox later" not in plan
    assert not plan.startswith("SCAN")


async def test_rows_are_read_on_in_the_order_in_which_they_changed(database: Database) -> None:
    changed = [state(id=f"{each:04}", changed=5000 - each // 2) for each in range(1500)]
    gone = [tombstone("p", f"gone-{each:04}", 0, version=4, created=1000, at_ms=9000 - each // 2) for each in range(9)]
    async with database.transaction() as connection:
        await save(connection, [*changed, *gone, state(id="other", shard=1, changed=4900)])
    found, last = list[str](), (4500, "", "")
    while page := await rows.page(database, 0, *last[1:], since_ms=last[0], most=300):
        found += [row.id for row in page]
        last = (page[-1].changed, *page[-1][:2])
    assert found == [row.id for row in sorted(changed, key=lambda row: (row.changed, row.id)) if row.changed >= 4500]
    removals = await rows.page_of_gone(database, 0, 8998, "p", "gone-0004")
    assert list(removals) == [
        (8998, "p", "gone-0005"),
        *((9000 - each // 2, "p", f"gone-{each:04}") for each in (2, 3, 0, 1)),
    ]
    assert set(removals.values()) == {(1000, 4)}
