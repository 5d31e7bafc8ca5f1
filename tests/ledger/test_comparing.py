"""What comes to differ between the ledger and Redis without a word is found and repaired, and the newer side wins."""

from typing import Any

import pytest
from sqlalchemy import delete, select, text, update

from tests.engine.fleet import Calls, Fleet, until
from tests.ledger.copies import agreed, failed, in_redis
from tests.ledger.test_doctor import check_of
from tests.ledger.test_following import changes_left
from tests.waiting import eventually
from timers.client import drift
from timers.core.model import Status
from timers.engine import comparing, following, supervisor
from timers.engine.following import Following
from timers.ledger import rows
from timers.ledger.database import Database
from timers.ledger.rows import Row
from timers.ledger.schema import timers

LATER = "24h"


@pytest.fixture
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """No rests, and looks one after the other."""
    for name in ("COUNT_SECONDS", "SECOND_LOOK_SECONDS"):
        monkeypatch.setattr(comparing, name, 0.3)
    monkeypatch.setattr(comparing, "REST_PER_WORK", 0)
    monkeypatch.setattr(supervisor, "SHORTEST_REST_SECONDS", 0)


async def repaired(database: Database, redis: int, ledger: int) -> None:
    """Wait until so many timers were repaired, over all shards."""

    async def so() -> bool:
        found = [each.drift for each in (await drift.compared(database)).values()]
        return (sum(each.redis for each in found), sum(each.ledger for each in found)) == (redis, ledger)

    await eventually(so, f"{redis} timers are repaired in Redis and {ledger} in the ledger")


async def settled(fleet: Fleet, database: Database) -> dict[str, Row]:
    """Wait until both have the same and no note is left."""
    found = await agreed(database, fleet.store)
    await changes_left(fleet)
    return found


async def names(fleet: Fleet, pattern: str) -> list[Any]:
    """The keys of the first shard."""
    found: list[Any] = await fleet.redis.keys(f"timers:{{0}}:{pattern}")
    return sorted(found)


class Past:
    """The first shard as it is now, to put the living server back there later, as if it had lost what follows."""

    def __init__(self, fleet: Fleet, dumped: dict[bytes, bytes]) -> None:
        self._fleet, self._dumped = fleet, dumped

    @classmethod
    async def of(cls, fleet: Fleet) -> "Past":
        dumped = fleet.redis.dump
        return cls(fleet, {name: await dumped(name) or b"" for name in await cls._names(fleet)})

    @staticmethod
    async def _names(fleet: Fleet) -> list[bytes]:
        kept = [f"timers:{{0}}:{name}".encode() for name in ("hooks", "epoch")]
        return [name for name in await names(fleet, "*") if name not in kept]

    async def put_back(self) -> None:
        await self._fleet.redis.delete(*await self._names(self._fleet))
        for name, dumped in self._dumped.items():
            await self._fleet.redis.restore(name, 0, dumped)


async def compared(fleet: Fleet, database: Database) -> drift.Drift:
    """Compare the first shard now, with both looks."""
    found = drift.Drift()
    async for suspects in drift.first_looks(fleet.store, database, 0):
        found = found.plus(await drift.repair(fleet.store, database, 0, suspects))
    return found


@pytest.mark.usefixtures("_soon")
async def test_a_bucket_that_is_deleted_on_a_living_server_comes_back(fleet: Fleet, database: Database) -> None:
    pod = await fleet.pod(calls := Calls(), ledger=database)
    for number in range(60):
        await fleet.client.create("note", f"{number}", delay=LATER, payload=number)
    before = await agreed(database, fleet.store)

    async def passed() -> bool:
        return 0 in await drift.compared(database)

    await eventually(passed, "a comparison has come to its end")
    buckets = (await names(fleet, "rec:*"))[:2]
    gone = sum([await fleet.redis.hlen(name) for name in buckets])
    await fleet.redis.delete(*buckets)
    await repaired(database, gone, 0)
    after = await agreed(database, fleet.store)
    assert set(after) == set(before)
    assert pod.seen.drift == {"redis": gone}
    assert (await fleet.client.counts())["note"] == {Status.SCHEDULED: 60}
    check = await check_of(fleet, database)
    assert check.level == "warn"
    assert check.said.startswith(f"the comparison repaired {gone} timers in Redis and 0 in the ledger, ")
    assert not len(calls)


