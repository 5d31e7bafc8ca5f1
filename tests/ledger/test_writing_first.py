"""A caller is answered once the ledger has it: creates go there first, and what either side lacks is put right."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import nullcontext
from typing import Any

import pytest
from sqlalchemy import text

from tests.engine.fleet import Calls, Fleet
from tests.ledger.copies import agreed, in_ledger, in_redis, say
from timers.client import Armed, TimerClient, client_over, open_store
from timers.client.copies import keep_facts
from timers.core.clock import ServerClock
from timers.core.model import Timer
from timers.core.shapes import Durability, IfExists
from timers.core.spec import NewTimer
from timers.errors import AlreadyExists, InvalidInput, LedgerUnavailable, NotFound, Unavailable
from timers.ledger.database import Database
from timers.store.callers import Quota, Quotas
from timers.store.restoring import read_pauses
from timers.store.servers import connect
from timers.store.store import Arming, Identity, Reply, Store


@pytest.fixture
async def client(fleet: Fleet, database: Database, ledger_url: str) -> AsyncIterator[TimerClient]:
    """A client of the fleet's db that writes to the ledger."""
    client = client_over(await open_store(connect(fleet.url)), ledger=ledger_url)
    yield client
    await client.close()


async def away(database: Database, *, back: bool = False) -> None:
    """Take the table away that every write needs, or put it back."""
    async with database.transaction() as connection:
        await connection.execute(
            text(f"ALTER TABLE {'away' if back else 'timers_timers'} RENAME TO {'timers_timers' if back else 'away'}")
        )


async def test_the_ledger_has_a_create_before_any_pod_follows(
    fleet: Fleet, client: TimerClient, database: Database
) -> None:
    made = await client.create("note", "a", delay="24h", payload={"x": "ü"}, tags=["t"])
    assert (made.durability, made.armed, made.to_json().get("durability")) == ("ledger", True, "ledger")
    assert await in_ledger(database) == await in_redis(fleet.store)
    assert (await client.get("note", "a")).created_ms == made.created_ms


