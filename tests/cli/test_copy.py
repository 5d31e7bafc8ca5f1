"""`timers copy`: the command, what pods over HTTP say meanwhile, and a command that is killed."""

import asyncio
import json
import re
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession
from redis import Redis

from tests.chaos.proxy import Proxy
from tests.cli.commands import CommandLine, Process
from tests.cli.test_pods import OURS, url_of
from tests.conservation import conserved
from tests.servers import FORGETFUL, start_server
from tests.waiting import DEADLINE_SECONDS, eventually
from timers.client import open_store
from timers.embedded import EmbeddedServer
from timers.setting_values import without_account
from timers.store import moving
from timers.store.identity import COPYING
from timers.store.servers import connect
from timers.store.store import Arming

MANY = 20_000


@pytest.fixture
async def other(tmp_path: Path) -> AsyncIterator[EmbeddedServer]:
    """An empty server of the other family."""
    made = await start_server("valkey", tmp_path / "other", *FORGETFUL)
    yield made
    await made.stop()


async def arm_many(url: str) -> None:
    store = await open_store(connect(url, answer_timeout_seconds=DEADLINE_SECONDS))
    for start in range(0, MANY, 1000):
        await store.arm([Arming("test", f"t{n}", "+86400000", {"payload": n}) for n in range(start, start + 1000)])
    await store.connections.close()


async def balanced(url: str) -> int:
    """How many timers the db has, all in order."""
    store = await open_store(connect(url, answer_timeout_seconds=DEADLINE_SECONDS))
    await conserved(store)
    counts = await store.of_shards(lambda asked, root: asked.hvals(f"{root}counts"), [])
    await store.connections.close()
    return sum(int(n) for (of_shard,) in counts for n in of_shard)


