"""Pods drain the inbox: each row once, in order, and nothing is lost whoever is away or dies."""

import asyncio
import json
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
from sqlalchemy import NullPool, select, text
from sqlalchemy.ext.asyncio import create_async_engine

from tests import postgres
from tests.engine.fleet import Calls, Fleet, Held, options_of, until
from tests.ledger.copies import say
from tests.members import declare
from tests.waiting import DEADLINE_SECONDS, eventually
from timers.client import TimerClient
from timers.client.fleet import Declared
from timers.client.inbox import carry_out
from timers.core.model import Status
from timers.engine import inbox as inbox_module
from timers.engine.inbox import Inbox
from timers.engine.pod import Pod
from timers.errors import LedgerUnavailable, Unavailable
from timers.ledger import arm, cancel, facts
from timers.ledger import bell as bell_module
from timers.ledger import inbox as inbox_rows
from timers.ledger.bell import listen
from timers.ledger.database import Database
from timers.ledger.facts import Lives
from timers.ledger.inbox import TAKEN_BYTES, Taken, take
from timers.ledger.schema import inbox, refused, timers
from timers.processor import Registry
from timers.store.following import read_marks


async def ask(database: Database, id: str, action: str = "create", prefix: str = "note", **body: Any) -> None:
    async with database.transaction() as connection:
        row = {"prefix": prefix, "id": id, "action": action, "body": json.dumps(body)}
        await connection.execute(inbox.insert(), row)


async def left(database: Database) -> int:
    async with database.transaction() as connection:
        return len((await connection.execute(select(inbox.c.seq))).all())


async def _are_left(database: Database, count: int) -> bool:
    return await left(database) == count


async def problems(database: Database) -> dict[str, str]:
    async with database.transaction() as connection:
        found = await connection.execute(select(refused.c.id, refused.c.problem).order_by(refused.c.seq))
        return {row.id: row.problem for row in found}


async def kept(database: Database) -> dict[str, tuple[str, int]]:
    async with database.transaction() as connection:
        found = await connection.execute(select(timers.c.id, timers.c.status, timers.c.version))
        return {row.id: (row.status, row.version) for row in found}


async def drained(inbox_: Inbox) -> None:
    while await inbox_.drain():
        pass


@pytest.fixture
def by_hand(database: Database, fleet: Fleet) -> Inbox:
    """An inbox without a pod, which drains when it is told to."""
    return inbox_of(fleet, database)


def parts_of(fleet: Fleet, database: Database) -> tuple[Pod, Database, TimerClient]:
    return Pod(fleet.store, Registry([]), options_of()), database, fleet.client


def inbox_of(fleet: Fleet, database: Database) -> Inbox:
    return Inbox(*parts_of(fleet, database))


async def test_a_row_waits_for_a_prefix_that_redis_has_just_lost(
    database: Database, fleet: Fleet, by_hand: Inbox
) -> None:
    """The ledger knows it, and pods say it again within seconds. Refused rows a person has to insert again."""
    await say(fleet.store, 0, "whole 1")
    await database.do(partial(facts.write, changed={("declared", "note"): "1 a"}, gone=()))
    await fleet.redis.delete("timers:{pods}:declared")
    fleet.client._declared = Declared(fleet.store, fresh_seconds=0)
    await ask(database, "known", delay="24h")
    await ask(database, "unknown", prefix="other", delay="24h")
    await by_hand.drain()
    assert (await left(database), list(await problems(database))) == (1, ["unknown"])
    await declare(fleet.store, "note")
    by_hand._aside.clear()
    assert await by_hand.drain() == 1
    assert list(await kept(database)) == ["known"]


async def test_a_committed_row_becomes_a_timer_that_runs(database: Database, fleet: Fleet) -> None:
    calls = Calls()
    pod = await fleet.pod(calls, ledger=database)
    async with database.transaction() as connection:
        await arm(connection, "note", "a", delay=0, payload={"user": 1})
    timer = await fleet.completed("a")
    assert timer.payload == {"user": 1}
    await until(lambda: pod.seen.inbox["done"] == 1, "the row is counted")
    assert await left(database) == 0
    assert calls.ids == ["a"]


