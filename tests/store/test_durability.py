"""What a write waits for: what the answer says was there when it was given, and no write is made twice or refused."""

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from tests.api.harness import running_api
from tests.engine.fleet import Calls, Fleet
from tests.members import declare
from tests.replicas import Replicated, replicated
from tests.waiting import eventually
from timers.client import Armed, TimerClient, client_over, open_store
from timers.core.model import Timer
from timers.embedded import Family
from timers.errors import InvalidInput, Unavailable
from timers.store.servers import connect
from timers.store.servers import durability as durabilities
from timers.store.servers.durability import REPLICATED, WAIT_MS
from timers.store.store import Store

pytestmark = pytest.mark.every_server


@pytest.fixture
async def group(family: Family, tmp_path: Path) -> AsyncIterator[Replicated]:
    async with replicated(family, tmp_path) as group:
        yield group


@pytest.fixture
async def client(group: Replicated) -> AsyncIterator[TimerClient]:
    async with client_over(await open_store(connect(group.primary.url))) as client:
        assert client._store is not None
        await declare(client._store, "note")
        yield client


async def calls(redis: Redis, command: str) -> int:
    stats: dict[str, Any] = await redis.info("commandstats")
    return int(stats.get(f"cmdstat_{command}", {"calls": 0})["calls"])


async def test_callers_share_a_wait_and_every_replica_has_what_was_answered(
    group: Replicated, client: TimerClient
) -> None:
    await client.create("note", "first", delay="1h", durability="replicated")
    redis = client._store.connections.commands  # type: ignore[union-attr]
    before = await calls(redis, "wait")
    made = await asyncio.gather(
        *(client.create("note", f"t{n}", delay="1h", durability="replicated") for n in range(100))
    )
    assert {timer.durability for timer in made} == {"replicated"}
    assert made[0].to_json()["durability"] == "replicated"
    assert await calls(redis, "wait") - before <= 5
    for place in range(2):
        async with TimerClient(group.replicas[place].url) as replica:
            assert {(await replica.get("note", timer.id)).created_ms for timer in made} == {t.created_ms for t in made}


