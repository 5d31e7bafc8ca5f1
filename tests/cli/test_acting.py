"""One action on many timers: the command counts them, asks for confirmation, and reports what it did."""

import io
import json
from pathlib import Path

import pytest
from redis import Redis

from tests.cli.commands import CommandLine
from tests.cli.test_many import create
from timers.client.actions import PAGE

ACTIONS = ("cancel", "retry", "purge", "reschedule", "change")


def timers_of_a_file(timers: CommandLine, wanted: list[dict[str, str]]) -> None:
    """Arms all of them with one command."""
    Path("timers.json").write_text(json.dumps(wanted))
    assert timers("create", "--batch", "timers.json").code == 0


def in_status(timers: CommandLine, status: str) -> list[str]:
    return [timer["id"] for timer in timers("ls", "--status", status, "-o", "json").json["items"]]


def test_an_action_is_done_on_all_matching_timers_page_by_page(timers: CommandLine) -> None:
    number = 2 * PAGE + 5
    timers_of_a_file(timers, [{"prefix": "log", "id": f"t{i}", "delay": "1h"} for i in range(number)])
    done = timers("cancel", "--prefix", "log", "--yes", "-o", "json")
    assert done.json == {"action": "cancel", "dry_run": False, "matched": number, "done": number, "refused": {}}
    assert (done.code, done.err) == (0, "")
    assert timers("stats", "-o", "json").json["by_status"]["cancelled"] == number
    assert timers("retry", "--status", "cancelled", "--yes", "-o", "json").json["done"] == number
    assert timers("reschedule", "--prefix", "log", "--in", "2d", "-y", "-o", "json").json["done"] == number
    assert timers("purge", "--prefix", "log", "--yes", "-o", "json").json["done"] == number
    assert timers("ls", "-o", "json").json["items"] == []


@pytest.mark.parametrize("action", ACTIONS)
def test_a_dry_run_counts_and_changes_nothing(timers: CommandLine, action: str) -> None:
    create(timers, 2)
    due = {"reschedule": ["--in", "1d"], "change": ["--payload", "1"]}.get(action, [])
    before = timers("ls", "-o", "json").json
    counted = timers(action, "--prefix", "log", "--dry-run", *due, "-o", "json").json
    assert counted == {
        "action": action,
        "dry_run": True,
        "matched": 0 if action == "retry" else 2,
        "done": 0,
        "refused": {},
    }
    assert timers("ls", "-o", "json").json == before


@pytest.mark.parametrize("action", ACTIONS)
def test_a_dry_run_of_one_timer_is_refused_and_changes_nothing(timers: CommandLine, action: str) -> None:
    create(timers, 1)
    before = timers("ls", "-o", "json").json
    due = {"reschedule": ["--in", "1d"], "change": ["--payload", "1"]}.get(action, [])
    refused = timers(action, "log", "t0", "--dry-run", *due).refusal(2)
    assert refused == "timers: --dry-run: true is not accepted; expected a filter beside it, such as --prefix"
    assert timers("ls", "-o", "json").json == before


def test_without_a_terminal_nothing_is_done_unasked(timers: CommandLine) -> None:
    create(timers, 2)
    told = timers("cancel", "--prefix", "log").refusal()
    assert "2 timers" in told
    assert "--yes" in told
    assert len(in_status(timers, "scheduled")) == 2


