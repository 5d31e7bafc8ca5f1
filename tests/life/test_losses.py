"""Redis loses data under running pods: every pod reports it until somebody acknowledges it, and the fleet goes on."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from redis.asyncio import Redis
from structlog.testing import capture_logs

from tests.engine.fleet import Calls, Fleet, Pod, joined, until
from tests.engine.own import OwnServer
from tests.members import declare
from tests.servers import ServerHandle, start_server
from tests.waiting import eventually
from timers.client import client_over
from timers.doctor.examining import examine, unacknowledged
from timers.embedded import Family
from timers.errors import ConfigurationError, Unavailable
from timers.store import keys
from timers.store.identity import Loss

pytestmark = pytest.mark.every_server

if TYPE_CHECKING:
    from timers.core.calls import NewTimerFields

MANY = 3000
FSYNC_LATE = ("--appendfsync", "everysec")


async def known(pods: list[Pod], timers: int) -> None:
    """Wait until every pod knows how many timers there are."""

    async def look() -> bool:
        counted = [pod.store.identity.timers for pod in pods]
        return all(each and sum(each.values()) >= timers for each in counted)

    await eventually(look, "all pods know of the timers")


async def losses(pod: Pod) -> list[Loss]:
    """The losses that a pod reports, once it reports any."""

    async def look() -> list[Loss]:
        return list(pod.store.identity.losses.values())

    return await eventually(look, f"pod {pod.name} tells of a loss")


async def three(fleet: Fleet, calls: Calls) -> list[Pod]:
    return [await fleet.pod(calls, name=name) for name in "abc"]


async def test_a_flushed_db_is_loud_on_every_pod_until_it_is_acknowledged(fleet: Fleet) -> None:
    pods = await three(fleet, Calls())
    for start in range(0, MANY, 1000):
        await fleet.client.batch([{"prefix": "note", "id": str(start + n), "delay": "1h"} for n in range(1000)])
    await known(pods, MANY)
    epoch = fleet.store.identity.epoch
    with capture_logs() as logged:
        await fleet.redis.flushdb()
        told = [await losses(pod) for pod in pods]
        await until(lambda: len([line for line in logged if line["event"] == "data was lost"]) == 3, "each pod logs it")
    assert [(loss.shard, loss.timers) for (loss,) in told] == [(None, MANY)] * 3
    assert all(0 < loss.from_ms <= loss.to_ms for (loss,) in told)
    assert {pod.store.identity.epoch for pod in pods} != {epoch}
    assert len({pod.store.identity.epoch for pod in pods}) == 1
    check = next(check for check in await examine(pods[0].store) if check.name == "data")
    assert (check.level, f"it had {MANY} timers" in check.said) == ("fail", True)
    assert [loss.timers for loss in await fleet.client.acknowledge_losses()] == [MANY]
    await until(lambda: not any(pod.store.identity.losses for pod in pods), "the pods are content")


async def test_a_second_loss_does_not_hide_the_first(fleet: Fleet) -> None:
    """For example a server without persistence that restarts twice: what it loses then is an empty db."""
    pods = await three(fleet, Calls())
    await fleet.client.create("note", "x", delay="1h")
    await known(pods, 1)
    await fleet.redis.flushdb()
    first = [await losses(pod) for pod in pods]
    epochs = [pod.store.identity.epoch for pod in pods]
    await fleet.redis.flushdb()
    await pods[0].client.stats()  # reads the empty db
    await until(lambda: not {pod.store.identity.epoch for pod in pods}.intersection(epochs), "the pods have noticed")
    for pod, (before,) in zip(pods, first, strict=True):
        (loss,) = await losses(pod)
        assert (loss.from_ms <= before.from_ms, loss.to_ms > before.to_ms, loss.timers) == (True, True, 1)
    await fleet.client.acknowledge_losses()
    await until(lambda: not any(pod.store.identity.losses for pod in pods), "the pods are content")


async def test_a_flushed_db_takes_timers_again_and_runs_them(fleet: Fleet) -> None:
    calls = Calls()
    pods = await three(fleet, calls)
    await fleet.client.create("note", "before", delay="1h")
    await fleet.redis.flushdb()
    await asyncio.gather(*(losses(pod) for pod in pods))
    for pod in pods:
        await pod.client.create("note", pod.name, delay="10ms")
        await fleet.completed(pod.name)
    assert sorted(calls.ids) == ["a", "b", "c"]


async def test_the_meta_that_another_program_overwrites_is_made_again(fleet: Fleet) -> None:
    pod = await fleet.pod(Calls())
    await fleet.client.create("note", "x", delay="1h")
    await known([pod], 1)
    await fleet.redis.set(keys.META, "foreign")
    assert [loss.timers for loss in await losses(pod)] == [1]
    assert (await pod.client.get("note", "x")).id == "x"


async def test_a_shard_that_went_back_in_time_is_reported_with_its_window(fleet: Fleet) -> None:
    pods = await three(fleet, Calls())
    await fleet.client.create("note", "x", delay="1h")
    await known(pods, 1)
    mark = f"{keys.root(0)}mark"
    before: Any = await fleet.redis.get(mark)
    newest = int(before.split()[0])
    await later_mark(pods, newest)
    await fleet.redis.set(mark, before)
    for pod in pods:
        (loss,) = await losses(pod)
        assert (loss.shard, loss.from_ms, loss.timers) == (0, newest, 1)
        assert loss.to_ms > newest


async def test_a_single_emptied_shard_is_reported(fleet: Fleet) -> None:
    """For example one node of a cluster returns empty."""
    pod = await fleet.pod(Calls())
    await fleet.client.create("note", "x", delay="1h")
    await known([pod], 1)
    await fleet.redis.delete(*await fleet.redis.keys("timers:{0}:*"), "note:{0}:x")
    (loss,) = await losses(pod)
    assert (loss.shard, loss.from_ms, loss.timers) == (0, 0, 1)
    assert loss.to_json()["from"] is None
    await fleet.client.create("note", "y", delay="10ms")
    await fleet.completed("y")


@pytest.fixture
async def crashing(family: Family, tmp_path: Path) -> AsyncIterator[OwnServer]:
    server = OwnServer(family, tmp_path, *FSYNC_LATE)
    await server.up()
    yield server
    server.down()


def tail_of(folder: Path) -> Path:
    """The newest file of the append-only files."""
    return max(folder.rglob("*.incr.aof"), key=lambda path: int(path.name.split(".")[-3]))


async def test_a_truncated_append_only_file_is_reported_and_gives_no_token_twice(
    crashing: OwnServer, tmp_path: Path
) -> None:
    """As after a power loss: what the server had not yet written to disk is gone."""
    fleet = await Fleet.over(crashing.url)
    calls = Calls()
    pods = await three(fleet, calls)
    await fleet.client.create("note", "kept", delay="10ms")
    await fleet.completed("kept")
    await known(pods, 0)
    aof = tail_of(tmp_path)
    size = aof.stat().st_size
    await fleet.client.create("note", "lost", delay="10ms")
    lost = await fleet.completed("lost")
    await later_mark(pods, lost.updated_ms)
    crashing.down()
    os.truncate(aof, size)
    await crashing.up()
    for pod in pods:
        (loss,) = await losses(pod)
        assert (loss.shard, loss.from_ms < loss.to_ms) == (0, True)
        assert loss.from_ms <= lost.updated_ms <= loss.to_ms
    await fleet.client.create("note", "after", delay="10ms")
    after = await fleet.completed("after")
    assert after.token > lost.token
    await fleet.close()


class Failover:
    """A master and a replica that takes its place. The pods use a link to the socket of one of them."""

    def __init__(self, master: ServerHandle, replica: ServerHandle, folder: Path) -> None:
        self._master, self._replica, self._link = master, replica, folder / "current.sock"
        self._link.symlink_to(socket_of(master))

    @property
    def url(self) -> str:
        return f"unix://{self._link}?db=0"

    async def follow(self, port: int) -> None:
        """Start the replica, and return once it has all of the master's data."""
        await self._tell_replica("127.0.0.1", str(port))

        async def in_sync() -> bool:
            async with Redis.from_url(self._replica.url) as replica:
                state: dict[str, Any] = await replica.info("replication")
            return bool(state["master_link_status"] == "up")

        await eventually(in_sync, "the replica follows")

    async def lag(self) -> None:
        """Stop the replica from receiving anything new."""
        await self._tell_replica("NO", "ONE")

    async def promote(self) -> None:
        """Kill the master and put the replica in its place."""
        self._master.kill()
        self._link.unlink()
        self._link.symlink_to(socket_of(self._replica))
        async with Redis.from_url(self._replica.url) as replica:
            await replica.config_set("notify-keyspace-events", "Ex")

    async def _tell_replica(self, host: str, port: str) -> None:
        async with Redis.from_url(self._replica.url) as replica:
            server: Any = replica
            await server.execute_command("REPLICAOF", host, port)