async def test_actions_of_one_timer_are_done_in_their_order(database: Database, fleet: Fleet, by_hand: Inbox) -> None:
    async with database.transaction() as connection:
        for _ in range(5):
            await arm(connection, "note", "a", delay="1h", if_exists="replace")
            await cancel(connection, "note", "a")
    await asyncio.gather(*(drained(each) for each in (by_hand, inbox_of(fleet, database))))
    await drained(by_hand)
    timer = await fleet.client.get("note", "a")
    causes = [entry.cause for entry in reversed(timer.history)]
    assert causes == ["created", "cancelled", *["replaced", "cancelled"] * 4]
    assert await problems(database) == {}
    assert await kept(database) == {"a": ("cancelled", timer.version)}


AGES_MS = 7_200_000


async def _wait(database: Database) -> None:
    """As if all rows had been written so long ago."""
    async with database.transaction() as connection:
        await connection.execute(inbox.update().values(at=inbox.c.at - AGES_MS))


@pytest.mark.parametrize("end", ["cancel", "purge"])
@pytest.mark.parametrize("between", [None, "create", "change", "reschedule", "fire"])
async def test_what_was_cancelled_before_any_pod_looked_does_not_run(
    database: Database, fleet: Fleet, end: str, between: str | None
) -> None:
    """It came due while both rows waited, and started before the second was looked at."""
    calls = Calls()
    await fleet.pod(calls, ledger=database)
    await ask(database, "first", delay=0)
    await fleet.completed("first")  # so the pod does not wait for the inbox any more before it starts timers
    bodies = {"create": {"delay": "90m", "if_exists": "replace"}, "reschedule": {"delay": "30m"}}
    at = await fleet.store.now_ms() - AGES_MS
    asked = [("a", "create"), *([("a", between)] if between else []), ("a", end), ("b", "create")]
    async with database.transaction() as connection:
        for place, (id, action) in enumerate(asked):
            body = {"delay": "1h"} if action == "create" and place != 1 else bodies.get(action, {})
            row = {"prefix": "note", "id": id, "action": action, "body": json.dumps(body), "at": at}
            await connection.execute(inbox.insert(), row)
    await fleet.completed("b")
    await eventually(partial(_are_left, database, 0), "all rows are carried out")
    assert calls.ids == ["first", "b"]
    assert "is running" not in str(await problems(database))
    assert (await kept(database))["a"][0] == {"cancel": "cancelled", "purge": "purged"}[end]


async def test_a_timer_is_cancelled_in_the_step_that_arms_it(database: Database, fleet: Fleet, by_hand: Inbox) -> None:
    """And once, if the pods that carry the rows out die."""
    for payload in (1, 2):
        await ask(database, "a", delay="1h", payload=payload, if_exists="replace")
        await ask(database, "a", "cancel")
    await _wait(database)
    dying = Dying(*parts_of(fleet, database))
    for _ in range(4):
        await dying.drain()
        assert (await fleet.client.get("note", "a")).status is Status.CANCELLED
        await by_hand.drain()
    assert (await left(database), await problems(database)) == (0, {})
    timer = await fleet.client.get("note", "a")
    history = [f"{entry.cause} {(entry.by or '').split('.')[0]}".strip() for entry in reversed(timer.history)]
    assert history == ["created", "cancelled inbox 2", "replaced inbox 3", "cancelled inbox 4"]
    assert timer.payload == 2
    assert await kept(database) == {"a": ("cancelled", timer.version)}


