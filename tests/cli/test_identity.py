"""Which db it is, from the command line: reading leaves an empty db empty, `init` makes it ours, pods must agree."""

from collections.abc import Callable
from typing import Final

import pytest
from redis import Redis

from tests.cli.commands import CommandLine, Process
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
    timers(*command)
    assert redis.dbsize() == 0


def test_init_makes_an_empty_db_ours(timers: CommandLine, redis: Redis) -> None:
    made = timers("init", "--shards", "4", "-o", "json").json
    assert redis.hgetall("timers:meta") == {"format": "1", "shards": "4", "epoch": made["epoch"]}
    assert timers("init", "-o", "json").json == made


def test_init_changes_the_number_of_shards_until_a_timer_is_armed(timers: CommandLine, redis: Redis) -> None:
    assert timers("init", "-o", "json").json["shards"] == 1
    assert timers("init", "--shards", "4", "-o", "json").json["shards"] == 4
    timers("create", "log", "a", "--in", "1h")
    said = timers("init", "--shards", "8").refusal()
    assert said == "timers: TIMERS_SHARDS is 8, but this db has 4 shards; use 4"
    assert redis.hget("timers:meta", "shards") == "4"


def test_init_names_a_number_that_is_none(timers: CommandLine) -> None:
    assert "TIMERS_SHARDS" in timers("init", "--shards", "none").refusal()


def test_a_pod_that_disagrees_about_the_shards_does_not_start(
    timers: CommandLine, start: Start, server: EmbeddedServer
) -> None:
    timers("create", "log", "a", "--in", "1h")
    pod = start("serve", "--roles", "worker", TIMERS_REDIS_URL=server.url, TIMERS_SHARDS="16")
    assert pod.end().refusal() == "timers: TIMERS_SHARDS is 16, but this db has 1 shards; use 1"
