"""Indexes of armed timers are deleted: a pod's audit rebuilds them, and the timers fire."""

import pytest

from tests.engine.fleet import Calls, Fleet, Held, until
from tests.waiting import eventually
from timers.doctor.examining import examine

OFTEN = 0.05


@pytest.mark.parametrize("lost", [("due:note", "heads"), ("due:note",), ("heads",), ("due:note", "heads", "counts")])
async def test_timers_whose_index_was_deleted_fire(fleet: Fleet, lost: tuple[str, ...]) -> None:
    await fleet.client.batch([{"prefix": "note", "id": str(n), "delay": "10ms"} for n in range(5)])
    await fleet.redis.delete(*(f"timers:{{0}}:{key}" for key in lost))
    calls = Calls()
    await fleet.pod(calls, audit_every_seconds=OFTEN)
    for n in range(5):
        await fleet.completed(str(n))
    assert sorted(calls.ids) == list("01234")

    async def counted() -> bool:
        return bool(await fleet.redis.hget("timers:{0}:counts", "s note") is None)

    await eventually(counted, "the counts are right too")


async def test_a_run_that_is_in_no_list_of_leases_is_rescued_when_its_pod_dies(fleet: Fleet) -> None:
    held = Held()
    first = await fleet.pod(held)
    await fleet.client.create("note", "x", delay=0)
    await until(lambda: len(held) == 1, "it runs")
    await fleet.kill(first)
    await fleet.redis.delete("timers:{0}:leases")
    assert await fleet.redis.pexpire("timers:{0}:lease:note:x", 1)
    await fleet.pod(Calls(), name="b", audit_every_seconds=OFTEN)
    assert (await fleet.completed("x")).attempt == 2


async def test_counts_that_were_deleted_come_back(fleet: Fleet) -> None:
    await fleet.client.batch([{"prefix": "note", "id": str(n), "delay": "1h"} for n in range(5)])
    await fleet.redis.delete("timers:{0}:counts")
    await fleet.pod(Calls(), audit_every_seconds=OFTEN)

    async def counted() -> bool:
        return bool(await fleet.redis.hget("timers:{0}:counts", "s note") == b"5")

    await eventually(counted, "the timers are counted")


async def test_the_doctor_finds_lost_indexes_and_repairs_them(fleet: Fleet) -> None:
    async def indexes(*, fix: bool) -> tuple[str, str]:
        (check,) = [check for check in await examine(fleet.store, fix=fix) if check.name == "indexes"]
        return check.level, check.said

    await fleet.client.batch([{"prefix": "note", "id": str(n), "delay": "1h"} for n in range(300)])
    assert await indexes(fix=False) == ("ok", "indexes and counts agree")
    await fleet.redis.delete("timers:{0}:due:note", "timers:{0}:heads")
    level, said = await indexes(fix=False)
    assert (level, said) == ("fail", "indexes do not match the timers (counts: 1)")
    assert await indexes(fix=True) == ("warn", "repaired (due: 300)")
    assert await indexes(fix=True) == ("ok", "records, indexes and counts agree")
