"""`timers create`: every field of the API, and many timers from a file."""

import io
import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.commands import CommandLine
from timers.client import BATCH_LIMIT


def created(timers: CommandLine, *options: str) -> Any:
    shown = timers("create", "log", "a", *options, "-o", "json")
    assert shown.code == 0, shown
    return shown.json


def test_every_field_of_the_api_can_be_given(timers: CommandLine) -> None:
    timer = created(
        timers,
        *("--in", "1h", "--payload", '{"a": 1}', "--repeat", "1d", "--retry", "5", "--missed", "latest"),
        *("--timeout", "30s", "--tag", "one", "--tag", "two", "--metadata", "by=me", "--metadata", "x=a=b"),
    )
    assert timer["payload"] == {"a": 1}
    assert timer["repeat"]["every"] == "1d"
    assert timer["retry"]["max_attempts"] == 5
    assert (timer["missed"], timer["timeout"], timer["tags"]) == ("latest", "30s", ["one", "two"])
    assert timer["metadata"] == {"by": "me", "x": "a=b"}


def test_a_cron_and_a_ladder_need_no_due_time(timers: CommandLine) -> None:
    assert created(timers, "--repeat", "0 9 * * MON-FRI")["repeat"]["cron"] == "0 9 * * MON-FRI"
    assert created(timers, "--repeat", "@daily", "--if-exists", "replace")["repeat"]["cron"] == "@daily"
    assert created(timers, "--retry", "5s,1m", "--if-exists", "replace")["retry"]["backoff"] == ["5s", "1m"]


def test_json_is_taken_as_the_api_takes_it(timers: CommandLine) -> None:
    options = (
        "--repeat",
        '{"every": "1d", "count": 3}',
        "--retry",
        '{"backoff": "fixed"}',
        "--missed",
        '{"grace": "10m"}',
    )
    timer = created(timers, "--in", "1h", *options)
    assert timer["repeat"]["count"] == 3
    assert timer["retry"]["backoff"] == "fixed"
    assert timer["missed"] == {"grace": "10m"}


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (("--repeat", "{"), "--repeat"),
        (("--repeat", "often"), "--repeat"),
        (("--retry", "0"), "--retry"),
        (("--missed", "later"), "--missed"),
        (("--timeout", "long"), "--timeout"),
        (("--tag", ""), "--tag"),
        (("--metadata", "none"), "--metadata"),
        (("--batch", "-"), "PREFIX"),
    ],
)
def test_a_bad_option_is_named(timers: CommandLine, options: tuple[str, str], named: str) -> None:
    assert named in timers("create", "log", "a", "--in", "1h", *options).refusal(2)


FORMS = {
    "lines": lambda timers: "\n\n".join(map(json.dumps, timers)) + "\n",
    "array": lambda timers: json.dumps(timers, indent=2),
    "api": lambda timers: json.dumps({"timers": timers}),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_file_arms_all_its_timers(timers: CommandLine, form: str) -> None:
    number = BATCH_LIMIT + 5
    wanted = [{"prefix": "log", "id": f"t{i}", "delay": "1h"} for i in range(number)]
    Path("timers.json").write_text(FORMS[form](wanted))
    shown = timers("create", "--batch", "timers.json", "-o", "json")
    assert (shown.code, shown.err) == (0, f"timers: {number} of {number} armed\n")
    assert [(each["number"], each["id"], each["result"]) for each in shown.json] == [
        (i + 1, f"t{i}", "created") for i in range(number)
    ]
    assert timers("stats", "-o", "json").json["by_status"]["scheduled"] == number


def test_each_line_of_a_batch_has_its_own_result(timers: CommandLine) -> None:
    lines = (
        b'{"prefix": "log", "id": "good", "delay": "1h"}',
        b"not json",
        b'{"prefix": "log", "id": "bad", "delay": "soon"}',
        b"[]",
        b'{"prefix": "log", "id": "good", "delay": "1h"}',
        b'{"prefix": "unknown", "id": "a", "delay": "1h"}',
    )
    timers.monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"\n".join(lines))))
    shown = timers("create", "--batch", "-", "-o", "json")
    assert shown.code == 1
    assert [each["result"] for each in shown.json] == ["created", *["refused"] * 5]
    for each, told in zip(shown.json[1:], ("JSON", "delay", "JSON object", "exists", "processor"), strict=True):
        assert told in each["error"]
    assert "1 of 6" in shown.err


def test_a_file_that_cannot_be_read_is_named(timers: CommandLine) -> None:
    assert "missing.json" in timers("create", "--batch", "missing.json").refusal(2)
    assert timers("create", "--batch", "").refusal(2).startswith("timers: --batch: '' is not accepted; expected a file")
    assert "PREFIX" in timers("create", "--in", "1h").refusal(2)


def test_a_durability_that_the_server_cannot_give_is_refused(timers: CommandLine) -> None:
    refusal = timers("create", "log", "a", "--in", "1h", "--durability", "replicated").refusal(2)
    assert "--durability: 'replicated' is not accepted; expected fast" in refusal
    assert "it has no replica" in refusal
    assert timers("get", "log", "a").code == 1
    assert created(timers, "--in", "1h", "--durability", "fast")["durability"] == "fast"