async def test_a_cancel_that_only_comes_later_leaves_what_is_not_due(
    database: Database, fleet: Fleet, by_hand: Inbox
) -> None:
    await ask(database, "a", delay="3h", payload=1)
    await ask(database, "a", "change", payload=2)
    await ask(database, "a", "cancel")
    await ask(database, "b", delay="1h")
    await ask(database, "b", "retry")
    await ask(database, "b", "cancel")
    await _wait(database)
    await by_hand.drain()
    assert (await fleet.client.get("note", "a")).status is Status.SCHEDULED
    assert (await fleet.client.get("note", "b")).status is Status.SCHEDULED
    await drained(by_hand)
    timer = await fleet.client.get("note", "a")
    assert (timer.status, timer.payload) == (Status.CANCELLED, 2)
    assert {id: problem.split(";")[0] for id, problem in (await problems(database)).items()} == {
        "b": "timer note:b is scheduled already"
    }


async def test_every_action(database: Database, fleet: Fleet, by_hand: Inbox) -> None:
    await fleet.client.create("note", "moved", delay="1h")
    await fleet.client.create("note", "changed", delay="1h")
    await fleet.client.create("note", "gone", delay="1h")
    await fleet.client.create("note", "again", delay="1h")
    await fleet.client.create("note", "now", delay="1h")
    await fleet.client.cancel("note", "again")
    await ask(database, "moved", "reschedule", due_at=1_900_000_000_000)
    await ask(database, "changed", "change", payload=7)
    await ask(database, "gone", "purge")
    await ask(database, "never", "purge")
    await ask(database, "again", "retry")
    await ask(database, "now", "fire")
    await drained(by_hand)
    assert await problems(database) == {}
    assert (await fleet.client.get("note", "moved")).due_ms == 1_900_000_000_000
    assert (await fleet.client.get("note", "changed")).payload == 7
    assert (await fleet.client.get("note", "again")).status is Status.SCHEDULED
    assert (await fleet.client.get("note", "now")).due_ms < 1_900_000_000_000
    assert {id: status for id, (status, _) in (await kept(database)).items()} == {
        "moved": "scheduled",
        "changed": "scheduled",
        "gone": "purged",
        "again": "scheduled",
        "now": "scheduled",
    }


async def test_what_cannot_be_done_is_kept_with_its_problem(database: Database, fleet: Fleet, by_hand: Inbox) -> None:
    await fleet.client.create("note", "there", delay="1h")
    await ask(database, "there", delay="1h")
    await ask(database, "field", dealy="1h")
    await ask(database, "nobody", prefix="nobody", delay="1h")
    await ask(database, "nothing", "cancel")
    await ask(database, "unknown", "explode")
    await ask(database, "good", delay="1h")
    async with database.transaction() as connection:
        row = {"prefix": "note", "id": "json", "action": "create", "body": "{"}
        await connection.execute(inbox.insert(), row)
    await drained(by_hand)
    said = await problems(database)
    assert {id: problem.split("; expected")[0].split("; use")[0] for id, problem in said.items()} == {
        "there": "timer note:there exists and is scheduled",
        "field": "dealy: '1h' is not accepted",
        "nobody": "prefix: 'nobody' is not accepted",
        "nothing": "timer note:nothing does not exist",
        "unknown": "action: 'explode' is not accepted",
        "json": "body: '{' is not accepted",
    }
    assert await left(database) == 0
    assert (await fleet.client.get("note", "good")).status is Status.SCHEDULED


class Dying(Inbox):
    """A pod that dies between Redis and the commit."""

    async def drain(self, most: int = 500) -> int:
        async with self._database.transaction() as connection:
            await carry_out(self._client, await take(connection, most), {})
            await connection.rollback()
        return 0