async def test_a_batch_is_armed_in_its_order_whichever_part_the_ledger_has_first(
    fleet: Fleet, client: TimerClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids, due_ms, first, do = [f"{i * 7919 % 1000:04}" for i in range(1000)], 2_000_000_000_000, True, Database.do
    await client.create("note", "armed-before", delay="1h")

    async def slow(*given: Any, **more: Any) -> Any:
        nonlocal first
        is_first, first = first, False
        found = await do(*given, **more)
        await asyncio.sleep(0.1 * is_first)
        return found

    monkeypatch.setattr(Database, "do", slow)
    await client.batch([NewTimer(prefix="note", id=id, due_at=due_ms) for id in ids])
    found: Any = await fleet.redis.zrange("timers:{0}:due:note", due_ms, "(9e12", byscore=True)
    assert [id.decode() for id in found] == ids


async def test_changes_are_in_the_ledger_when_they_are_answered(
    fleet: Fleet, client: TimerClient, database: Database
) -> None:
    for name in ("changed", "cancelled", "purged", "retried", "fired", "replaced"):
        await client.create("note", name, delay="24h")
    await client.change("note", "changed", delay="48h", payload=7)
    await client.cancel("note", "cancelled")
    await client.cancel("note", "purged", purge=True)
    await client.cancel("note", "retried")
    await client.retry("note", "retried")
    await client.fire("note", "fired")
    await client.create("note", "replaced", delay="72h", if_exists="replace", payload="new")
    assert await in_ledger(database) == await in_redis(fleet.store)
    assert "note:purged" not in await in_ledger(database)


@pytest.mark.parametrize("quota", [None, Quota(100, ("note",), 100)])
async def test_fast_timers_do_not_wait_for_a_ledger_that_others_need(
    client: TimerClient, database: Database, quota: Quota | None
) -> None:
    client = client.acting("somebody", quota)
    await away(database)
    plain = [client.create("note", f"plain{n}", delay="24h") for n in range(3)]
    fast = [client.create("note", f"fast{n}", delay="24h", durability="fast") for n in range(3)]
    answers = await asyncio.gather(*plain, *fast, return_exceptions=True)
    await away(database, back=True)
    assert [isinstance(answer, LedgerUnavailable) for answer in answers] == [True] * 3 + [False] * 3


async def test_a_batch_of_which_some_need_the_ledger_arms_nothing_without_it(
    client: TimerClient, database: Database
) -> None:
    mixed = [
        NewTimer(prefix="note", id="fast", delay="24h", durability="fast"),
        NewTimer(prefix="note", id="ledger", delay="24h", durability="ledger"),
    ]
    await away(database)
    with pytest.raises(LedgerUnavailable):
        await client.batch(mixed)
    await away(database, back=True)
    for name in ("fast", "ledger"):
        with pytest.raises(NotFound):
            await client.get("note", name)


def how(results: Sequence[Any]) -> list[str]:
    return [result.how if isinstance(result, Armed) else type(result).__name__ for result in results]


IN_TURN: list[tuple[IfExists, str]] = [
    ("error", "created"),
    ("error", "AlreadyExists"),
    ("keep", "kept"),
    ("replace", "replaced"),
    ("error", "AlreadyExists"),
]


async def test_one_name_several_times_in_a_batch_is_armed_in_order(
    fleet: Fleet, client: TimerClient, database: Database
) -> None:
    """All were answered as created, and what they brought was dropped."""
    results = await client.batch(
        [
            NewTimer(prefix="note", id="same", delay="24h", payload=n, if_exists=mode)
            for n, (mode, _) in enumerate(IN_TURN)
        ]
    )
    assert how(results) == [said for _, said in IN_TURN]
    assert (await client.get("note", "same")).payload == 3
    assert await in_ledger(database) == await in_redis(fleet.store)


LEVELS: tuple[Durability, ...] = ("ledger", "fast", "ledger")


async def test_one_name_of_several_durabilities_is_armed_in_order(client: TimerClient) -> None:
    results = await client.batch(
        [
            NewTimer(prefix="note", id="same", delay="24h", payload=n, durability=durability)
            for n, durability in enumerate(LEVELS)
        ]
    )
    assert how(results) == ["created", "AlreadyExists", "AlreadyExists"]


@pytest.mark.parametrize("mode", ["error", "keep", "replace"])
async def test_of_callers_of_one_name_at_once_one_has_created_it(
    fleet: Fleet, client: TimerClient, database: Database, mode: IfExists
) -> None:
    """Those that went to the ledger together were all answered as created, with the payload of the first."""
    others = [client.arm(NewTimer(prefix="note", id=f"other{n}", delay="24h")) for n in range(2)]
    same = [client.arm(NewTimer(prefix="note", id="same", delay="24h", payload=n, if_exists=mode)) for n in range(4)]
    results = (await asyncio.gather(*others, *same, return_exceptions=True))[2:]
    rest = {"error": "AlreadyExists", "keep": "kept", "replace": "replaced"}[mode]
    assert sorted(how(results)) == sorted(["created", rest, rest, rest])
    timer, created = await client.get("note", "same"), how(results).index("created")
    assert (timer.version, timer.payload == created) == ((4, False) if mode == "replace" else (1, True))
    assert await in_ledger(database) == await in_redis(fleet.store)


async def test_fast_timers_follow_later(fleet: Fleet, client: TimerClient, database: Database) -> None:
    made = await client.create("note", "fast", delay="24h", durability="fast")
    assert made.durability == "fast"
    results = await client.batch(
        [
            {"prefix": "note", "id": str(n), "delay": "24h", "durability": "fast" if n % 2 else "ledger"}
            for n in range(6)
        ]
    )
    assert [result.timer.durability for result in results if not isinstance(result, Exception)] == [
        "ledger",
        "fast",
    ] * 3
    assert set(await in_ledger(database)) == {"note:0", "note:2", "note:4"}
    await fleet.pod(Calls(), ledger=database)
    assert len(await agreed(database, fleet.store)) == 7


async def test_who_was_faster_decides_and_the_ledger_agrees(
    fleet: Fleet, client: TimerClient, database: Database
) -> None:
    before = await fleet.client.create("note", "a", delay="24h", payload="first")
    with pytest.raises(AlreadyExists):
        await client.create("note", "a", delay="48h")
    assert await in_ledger(database) == await in_redis(fleet.store)
    await fleet.client.change("note", "a", payload="second")
    kept = await client.create("note", "a", delay="48h", if_exists="keep")
    assert (kept.payload, kept.created_ms) == ("second", before.created_ms)
    assert await in_ledger(database) == await in_redis(fleet.store)
    await fleet.client.create("note", "b", delay="24h")
    await client.create("note", "b", delay="48h", if_exists="replace", payload="mine")
    assert await in_ledger(database) == await in_redis(fleet.store)


@pytest.mark.parametrize("mode", ["error", "keep", "replace"])
async def test_what_is_removed_right_after_redis_had_it_is_told_as_it_was_and_not_written(
    fleet: Fleet, client: TimerClient, database: Database, monkeypatch: pytest.MonkeyPatch, mode: IfExists
) -> None:
    await fleet.client.create("note", "a", delay="24h", payload="there")
    get = Store.get

    async def too_late(store: Store, identities: Sequence[Identity]) -> list[Timer | None]:
        await fleet.client.cancel("note", "a", purge=True)
        return await get(store, identities)

    monkeypatch.setattr(Store, "get", too_late)
    (came,) = await client.batch([NewTimer(prefix="note", id="a", delay="48h", payload="new", if_exists=mode)])
    if mode == "error":
        assert isinstance(came, AlreadyExists)
        assert "exists and is scheduled" in str(came)
    else:
        assert isinstance(came, Armed)
        assert (came.how, came.timer.payload) == (("kept", "there") if mode == "keep" else ("replaced", "new"))
    assert await in_ledger(database) == await in_redis(fleet.store) == {}


@pytest.mark.parametrize("fields", [{"payload": "mine"}, {"delay": "48h"}], ids=str)
async def test_a_timer_of_the_same_millisecond_is_another_one(
    fleet: Fleet, client: TimerClient, database: Database, monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any]
) -> None:
    first = await fleet.client.create("note", "a", delay="24h")
    monkeypatch.setattr(ServerClock, "now_ms", lambda _clock: float(first.created_ms))
    with pytest.raises(AlreadyExists):
        await client.arm(NewTimer.parse({"prefix": "note", "id": "a", "delay": "24h", **fields}))
    assert await in_ledger(database) == await in_redis(fleet.store)


