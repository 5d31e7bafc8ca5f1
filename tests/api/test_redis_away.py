"""Redis is slow, or its answer is lost: a bounded wait, a 503, and a create that the caller can repeat."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from redis.asyncio import Redis

from tests.api.conftest import done
from tests.api.harness import Api, other_server, running_api
from tests.api.keyed import new_key
from tests.chaos.proxy import Proxy
from tests.rights import as_user, grant
from tests.servers import start_server
from tests.waiting import DEADLINE_SECONDS, eventually
from timers.api.auth import Auth
from timers.api.health import HealthRoutes
from timers.api.operations import routes_of
from timers.embedded import EmbeddedServer, Family
from timers.errors import Unavailable
from timers.metrics import Metrics
from timers.processor import processor
from timers.store.callers import Callers
from timers.store.store import Reply, Store

HEADERS, KEY = new_key()
TIMER = {"prefix": "test", "id": "one", "delay": "1h", "payload": 1}


@pytest.mark.parametrize(
    "call",
    [
        ("POST", "/v1/timers", TIMER),
        ("PUT", "/v1/timers/test/one", {"delay": "1h"}),
        ("GET", "/v1/timers/test/one", None),
        ("DELETE", "/v1/timers/test/one", None),
        ("GET", "/v1/timers", None),
        ("POST", "/v1/timers/batch", {"timers": [TIMER]}),
        ("GET", "/v1/stats", None),
    ],
)
@pytest.mark.parametrize("keys", [None, KEY.entry], ids=["open", "with keys"])
async def test_a_redis_that_does_not_answer_is_503_in_bounded_time_and_then_forgotten(
    own_server: EmbeddedServer, call: tuple[str, str, Any], keys: str | None
) -> None:
    async with running_api(own_server.url, [done], keys=keys, request_seconds=0.2) as api:

        async def serves(path: str) -> bool:
            return (await api.call("GET", path, headers=HEADERS)).status == 200

        await eventually(lambda: serves("/v1/timers"), "the API serves")
        os.kill(own_server.pid, signal.SIGSTOP)
        reply = await api.call(*call, headers=HEADERS)
        reply.problem(503, "unavailable")
        assert reply.headers["Retry-After"] == "1"
        assert (await api.call("GET", "/healthz")).status == 200
        assert (await api.call("GET", "/readyz")).status == 503
        os.kill(own_server.pid, signal.SIGCONT)
        await eventually(lambda: serves("/v1/timers"), "the API serves again by itself")
        await eventually(lambda: serves("/readyz"), "the API is ready again by itself")


async def test_no_request_waits_behind_others_that_wait(own_server: EmbeddedServer) -> None:
    """There are more requests than connections to Redis, and each is answered within the same time limit."""
    async with running_api(own_server.url, [done], keys=KEY.entry, request_seconds=1.0) as api:
        await api.call("GET", "/v1/timers", headers=HEADERS)
        os.kill(own_server.pid, signal.SIGSTOP)
        async with asyncio.timeout(45):  # in sequence they would take a minute and a half
            replies = await asyncio.gather(*(api.call("GET", "/v1/timers", headers=HEADERS) for _ in range(90)))
        assert {reply.status for reply in replies} == {503}


@pytest.mark.usefixtures("redis")
async def test_the_clients_own_slowness_does_not_count(server: EmbeddedServer) -> None:
    async with running_api(server.url, [done], request_seconds=0.5) as api:

        async def dripping() -> AsyncIterator[bytes]:
            yield b'{"prefix": "test", "id": "slow", "delay": "1h"'
            await asyncio.sleep(0.6)  # the client is slow
            yield b"}"

        reply = await api.call("POST", "/v1/timers", data=dripping(), headers={"Content-Type": "application/json"})
        assert reply.status == 201


async def test_metrics_are_answered_while_redis_is_away(tmp_path: Path) -> None:
    server = await start_server("redis", tmp_path)
    async with running_api(server.url, [done], keys=KEY.entry) as api:
        assert (await api.call("GET", "/v1/timers", headers=HEADERS)).status == 200
        server.kill()

        async def keys_are_stale() -> bool:
            return (await api.call("GET", "/v1/stats", headers=HEADERS)).status == 503

        await eventually(keys_are_stale, "Redis is known to be away")
        async with api.session.get(api.server.url + "/metrics", headers=HEADERS) as response:
            assert response.status == 200
            assert "timers_overdue_seconds NaN" in await response.text()
        async with api.session.get(api.server.url + "/metrics") as response:
            assert response.status == 401


class SilentCallers(Callers):
    """API keys in a Redis that hangs or answers."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.answers = asyncio.Event()
        self.answers.set()

    async def entries(self) -> dict[str, str]:
        await self.answers.wait()
        return dict(await super().entries())


