"""The commands on one timer: what they do and print, and how they refuse."""

import asyncio

import pytest
from redis import Redis
from redis.asyncio import Redis as AsyncRedis

from tests.cli.commands import CommandLine
from tests.rights import as_user, grant
from timers.embedded import EmbeddedServer


def test_create_then_get_then_cancel(timers: CommandLine, redis: Redis) -> None:
    created = timers("create", "test", "one", "--in", "24h", "--payload", '{"a": [1]}', "-o", "json")
    assert created.code == 0
    assert created.json["status"] == "scheduled"
    assert created.json["payload"] == {"a": [1]}
    assert 86_390_000 < redis.pttl("test:{0}:one") <= 86_400_000
    got = timers("get", "test", "one", "-o", "jsonl")
    assert (got.code, got.err, got.out.count("\n")) == (0, "", 1)
    assert got.json == created.json
    assert timers("cancel", "test", "one", "-o", "json").json["status"] == "cancelled"
    assert redis.keys("test:*") == []


def test_the_table_shows_every_field_and_the_history(timers: CommandLine) -> None:
    shown = timers("create", "test", "one", "--in", "1h", "--payload", '"\\u001b[2J"').out
    names = [line.split()[0] for line in shown.splitlines()]
    assert names[:4] == ["prefix", "id", "status", "due_at"]
    assert names[-1] == "history"
    assert shown.splitlines()[-1].endswith("created")
    assert "\x1b" not in shown


def test_the_table_shows_the_newest_change_first(timers: CommandLine) -> None:
    timers("create", "test", "one", "--in", "1h")
    shown = timers("cancel", "test", "one").out.splitlines()
    assert shown[-2].startswith("history")
    assert [line.split("  ")[-1] for line in shown[-2:]] == ["cancelled", "created"]


def test_an_id_is_made_where_none_is_given(timers: CommandLine) -> None:
    made = timers("create", "test", "--in", "1h", "-o", "json").json["id"]
    assert timers("get", "test", made).code == 0


@pytest.mark.parametrize(
    ("given", "due_at"),
    [("2035-01-01T00:00:00+01:00", "2034-12-31T23:00:00.000Z"), ("2052000000000", "2035-01-10T00:00:00.000Z")],
)
def test_at_takes_a_time_and_epoch_ms(timers: CommandLine, given: str, due_at: str) -> None:
    assert timers("create", "test", "one", "--at", given, "-o", "json").json["due_at"] == due_at
    assert timers("reschedule", "test", "one", "--at", given, "-o", "json").json["due_at"] == due_at


def test_in_takes_seconds_without_a_unit(timers: CommandLine, redis: Redis) -> None:
    assert timers("create", "test", "one", "--in", "90").code == 0
    assert 80_000 < redis.pttl("test:{0}:one") <= 90_000


def test_reschedule_retry_fire_and_purge(timers: CommandLine, redis: Redis) -> None:
    timers("create", "test", "one", "--in", "1h")
    assert timers("reschedule", "test", "one", "--in", "2h", "-o", "json").json["history"][0]["note"] == "rescheduled"
    assert 7_190_000 < redis.pttl("test:{0}:one") < 7_200_100
    assert timers("fire", "test", "one", "-o", "json").json["history"][0]["note"] == "fired on request"
    timers("cancel", "test", "one")
    assert timers("retry", "test", "one", "-o", "json").json["status"] == "scheduled"
    assert timers("cancel", "test", "one", "--purge").code == 0
    assert "does not exist" in timers("get", "test", "one").refusal()


def test_if_exists_decides(timers: CommandLine) -> None:
    timers("create", "test", "one", "--in", "1h", "--payload", "1")
    announced = timers("create", "test", "one", "--in", "1h")
    assert announced.code == 1
    assert "exists" in announced.err
    kept = timers("create", "test", "one", "--in", "1h", "--payload", "2", "--if-exists", "keep", "-o", "json")
    replaced = timers("create", "test", "one", "--in", "1h", "--payload", "3", "--if-exists", "replace", "-o", "json")
    assert (kept.json["payload"], replaced.json["payload"]) == (1, 3)


@pytest.mark.parametrize(
    "arguments",
    [("get",), ("cancel",), ("retry",), ("fire",), ("reschedule", "--in", "1h")],
    ids=lambda given: given[0],
)
def test_a_missing_timer_is_one_line_and_exit_1(timers: CommandLine, arguments: tuple[str, ...]) -> None:
    line = timers(arguments[0], "test", "none", *arguments[1:]).refusal()
    assert line == "timers: timer test:none does not exist"


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("create", "test", "one"), "--in"),
        (("create", "test", "one", "--in", "soon"), "--in"),
        (("create", "test", "one", "--at", "tomorrow"), "--at"),
        (("create", "test", "one", "--in", "1h", "--at", "2027-01-01T00:00:00Z"), "--in"),
        (("create", "Test", "one", "--in", "1h"), "PREFIX"),
        (("create", "test", "a b", "--in", "1h"), "ID"),
        (("create", "test", "one", "--in", "1h", "--payload", "{a: 1}"), "--payload"),
        (("create", "test", "one", "--in", "1h", "--payload", '{"a": NaN}'), "--payload"),
        (("create", "test", "one", "--in", "1h", "--if-exists", "overwrite"), "--if-exists"),
        (("reschedule", "test", "one"), "--in"),
        (("reschedule", "test", "one", "--in", "11y"), "--in"),
        (("get", "test", "a b"), "ID"),
    ],
)
def test_a_bad_value_names_its_option_and_exits_2(timers: CommandLine, arguments: tuple[str, ...], named: str) -> None:
    if arguments[0] == "reschedule":
        timers("create", "test", "one", "--in", "1h")
    ended = timers(*arguments)
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.splitlines()[-1].startswith(f"timers: {named}")