async def test_of_two_creates_at_once_the_ledger_has_the_one_that_redis_made(
    fleet: Fleet, client: TimerClient, database: Database
) -> None:
    for rest in ({}, {"if_exists": "keep"}, {"if_exists": "replace"}):
        name = rest.get("if_exists", "error")
        first, second = (
            NewTimer.parse({"prefix": "note", "id": name, "delay": "24h", "payload": payload, **rest})
            for payload in ("first", "second")
        )
        await client.batch([first, second])
        assert await in_ledger(database) == await in_redis(fleet.store), name
    assert (await client.get("note", "error")).payload == "first"


async def test_a_purged_name_is_free_again(fleet: Fleet, client: TimerClient, database: Database) -> None:
    for payload in range(3):
        await client.create("note", "a", delay="24h", payload=payload)
        assert await in_ledger(database) == await in_redis(fleet.store)
        await client.cancel("note", "a", purge=True)
        assert await in_ledger(database) == {}


async def test_a_name_that_is_free_again_is_in_the_ledger_before_its_removal_is(
    fleet: Fleet, client: TimerClient, database: Database
) -> None:
    """The ledger had only the timer before, which has ended and was removed; a loss would have brought it back."""
    await client.create("note", "x", delay="24h", payload="old")
    await say(fleet.store, 0, f"whole {await fleet.store.now_ms()}")
    await fleet.client.cancel("note", "x", purge=True)  # as a run that ends under a retention of 0
    made = await client.create("note", "x", delay="48h", payload="new")
    assert made.durability == "ledger"
    row = (await in_ledger(database))["note:x"]
    assert (row.created, "new" in row.spec) == (made.created_ms, True)


async def test_without_the_ledger_nothing_is_armed_or_changed(
    fleet: Fleet, client: TimerClient, database: Database
) -> None:
    await client.create("note", "a", delay="24h")
    before = await in_redis(fleet.store)
    await away(database)
    with pytest.raises(LedgerUnavailable):
        await client.create("note", "b", delay="24h")
    with pytest.raises(LedgerUnavailable):
        await client.batch([{"prefix": "note", "id": "c", "delay": "24h"}])
    assert (await client.create("note", "fast", delay="24h", durability="fast")).durability == "fast"
    await away(database, back=True)
    assert {name: row for name, row in (await in_redis(fleet.store)).items() if name != "note:fast"} == before


