"""The doctor's check of the ledger."""

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import pytest

from tests.engine.fleet import Calls, Fleet
from tests.ledger.copies import agreed, full_disk, read_only, say
from tests.waiting import eventually
from timers.client import copies
from timers.doctor import ledger as ledger_check
from timers.doctor.checks import Check
from timers.doctor.examining import examine
from timers.ledger.database import Database
from timers.ledger.schema import inbox, refused
from timers.store.following import detach


async def check_of(fleet: Fleet, database: Database) -> Check:
    """The check, which is the last one."""
    check = (await examine(fleet.store, wait_seconds=0.01, ledger=database))[-1]
    assert check.name == "ledger"
    assert check.level == "ok" or (check.means and check.repair)
    return check


async def test_a_ledger_that_has_all_is_fine(fleet: Fleet, database: Database) -> None:
    await fleet.pod(Calls(), ledger=database)
    await fleet.client.create("note", "a", delay="1h")
    await agreed(database, fleet.store)

    async def fine() -> bool:
        said = (await check_of(fleet, database)).said
        return said == "the ledger has all shards; 0 changes wait to be copied"

    await eventually(fine, "it is fine")


async def test_a_database_that_is_away_or_without_tables_fails(fleet: Fleet, ledger_url: str) -> None:
    away = Database("sqlite+aiosqlite:////nowhere/ledger.db")
    check = await check_of(fleet, away)
    assert check.level == "fail"
    assert check.said.startswith("the ledger is not available: ")
    empty = Database(ledger_url)
    check = await check_of(fleet, empty)
    assert (check.level, check.repair) == ("fail", "`timers db upgrade`")
    assert "no tables of the ledger yet" in check.said
    await empty.close()


async def test_notes_for_a_ledger_that_no_pod_has_any_more_are_told(fleet: Fleet, database: Database) -> None:
    pod = await fleet.pod(Calls(), ledger=database)
    await fleet.client.create("note", "a", delay="1h")
    await agreed(database, fleet.store)
    await fleet.drain(pod)
    await fleet.client.change("note", "a", tags=["x"])

    async def found() -> list[tuple[str, str]]:
        checks = await examine(fleet.store, wait_seconds=0.01)
        return [(check.level, check.said) for check in checks if check.name == "ledger"]

    assert await found() == []  # pods that have it may come back
    await fleet.pod(Calls(), name="b")
    assert await found() == [("warn", "changes are noted in Redis for a ledger that no pod has: 1")]
    await detach(fleet.store)
    await fleet.client.change("note", "a", tags=["y"])
    assert await found() == []


@pytest.mark.parametrize("cut", [read_only, full_disk])
async def test_a_database_that_lets_nothing_be_written_fails(
    fleet: Fleet, database: Database, cut: Callable[[Database], AbstractAsyncContextManager[None]]
) -> None:
    async with cut(database):
        check = await check_of(fleet, database)
    assert check.level == "fail"
    assert check.said.startswith("the ledger is not available: ")
    assert "let it be written" in (check.repair or "")


async def test_shards_that_do_not_agree_yet_are_named(sharded: Fleet, database: Database) -> None:
    check = await check_of(sharded, database)
    assert (check.level, check.said[:62]) == ("warn", "shards still being restored from the ledger: 0 (restore, 0 %),")
    shards = range(sharded.store.shards)
    for shard in shards:
        await say(sharded.store, shard, "copy 16" if shard == 1 else "whole 1")
    check = await check_of(sharded, database)
    assert (check.level, check.said) == ("warn", "shards still being copied to the ledger: 1 (copy, 53 %)")


async def test_a_count_that_takes_too_long_is_told_as_that(
    fleet: Fleet, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def counts(*_: object) -> float:
        return float(await asyncio.get_running_loop().create_future())

    monkeypatch.setattr(copies, "share_until", counts)
    monkeypatch.setattr(copies, "COUNT_SECONDS", 0.01)
    await say(fleet.store, 0, "restore note:x")
    check = await check_of(fleet, database)
    said = "shards still being restored from the ledger: 0 (restore, the count took too long)"
    assert (check.level, check.said) == ("warn", said)


async def test_changes_that_nobody_copies_are_told(
    fleet: Fleet, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    await say(fleet.store, 0, "whole 1")
    await fleet.client.create("note", "a", delay="1h")
    await fleet.client.create("note", "b", delay="1h")
    await fleet.client.cancel("note", "b", purge=True)
    assert (await check_of(fleet, database)).said == "the ledger has all shards; 2 changes wait to be copied"
    monkeypatch.setattr(ledger_check, "LATE_MS", -1)
    check = await check_of(fleet, database)
    assert check.level == "warn"
    assert check.said.startswith("2 changes wait, the oldest for ")


async def test_rows_that_nobody_takes_are_told(fleet: Fleet, database: Database) -> None:
    await say(fleet.store, 0, "whole 1")
    async with database.transaction() as connection:
        await connection.execute(inbox.insert(), {"prefix": "note", "id": "a", "action": "cancel", "at": 1000})
    check = await check_of(fleet, database)
    assert check.level == "warn"
    assert check.said.startswith("rows of the inbox wait, the first for ")


async def test_rows_that_were_refused_are_told(fleet: Fleet, database: Database) -> None:
    await say(fleet.store, 0, "whole 1")
    async with database.transaction() as connection:
        for seq in range(1, 6):
            row = {"seq": seq, "prefix": "note", "id": str(seq), "action": "fire", "body": "{}", "at": 1}
            await connection.execute(refused.insert(), {**row, "problem": "is running"})
    check = await check_of(fleet, database)
    shown = "; ".join(f"note:{seq} (is running)" for seq in (5, 4, 3))
    assert (check.level, check.said) == ("warn", f"5 rows of the inbox were refused, such as {shown}")
