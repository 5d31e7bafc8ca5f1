"""What was read of a shard before a loss is not written to the ledger after it."""

import asyncio
from functools import partial

import pytest

from tests.engine.fleet import Fleet
from tests.ledger.copies import in_ledger
from tests.ledger.test_inbox import ask, by_hand, left, problems
from timers.client.copies import enter, entered, give, given_back, row_of_timer
from timers.engine.inbox import Inbox
from timers.errors import Unavailable
from timers.ledger.database import Database
from timers.ledger.facts import begin_life, lives_of
from timers.ledger.rows import Row, save_in

__all__ = ["by_hand"]

ROW = Row("note", "a", 0, "scheduled", 7, 0, 0, 0, 1, 2000, 1000, 1000, "{}", "", "")


async def test_nothing_of_an_earlier_life_is_written(fleet: Fleet, database: Database) -> None:
    before = await enter(fleet.store, database, 0)
    await database.do(partial(save_in, lives={0: before.life}, changed=[ROW]))
    await fleet.redis.flushall()
    await fleet.store.identity.refresh()
    later = await enter(fleet.store, database, 0)
    assert later.life != before.life
    for lives in ({0: before.life}, {0: later.life, 1: "x/y"} | {0: before.life}):
        with pytest.raises(Unavailable, match="lost data"):
            await database.do(partial(save_in, lives=lives, changed=[ROW._replace(version=8)]))
    assert (await in_ledger(database))["note:a"].version == 7
    await database.do(
        partial(save_in, lives={0: later.life, 1: "nobody has said one"}, changed=[ROW._replace(version=9)])
    )
    assert (await in_ledger(database))["note:a"].version == 9


async def test_a_life_that_is_over_is_not_said_after_the_next(fleet: Fleet, database: Database) -> None:
    """By a pod that was stopped between its look and its word."""
    first = await enter(fleet.store, database, 0)
    await fleet.redis.flushall()
    await fleet.store.identity.refresh()
    (second,) = (await entered(fleet.store, database, [0])).values()
    assert not await database.do(partial(begin_life, shard=0, before=None, life=first.life))
    assert not await database.do(partial(begin_life, shard=0, before=first.life, life="x/y"))
    assert await database.do(partial(lives_of, shards=[0, 1])) == {0: second.life}


async def test_a_life_begins_only_once_what_is_being_written_is_there(fleet: Fleet, database: Database) -> None:
    """Or the rows that are given back would lack it."""
    first, saved, goes_on = await enter(fleet.store, database, 0), asyncio.Event(), asyncio.Event()

    async def slowly() -> None:
        async with database.transaction() as connection:
            await save_in(connection, {0: first.life}, [ROW])
            saved.set()
            await goes_on.wait()

    async def next_one() -> Row:
        await saved.wait()
        turn = asyncio.create_task(database.do(partial(begin_life, shard=0, before=first.life, life="x/y")))
        await asyncio.wait({turn}, timeout=0.1)
        assert not turn.done()
        goes_on.set()
        assert await turn
        return (await in_ledger(database))["note:a"]

    _, found = await asyncio.gather(slowly(), next_one())
    assert found == ROW


@pytest.mark.parametrize("action", ["cancel", "purge", "change", "fire"])
async def test_the_inbox_acts_on_what_redis_has_just_lost(
    fleet: Fleet, database: Database, by_hand: Inbox, action: str
) -> None:
    await ask(database, "a", delay="24h")
    await by_hand.drain()
    await fleet.redis.flushall()
    await fleet.store.identity.refresh()
    await ask(database, "a", action, **({"delay": "48h"} if action == "change" else {}))
    assert await by_hand.drain() == 1
    assert (await problems(database), await left(database)) == ({}, 0)
    rows = await in_ledger(database)
    expected = {"cancel": "cancelled", "change": "scheduled", "fire": "scheduled"}.get(action)
    assert {name: row.status for name, row in rows.items()} == ({"note:a": expected} if expected else {})


async def test_rows_of_the_inbox_stay_if_redis_loses_data_meanwhile(
    fleet: Fleet, database: Database, by_hand: Inbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    await ask(database, "a", delay="24h")
    await by_hand.drain()
    await ask(database, "a", "cancel")
    await ask(database, "b", delay="24h")
    monkeypatch.setattr("timers.engine.inbox.given_back", lost_then(fleet))
    with pytest.raises(Unavailable, match="lost data"):
        await by_hand.drain()
    assert await left(database) == 2
    monkeypatch.undo()
    assert await by_hand.drain() == 2
    assert {name: row.status for name, row in (await in_ledger(database)).items()} == {
        "note:a": "cancelled",
        "note:b": "scheduled",
    }


async def test_what_was_removed_before_a_pod_follows_is_not_given_back(fleet: Fleet, database: Database) -> None:
    """The ledger does not know yet that it was removed, and the row was read before that."""
    made = await fleet.client.create("note", "a", delay="24h")
    life = (await enter(fleet.store, database, 0)).life
    await database.do(partial(save_in, lives={0: life}, changed=[row_of_timer(fleet.store, made)]))
    assert (await fleet.store.cancel("note", "a", purge=True, life=life)).code == "purged"
    assert await give(fleet.store, database, [("note", "a")], life) == 0
    assert await fleet.store.get_one("note", "a") is None


def lost_then(fleet: Fleet) -> object:
    """Gives everything back, and then Redis loses it again."""

    async def lose(*given: object) -> object:
        lives = await given_back(*given)  # type: ignore[arg-type]
        await fleet.redis.flushall()
        await fleet.store.identity.refresh()
        return lives

    return lose