async def test_a_lost_shard_answers_for_timers_that_are_not_restored_yet(
    fleet: Fleet, client: TimerClient, database: Database
) -> None:
    for name in ("read", "cancelled", "exists"):
        await client.create("note", name, delay="24h")
    await fleet.redis.flushall()
    await fleet.store.identity.refresh()
    assert (await client.get("note", "read")).version > 1
    assert (await client.cancel("note", "cancelled")).status == "cancelled"
    with pytest.raises(AlreadyExists):
        await client.create("note", "exists", delay="48h")
    with pytest.raises(NotFound):
        await client.get("note", "never")


@pytest.mark.parametrize("durability", ["ledger", "fast"])
@pytest.mark.parametrize("if_exists", ["error", "keep", "replace"])
async def test_what_redis_loses_just_before_its_name_is_armed_again_is_given_back_first(
    fleet: Fleet,
    client: TimerClient,
    database: Database,
    monkeypatch: pytest.MonkeyPatch,
    *,
    if_exists: IfExists,
    durability: Durability,
) -> None:
    made = await client.create("note", "a", delay="24h")
    pod = await fleet.pod(Calls(), ledger=database)
    await agreed(database, fleet.store)
    await fleet.kill(pod)
    arm = Quotas.arm

    async def lose_and_arm(quotas: Quotas, armings: Sequence[Arming], *given: Any) -> list[Reply]:
        monkeypatch.undo()
        await fleet.redis.flushall()
        return await arm(quotas, armings, *given)

    monkeypatch.setattr(Quotas, "arm", lose_and_arm)
    with pytest.raises(AlreadyExists) if if_exists == "error" else nullcontext():
        await client.create("note", "a", delay="48h", if_exists=if_exists, durability=durability)
    there = await client.get("note", "a")
    assert (there.created_ms == made.created_ms, there.version > 1) == (True, True), "it is the same timer"
    assert (there.due_ms == made.due_ms) is (if_exists != "replace")


@pytest.mark.parametrize("change", ["cancel", "fire", "retry"])
async def test_no_timer_is_called_missing_that_redis_has_just_lost(
    fleet: Fleet, client: TimerClient, database: Database, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    await client.create("note", "a", delay="24h")
    pod = await fleet.pod(Calls(), ledger=database)
    await agreed(database, fleet.store)
    await fleet.kill(pod)
    run = Store.run

    async def lose_and_run(store: Store, name: str, *arguments: Any, **options: Any) -> Any:
        if name in ("cancel", "reschedule", "rearm"):
            monkeypatch.undo()
            await fleet.redis.flushall()
        return await run(store, name, *arguments, **options)

    monkeypatch.setattr(Store, "run", lose_and_run)
    with pytest.raises(Unavailable, match="just lost data"):
        await getattr(client, change)("note", "a")
    assert (await client.cancel("note", "a")).status == "cancelled"
    with pytest.raises(NotFound):
        await client.cancel("note", "never")


async def test_a_timer_of_a_paused_prefix_came_back_before_its_pause(
    fleet: Fleet, client: TimerClient, database: Database
) -> None:
    await client.create("note", "a", delay="24h")
    await client.pause("note")
    await keep_facts(fleet.store, database)
    await fleet.redis.flushall()
    await fleet.store.identity.refresh()
    assert (await client.get("note", "a")).status == "scheduled"
    assert set(await read_pauses(fleet.store)) == {"note"}


async def test_without_a_ledger_its_durability_is_refused(fleet: Fleet) -> None:
    with pytest.raises(InvalidInput, match="durability: 'ledger' is not accepted; expected fast"):
        await fleet.client.create("note", "a", delay="24h", durability="ledger")
    for asked in (None, "fast"):
        for if_exists in ("keep", "replace"):
            made = await fleet.client.create("note", asked or "b", delay="24h", durability=asked, if_exists=if_exists)
            assert made.to_json().get("durability") == asked
