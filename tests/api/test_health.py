"""Probes, and the API while Redis is away."""

import asyncio
import re
from html import unescape
from pathlib import Path

import pytest
from redis.asyncio import Redis

from tests.api.conftest import done
from tests.api.harness import Api, Reply, other_server, running_api
from tests.api.keyed import new_key
from tests.members import declare, forbid_writes
from tests.rights import USER, as_user, grant
from tests.servers import start_server
from tests.store.acts import arming
from tests.waiting import DEADLINE_SECONDS, eventually
from timers.api.health import HealthRoutes
from timers.api.operations import routes_of
from timers.client.fleet import UNSIGNED, read_fleet
from timers.embedded import EmbeddedServer
from timers.metrics import Metrics
from timers.store import moving
from timers.store.identity import COPYING, MOVED
from timers.store.scripts import FULL
from timers.store.store import Store

BOTH = pytest.mark.parametrize("works", [False, True], ids=["api", "api and worker"])
NOT_READY = "\ntimers_ready 0.0\n"


async def until_ready(api: Api) -> Reply:
    async def look() -> Reply | None:
        reply = await api.call("GET", "/readyz")
        return reply if reply.status == 200 else None

    return await eventually(look, "the pod is ready")


@pytest.mark.one_server
async def test_a_pod_without_workers_is_ready_when_redis_answers(api: Api) -> None:
    reply = await api.call("GET", "/readyz")
    nobody = "shards without a live pod: 0"
    assert (reply.status, reply.body) == (200, {"ready": True, "redis": "ok", "warnings": [nobody], "problems": []})
    assert (await api.call("GET", "/healthz")).body == {"status": "ok"}


async def test_a_user_who_may_not_ask_whether_redis_is_full_hides_no_other_metric(tmp_path: Path) -> None:
    async with await start_server("redis", tmp_path) as server, Redis.from_url(server.url) as redis:
        await grant(redis, 0)
        async with running_api(as_user(server.url), [done]) as api:
            await redis.acl_setuser(USER, enabled=True, commands=["-info"])
            assert "timers_overdue_seconds 0.0" in await api.text("/metrics")


async def test_a_working_pod_reports_the_state_of_its_parts(server: EmbeddedServer) -> None:
    async with running_api(server.url, [done], works=True) as api:
        body = (await until_ready(api)).body
        assert body["notifications"] == "ok"
        assert set(body["services"].values()) == {"running"}
        assert body["running"] == 0


async def test_a_pod_that_may_not_subscribe_any_more_hears_nothing(tmp_path: Path) -> None:
    """Its canary has not noticed yet."""
    async with (
        await start_server("redis", tmp_path) as server,
        running_api(server.url, [done], works=True, options={"canary_every_seconds": 3600}) as api,
        Redis.from_url(server.url) as redis,
    ):
        assert (await until_ready(api)).body["notifications"] == "ok"
        await redis.acl_setuser("default", enabled=True, commands=["-subscribe"])
        await redis.client_kill_filter(_type="pubsub")

        async def look() -> Reply | None:
            reply = await api.call("GET", "/readyz")
            return reply if reply.status == 503 and "no subscription" in reply.body["detail"] else None

        assert (await eventually(look, "the pod has lost its subscription")).body["notifications"] == "deaf"
        assert "\ntimers_notifications_ok 0.0\n" in await api.text("/metrics")
        await redis.acl_setuser("default", enabled=True, commands=["+subscribe"])
        assert (await until_ready(api)).body["notifications"] == "ok"


async def test_at_maxmemory_the_pod_was_not_ready_just_when_cancels_were_needed(tmp_path: Path) -> None:
    server = await start_server("redis", tmp_path)
    async with running_api(server.url, [done], works=True) as api, Redis.from_url(server.url) as redis:
        await until_ready(api)
        assert (await api.create("before")).status == 201
        await redis.config_set("maxmemory", 1)
        refused = await api.create("after")
        assert "Redis is full (maxmemory)" in refused.problem(503, "unavailable")["detail"]
        reply = await api.call("GET", "/readyz")
        assert (reply.status, reply.body["redis"], reply.body["notifications"]) == (200, "full", "ok")
        assert reply.body["warnings"] == [FULL]
        assert (await api.call("DELETE", "/v1/timers/test/before")).body["status"] == "cancelled"
        await redis.config_set("maxmemory", 0)
        assert (await api.call("GET", "/readyz")).body["redis"] == "ok"
    await server.stop()