@pytest.mark.parametrize("keys", [None, KEY.entry], ids=["open", "with keys"])
async def test_metrics_do_not_wait_for_the_keys_of_a_frozen_redis(api: Api, keys: str | None) -> None:
    """They took six seconds; most scrapers have given up by then."""
    callers = SilentCallers(api.store)
    routes = routes_of(HealthRoutes(api.store, api.client, None, Metrics()))
    auth = Auth(callers, keys, fresh_seconds=-1.0)
    async with other_server(api, routes, auth) as other:
        url = f"{other.server.url}/metrics"
        async with api.session.get(url, headers=HEADERS) as response:
            assert response.status == 200
        callers.answers.clear()
        async with api.session.get(url, headers=HEADERS) as response:
            assert response.status == 200
        async with api.session.get(url, headers={"Authorization": "Bearer nobody's"}) as response:
            assert response.status == (200 if keys is None else 401)
        callers.answers.set()


async def test_metrics_are_answered_while_redis_is_frozen(own_server: EmbeddedServer) -> None:
    async with running_api(own_server.url, [done]) as api:
        await api.create()
        assert 'timers_timers{prefix="test",status="scheduled"} 1.0' in await api.text("/metrics")
        os.kill(own_server.pid, signal.SIGSTOP)
        metrics = await api.text("/metrics")
        assert "timers_subscriptions_total" in metrics
        assert "timers_overdue_seconds NaN" in metrics
        assert "timers_timers{" not in metrics
        os.kill(own_server.pid, signal.SIGCONT)


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("PUT", "/v1/timers/test/one", {"delay": "1h", "payload": 1}),
        ("POST", "/v1/timers", {**TIMER, "if_exists": "keep"}),
        ("POST", "/v1/timers", {**TIMER, "if_exists": "replace"}),
        ("POST", "/v1/timers/batch", {"timers": [{**TIMER, "if_exists": "keep"}]}),
    ],
    ids=["put", "keep", "replace", "batch"],
)
async def test_a_create_whose_answer_was_lost_is_503_and_can_be_repeated(
    own_server: EmbeddedServer, method: str, path: str, body: Any
) -> None:
    async with Proxy(own_server.url) as proxy, running_api(proxy.url, [done]) as api:
        await api.create("warm")  # the server has the script
        await api.client.cancel("test", "warm", purge=True)
        lost = proxy.lose_reply("arm", patience_s=DEADLINE_SECONDS)
        refused = (await api.call(method, path, body)).problem(503, "unavailable")
        again = "repeat it" if method == "PUT" else "repeat it with PUT, or with an id and if_exists 'keep'"
        assert refused["detail"].endswith(f"; the call may have taken effect: {again}")
        assert await lost > 0  # bytes: Redis had run it and answered
        async with running_api(own_server.url, [done]) as other:
            assert (await other.call("GET", "/v1/timers/test/one")).body["payload"] == 1
        assert (await api.call(method, path, body)).status == 200
        timers = (await api.client.list()).items
        assert [(timer.id, timer.payload, timer.attempt) for timer in timers] == [("one", 1, 0)]
        assert await api.client.counts() == {"test": {timers[0].status: 1}}


@pytest.mark.every_server
async def test_a_create_that_a_full_redis_refused_does_not_say_that_it_may_have_taken_effect(
    tmp_path: Path, family: Family
) -> None:
    server = await start_server(family, tmp_path)
    creates = [TIMER, {**TIMER, "id": "two"}]
    async with running_api(server.url, [done]) as api, Redis.from_url(server.url) as redis:
        await api.create("before")
        await redis.config_set("maxmemory", 1)
        for path, body in (("/v1/timers", TIMER), ("/v1/timers/batch", {"timers": creates})):
            detail = (await api.call("POST", path, body)).problem(503, "unavailable")["detail"]
            assert detail.endswith("; nothing was done")
        await redis.config_set("maxmemory", 0)
        assert [timer.id for timer in (await api.client.list()).items] == ["before"]
    await server.stop()


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/v1/timers", TIMER),
        ("POST", "/v1/timers", {**TIMER, "durability": "fsync"}),
        ("POST", "/v1/timers/batch", {"timers": [TIMER]}),
        ("PATCH", "/v1/timers/test/before", {"delay": "2h"}),
        ("DELETE", "/v1/timers/test/before?purge=true", None),
        ("POST", "/v1/timers/actions", {"action": "cancel", "filter": {"prefix": "test"}}),
    ],
    ids=["create", "durable create", "batch", "change", "purge", "action"],
)
async def test_a_redis_that_refuses_connections_got_nothing(tmp_path: Path, method: str, path: str, body: Any) -> None:
    server = await start_server("redis", tmp_path)
    async with running_api(server.url, [done], keys=KEY.entry) as api:
        await api.call("PUT", "/v1/timers/test/before", {"delay": "1h"}, headers=HEADERS)
        server.kill()

        async def said() -> str:
            reply = await api.call(method, path, body, headers=HEADERS)
            detail: str = reply.problem(503, "unavailable")["detail"]
            return detail if "connecting to" in detail else ""  # the old connections are known to be gone

        assert (await eventually(said, "the connection is refused")).endswith("; nothing was done")


