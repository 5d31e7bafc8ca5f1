"""Creates that come at the same time share calls to Redis, and nothing else."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from redis.asyncio import Redis

from tests.members import declare
from tests.waiting import patient
from timers.client import TimerClient, client_over
from timers.core.model import Timer
from timers.embedded import EmbeddedServer
from timers.errors import AlreadyExists, InvalidInput, NotFound, Unavailable
from timers.store.servers import connect
from timers.store.store import Store


@pytest.fixture
async def client(store: Store) -> AsyncIterator[TimerClient]:
    async with client_over(store) as client:
        await declare(store, "test")
        await client.stats()
        yield client


async def scripts_run(redis: Redis) -> int:
    return int((await redis.info("commandstats"))["cmdstat_evalsha"]["calls"])


@pytest.mark.one_server
async def test_creates_at_the_same_time_share_calls(client: TimerClient, redis: Redis) -> None:
    await client.create("test", "first", delay="1h")
    before = await scripts_run(redis)
    timers = await asyncio.gather(*(client.create("test", f"t{i}", delay="1h") for i in range(200)))
    assert [timer.id for timer in timers] == [f"t{i}" for i in range(200)]
    assert await scripts_run(redis) - before <= 5


@pytest.mark.one_server
async def test_callers_that_create_again_share_calls_again(client: TimerClient, redis: Redis) -> None:
    async def ten(caller: int) -> None:
        for i in range(10):
            await client.create("test", f"c{caller}-t{i}", delay="1h")

    await client.create("test", "first", delay="1h")
    before = await scripts_run(redis)
    await asyncio.gather(*map(ten, range(20)))
    assert await scripts_run(redis) - before <= 15


async def test_creates_in_many_shards_share_one_connection(server: EmbeddedServer, redis: Redis) -> None:
    await redis.ping()
    store = Store(connect(patient(server.url)), shards=64)
    await declare(store, "test")
    async with client_over(store) as client:
        names = [f"t{i}" for i in range(128)]
        timers = await asyncio.gather(*(client.create("test", name, delay="1h", payload=name) for name in names))
        assert [(timer.id, timer.payload) for timer in timers] == [(name, name) for name in names]
        assert [timer.payload for timer in await store.get([("test", name) for name in names]) if timer] == names


async def test_each_gets_its_own_answer(client: TimerClient) -> None:
    await client.create("test", "taken", delay="1h")
    answers = await asyncio.gather(
        client.create("test", "new", delay="1h"),
        client.create("test", "taken", delay="1h"),
        client.create("test", "far", delay="99999d"),
        client.create("test", "taken", delay="1h", if_exists="keep"),
        return_exceptions=True,
    )
    assert isinstance(answers[0], Timer)
    assert isinstance(answers[1], AlreadyExists)
    assert isinstance(answers[2], InvalidInput)
    assert isinstance(answers[3], Timer)


async def test_a_timer_whose_caller_is_cancelled_before_sending_is_not_armed(client: TimerClient) -> None:
    creating = [asyncio.create_task(client.create("test", f"t{i}", delay="1h")) for i in range(3)]

    async def regret() -> None:
        """Begins after the three, and before what they wait for."""
        creating[1].cancel()

    one, two, three, _ = await asyncio.gather(*creating, regret(), return_exceptions=True)
    assert [isinstance(answer, Timer) for answer in (one, two, three)] == [True, False, True]
    with pytest.raises(NotFound):
        await client.get("test", "t1")


async def test_a_caller_that_is_cancelled_while_it_sends_holds_up_nobody(client: TimerClient) -> None:
    creating = [asyncio.create_task(client.create("test", f"t{i}", delay="1h")) for i in range(3)]

    async def regret() -> None:
        """Begins after the three, and before the answer to the first."""
        creating[0].cancel()

    one, two, three, _ = await asyncio.gather(*creating, regret(), return_exceptions=True)
    assert isinstance(one, asyncio.CancelledError)
    assert [isinstance(answer, Timer) for answer in (two, three)] == [True, True]
    assert (await client.create("test", "t3", delay="1h")).status == "scheduled"


@pytest.mark.one_server
async def test_without_redis_every_create_is_refused_and_later_ones_succeed(
    client: TimerClient, store: Store, redis: Redis
) -> None:
    await redis.config_set("maxclients", 1)
    try:
        await store.connections.commands.connection_pool.disconnect()
        creating = (client.create("test", f"t{i}", delay="1h") for i in range(20))
        answers = await asyncio.gather(*creating, return_exceptions=True)
        assert {type(answer) for answer in answers} == {Unavailable}
    finally:
        await redis.config_set("maxclients", 10_000)
    assert (await client.create("test", "later", delay="1h")).status == "scheduled"
