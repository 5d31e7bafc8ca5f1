"""Everything works with the rights that PROTOCOL.md gives a pod, and they give no access to anything else.

All pods in these tests have that list's commands and channels. Here its key patterns apply too.
"""

from collections.abc import AsyncIterator

import pytest
from redis.asyncio import Redis
from redis.exceptions import NoPermissionError
from structlog.testing import capture_logs

from tests.engine.fleet import Calls, Fleet, Held, until
from tests.rights import as_user, grant, refused
from tests.waiting import patient
from timers.access import RIGHTS, make_key
from timers.client import TimerClient, client_over, open_store
from timers.client.actions import Counts
from timers.core.model import Status
from timers.core.outcome import Retry
from timers.core.spec import NewTimer
from timers.doctor.examining import examine
from timers.store.callers import Callers
from timers.store.notifications import FLAGS
from timers.store.servers import connect
from timers.store.store import Store

pytestmark = pytest.mark.every_server

MINE = ("note",)


@pytest.fixture
async def store(fleet: Fleet) -> AsyncIterator[Store]:
    """A store with the pods' rights, on a server with notifications switched on."""
    await grant(fleet.redis, 0, MINE)
    assert (await fleet.redis.config_get(FLAGS))[FLAGS] in ("Ex", "xE")
    opened = await open_store(connect(patient(as_user(fleet.url))))
    yield opened
    await opened.connections.close()


@pytest.fixture
async def client(store: Store) -> AsyncIterator[TimerClient]:
    """A client with the pods' rights."""
    async with client_over(store) as made:
        yield made


async def test_a_pod_and_a_caller_can_do_everything(fleet: Fleet, client: TimerClient) -> None:
    failing = iter((Retry(after=0), None))

    async def act(_timer: object, _context: object) -> None:
        if (error := next(failing, None)) is not None:
            raise error

    calls = Calls(act=act)
    await fleet.pod(calls, adopt_every_ms=50)
    await client.create("note", "retried", delay=0)
    await fleet.completed("retried")
    await client.create("note", "repeats", delay=0, repeat={"every": "10ms", "count": 3})
    assert (await fleet.completed("repeats")).occurrence == 3
    await fleet.redis.set("note:bare", "{}", px=60_000)
    await fleet.reached(Status.SCHEDULED, "bare")
    await client.fire("note", "bare")
    await fleet.completed("bare")
    await fleet.redis.set("note:short", "{}", px=1)
    await fleet.completed("short")
    await client.batch([NewTimer(prefix="note", id=f"n{i}", delay="1h") for i in range(600)])
    assert await client.act("cancel", {"prefix": "note", "status": "scheduled"}) == Counts(600, 600)
    await client.retry("note", "n1")
    await client.cancel("note", "n2", purge=True)
    await client.pause("note")
    await client.resume("note")
    assert (await client.stats()).to_json()["by_status"]["completed"] >= 4
    assert len((await client.list(limit=1000)).items) > 600
    assert [pod.pod for pod in await client.pods()] == ["a"]
    assert await refused(fleet.redis) == set()


async def test_a_run_is_rescued(fleet: Fleet, client: TimerClient) -> None:
    held = Held()
    first = await fleet.pod(held, name="first")
    await client.create("note", "x", delay=0)
    await until(lambda: len(held) == 1, "it runs")
    await fleet.kill(first)
    await fleet.expire_lease("x")
    await fleet.pod(Calls(), name="second")
    assert (await fleet.completed("x")).attempt == 2
    assert await refused(fleet.redis) == set()


async def test_keys_signatures_and_rates_are_kept(fleet: Fleet, store: Store) -> None:
    callers = Callers(store)
    _, key = make_key(["note"], RIGHTS)
    await callers.keep(key.id, key.entry)
    assert await callers.entries() == {key.id: key.entry}
    assert await callers.revoke(key.id)
    assert [await callers.first_time("request", 60_000) for _ in range(2)] == [True, False]
    assert await refused(fleet.redis) == set()


@pytest.mark.one_server
async def test_the_pods_user_cannot_reach_the_keys_and_channels_of_others(fleet: Fleet, store: Store) -> None:
    await fleet.redis.set("others", "kept")
    for reach in (store.connections.commands.get, store.connections.commands.delete):
        with pytest.raises(NoPermissionError):
            await reach("others")
    async with Redis.from_url(as_user(fleet.url)) as redis:
        for name in ("config_get", "keys", "flushdb"):
            with pytest.raises(NoPermissionError):
                await getattr(redis, name)(*(["*"] if name != "flushdb" else []))
    await fleet.redis.delete("others")
    await fleet.redis.acl_log_reset()


@pytest.mark.one_server
async def test_without_scan_bare_keys_fire_by_their_event_and_all_else_works(fleet: Fleet) -> None:
    await grant(fleet.redis, 0, MINE, without=["scan"])
    calls = Calls()
    pod = await fleet.pod(calls, adopt_every_ms=20)
    await until(pod.hears, "the pod hears expiries")
    await fleet.redis.set("note:bare", "{}", px=50)
    assert (await fleet.completed("bare")).payload is None
    await fleet.client.create("note", "x", delay=0)
    await fleet.completed("x")
    health = pod.worker.health()
    assert health.services["bare-scanner"] == "running"
    rights = next(check for check in await examine(pod.store) if check.name == "rights")
    assert (rights.level, rights.said) == ("warn", "the Redis user lacks permission for SCAN")
    await fleet.drain(pod)  # it tries repeatedly
    assert await refused(fleet.redis) == {"command scan"}
    await fleet.redis.acl_log_reset()


async def test_a_pod_that_may_not_see_the_flags_says_so_only_if_no_event_arrives(fleet: Fleet) -> None:
    with capture_logs() as logs:
        pod = await fleet.pod(Calls(), canary_every_seconds=0.02)
        await until(lambda: pod.worker.health().ready, "an event has arrived")
        assert [log["event"] for log in logs if log["log_level"] == "warning"] == []
        await fleet.redis.config_set(FLAGS, "")
        await until(lambda: "notification flags unknown" in [log["event"] for log in logs], "it says so")
    await fleet.redis.config_set(FLAGS, "Ex")
