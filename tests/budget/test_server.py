"""What an armed and a fired timer cost the server, where that does not depend on the machine.

If a bound does not hold any more, lower the cost, or raise the bound and say in the commit what for.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from fakeredis import FakeServer

from tests.conftest import SharedServers
from tests.store.acts import POD, an_end, arming, claim
from tests.store.backends import open_store
from timers.client import open_store as open_on
from timers.store.store import Store
from timers.testing.fake import fake_connections

BATCH = 125
OF_A_BATCH = 20
"""Commands of a step beside those of each timer; ours here among them."""

INSTRUCTIONS = (203, 354, 306)
"""Of Lua for each timer: arm, claim, settle."""

ALONE = 664
"""Instructions of Lua that arm one timer alone: most make functions and ask for rights."""


async def fire(store: Store, number: int, retention_ms: int, spent: Callable[[], Awaitable[Any]]) -> list[Any]:
    """Arm, claim and settle so many timers in one batch each. Returns what `spent` says after each step."""
    answers = [await spent()]
    await store.arm([arming(f"{retention_ms}-{number}-{i}") for i in range(number)])
    answers.append(await spent())
    timers = await claim(store, number)
    assert len(timers) == number
    answers.append(await spent())
    await store.settle(0, [an_end(timer) for timer in timers], pod=POD, retention_ms=retention_ms)
    return [*answers[1:], await spent()]


@pytest.mark.parametrize(("retention_ms", "ended"), [(0, "hdel"), (60_000, "hset")])
async def test_a_timer_of_a_batch_costs_seven_commands(servers: SharedServers, retention_ms: int, ended: str) -> None:
    async with open_store(servers, "redis") as store:
        redis = store.connections.commands

        async def commands() -> dict[str, int]:
            stats = await redis.info("commandstats")
            await redis.config_resetstat()
            return {name.removeprefix("cmdstat_"): stat["calls"] for name, stat in stats.items()}

        await fire(store, 1, retention_ms, commands)  # makes the db's identity and loads the scripts
        spent = await fire(store, BATCH, retention_ms, commands)
    assert [{name for name, n in step.items() if n >= BATCH} for step in spent] == [
        {"hsetnx", "set"},
        {"hget", "hset", "set"},
        {"hget", ended},
    ]
    assert [sum(step.values()) - n * BATCH <= OF_A_BATCH for step, n in zip(spent, (2, 3, 2), strict=True)] == [
        True
    ] * 3


@asynccontextmanager
async def counting() -> AsyncIterator[tuple[Store, Callable[[], Awaitable[int]]]]:
    """A store on the fake server, and what counts the instructions of the scripts since it last did."""
    server = FakeServer()
    store = await open_on(fake_connections(server))
    lua: Any = vars(server)["_lua_runtime"]
    lua.execute(b"redis.spent = 0; debug.sethook(function() redis.spent = redis.spent + 1 end, '', 1)")

    async def instructions() -> int:
        spent = int(lua.eval(b"redis.spent"))
        lua.execute(b"redis.spent = 0")
        return spent

    yield store, instructions
    await store.connections.close()


@pytest.mark.parametrize("retention_ms", [0, 60_000])
async def test_a_timer_of_a_batch_costs_few_instructions(retention_ms: int) -> None:
    async with counting() as (store, instructions):
        one = await fire(store, 1, retention_ms, instructions)
        many = await fire(store, BATCH, retention_ms, instructions)
    each = [(m - o) / (BATCH - 1) for m, o in zip(many, one, strict=True)]
    assert [n <= bound for n, bound in zip(each, INSTRUCTIONS, strict=True)] == [True] * 3, each


async def test_a_timer_alone_costs_few_instructions() -> None:
    async with counting() as (store, instructions):
        await store.arm([arming("first")])  # makes the db's identity
        await instructions()
        await store.arm([arming("alone", due="+60000")])  # not in the millisecond of the first
        assert await instructions() <= ALONE