def socket_of(server: ServerHandle) -> str:
    return server.url.removeprefix("unix://").partition("?")[0]


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.fixture
async def failover(family: Family, tmp_path: Path, port: int) -> AsyncIterator[Failover]:
    master = await start_server(family, tmp_path / "master", "--port", str(port))
    replica = await start_server(family, tmp_path / "replica", "--port", str(free_port()))
    yield Failover(master, replica, tmp_path)
    await replica.stop()
    master.kill()


async def test_promoting_an_empty_replica_is_reported_by_every_pod(failover: Failover) -> None:
    fleet = await Fleet.over(failover.url)
    pods = await three(fleet, Calls())
    await fleet.client.batch([{"prefix": "note", "id": str(n), "delay": "1h"} for n in range(500)])
    await known(pods, 500)
    await failover.promote()
    told = [await losses(pod) for pod in pods]
    assert [(loss.shard, loss.timers) for (loss,) in told] == [(None, 500)] * 3
    await pods[0].client.create("note", "after", delay="10ms")
    await fleet.completed("after")
    await fleet.close()


async def test_promoting_a_lagging_replica_is_reported_with_its_window(failover: Failover, port: int) -> None:
    await failover.follow(port)
    fleet = await Fleet.over(failover.url)
    pods = await three(fleet, Calls())
    await fleet.client.create("note", "kept", delay="10ms")
    kept = await fleet.completed("kept")
    await later_mark(pods, kept.updated_ms)
    await replicated(fleet)
    await failover.lag()
    await fleet.client.create("note", "lost", delay="10ms")
    lost = await fleet.completed("lost")
    await later_mark(pods, lost.updated_ms)
    await failover.promote()
    for pod in pods:
        (loss,) = await losses(pod)
        assert (loss.shard, loss.from_ms <= lost.updated_ms <= loss.to_ms) == (0, True)
        assert loss.from_ms >= kept.updated_ms
    assert (await fleet.client.get("note", "kept")).status == "completed"
    await fleet.client.create("note", "after", delay="10ms")
    assert (await fleet.completed("after")).token > lost.token
    await fleet.close()