@pytest.mark.parametrize("command", ["create", "reschedule"])
@pytest.mark.parametrize("due", [(), ("--in", "1h", "--at", "2027-01-01T00:00:00Z")], ids=["none", "both"])
def test_exactly_one_due_time_is_asked_for_by_its_options(
    timers: CommandLine, command: str, due: tuple[str, ...]
) -> None:
    assert timers(command, "test", "one", *due).refusal(2).endswith("expected exactly one of --in and --at")


@pytest.mark.parametrize(
    "arguments",
    [("nonsense",), ("get", "test"), ("get", "test", "one", "--loud"), ("get", "test", "one", "-o", "xml"), ()],
)
def test_wrong_usage_exits_2(timers: CommandLine, arguments: tuple[str, ...]) -> None:
    assert timers(*arguments).code == 2


def test_version_and_help(timers: CommandLine) -> None:
    assert timers("--version").out.startswith("timers ")
    assert "reschedule" in timers("--help").out


def test_a_prefix_that_was_never_declared_is_refused(timers: CommandLine, redis: Redis) -> None:
    line = timers("create", "tester", "one", "--in", "1h").refusal()
    assert "'tester'" in line
    assert "(log, test)" in line
    assert redis.keys("tester*") == []


def test_a_prefix_without_live_pods_is_accepted(timers: CommandLine) -> None:
    served = timers("create", "test-welcome", "one", "--in", "1h")
    assert (served.code, served.err) == (0, "")


def test_with_neither_a_url_nor_a_running_dev_it_says_what_to_do(bare: CommandLine) -> None:
    line = bare("get", "test", "one").refusal()
    assert "TIMERS_REDIS_URL" in line
    assert "timers dev" in line


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("redis://127.0.0.1:1/0", "127.0.0.1:1"),
        ("redis+sentinel://127.0.0.1:1/main", "no Sentinel of 127.0.0.1:1 can be asked"),
        ("redis+cluster://127.0.0.1:1", "127.0.0.1:1"),
    ],
)
def test_a_server_that_cannot_be_used_is_named(bare: CommandLine, url: str, reason: str) -> None:
    bare.monkeypatch.setenv("TIMERS_REDIS_URL", url)
    line = bare("get", "test", "one").refusal()
    assert line.startswith("timers: TIMERS_REDIS_URL")
    assert reason in line


def test_a_password_is_never_shown(bare: CommandLine) -> None:
    bare.monkeypatch.setenv("TIMERS_REDIS_URL", "redis://user:hunter2@127.0.0.1:1/0")
    assert "hunter2" not in bare("get", "test", "one").refusal()


def test_a_bad_setting_is_named_and_exits_1(bare: CommandLine) -> None:
    bare.monkeypatch.setenv("TIMERS_EDIT_LOCK", "soon")
    assert "TIMERS_EDIT_LOCK" in bare("get", "test", "one").refusal()


def test_the_edit_lock_holds_here_too(timers: CommandLine) -> None:
    timers.monkeypatch.setenv("TIMERS_EDIT_LOCK", "2m")
    timers("create", "test", "one", "--in", "1m")
    assert "TIMERS_EDIT_LOCK" in timers("cancel", "test", "one").refusal()


def test_a_redis_user_without_the_right_to_a_prefix_is_one_line(
    timers: CommandLine, redis: Redis, server: EmbeddedServer
) -> None:
    asyncio.run(granted(server.url))
    assert timers("--url", as_user(server.url), "create", "test", "one", "--in", "1h").refusal() == (
        "timers: the Redis user 'timers' may not SET test:{0}:one: its ACL needs +set and ~test*"
    )
    assert redis.zcard("timers:{0}:due:test") == 0


async def granted(url: str) -> None:
    async with AsyncRedis.from_url(url) as redis:
        await grant(redis, 0, ["log"])


def test_the_help_says_in_which_order_timers_are_listed(timers: CommandLine) -> None:
    for prefix, name, delay in (("test", "a", "1h"), ("log", "b", "24h"), ("test", "c", "30m")):
        assert timers("create", prefix, name, "--in", delay).code == 0
    assert [each["id"] for each in timers("ls", "-o", "json").json["items"]] == ["b", "c", "a"]
    assert "by status (running first), prefix, and due or end time" in timers("ls", "--help").out