async def test_a_row_that_fails_unexpectedly_holds_up_no_other(
    database: Database, fleet: Fleet, by_hand: Inbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(client: TimerClient, taken: Sequence[Taken], lives: Lives) -> list[Any]:
        if any(row.id == "bad" for row in taken):
            raise RuntimeError("a fault of the service")
        return await carry_out(client, taken, lives)

    monkeypatch.setattr("timers.engine.inbox.carry_out", fails)
    for name in ("a", "bad", "b"):
        await ask(database, name, delay="24h")
    if database.dialect == "sqlite":  # which takes a value of any type
        async with database.transaction() as connection:
            await connection.execute(text("UPDATE timers_inbox SET at = 'yesterday' WHERE id = 'a'"))
    await drained(by_hand)
    assert set(await kept(database)) == {"a", "b"}
    assert (await problems(database)).keys() == {"bad"}
    assert "RuntimeError" in (await problems(database))["bad"]
    assert await left(database) == 0


@pytest.mark.parametrize("retention_ms", [0, 86_400_000])
async def test_a_row_that_is_taken_again_runs_its_timer_once(
    database: Database, fleet: Fleet, retention_ms: int
) -> None:
    calls = Calls()
    await fleet.pod(calls, retention_ms=retention_ms)
    dying, next_pod = Dying(*parts_of(fleet, database)), inbox_of(fleet, database)
    for id, if_exists in (("a", "error"), ("b", "replace"), ("c", "keep")):
        await ask(database, id, delay=0, if_exists=if_exists)
    await dying.drain()
    await until(lambda: len(calls) == 3, "each has run")
    await drained(next_pod)
    assert await left(database) == 0
    assert await problems(database) == {}
    await ask(database, "d", delay=0)
    await drained(next_pod)
    await until(lambda: len(calls) > 3, "the last has run")
    assert sorted(calls.ids) == ["a", "b", "c", "d"]


async def test_other_actions_that_are_taken_again_are_done_once(database: Database, fleet: Fleet) -> None:
    for id in ("cancelled", "moved", "fired", "purged", "retried"):
        await fleet.client.create("note", id, delay="1h")
    await fleet.client.cancel("note", "retried")
    await ask(database, "cancelled", "cancel")
    await ask(database, "moved", "change", delay="2h")
    await ask(database, "fired", "fire")
    await ask(database, "purged", "purge")
    await ask(database, "retried", "retry")
    await Dying(*parts_of(fleet, database)).drain()
    found = {id: await fleet.client.get("note", id) for id in ("cancelled", "moved", "fired", "retried")}
    await drained(inbox_of(fleet, database))
    assert await problems(database) == {}
    assert {id: await fleet.client.get("note", id) for id in found} == found


async def test_marks_go_when_their_rows_are_gone(database: Database, fleet: Fleet, by_hand: Inbox) -> None:
    await ask(database, "a", delay="1h")
    await ask(database, "b", delay="1h")
    await drained(by_hand)
    await ask(database, "c", delay="1h")
    await Dying(*parts_of(fleet, database)).drain()
    assert len(await marks_of(fleet)) == 3
    await by_hand.forget()
    assert len(await marks_of(fleet)) == 3
    marks = await fleet.redis.hgetall("timers:{0}:inbox")
    await fleet.redis.hset("timers:{0}:inbox", mapping=dict.fromkeys(marks, 1000))
    await by_hand.forget()
    (left_over,) = await marks_of(fleet)
    assert left_over.startswith("3.")
    await drained(by_hand)
    await fleet.redis.delete("timers:{0}:inbox")


async def marks_of(fleet: Fleet) -> list[str]:
    """The marks of the first shard."""
    return [row async for shard, some in read_marks(fleet.store) for row in some if shard == 0]


async def test_the_marks_of_a_busy_minute_are_read_in_parts(fleet: Fleet, by_hand: Inbox) -> None:
    """A command that reads all of them holds up the server longer the more there are."""
    name, rows = "timers:{0}:inbox", [f"{seq}.1" for seq in range(10**6, 10**6 + 3000)]
    await fleet.redis.hset(name, mapping=dict.fromkeys(rows, 1000))
    parts = [some async for _, some in read_marks(fleet.store)]
    assert {row for some in parts for row in some} == set(rows)
    assert max(map(len, parts)) < 1000
    await by_hand.forget()
    assert not await fleet.redis.exists(name)


async def test_a_delay_counts_from_the_row(database: Database, fleet: Fleet, by_hand: Inbox) -> None:
    now_ms = await fleet.store.now_ms()
    async with database.transaction() as connection:
        await arm(connection, "note", "a", delay="1h")
        await arm(connection, "note", "b", delay="1h", repeat={"every": "1h"})
        await arm(connection, "note", "c", due_at=1_900_000_000_000)
        await arm(connection, "note", "d", retry={"backoff": ["1h"]})
        # Written ten minutes ago, by the same clock that tells its age.
        await connection.execute(text("UPDATE timers_inbox SET at = at - 600000"))
    await drained(by_hand)
    for id in ("a", "b", "d"):
        timer = await fleet.client.get("note", id)
        assert 0 <= timer.due_ms - (now_ms + 3_000_000) < 60_000
    assert (await fleet.client.get("note", "c")).due_ms == 1_900_000_000_000


async def test_nothing_is_lost_while_redis_is_away(database: Database, fleet: Fleet, by_hand: Inbox) -> None:
    await ask(database, "a", delay="1h")
    away = Inbox(by_hand._pod, database, TimerClient("redis://127.0.0.1:1"))
    with pytest.raises(Unavailable):
        await away.drain()
    assert await left(database) == 1
    await drained(by_hand)
    assert (await fleet.client.get("note", "a")).status is Status.SCHEDULED


async def test_pods_side_by_side_take_each_row_once(database: Database, sharded: Fleet) -> None:
    calls = Calls()
    await asyncio.gather(*(sharded.pod(calls, name=name, ledger=database) for name in "abc"))
    async with database.transaction() as connection:
        for number in range(300):
            await arm(connection, "note", f"{number:03}", delay=0)
    await until(lambda: len(calls) >= 300, "all have run")
    assert sorted(calls.ids) == [f"{number:03}" for number in range(300)]

    async def empty() -> bool:
        return await left(database) == 0

    await eventually(empty, "the inbox is empty")
    assert await problems(database) == {}


async def test_a_later_row_of_a_running_timer_waits_for_nobody(database: Database, fleet: Fleet) -> None:
    held = Held()
    pod = await fleet.pod(held, ledger=database)
    await ask(database, "a", delay=0)
    await until(lambda: len(held) == 1, "it runs")
    await ask(database, "a", "cancel")
    await until(lambda: pod.seen.inbox["refused"] == 1, "it cannot be cancelled")
    held.release.set()
    assert "is running" in (await problems(database))["a"]


async def test_a_row_that_replaces_a_running_timer_waits_for_the_end_of_the_run(
    database: Database, fleet: Fleet
) -> None:
    """It was refused, though a caller had been told that the timer is kept."""
    held = Held()
    await fleet.pod(held, ledger=database)
    await ask(database, "a", delay=0, payload=1)
    await until(lambda: held.ids == ["a"], "it runs")
    await ask(database, "a", delay=0, payload=2, if_exists="replace")
    await ask(database, "b", delay=0)
    await until(lambda: held.ids == ["a", "b"], "it holds up no other")
    await eventually(partial(_are_left, database, 1), "the other is done")
    assert await problems(database) == {}
    held.release.set()
    await until(lambda: [timer.payload for timer in held.timers] == [1, None, 2], "it is replaced")
    assert (await fleet.completed("a")).payload == 2
    await eventually(partial(_are_left, database, 0), "so is this one")
    assert await problems(database) == {}


async def test_what_waits_for_the_end_of_a_run_holds_up_no_start_after_a_gap(
    database: Database, fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does what follows it."""
    held = Held()
    pod = await fleet.pod(held, ledger=database)
    await ask(database, "a", delay=0)
    await until(lambda: held.ids == ["a"], "it runs")
    await ask(database, "a", delay="1h", if_exists="replace")
    await ask(database, "a", "cancel")
    monkeypatch.setattr(inbox_module, "CATCH_UP_SECONDS", DEADLINE_SECONDS)
    assert pod.worker._inbox is not None
    await pod.worker._inbox.catch_up()
    assert pod.worker._inbox._caught_up.is_set()
    held.release.set()
    await fleet.reached(Status.CANCELLED, "a")


async def _is_heard(database: Database) -> bool:
    async with database.transaction() as connection:
        said = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'LISTEN%' AND state = 'idle'"
        return bool(await connection.scalar(text(f"{said} AND datname = current_database()")))


@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
async def test_a_commit_rings_and_a_lost_connection_is_noticed(driver: str) -> None:
    database = Database(postgres.new_database(driver))
    await database.upgrade()
    rung = asyncio.Event()
    listening = asyncio.create_task(listen(database, rung.set))
    async with asyncio.timeout(DEADLINE_SECONDS):
        await eventually(partial(_is_heard, database), "it listens")
        await ask(database, "a", delay=0)
        await rung.wait()
        async with database.transaction() as connection:
            said = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE query LIKE 'LISTEN%'"
            await connection.execute(text(f"{said} AND datname = current_database()"))
        with pytest.raises(LedgerUnavailable, match="the ledger is not available: "):
            await listening
    await database.close()


@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
async def test_without_the_trigger_a_commit_does_not_ring(driver: str) -> None:
    database, rung = Database(postgres.new_database(driver)), asyncio.Event()
    await database.upgrade(notify=False)
    rings = 0

    def ring() -> None:
        nonlocal rings
        rings += 1
        rung.set()

    listening = asyncio.create_task(listen(database, ring))
    async with asyncio.timeout(DEADLINE_SECONDS):
        await eventually(partial(_is_heard, database), "it listens")
        await ask(database, "a", delay=0)
        async with database.transaction() as connection:  # comes after whatever the row would have sent
            await connection.execute(text(f"NOTIFY {inbox_rows.CHANNEL}"))
        await rung.wait()
    assert rings == 1
    listening.cancel()
    await asyncio.gather(listening, return_exceptions=True)
    await database.close()


@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
@pytest.mark.parametrize("noticed", [True, False])
async def test_a_connection_that_is_cut_before_it_listens_is_a_ledger_that_is_away(
    driver: str, noticed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = Database(postgres.new_database(driver))
    listens = getattr(bell_module, f"_{driver}")

    async def cut(connection: Any, ring: Callable[[], object]) -> None:
        if noticed:
            await connection.close()
        else:
            async with database.transaction() as other:
                said = (
                    "SELECT count(pg_terminate_backend(pid, 5000)) FROM pg_stat_activity WHERE pid <> pg_backend_pid()"
                )
                await other.execute(text(f"{said} AND datname = current_database()"))
        await listens(connection, ring)

    monkeypatch.setattr(bell_module, f"_{driver}", cut)
    with pytest.raises(LedgerUnavailable, match="the ledger is not available: "):
        await listen(database, lambda: None)
    await database.close()


async def test_a_pod_goes_on_after_its_connections_were_cut(database: Database, fleet: Fleet, ledger_url: str) -> None:
    if database.dialect == "sqlite":
        pytest.skip("it has no connections")
    calls, engine = Calls(), create_async_engine(ledger_url, poolclass=NullPool)
    await fleet.pod(calls, ledger=database)
    for count, id in enumerate(("a", "b", "c"), 1):
        async with engine.begin() as tx:
            said = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE pid <> pg_backend_pid()"
            await tx.execute(text(f"{said} AND datname = current_database()"))
            await arm(tx, "note", id, delay=0)
        await until(lambda ran=count: len(calls) == ran, f"{id} has run")  # type: ignore[misc]
    assert calls.ids == ["a", "b", "c"]


async def test_a_problem_that_the_database_cannot_hold_stops_no_other_row(
    database: Database, fleet: Fleet, by_hand: Inbox
) -> None:
    await fleet.pod(Calls(), ledger=None)
    unknown: dict[str, Any] = {"a\0b": 1}
    await ask(database, "bad", **unknown, delay="1h")
    await ask(database, "good", delay="1h")
    await drained(by_hand)
    assert await left(database) == 0
    assert "a\ufffdb" in (await problems(database))["bad"]
    assert (await fleet.client.get("note", "good")).status == "scheduled"


async def test_bodies_of_any_size_are_taken_a_few_at_a_time(database: Database, fleet: Fleet, by_hand: Inbox) -> None:
    """A pod that took five hundred of them would have no memory left, or never come to their end."""
    await fleet.pod(Calls(), ledger=None)
    for id, size in (("whole", TAKEN_BYTES), ("half", TAKEN_BYTES // 2), ("other half", TAKEN_BYTES // 2)):
        await ask(database, id, payload="\u00e9" * (size // 6), delay="1h")  # six bytes each, as JSON has them
    await ask(database, "good", delay="1h")
    assert [await by_hand.drain() for _ in range(4)] == [1, 2, 1, 0]
    assert list(await problems(database)) == ["whole", "half", "other half"]
    assert (await fleet.client.get("note", "good")).status == "scheduled"


async def test_many_rows_of_one_timer_are_not_compared_with_each_other(database: Database) -> None:
    if database.dialect != "postgresql":
        pytest.skip("SQLite asks the index for each row anyway")
    row = {"prefix": "note", "id": "one", "action": "change", "body": "{}"}
    async with database.transaction() as connection:
        await connection.execute(inbox.insert(), [row] * 2000)
        await connection.execute(inbox.insert(), {**row, "id": "other"})
        await connection.execute(text("ANALYZE timers_inbox"))
        asked = inbox_rows._FIRSTS.params(without=[0])
        said = asked.compile(dialect=connection.dialect, compile_kwargs={"literal_binds": True})
        plan = "\n".join((await connection.execute(text(f"EXPLAIN {said}"))).scalars())
        assert "Join" not in plan
        assert "using timers_inbox_identity" in plan
        assert [each.id for each in await take(connection)] == ["one", "other"]


async def test_a_row_that_is_inserted_again_with_its_number_may_be_refused_again(
    database: Database, fleet: Fleet, by_hand: Inbox
) -> None:
    await fleet.pod(Calls(), ledger=None)
    await ask(database, "bad", delay="soon")
    await drained(by_hand)
    async with database.transaction() as connection:
        columns = ("seq", "prefix", "id", "action", "body", "at")
        again = select(*(refused.c[name] for name in columns))
        await connection.execute(inbox.insert().from_select(columns, again))
    await ask(database, "other", delay="soon")
    await drained(by_hand)
    assert await left(database) == 0
    async with database.transaction() as connection:
        found = (await connection.execute(select(refused.c.seq, refused.c.id).order_by(refused.c.seq))).all()
    assert sorted(row.id for row in found) == ["bad", "bad", "other"]


async def test_text_that_is_not_utf8_stops_no_other_row(database: Database, fleet: Fleet, by_hand: Inbox) -> None:
    if database.dialect != "sqlite":
        pytest.skip("PostgreSQL takes none")
    await fleet.pod(Calls(), ledger=None)
    async with database.transaction() as connection:
        for body in ("x'7bff7d'", '\'{"delay": "1h"}\''):
            values = f"VALUES ('note', hex({body}), 'create', CAST({body} AS TEXT))"
            await connection.execute(text(f"INSERT INTO timers_inbox (prefix, id, action, body) {values}"))
    await drained(by_hand)
    assert (await left(database), list(await problems(database))) == (0, ["7BFF7D"])


@pytest.mark.parametrize("at", [-(2**63), -62_135_596_800_001, -1, 10**13, 2**63 - 1])
async def test_a_row_whose_time_is_none_is_refused_and_stops_no_other(
    database: Database, fleet: Fleet, by_hand: Inbox, at: int
) -> None:
    await fleet.pod(Calls(), ledger=None)
    await ask(database, "delayed", delay="24h")
    await ask(database, "cron", repeat={"cron": "0 0 1 1 *"})
    async with database.transaction() as connection:
        await connection.execute(inbox.update().values(at=at))
    await ask(database, "good", delay="24h")
    await drained(by_hand)
    said = await problems(database)
    assert said.keys() == {"delayed", "cron"}
    assert all(problem.startswith(f"at: {at} is not accepted; expected ") for problem in said.values())
    assert (await left(database), list(await kept(database))) == (0, ["good"])
    assert (await fleet.client.get("note", "good")).status is Status.SCHEDULED
