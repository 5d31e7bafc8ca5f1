"""Commands on many timers and for operators: what they print, and their exit codes."""

import json
import signal
from collections.abc import Callable
from typing import Any

import pytest
from redis import Redis

from tests.cli.commands import CommandLine, Process
from tests.cli.terminal import Terminal
from tests.waiting import eventually
from timers.embedded import EmbeddedServer

COMMANDS = ("ls", "stats", "prefixes", "pods", "doctor")


def create(timers: CommandLine, number: int) -> None:
    for i in range(number):
        assert timers("create", "log", f"t{i}", "--in", f"{i + 1}h").code == 0


def test_ls_shows_timers_by_due_time(timers: CommandLine) -> None:
    create(timers, 3)
    shown = timers("ls")
    assert shown.code == 0
    heading, *lines = shown.out.splitlines()
    assert heading.split()[:4] == ["PREFIX", "ID", "STATUS", "DUE_AT"]
    assert [line.split()[:3] for line in lines] == [["log", f"t{i}", "scheduled"] for i in range(3)]


def test_ls_of_nothing_is_an_empty_list(timers: CommandLine) -> None:
    assert timers("ls", "-o", "json").json == {"items": [], "next_cursor": None}
    assert timers("ls", "-o", "jsonl").out == ""


def test_ls_continues_with_its_cursor(timers: CommandLine) -> None:
    create(timers, 5)
    first = timers("ls", "--limit", "3", "-o", "json").json
    second = timers("ls", "--limit", "3", "--cursor", first["next_cursor"], "-o", "json").json
    assert [timer["id"] for timer in (*first["items"], *second["items"])] == [f"t{i}" for i in range(5)]


def test_ls_says_on_stderr_that_there_is_more(timers: CommandLine) -> None:
    create(timers, 3)
    page = timers("ls", "--limit", "2", "-o", "jsonl")
    assert [json.loads(line)["id"] for line in page.out.splitlines()] == ["t0", "t1"]
    assert "--cursor" in page.err


def test_ls_filters(timers: CommandLine) -> None:
    create(timers, 3)
    timers("cancel", "log", "t1")
    for options, ids in (
        (("--status", "cancelled"), ["t1"]),
        (("--status", "cancelled,failed"), ["t1"]),
        (("--status", "cancelled", "--status", "scheduled", "--due-before", "150m"), ["t0", "t1"]),
        (("--prefix", "l*", "--due-after", "-1d", "--due-before", "90m"), ["t0"]),
        (("--prefix", "other"), []),
    ):
        assert [timer["id"] for timer in timers("ls", *options, "-o", "json").json["items"]] == ids


@pytest.mark.parametrize(
    ("option", "value"), [("--status", "late"), ("--limit", "0"), ("--cursor", "?"), ("--due-after", "soon")]
)
def test_a_bad_option_is_wrong_usage_and_is_named(timers: CommandLine, option: str, value: str) -> None:
    assert option in timers("ls", option, value).refusal(2)


def test_stats_count(timers: CommandLine) -> None:
    create(timers, 2)
    stats = timers("stats", "-o", "json").json
    assert stats["by_status"]["scheduled"] == 2
    assert stats["by_prefix"]["log"]["scheduled"] == 2
    table = timers("stats").out
    assert table.split("\n")[1].split()[:3] == ["-", "0", "0"]  # no pod listens
    assert "NOTIFICATIONS" in table
    assert "log" in table


def test_pause_and_resume_are_seen_among_the_prefixes(timers: CommandLine) -> None:
    create(timers, 1)
    assert timers("pause", "log", "-o", "json").json == {"prefix": "log", "paused": True}
    assert timers("prefixes", "-o", "json").json[0]["paused"] is True
    assert timers("resume", "log", "-o", "json").json == {"prefix": "log", "paused": False}
    assert timers("prefixes", "-o", "json").json[0]["paused"] is False


def test_the_table_of_prefixes_has_each_count_once(timers: CommandLine) -> None:
    create(timers, 2)
    head, line, _ = timers("prefixes").out.splitlines()
    assert head.split() == [
        *("PREFIX", "PROCESSOR", "PODS", "AWAY", "DECLARED_AT", "DECLARED_BY", "PAUSED", "NEXT_DUE_AT"),
        *("SCHEDULED", "RETRYING", "RUNNING", "COMPLETED", "FAILED", "UNHANDLED", "CANCELLED"),
    ]
    assert line.split()[:4] == ["log", "log", "0", "true"]
    assert line.split()[5:7] == ["before", "false"]
    assert line.split()[-7:] == ["2", "0", "0", "0", "0", "0", "0"]


def test_get_explain_tells_the_story(timers: CommandLine) -> None:
    create(timers, 1)
    story = timers("get", "log", "t0", "--explain").out.splitlines()
    assert "created" in story[0]
    assert "not run yet" in story[-1]
    assert isinstance(timers("get", "log", "t0", "--explain", "-o", "json").json, list)


def levels(shown: Any) -> dict[str, str]:
    return {check["check"]: check["level"] for check in shown}