async def replicated(fleet: Fleet) -> None:
    """Wait until the replica has everything written so far."""
    assert await fleet.redis.wait(1, 0) == 1


async def later_mark(pods: list[Pod], at_ms: int) -> None:
    """Wait until every pod knows a mark made after this time."""

    async def look() -> bool:
        return all(pod.store.identity.checkpoints[0] > at_ms for pod in pods)

    await eventually(look, "a later mark is known to all")


async def test_a_pod_with_16_shards_beside_one_with_1_starts_no_timer_twice(fleet: Fleet) -> None:
    """They meet in an emptied db. The first decides the number; the other takes no timers, or does not start."""
    calls = Calls()
    first = await fleet.pod(calls)
    await fleet.client.create("note", "before", delay="1h")
    await known([first], 1)
    await fleet.redis.flushdb()
    await declare(fleet.store, "note")
    ids = [str(n) for n in range(20)]
    news: list[NewTimerFields] = [
        {"prefix": "note", "id": timer_id, "delay": "1ms", "if_exists": "keep"} for timer_id in ids
    ]
    async with AsyncExitStack() as opened:
        clients = [first.client]
        with suppress(ConfigurationError):
            clients.append(await opened.enter_async_context(client_over(await joined(fleet.url, shards=16))))
        for client in clients:
            with suppress(Unavailable):
                await client.batch(news)
    second = await fleet.pod(calls, name="b")
    for timer_id in ids:
        await completed(second, timer_id)
    assert sorted(calls.ids) == sorted(ids)


async def completed(pod: Pod, timer_id: str) -> None:
    async def look() -> bool:
        return (await pod.client.get("note", timer_id)).status == "completed"

    await eventually(look, f"note:{timer_id} is completed")


async def test_a_number_of_shards_that_another_program_writes_stops_no_pod(fleet: Fleet) -> None:
    calls = Calls()
    with capture_logs() as logs:
        pods = [await fleet.pod(calls, name=name) for name in ("a", "b")]
        await fleet.client.create("note", "before", delay=0)
        await fleet.completed("before")
        await fleet.redis.hset("timers:meta", "shards", "3")
        await until(lambda: all(pod.store.identity.foreign for pod in pods), "the pods know")
        assert await fleet.redis.hget("timers:meta", "shards") == b"1"
        await fleet.client.create("note", "after", delay=0)
        await fleet.completed("after")
    told = [log for log in logs if log["event"] == "the number of shards was overwritten"]
    assert len(told) == len(pods)
    for pod in pods:
        assert pod.worker.health().ready
        (warning,) = unacknowledged(pod.store)
        assert "timers:meta had '3' as its number of shards" in warning
    data = next(check for check in await examine(fleet.store, wait_seconds=0.01) if check.name == "data")
    assert (data.level, data.said) == ("warn", pods[0].store.identity.foreign)