async def test_while_a_replica_is_away_the_write_stands_and_says_what_it_is(
    group: Replicated, client: TimerClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(WAIT_MS, REPLICATED, 100)
    told = list[tuple[str, bool, int]]()
    client._store.confirmed = lambda *said: told.append(said)  # type: ignore[union-attr]

    async def reached() -> bool:
        again = await client.create("note", "again", delay="1h", if_exists="replace", durability="replicated")
        return again.durability == "replicated"

    await eventually(reached, "all replicas answer")
    group.stop(1)
    made = await client.create("note", "meanwhile", delay="1h", durability="replicated")
    assert (made.durability, (await client.get("note", "meanwhile")).version) == ("fast", 1)
    assert told[-2:] == [("replicated", True, 1), ("replicated", False, 1)]
    group.go_on(1)
    await eventually(reached, "all replicas answer again")
    assert told[-1] == ("replicated", True, 1)


async def test_a_replica_that_went_away_still_counts(group: Replicated, client: TimerClient) -> None:
    await client.create("note", "before", delay="1h", durability="replicated")
    group.replicas[1].kill()

    async def one_left() -> bool:
        info: dict[str, Any] = await client._store.connections.commands.info("replication")  # type: ignore[union-attr]
        return int(info["connected_slaves"]) == 1

    await eventually(one_left, "the primary has noticed")
    assert (await client.create("note", "after", delay="1h", durability="replicated")).durability == "fast"


async def test_over_http_each_answer_says_what_was_reached(group: Replicated) -> None:
    asked = [{"prefix": "note", "delay": "1h", **given} for given in ({"durability": "replicated"}, {})]
    async with running_api(group.primary.url, [Calls().processor]) as api:

        async def reached() -> bool:
            return bool((await api.call("POST", "/v1/timers", asked[0])).body["durability"] == "replicated")

        await eventually(reached, "all replicas answer")
        results = (await api.call("POST", "/v1/timers/batch", {"timers": asked})).body["results"]
        assert [result["timer"].get("durability") for result in results] == ["replicated", None]
        assert 'timers_durable_total{durability="replicated",reached="yes"} 2.0' in await api.text("/metrics")


async def test_nobody_else_waits_behind_a_durable_write(group: Replicated, client: TimerClient) -> None:
    await client.create("note", "before", delay="1h", durability="replicated")
    group.stop(0)
    durable = asyncio.create_task(client.create("note", "durable", delay="1h", durability="replicated"))
    redis = client._store.connections.commands  # type: ignore[union-attr]

    async def waits() -> bool:
        clients: dict[str, Any] = await redis.info("clients")
        return int(clients["blocked_clients"]) == 1

    await eventually(waits, "the server waits for its replica")
    # The time of a WAIT passes on the server only while its loop runs; a fast create takes one turn of it.
    fast = await client.create("note", "fast", delay="1h")
    assert fast.durability == ""
    assert not durable.done()
    group.go_on(0)
    assert (await durable).durability in ("replicated", "fast")


@pytest.mark.one_server
async def test_without_replicas_it_is_refused_to_who_asks_for_it(real: Store) -> None:
    rule = "durability: 'replicated' is not accepted; expected fast.*this server: it has no replica"
    await declare(real, "note")
    client = client_over(real)
    with pytest.raises(InvalidInput, match=rule):
        await client.create("note", "a", delay="1h", durability="replicated")
    results = await client.batch(
        [{"prefix": "note", "delay": "1h", "durability": "replicated"}, {"prefix": "note", "delay": "1h"}]
    )
    assert [type(result) for result in results] == [InvalidInput, Armed]
    served = client_over(real, durability="replicated")
    assert (await served.create("note", "b", delay="1h")).durability == "fast"


async def test_the_end_of_a_run_waits_for_the_replicas(group: Replicated, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(WAIT_MS, REPLICATED, 100_000)
    monkeypatch.setattr(durabilities, "AWAY_SECONDS", 1000)
    fleet, done = await Fleet.over(group.primary.url), Calls()
    pod = await fleet.pod(done, durability="replicated")
    told = list[tuple[str, bool, int]]()
    pod.store.confirmed = lambda *said: told.append(said)
    await fleet.client.create("note", "first", delay="0s")

    async def ended() -> bool:
        return len(told) == 1

    await eventually(ended, "the first end is written")
    told.clear()
    group.links[1].open.clear()
    await fleet.client.create("note", "a", delay="0s")

    async def waits() -> bool:
        return len(done) == 2 and (await fleet.client.get("note", "a")).status == "completed"

    await eventually(waits, "the primary has the end")
    assert len(pod.worker._runs) == 1
    assert not told
    group.links[1].open.set()
    await eventually(ended, "the replica has the end")
    assert told == [("replicated", True, 1)]
    async with TimerClient(group.replicas[1].url) as replica:
        assert (await replica.get("note", "a")).status == "completed"
    await fleet.close()


@pytest.mark.parametrize("durability", ["fast", "replicated"])
async def test_what_a_failover_to_a_lagging_replica_loses(
    group: Replicated, client: TimerClient, durability: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The replica gets what it gets only at times, as over a slow link, and is the one that is promoted."""
    monkeypatch.setitem(WAIT_MS, REPLICATED, 200)
    answered, told = list[Timer](), list[Timer]()
    await client.create("note", "first", delay="1h", durability="replicated")

    async def arm() -> None:
        with suppress(Unavailable):  # the primary is killed
            while True:
                answered.append(await client.create("note", delay="1h", durability=durability))
                if answered[-1].durability == durability:
                    told.append(answered[-1])

    callers = [asyncio.create_task(arm()) for _ in range(8)]
    rng = random.Random(7)
    for _ in range(10):
        group.links[1].open.clear()
        await asyncio.sleep(rng.uniform(0.01, 0.05))
        group.links[1].open.set()
        await more_than(told, len(told))
    group.links[1].open.clear()
    await more_than(answered, len(answered) + 20)
    url = await group.promote(1)
    await asyncio.gather(*callers)
    async with client_over(await open_store(connect(url))) as promoted:
        assert promoted._store is not None
        there = await promoted._store.get([(timer.prefix, timer.id) for timer in told])
    assert len(told) > 10
    assert there.count(None) == 0 if durability == "replicated" else there.count(None) >= 10


async def more_than(some: Sequence[Timer], number: int) -> None:
    """Wait until there are more."""

    async def are_more() -> bool:
        return len(some) > number

    await eventually(are_more, "creates are answered")