def test_doctor_finds_a_server_of_ours_healthy(timers: CommandLine) -> None:
    shown = timers("doctor", "-o", "json")
    assert shown.code == 0
    assert [name for name, level in levels(shown.json).items() if level != "ok"] == ["shards"]
    (shards,) = [check for check in shown.json if check["check"] == "shards"]
    assert (shards["said"], shards["repair"]) == ("no worker is alive, so nothing runs", "start one: `timers serve`")


def test_doctor_shows_what_a_finding_means_and_what_repairs_it(timers: CommandLine) -> None:
    lines = timers("doctor").out.splitlines()
    place = next(place for place, line in enumerate(lines) if line.startswith("warn  shards"))
    assert [line.split(":")[0].strip() for line in lines[place + 1 : place + 3]] == ["means", "repair"]
    assert "\x1b" not in "".join(lines)


def test_doctor_examines_a_db_that_no_other_command_opens(timers: CommandLine, redis: Redis) -> None:
    redis.set("timers:meta", "foreign")
    assert "cannot be used" in timers("ls").refusal()
    shown = timers("doctor", "-o", "json")
    assert (shown.code, levels(shown.json)["data"]) == (1, "fail")


def flags(redis: Redis) -> str:
    return str(redis.config_get("notify-keyspace-events")["notify-keyspace-events"])


def test_doctor_fails_without_notifications_and_fix_turns_them_on(timers: CommandLine, redis: Redis) -> None:
    before = flags(redis)
    redis.config_set("notify-keyspace-events", "K$")
    try:
        deaf = timers("doctor", "-o", "json")
        assert deaf.code == 1
        assert (levels(deaf.json)["flags"], levels(deaf.json)["delivery"]) == ("fail", "fail")
        fixed = timers("doctor", "--fix", "-o", "json")
        assert fixed.code == 0
        assert (levels(fixed.json)["flags"], levels(fixed.json)["delivery"]) == ("ok", "ok")
        assert set("K$Ex") <= set(flags(redis))
    finally:
        redis.config_set("notify-keyspace-events", before)


def test_doctor_refuses_a_server_that_evicts(timers: CommandLine, redis: Redis) -> None:
    redis.config_set("maxmemory", "1gb")
    redis.config_set("maxmemory-policy", "volatile-ttl")
    try:
        shown = timers("doctor", "-o", "json")
    finally:
        redis.config_set("maxmemory-policy", "noeviction")
        redis.config_set("maxmemory", "0")
    assert shown.code == 1
    assert levels(shown.json)["eviction"] == "fail"


def test_doctor_names_timers_that_cannot_be_read(timers: CommandLine, redis: Redis) -> None:
    redis.hset("timers:{0}:quarantine", "log:one", "1795000000000 no record\n")
    (check,) = [check for check in timers("doctor", "-o", "json").json if check["check"] == "quarantine"]
    assert check["level"] == "warn"
    assert "1 records could not be read" in check["said"]
    assert "'log:one' (no record)" in check["said"]


def test_doctor_sees_foreign_keys(timers: CommandLine, redis: Redis) -> None:
    redis.set("session/abc", "theirs")
    create(timers, 1)
    (foreign,) = [c for c in timers("doctor", "-o", "json").json if c["check"] == "foreign"]
    assert foreign["level"] == "warn"
    assert "session/abc" in foreign["said"]
    assert foreign["said"].startswith("1 of ")


@pytest.mark.parametrize("command", COMMANDS)
def test_every_output_format_is_valid(timers: CommandLine, command: str) -> None:
    create(timers, 1)
    assert timers(command).out
    json.loads(timers(command, "-o", "json").out)
    for line in timers(command, "-o", "jsonl").out.splitlines():
        json.loads(line)


async def test_watch_prints_each_change_until_it_is_interrupted(
    server: EmbeddedServer, redis: Redis, start: Callable[..., Process]
) -> None:
    redis.hset("timers:{pods}:declared", "log", "1 before")
    watching = start("watch", "--prefix", "log", TIMERS_REDIS_URL=server.url)

    async def lines(number: int) -> list[Any] | None:
        told = watching.out.splitlines()
        return [json.loads(line) for line in told] if len(told) >= number else None

    await eventually(lambda: lines(1), "the subscription stands")
    for timer_id in ("t0", "t1"):
        assert start("create", "log", timer_id, "--in", "1h", TIMERS_REDIS_URL=server.url).end().code == 0
    told = await eventually(lambda: lines(3), "two changes are told")
    assert [entry["event"] for entry in told] == ["open", "change", "change"]
    assert [entry["id"] for entry in told[1:]] == ["t0", "t1"]
    watching.signal(signal.SIGINT)
    assert watching.end().code == 0


def test_doctor_shows_on_a_terminal_how_far_repairing_is_and_nothing_elsewhere(
    timers: CommandLine, server: EmbeddedServer, redis: Redis
) -> None:
    create(timers, 3)
    redis.delete("timers:{0}:due:log")
    terminal = Terminal("doctor", "--fix", TIMERS_REDIS_URL=server.url)
    try:
        terminal.end()
        shown = terminal.shown.decode()
    finally:
        terminal.close()
    assert "repairing" in shown
    assert "100%" in shown
    assert "repaired (due: 3)" in shown
    again = timers("doctor", "--fix")
    assert "records, indexes and counts agree" in again.out
    assert again.err == ""