async def test_a_write_that_a_replica_refused_does_not_say_that_it_may_have_taken_effect(
    own_server: EmbeddedServer,
) -> None:
    async with running_api(own_server.url, [done]) as api, Redis.from_url(own_server.url) as redis:
        await api.create("before")
        await redis.replicaof("127.0.0.1", "1")
        detail = (await api.call("POST", "/v1/timers/test/before/fire")).problem(503, "unavailable")["detail"]
        assert detail.endswith("; nothing was done")
        bulk = {"action": "cancel", "filter": {"prefix": "test"}}
        detail = (await api.call("POST", "/v1/timers/actions", bulk)).problem(503, "unavailable")["detail"]
        assert detail.endswith("; nothing was done")


async def test_an_action_that_broke_off_says_that_it_may_have_taken_effect(api: Api) -> None:
    """What the server refused last was not done, but the timers before it were."""
    ids = iter(("a", "b"))
    for timer_id in ids:
        await api.create(timer_id)
    cancel = api.store.cancel

    async def once(prefix: str, id: str, **given: Any) -> Reply:
        if id == "b":
            raise Unavailable("Redis cannot do this now", nothing_done=True)
        return await cancel(prefix, id, **given)

    with patch.object(api.store, "cancel", once):
        bulk = {"action": "cancel", "filter": {"prefix": "test"}}
        refused = (await api.call("POST", "/v1/timers/actions", bulk)).problem(503, "unavailable")
    assert refused["detail"] == (
        "Redis cannot do this now; 1 timer was done before that: repeat it for the others; "
        "the call may have taken effect: repeat it"
    )


@pytest.mark.one_server
async def test_a_redis_user_without_the_right_to_a_prefix_is_a_503_that_names_it(server: EmbeddedServer) -> None:
    async with Redis.from_url(server.url) as redis:
        await redis.flushall()
        await grant(redis, 0, ["test"])
    lost: Any = processor("lost")(done.function)
    async with running_api(as_user(server.url), [done, lost]) as api:
        refused = await api.call("POST", "/v1/timers", {"prefix": "lost", "id": "x", "delay": "1h"})
        said = refused.problem(503, "redis-rights")["detail"]
        assert said == "the Redis user 'timers' may not SET lost:{0}:x: its ACL needs +set and ~lost*; nothing was done"
        batch = {"timers": [{"prefix": "lost", "id": "x", "delay": "1h"}, TIMER]}
        results = (await api.call("POST", "/v1/timers/batch", batch)).body["results"]
        assert [result["status"] for result in results] == [503, 201]
        assert (await api.call("GET", "/v1/timers/lost/x")).status == 404


@pytest.mark.one_server
@pytest.mark.parametrize("call", ["GET /v1/stats", "POST /v1/losses/acknowledge"])
async def test_a_redis_user_without_the_right_to_the_identity_is_a_503_that_says_so(
    server: EmbeddedServer, call: str
) -> None:
    """It was `unavailable`, as if Redis were away."""
    async with Redis.from_url(server.url) as redis:
        await redis.flushall()
        await grant(redis, 0, ["test"])
        async with running_api(as_user(server.url), [done]) as api:
            await grant(redis, 0, ["test"], without=["evalsha"])
            refused = await api.call(*call.split())
            said = refused.problem(503, "redis-rights")["detail"]
            await grant(redis, 0, ["test"])
    assert said.startswith("the Redis user lacks a right: ")
    assert refused.headers["Retry-After"] == "1"