@pytest.mark.usefixtures("_soon")
async def test_once_the_database_has_failed_all_is_compared_anew(fleet: Fleet, database: Database) -> None:
    """A standby that was promoted meanwhile may lack what was changed last, though counts are the same."""
    pod = await fleet.pod(Calls(), ledger=database)
    assert pod.ledger is not None
    await fleet.client.create("note", "a", delay=LATER)
    await fleet.client.change("note", "a", tags=["x"])
    before = await settled(fleet, database)

    async def passed() -> bool:
        return 0 in await drift.compared(database)

    await eventually(passed, "a comparison has come to its end")
    async with database.transaction() as connection:
        await connection.execute(update(timers).values(version=1, spec="{}"))
    await failed(pod.ledger)
    await repaired(database, 0, 1)
    assert await agreed(database, fleet.store) == before


@pytest.mark.usefixtures("_soon")
async def test_a_database_that_can_only_be_read_gives_nothing_back(
    fleet: Fleet, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as a standby that is not promoted yet, which may lack removals."""
    pod = await fleet.pod(Calls(), ledger=database)
    assert pod.ledger is not None
    await fleet.client.create("note", "a", delay=LATER)
    await settled(fleet, database)
    async with database.transaction() as connection:
        rows = [dict(row._mapping) for row in await connection.execute(select(timers))]
    await fleet.client.cancel("note", "a", purge=True)
    assert await settled(fleet, database) == {}
    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(Database, "trouble", property(lambda _: "it can only be read"))
        async with database.transaction() as connection:
            await connection.execute(update(timers).values(rows[0]))
        await until(lambda: "ledger_drift" in pod.worker.health().services, "it repairs nothing")
        assert await in_redis(fleet.store) == {}
        await failed(pod.ledger)
    assert await agreed(database, fleet.store) == {}


@pytest.mark.usefixtures("_soon")
async def test_nothing_is_repaired_before_the_last_removals_are_written_again(
    fleet: Fleet, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "REMEMBERED", 0)  # they take their time
    monkeypatch.setattr(Following, "is_told", lambda *_: False)
    await fleet.pod(Calls(), ledger=database)
    await fleet.client.create("note", "a", delay=LATER)
    before = (await settled(fleet, database))["note:a"]
    await fleet.client.cancel("note", "a", purge=True)
    assert await settled(fleet, database) == {}
    async with database.transaction() as connection:
        await connection.execute(update(timers).values(before._asdict()))
    ends = set[object]()

    async def twice() -> bool:
        ends.add((await drift.compared(database)).get(0))
        return len(ends) > 2

    await eventually(twice, "a comparison that has begun since has come to its end")
    assert await in_redis(fleet.store) == {}


async def test_rows_that_are_deleted_or_set_back_by_hand_come_back(fleet: Fleet, database: Database) -> None:
    pod = await fleet.pod(Calls(), ledger=database)
    for name in ("a", "b", "c", "d"):
        await fleet.client.create("note", name, delay=LATER)
    await fleet.client.change("note", "b", tags=["x"])
    before = await settled(fleet, database)
    await fleet.drain(pod)
    async with database.transaction() as connection:
        await connection.execute(delete(timers).where(timers.c.id == "a"))
        await connection.execute(update(timers).where(timers.c.id == "b").values(version=1, spec="{}"))
    assert await compared(fleet, database) == (0, 2)
    await fleet.pod(Calls(), name="b", ledger=database)
    assert await agreed(database, fleet.store) == before


async def test_an_older_record_on_a_living_server_gives_way(fleet: Fleet, database: Database) -> None:
    pod = await fleet.pod(calls := Calls(), ledger=database)
    for name in ("moved", "done", "same"):
        await fleet.client.create("note", name, delay=LATER)
    await settled(fleet, database)
    past = await Past.of(fleet)
    await fleet.client.change("note", "moved", delay="48h")
    await fleet.client.fire("note", "done")
    await fleet.completed("done")
    await settled(fleet, database)
    await fleet.drain(pod)
    await past.put_back()
    assert await compared(fleet, database) == (2, 0)
    assert (await fleet.client.get("note", "done")).status is Status.COMPLETED
    await fleet.pod(Calls(), name="b", ledger=database)
    rows = await agreed(database, fleet.store)
    assert (rows["note:done"].status, rows["note:same"].version) == ("completed", 1)
    assert len(calls) == 1, "what had ended did not run again"


async def test_a_timer_that_was_removed_does_not_come_back_with_old_data(fleet: Fleet, database: Database) -> None:
    pod = await fleet.pod(Calls(), ledger=database)
    await fleet.client.create("note", "a", delay=LATER)
    await settled(fleet, database)
    past = await Past.of(fleet)
    await fleet.client.cancel("note", "a", purge=True)
    await settled(fleet, database)
    await fleet.drain(pod)
    await past.put_back()
    assert await compared(fleet, database) == (1, 0)
    assert await in_redis(fleet.store) == {}


async def test_what_is_missing_on_one_side_is_never_deleted_on_the_other(fleet: Fleet, database: Database) -> None:
    pod = await fleet.pod(Calls(), ledger=database)
    for name in ("a", "b"):
        await fleet.client.create("note", name, delay=LATER)
    await settled(fleet, database)
    await fleet.drain(pod)
    async with database.transaction() as connection:
        await connection.execute(text("DELETE FROM timers_timers WHERE id = 'a'"))
    (name,) = [n for n in await names(fleet, "rec:*") if await fleet.redis.hexists(n, "note:b")]
    await fleet.redis.hdel(name, "note:b")
    assert await compared(fleet, database) == (1, 1)
    await fleet.pod(Calls(), name="b", ledger=database)
    assert set(await agreed(database, fleet.store)) == {"note:a", "note:b"}


async def test_what_is_on_its_way_is_no_difference(fleet: Fleet, database: Database) -> None:
    pod = await fleet.pod(Calls(), ledger=database)
    await fleet.client.create("note", "a", delay=LATER)
    await settled(fleet, database)
    await fleet.drain(pod)
    await fleet.client.change("note", "a", tags=["x"])
    await fleet.client.create("note", "b", delay=LATER)
    await fleet.client.create("note", "c", delay=LATER)
    await fleet.client.cancel("note", "c", purge=True)
    assert await compared(fleet, database) == (0, 0)
    assert await drift.is_apart(fleet.store, database, 0) == (0, 0)


async def test_a_difference_that_is_gone_at_the_second_look_is_left_alone(fleet: Fleet, database: Database) -> None:
    pod = await fleet.pod(Calls(), ledger=database)
    await fleet.client.create("note", "a", delay=LATER)
    row = (await settled(fleet, database))["note:a"]
    await fleet.drain(pod)
    new = row._replace(id="b", version=7)

    async def write(row: Row) -> None:
        async with database.transaction() as connection:
            await rows.save(connection, [row])

    await write(new)
    suspects = {i: pair async for found in drift.first_looks(fleet.store, database, 0) for i, pair in found.items()}
    assert set(suspects) == {("note", "b")}
    await write(new._replace(version=8))
    assert await drift.repair(fleet.store, database, 0, suspects) == (0, 0)
    assert set(await in_redis(fleet.store)) == {"note:a"}


@pytest.mark.parametrize("lost", ["bucket", "row"])
async def test_counts_tell_of_what_is_lost(fleet: Fleet, database: Database, lost: str) -> None:
    pod = await fleet.pod(Calls(), ledger=database)
    for number in range(5):
        await fleet.client.create("note", str(number), delay=LATER)
    await settled(fleet, database)
    await fleet.drain(pod)
    assert await drift.is_apart(fleet.store, database, 0) == (0, 0)
    if lost == "row":
        async with database.transaction() as connection:
            await connection.execute(delete(timers).where(timers.c.id == "1"))
        assert await drift.is_apart(fleet.store, database, 0) == (0, 1)
    else:
        name = (await names(fleet, "rec:*"))[0]
        number = await fleet.redis.hlen(name)
        await fleet.redis.delete(name)
        assert await drift.is_apart(fleet.store, database, 0) == (-number, 0)
        assert await compared(fleet, database) == (number, 0)


@pytest.mark.usefixtures("_soon")
async def test_counts_that_differed_for_nothing_are_soon_believed_again(fleet: Fleet, database: Database) -> None:
    await fleet.pod(Calls(), ledger=database)
    await fleet.client.create("note", "a", delay=LATER)

    async def compared_last() -> int:
        return (await drift.compared(database)).get(0, drift.Compared(0, 0, drift.Drift())).at_ms

    await eventually(compared_last, "a pod has compared at its start")
    await settled(fleet, database)
    first = await compared_last()
    await fleet.redis.hincrby("timers:{0}:counts", "s:other", 1)

    async def again() -> bool:
        return await compared_last() != first

    await eventually(again, "a pod compares because counts differ, and finds nothing")
    await fleet.redis.hdel("timers:{0}:counts", "s:other")
    async with database.transaction() as connection:
        await connection.execute(delete(timers))
    await repaired(database, 0, 1)
