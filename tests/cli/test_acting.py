"""One action on many timers: the command counts them, asks for confirmation, and reports what it did."""

import io
import json
from pathlib import Path

import pytest
from redis import Redis

from tests.cli.commands import CommandLine
from tests.cli.test_many import create
from timers.client.actions import PAGE

ACTIONS = ("cancel", "retry", "purge", "reschedule")


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
    due = ["--in", "1d"] if action == "reschedule" else []
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
        (("cancel", "--purge", "--prefix", "log"), "--purge"),
    ],
)
def test_wrong_usage_names_what_is_wrong(timers: CommandLine, arguments: tuple[str, ...], named: str) -> None:
    assert named in timers(*arguments).refusal(2)