async def test_a_draining_pod_is_alive_and_not_ready(api: Api) -> None:
    api.health.drain()
    reply = await api.call("GET", "/readyz")
    assert reply.problem(503, "not-ready")["problems"] == ["draining"]
    assert NOT_READY in await api.text("/metrics")
    assert (await api.call("GET", "/healthz")).status == 200
    assert (await api.create()).status == 201


@BOTH
async def test_metrics_say_as_the_probe_that_a_pod_of_a_moved_service_is_not_ready(tmp_path: Path, works: bool) -> None:
    """Its Redis is there, and not what the alert is for."""
    async with (
        await start_server("redis", tmp_path) as server,
        running_api(server.url, [done], works=works) as api,
    ):
        await until_ready(api)
        assert (await api.create("before")).status == 201
        for phase in (COPYING, MOVED):
            await api.store.identity.move(phase, "move", "redis://there:1/0")
            await moving.close(api.store, phase, "redis://there:1/0")
            (await api.create()).problem(503, "moving")
            (await api.call("GET", "/readyz")).problem(503, "not-ready")
            told = await api.text("/metrics")
            assert NOT_READY in told
            assert re.search("^timers_redis_up.* 1.0$", told, re.MULTILINE)
            assert "\ntimers_redis_full 0.0\n" in told


async def test_a_pod_whose_own_sign_of_life_is_refused_takes_nobody_for_dead(tmp_path: Path) -> None:
    """All pods look dead then, and whoever starts more helps nobody."""
    async with (
        await start_server("redis", tmp_path) as server,
        Redis.from_url(server.url) as redis,
        running_api(server.url, [done], works=True, options={"beat_ms": 50}) as api,
    ):
        await until_ready(api)
        await forbid_writes(redis)
        why = f"{UNSIGNED}: Redis cannot do this now: NOREPLICAS Not enough good replicas to write"

        async def is_told() -> bool:
            reply = await api.call("GET", "/readyz")
            told = reply.body["warnings"] == [why] and f"{why}." in unescape(await api.text("/"))
            return told and reply.status == 503

        await eventually(is_told, "the pod tells it")
        assert (await read_fleet(api.store)).roster.workers == []
        assert "timers_uncovered" not in re.sub("^#.*$", "", await api.text("/metrics"), flags=re.MULTILINE)
        assert "No worker is alive" not in await api.text("/")
        await redis.config_set("min-replicas-to-write", 0)
        await redis.replicaof("127.0.0.1", 1)

        async def ends_with_one_stop() -> bool:
            return "t write against a read only replica. <a" in unescape(await api.text("/"))

        await eventually(ends_with_one_stop, "the reason ends as other sentences do")
        await redis.replicaof("NO", "ONE")
        await until_ready(api)

        async def is_fine() -> bool:
            return not (await api.call("GET", "/readyz")).body["warnings"]

        await eventually(is_fine, "its signs of life are taken again")


@BOTH
async def test_redis_away_refuses_with_503_and_back_again_serves_by_itself(tmp_path: Path, works: bool) -> None:
    server = await start_server("redis", tmp_path, "--appendfsync", "always")
    async with running_api(server.url, [done], works=works) as api:
        await until_ready(api)
        assert (await api.create("before")).status == 201
        server.kill()
        calls = [
            ("POST", "/v1/timers", {"prefix": "test", "id": "during", "delay": "1h"}),
            ("POST", "/v1/timers", {"prefix": "unknown-here", "id": "during", "delay": "1h"}),
            ("PUT", "/v1/timers/test/during", {"delay": "1h"}),
            ("GET", "/v1/timers/test/before", None),
            ("PATCH", "/v1/timers/test/before", {"payload": 1}),
            ("DELETE", "/v1/timers/test/before", None),
            ("POST", "/v1/timers/test/before/fire", None),
        ]
        for method, path, body in calls:
            reply = await api.call(method, path, body)
            reply.problem(503, "unavailable")
            assert reply.headers["Retry-After"] == "1"
        unready = await api.call("GET", "/readyz")
        assert unready.problem(503, "not-ready")["ready"] is False
        assert unready.headers["Retry-After"] == "1"
        assert NOT_READY in await api.text("/metrics")
        assert (await api.call("GET", "/healthz")).status == 200

        server = await start_server("redis", tmp_path)
        try:
            await until_ready(api)
            before = await api.call("GET", "/v1/timers/test/before")
            assert (before.status, before.body["version"]) == (200, 1)
            (await api.call("GET", "/v1/timers/test/during")).problem(404, "timer-not-found")
            assert (await api.create("after")).status == 201
        finally:
            server.kill()


