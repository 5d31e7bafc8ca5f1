"""The db's identity on the command line: reading leaves an empty db empty, `init` makes it ours, pods must agree."""

import asyncio
from collections.abc import Callable
from typing import Final

import pytest
from aiohttp import ClientSession
from redis import Redis

from tests.cli.commands import CommandLine, Process
from tests.cli.test_pods import OURS, until_ready, url_of
from tests.waiting import eventually
from timers.embedded import EmbeddedServer

READING: Final = (
    ("get", "log", "a"),
    ("ls",),
    ("stats",),
    ("pods",),
    ("prefixes",),
    ("keys", "ls"),
    ("doctor",),
)

Start = Callable[..., Process]


@pytest.mark.parametrize("command", READING, ids=" ".join)
def test_a_command_that_reads_leaves_a_mistyped_db_empty(
    timers: CommandLine, redis: Redis, command: tuple[str, ...]
) -> None:
    redis.flushdb()
    timers(*command)
    assert redis.dbsize() == 0


def test_a_user_without_a_right_learns_which_and_nothing_else(
    timers: CommandLine, redis: Redis, server: EmbeddedServer
) -> None:
    redis.flushdb()
    redis.acl_setuser("few", enabled=True, nopass=True, keys="*", channels="*", commands=["+@all", "-del"])
    try:
        line = timers("--url", server.url.replace("unix://", "unix://few:any@"), "init").refusal()
    finally:
        redis.acl_deluser("few")
    assert line == "timers: the Redis user lacks a right: DEL timers:meta*"


def test_init_makes_an_empty_db_ours(timers: CommandLine, redis: Redis) -> None:
    made = timers("init", "--shards", "4", "-o", "json").json
    kept = {"format": "2", "shards": "4", "epoch": made["epoch"], "founded": f"{made['epoch']} 4"}
    assert redis.hgetall("timers:meta") == kept
    assert timers("init", "-o", "json").json == made


def test_init_changes_the_number_of_shards_until_a_timer_is_armed(timers: CommandLine, redis: Redis) -> None:
    assert timers("init", "-o", "json").json["shards"] == 1
    assert timers("init", "--shards", "4", "-o", "json").json["shards"] == 4
    timers("create", "log", "a", "--in", "1h")
    said = timers("init", "--shards", "8").refusal()
    assert said == "timers: --shards is 8, but this db has 4 shards; use 4"
    assert redis.hget("timers:meta", "shards") == "4"


@pytest.mark.parametrize("number", ["none", "0", "1025"])
def test_init_names_a_number_that_is_none(timers: CommandLine, number: str) -> None:
    ended = timers("init", "--shards", number)
    assert (ended.code, ended.out, "--shards" in ended.err) == (2, "", True)


def test_a_pod_that_disagrees_about_the_shards_does_not_start(
    timers: CommandLine, start: Start, server: EmbeddedServer
) -> None:
    timers("create", "log", "a", "--in", "1h")
    pod = start("serve", "--roles", "worker", TIMERS_REDIS_URL=server.url, TIMERS_SHARDS="16")
    assert pod.end().refusal() == "timers: TIMERS_SHARDS is 16, but this db has 1 shard; use 1"


async def test_a_running_pod_that_finds_another_number_of_shards_ends_with_one_line(
    start: Start, server: EmbeddedServer, redis: Redis
) -> None:
    pod = start("serve", **OURS, TIMERS_REDIS_URL=server.url)
    await until_ready(await url_of(pod))
    with redis.pipeline() as at_once:
        at_once.flushdb()
        at_once.hset("timers:meta", mapping={"format": "1", "shards": "16", "epoch": "another", "armed": "1"})
        at_once.execute()
    ended = await asyncio.to_thread(pod.end)
    assert ended.code == 1
    assert ended.err.splitlines()[-1] == "timers: TIMERS_SHARDS is 1, but this db has 16 shards; use 16"


async def test_a_loss_is_reported_everywhere_until_acknowledged(
    timers: CommandLine, start: Start, server: EmbeddedServer, redis: Redis
) -> None:
    await asyncio.to_thread(timers, "init", "--shards", "4")
    pod = start("serve", **OURS, TIMERS_REDIS_URL=server.url, TIMERS_SHARD_SUBSET="0")
    url = await url_of(pod)
    await until_ready(url)
    # A db in which timers were armed keeps its number of shards.
    await asyncio.to_thread(timers, "create", "log", "a", "--in", "1h")
    redis.delete("timers:meta")
    async with ClientSession(url) as session:

        async def warned() -> list[str]:
            async with session.get("/readyz") as answer:
                said = await answer.json()
            return [warning for warning in said["warnings"] if "was lost" in warning]

        (warning,) = await eventually(warned, "the pod warns of the loss")
        assert warning.endswith("acknowledge it with `timers doctor --acknowledge`")
        async with session.get("/v1/stats") as answer:
            (loss,) = (await answer.json())["losses"]
        assert loss["shard"] is None
        assert loss["timers"] in (0, 1), "the pod may or may not have counted it before the loss"
        async with session.get("/metrics") as answer:
            assert "timers_data_losses 1.0" in await answer.text()
        found = await asyncio.to_thread(timers, "doctor", "-o", "json")
        assert ("data", "fail") in {(check["check"], check["level"]) for check in found.json}
        found = await asyncio.to_thread(timers, "doctor", "--acknowledge", "-o", "json")
        # It looks at the db as the next one will: at all its shards.
        assert {("data", "warn"), ("shards", "fail")} <= {(check["check"], check["level"]) for check in found.json}

        async def content() -> bool:
            async with session.get("/metrics") as answer:
                return "timers_data_losses 0.0" in await answer.text()

        await eventually(content, "the pod warns no more")


async def test_a_loss_is_acknowledged_over_http(start: Start, server: EmbeddedServer, redis: Redis) -> None:
    pod = start("serve", **OURS, TIMERS_REDIS_URL=server.url)
    url = await url_of(pod)
    await until_ready(url)
    redis.flushdb()
    async with ClientSession(url) as session:

        async def told() -> list[dict[str, object]]:
            async with session.post("/v1/losses/acknowledge") as answer:
                assert answer.status == 200
                found: list[dict[str, object]] = (await answer.json())["items"]
            return found

        (loss,) = await eventually(told, "the loss is there to be acknowledged")
        assert loss["shard"] is None
        assert await told() == []