async def test_a_copy_that_was_killed_goes_on(
    timers: CommandLine, server: EmbeddedServer, other: EmbeddedServer, start: Callable[..., Process]
) -> None:
    """All that it writes goes through this process, so it cannot end between a look at it and its death."""
    await arm_many(server.url)
    target = Redis.from_url(other.url, decode_responses=True)

    def copied() -> int:
        return sum(int(n) for shard in range(4) for n in target.hvals(f"timers:{{{shard}}}:counts"))

    async with Proxy(other.url) as proxy:
        for least in (1, MANY // 3):
            killed = start("copy", server.url, proxy.url, "--shards", "4")
            while copied() < least:
                assert await proxy.catch("restore", "after", patience_s=DEADLINE_SECONDS), "it copies"
            async with proxy.shut():
                killed.signal(signal.SIGKILL)
                killed.kill()
            refused = await asyncio.to_thread(timers, "create", "test", "--in", "1h")
            assert f"is being moved to {proxy.url}" in refused.refusal()
        assert copied() < MANY, "it was killed in the midst of it"
        done = await asyncio.to_thread(start("copy", server.url, proxy.url, "-o", "json").end)
        assert done.code == 0, done
        assert "continuing where an earlier attempt stopped" in done.err
        assert json.loads(done.out)["by_prefix"] == {"test": {"scheduled": MANY}}
        assert await balanced(other.url) == MANY
        assert target.hget("timers:meta", "shards") == "4"
        assert not target.exists("timers:{moving}:reached")
        assert "the service has moved to" in (await asyncio.to_thread(timers, "get", "test", "t1")).refusal()
        again = await asyncio.to_thread(start("copy", server.url, proxy.url).end)
        assert (again.code, "already" in again.err) == (0, True)


async def test_a_pod_says_over_http_where_the_service_went(
    timers: CommandLine, server: EmbeddedServer, other: EmbeddedServer, start: Callable[..., Process]
) -> None:
    place = without_account(other.url)
    pods = [start("serve", **{**OURS, "TIMERS_REDIS_URL": url}) for url in (server.url, other.url)]
    here, there = [await url_of(pod) for pod in pods]
    await arm_many(server.url)
    copying = start("copy", server.url, other.url)
    async with ClientSession() as session:

        async def refused() -> tuple[Any, ...] | None:
            body = {"prefix": "log", "delay": "1h"}
            async with session.post(f"{here}/v1/timers", json=body) as answer:
                said = await answer.json()
                return (answer.headers["Retry-After"], said) if answer.status == 503 else None

        after, problem = await eventually(refused, "the pod refuses")
        assert (after, problem["type"]) == ("1", "urn:timers:problem:moving")
        assert f"is being moved to {place}" in problem["detail"]
        assert problem["detail"].endswith("nothing was done")
        assert copying.end().code == 0

        async def knows() -> dict[str, Any] | None:
            async with session.get(f"{here}/readyz") as answer:
                said: dict[str, Any] = await answer.json()
                return said if f"the service has moved to {place}; connect there" in said["problems"] else None

        assert (await eventually(knows, "the old pod is not ready"))["ready"] is False
        async with session.get(f"{here}/v1/timers/test/t1") as answer:
            assert answer.status == 503

        async def goes_on() -> bool:
            async with session.get(f"{there}/readyz") as answer:
                return answer.status == 200

        await eventually(goes_on, "the new pod is ready")
        async with session.post(f"{there}/v1/timers", json={"prefix": "log", "id": "new", "delay": 0}) as answer:
            assert answer.status == 201

        async def runs() -> bool:
            async with session.get(f"{there}/v1/timers/log/new") as answer:
                return bool((await answer.json())["status"] == "completed")

        await eventually(runs, "it runs there")
    lines = [json.loads(line) for line in pods[0].err.splitlines() if line.startswith("{")]
    assert [line["phase"] for line in lines if line["event"] == "nothing is armed or started here"][-1] == "moved"
    found = (await asyncio.to_thread(timers, "doctor", "-o", "json")).json
    (data,) = [check for check in found if check["check"] == "data"]
    assert (data["level"], place in json.dumps(data)) == ("fail", True)


def test_a_dry_run_changes_nothing(timers: CommandLine, redis: Redis, server: EmbeddedServer) -> None:
    timers("create", "test", "a", "--in", "1h")
    to = server.url.replace("db=0", "db=1")
    before = redis.hgetall("timers:meta")
    ended = timers("copy", server.url, to, "--shards", "3", "--dry-run", "-o", "json")
    assert ended.json == {"moved": False, "timers": 1, "by_prefix": {"test": {"scheduled": 1}}}
    assert redis.hgetall("timers:meta") == before
    assert not Redis.from_url(to).dbsize()


def test_what_it_shows(timers: CommandLine, server: EmbeddedServer) -> None:
    timers("create", "test", "a", "--in", "1h")
    to = server.url.replace("db=0", "db=1")
    ended = timers("copy", server.url, to, "--shards", "3")
    assert [line.split() for line in ended.out.splitlines()] == [
        ["WHAT", "NUMBER"],
        ["test", "scheduled", "1"],
        ["declarations", "2"],
    ]
    assert ended.err.splitlines()[-1] == f"timers: the service has moved to {to}; give its pods and callers that URL"
    assert Redis.from_url(to, decode_responses=True).hget("timers:meta", "shards") == "3"
    assert "the service has moved" in timers("cancel", "test", "a").refusal()
    assert "the service has moved" in timers("copy", server.url, "--abort").refusal()
    found = timers("doctor", "-o", "json").json
    assert [check["check"] for check in found if check["level"] == "fail"] == ["data"], "only that it has moved"


def test_an_unfinished_move_is_given_back(timers: CommandLine, server: EmbeddedServer) -> None:
    assert timers("copy", server.url, "--abort").refusal() == "timers: the service is not being moved; nothing was done"
    timers("create", "test", "a", "--in", "1h")

    async def begin() -> None:
        store = await open_store(connect(server.url))
        await store.identity.move(COPYING, "move", "redis://there:1/0")
        await moving.close(store, COPYING, "redis://there:1/0")
        await store.connections.close()

    asyncio.run(begin())
    assert timers("cancel", "test", "a").refusal().startswith("timers: the service is being moved to redis://there:1/0")
    ended = timers("copy", server.url, "--abort")
    assert (ended.code, ended.err) == (
        0,
        "timers: the service stays; what was copied to redis://there:1/0 can be deleted\n",
    )
    assert timers("cancel", "test", "a").code == 0


def test_only_the_url_that_cannot_be_used_is_named(timers: CommandLine, server: EmbeddedServer) -> None:
    told = timers("copy", server.url, "redis+cluster://127.0.0.1:6379/5").refusal()
    assert told.startswith("timers: TO_URL: db 5 cannot be used: a cluster has only db 0")
    assert server.url not in told


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("redis://127.0.0.1:1",), r"TO_URL: nothing was given; expected the URL of an empty db"),
        (("redis://127.0.0.1:1", "redis://127.0.0.1:1", "--abort"), r"--abort: .* expected FROM_URL alone"),
        (("redis://127.0.0.1:1", "redis://127.0.0.1:1", "--wait", "x"), r"--wait: 'x' is not accepted"),
        (("redis://127.0.0.1:1", "redis://127.0.0.1:2", "--shards", "1025"), r"--shards.*1024"),
        (("nowhere", "redis://127.0.0.1:1"), r"FROM_URL: the given value is not accepted; expected a URL"),
        (("redis://127.0.0.1:1", "nowhere"), r"TO_URL: the given value is not accepted; expected a URL"),
    ],
)
def test_what_cannot_be_meant_is_named(timers: CommandLine, arguments: tuple[str, ...], says: str) -> None:
    ended = timers("copy", *arguments)
    assert (ended.code, ended.out) == (2, "")
    assert re.search(says, ended.err), ended.err


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("redis://me:se/cr@et@host:1/5", "redis://host:1/5"),
        ("rediss://:secret@host:1/5?ssl_cert_reqs=none", "rediss://host:1/5?ssl_cert_reqs=none"),
        ("unix://me:secret@/a/b.sock?db=1", "unix:///a/b.sock?db=1"),
        ("redis://host:1/5?password=x&db=2&username=me", "redis://host:1/5?db=2&"),
        ("redis+cluster://me:x@a:1,b:2", "redis+cluster://a:1,b:2"),
    ],
)
def test_no_credentials_are_told(url: str, place: str) -> None:
    assert without_account(url).rstrip("&") == place.rstrip("&")