@pytest.mark.one_server
async def test_anonymous_callers_see_only_the_number_of_unserved_prefixes_and_keys_only_theirs(
    server: EmbeddedServer, redis: Redis
) -> None:
    await redis.ping()
    (mine, own), (theirs, other), (write, no_read) = (
        new_key("mine"),
        new_key("theirs"),
        new_key("mine", rights=("write",)),
    )
    async with running_api(server.url, [done], keys=f"{own.entry} {other.entry} {no_read.entry}") as api:
        await api.store.arm([arming("x", prefix="mine")])
        told = {}
        for name, headers in (("none", {}), ("mine", mine), ("theirs", theirs), ("write", write)):
            told[name] = (await api.call("GET", "/readyz", headers=headers)).body["warnings"][-1]
        assert told["mine"].endswith("no live pod serves mine")
        assert all(told[name].endswith("no live pod serves 1 prefix") for name in ("none", "theirs", "write"))


async def test_a_missing_right_to_a_prefix_is_a_warning_and_named_to_whoever_sees_the_prefix(tmp_path: Path) -> None:
    (all_of_it, every), (mine, own) = new_key("*"), new_key("test")
    async with await start_server("redis", tmp_path) as server, Redis.from_url(server.url) as redis:
        await grant(redis, 0, ["test"])
        async with running_api(as_user(server.url), [done], keys=f"{every.entry} {own.entry}") as api:
            await declare(api.store, "lost")
            timer = {"prefix": "lost", "id": "x", "delay": "1h"}
            refused = (await api.call("POST", "/v1/timers", timer, headers=all_of_it)).problem(503, "redis-rights")
            told = {}
            for name, headers in (("all", all_of_it), ("mine", mine), ("none", {})):
                told[name] = (await api.call("GET", "/readyz", headers=headers)).body["warnings"][-1]
        said = f"the Redis user '{USER}' may not SET lost:{{0}}:x: its ACL needs +set and ~lost*"
        assert refused["detail"].startswith(said)
        assert told == {"all": said, "mine": "the Redis user lacks a right", "none": "the Redis user lacks a right"}


async def test_many_probes_are_answered_from_one_look_at_redis(api: Api, redis: Redis) -> None:
    asked_once = {"fresh_seconds": 3600, "answer_seconds": DEADLINE_SECONDS}
    routes = routes_of(HealthRoutes(api.store, api.client, None, Metrics(), **asked_once))
    async with other_server(api, routes) as probed:
        await redis.config_resetstat()
        for _ in range(2):
            replies = await asyncio.gather(*(probed.call("GET", "/readyz") for _ in range(20)))
            assert {reply.status for reply in replies} == {200}
        looks = (await redis.info("commandstats"))["cmdstat_zrangebyscore"]["calls"]
    await redis.config_resetstat()
    await read_fleet(api.store)
    assert looks == (await redis.info("commandstats"))["cmdstat_zrangebyscore"]["calls"]


class Odd(Store):
    """A db in which something cannot be read while it is `odd`."""

    is_odd = True

    async def now_ms(self) -> int:
        if self.is_odd:
            raise OverflowError("cannot convert float infinity to integer")
        return await super().now_ms()


async def test_whatever_lies_in_redis_readiness_is_no_500(api: Api) -> None:
    store = Odd(api.store.connections)
    always = {"fresh_seconds": 0, "answer_seconds": DEADLINE_SECONDS}
    routes = routes_of(HealthRoutes(store, api.client, None, Metrics(), **always))
    async with other_server(api, routes) as probed:
        unready = await probed.call("GET", "/readyz")
        assert "OverflowError" in unready.problem(503, "not-ready")["detail"]
        store.is_odd = False
        assert (await probed.call("GET", "/readyz")).status == 200