class Terminal(io.StringIO):
    """A terminal in which this is typed."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("typed", "code", "left"), [("n\n", 1, 2), ("\n", 1, 2), ("y\n", 0, 0)])
def test_a_terminal_is_asked_with_the_count(timers: CommandLine, typed: str, code: int, left: int) -> None:
    create(timers, 2)
    timers.monkeypatch.setattr("sys.stdin", Terminal(typed))
    asked = timers("cancel", "--prefix", "log", "-o", "json")
    assert asked.code == code
    assert "cancel 2 timers?" in asked.err
    assert "timers?" not in asked.out
    assert len(in_status(timers, "scheduled")) == left


def test_only_timers_that_match_every_condition_are_touched(timers: CommandLine) -> None:
    create(timers, 3)
    due = timers("get", "log", "t1", "-o", "json").json["due_at"]
    assert timers("cancel", "--prefix", "log", "--due-after", due, "--yes", "-o", "json").json["done"] == 2
    assert in_status(timers, "scheduled") == ["t0"]


def test_refused_timers_are_reported_and_exit_with_1(timers: CommandLine, redis: Redis) -> None:
    create(timers, 2)
    timers.monkeypatch.setenv("TIMERS_EDIT_LOCK", "90m")
    done = timers("cancel", "--prefix", "log", "--yes", "-o", "json")
    assert done.code == 1
    assert (done.json["done"], done.json["refused"]) == (1, {"edit-locked": 1})
    assert "edit-locked: log:t0: timer log:t0 is due so soon" in done.err


def test_change_changes_fields_of_one_timer(timers: CommandLine) -> None:
    create(timers, 1)
    options = ("--payload", '{"a": 1}', "--tag", "x", "--set-tag", "y", "--retry", "5", "--metadata", "a=b")
    changed = timers("change", "log", "t0", *options, "--repeat", "1d", "--in", "2h", "-o", "json").json
    assert (changed["payload"], changed["tags"], changed["metadata"]) == ({"a": 1}, ["x", "y"], {"a": "b"})
    assert (changed["retry"]["max_attempts"], changed["repeat"]["every"]) == (5, "1d")
    removed = timers("change", "log", "t0", "--remove", "retry", "--remove", "tags", "-o", "json").json
    assert (removed["retry"], removed["tags"], removed["payload"]) == (None, [], {"a": 1})
    assert "does not exist" in timers("change", "log", "gone", "--payload", "1").refusal()


def test_change_changes_all_that_match_a_filter(timers: CommandLine) -> None:
    for name, tag in (("a", "x"), ("b", "x"), ("c", "y")):
        assert timers("create", "log", name, "--in", "1h", "--tag", tag).code == 0
    done = timers("change", "--tag", "x", "--payload", "7", "--set-tag", "z", "--yes", "-o", "json")
    assert (done.code, done.json["done"], done.json["action"]) == (0, 2, "change")
    found = timers("ls", "-o", "json").json["items"]
    assert {(timer["id"], timer["payload"], *timer["tags"]) for timer in found} == {
        ("a", 7, "z"),
        ("b", 7, "z"),
        ("c", None, "y"),
    }


def test_purge_of_one_timer_removes_its_record(timers: CommandLine) -> None:
    create(timers, 1)
    assert timers("purge", "log", "t0").code == 0
    assert "does not exist" in timers("get", "log", "t0").refusal()


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("cancel",), "PREFIX"),
        (("cancel", "log"), "ID"),
        (("cancel", "log", "--status", "failed"), "PREFIX"),
        (("cancel", "log", "t0", "--prefix", "log"), "PREFIX"),
        (("retry", "--status", "scheduled", "--yes"), "--status"),
        (("cancel", "--due-before", "soon", "--yes"), "--due-before"),
        (("reschedule", "--prefix", "log", "--yes"), "--in"),
        (("change", "log", "t0"), "--payload"),
        (("change", "log", "--payload", "1"), "ID"),
        (("change", "--prefix", "log", "--payload", "{"), "--payload"),
        (("change", "log", "t0", "--remove", "status"), "--remove"),
        (("change", "log", "t0", "--payload", "1", "--remove", "payload"), "--remove"),
        (("cancel", "--purge", "--prefix", "log"), "--purge"),
    ],
)
def test_wrong_usage_names_what_is_wrong(timers: CommandLine, arguments: tuple[str, ...], named: str) -> None:
    assert named in timers(*arguments).refusal(2)


def test_a_wrong_prefix_is_named_as_it_was_typed(timers: CommandLine) -> None:
    for typed in (("--prefix", "a b"), ("--prefix=a b",)):
        assert timers("ls", *typed).refusal(2).startswith("timers: --prefix: 'a b' is not accepted")
    assert timers("get", "a b", "x").refusal(2).startswith("timers: PREFIX: 'a b' is not accepted")
