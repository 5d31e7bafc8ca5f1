"""Logs: one line per event, the same for structlog and the standard library, and no secrets from stack frames."""

import asyncio
import fcntl
import json
import logging
import os
import select
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import pytest
import structlog

from tests.waiting import DEADLINE_SECONDS
from timers import BlockingContext, Context, Timer, processor
from timers.logs import configure, get_logger
from timers.testing import TimerLab

HOSTILE = 'a\nb\r\x1b[31mred\x00\x85\u2028\u202e\ud800"end'


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.captureWarnings(capture=False)
    structlog.reset_defaults()
    structlog.contextvars.clear_contextvars()


def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    captured = capsys.readouterr()
    assert captured.out == ""
    return captured.err.splitlines()


def event(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    (line,) = lines(capsys)
    found = json.loads(line)
    assert isinstance(found, dict)
    return found


def fail_deeply(password: str) -> int:
    empty: dict[str, str] = {}
    try:
        return len(empty["first"])
    except KeyError as error:
        raise ValueError("no\nsuch thing") from error


def test_json_has_the_event_its_values_and_a_utc_time(capsys: pytest.CaptureFixture[str]) -> None:
    configure("json")
    get_logger("timers.claimer").info("claimed", prefix="p", id="1", attempt=2)
    found = event(capsys)
    assert datetime.fromisoformat(found.pop("timestamp")).utcoffset() == timedelta(0)
    assert found == {
        "event": "claimed",
        "level": "info",
        "logger": "timers.claimer",
        "prefix": "p",
        "id": "1",
        "attempt": 2,
    }


def test_the_standard_library_looks_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    configure("json")
    logging.getLogger("aiohttp.server").warning("slow %s", "client", extra={"peer": "127.0.0.1"})
    found = event(capsys)
    assert found.pop("timestamp")
    assert found == {"event": "slow client", "level": "warning", "logger": "aiohttp.server", "peer": "127.0.0.1"}


def test_warnings_are_events_too(capsys: pytest.CaptureFixture[str]) -> None:
    configure("json")
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn("old way", stacklevel=1)
    assert "old way" in event(capsys)["event"]


@pytest.mark.parametrize("style", ["json", "console"])
def test_hostile_text_stays_on_its_line(capsys: pytest.CaptureFixture[str], style: Any) -> None:
    configure(style)
    get_logger("x").info(HOSTILE, id=HOSTILE, nested={"k": [HOSTILE]})
    logging.getLogger("y").error("%s", HOSTILE)
    found = lines(capsys)
    assert len(found) == 2
    for line in found:
        assert line.isprintable()
        assert "red" in line


@pytest.mark.parametrize("style", ["json", "console"])
def test_context_variables_are_on_every_line(capsys: pytest.CaptureFixture[str], style: Any) -> None:
    configure(style)
    with structlog.contextvars.bound_contextvars(pod="pod-7"):
        get_logger("x").info("one")
        logging.getLogger("y").info("two")
    assert [("pod-7" in line) for line in lines(capsys)] == [True, True]


@processor("note")
def _blocks(_timer: Timer, _context: BlockingContext) -> None:
    get_logger("x").info("in a thread")


@processor("mail")
async def _waits(_timer: Timer, _context: Context) -> None:
    get_logger("x").info("in a coroutine")
    logging.getLogger("y").info("of another library")
    await asyncio.sleep(0)
    get_logger("x").info("after a wait", processor="its own")


async def test_every_line_of_a_run_names_its_timer_and_no_other_line_does(
    capsys: pytest.CaptureFixture[str], timer_lab: TimerLab
) -> None:
    timer_lab.add(_blocks, _waits)
    configure("json")
    for prefix in ("note", "mail"):
        await timer_lab.timers.create(prefix, "a", delay="1s")
    await timer_lab.advance("1s")
    get_logger("x").info("outside")
    said = [json.loads(line) for line in lines(capsys)]
    assert {each["event"]: (each.get("timer"), each.get("attempt"), each.get("processor")) for each in said} == {
        "in a thread": ("note:a", 1, "note"),
        "in a coroutine": ("mail:a", 1, "mail"),
        "of another library": ("mail:a", 1, "mail"),
        "after a wait": ("mail:a", 1, "its own"),
        "outside": (None, None, None),
    }


def test_an_exception_is_data_without_local_variables(capsys: pytest.CaptureFixture[str]) -> None:
    configure("json")
    try:
        fail_deeply(password="hidden")
    except ValueError:
        get_logger("x").exception("failed")
    found = event(capsys)
    assert "hidden" not in json.dumps(found)
    newest, cause = found["exception"]
    assert (newest["exc_type"], newest["exc_value"]) == ("ValueError", "no\nsuch thing")
    assert newest["frames"][-1]["name"] == "fail_deeply"
    assert (cause["exc_type"], cause["is_cause"]) == ("KeyError", True)


def test_an_exception_is_one_line_on_the_console(capsys: pytest.CaptureFixture[str]) -> None:
    configure("console")
    try:
        fail_deeply(password="hidden")
    except ValueError:
        get_logger("x").exception("failed")
        logging.getLogger("y").exception("failed too")
    for line in (found := lines(capsys)):
        assert "ValueError: no\\nsuch thing (test_logs.py:" in line.replace("\\\\", "\\")
        assert "in fail_deeply < test_logs.py:" in line
        assert "<- KeyError: 'first'" in line.replace("\\'", "'")
        assert "hidden" not in line
    assert len(found) == 2


def test_only_messages_above_the_level_are_written(capsys: pytest.CaptureFixture[str]) -> None:
    configure("json", "warning")
    log = get_logger("x")
    log.info("no")
    log.warning("yes")
    logging.getLogger("y").info("no")
    logging.getLogger("y").error("yes")
    assert [json.loads(line)["event"] for line in lines(capsys)] == ["yes", "yes"]


def test_a_logger_may_be_made_before_the_configuration(capsys: pytest.CaptureFixture[str]) -> None:
    log = get_logger("early")
    configure("json")
    log.info("late")
    assert event(capsys)["logger"] == "early"


def test_a_logger_that_was_used_follows_a_new_configuration(capsys: pytest.CaptureFixture[str]) -> None:
    log = get_logger("timers.test")
    configure("json")
    log.info("before")
    configure("json", "warning")
    log.info("not any more")
    with structlog.testing.capture_logs() as captured:
        log.warning("captured")
    assert event(capsys)["event"] == "before"
    assert [line["event"] for line in captured] == ["captured"]


def test_configuring_twice_writes_once(capsys: pytest.CaptureFixture[str]) -> None:
    configure("json")
    configure("json")
    get_logger("x").info("one")
    assert len(lines(capsys)) == 1


def test_a_value_that_json_does_not_know_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    configure("json")
    get_logger("x").info("odd", value=timedelta(seconds=1), raw=b"\n")
    found = event(capsys)
    assert (found["value"], found["raw"]) == ("datetime.timedelta(seconds=1)", "b'\\n'")


def test_without_a_terminal_it_is_json() -> None:
    program = "from timers.logs import configure, get_logger; configure(); get_logger('x').info('hi')"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert done.stdout == b""
    assert json.loads(done.stderr)["event"] == "hi"


def test_on_a_terminal_it_is_console(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    configure()
    get_logger("x").info("hi", key="\x1b[0m")
    (line,) = lines(capsys)
    assert not line.startswith("{")
    assert "\\x1b[0m" in line


def test_colours_can_be_turned_off(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("NO_COLOR", "1")
    configure()
    get_logger("x").info("hi")
    assert "\x1b" not in lines(capsys)[0]


def test_a_pipe_that_nobody_reads_holds_nothing_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """The line that came when it was full is written once it is read again; those after it are counted."""
    monkeypatch.setattr("timers.logs.PATIENCE_SECONDS", 0.01)
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb", buffering=0) as read, os.fdopen(writing, "w") as stderr:
        monkeypatch.setattr(sys, "stderr", stderr)
        configure("json")
        fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4 * select.PIPE_BUF)

        def log() -> None:
            for number in range(6):
                get_logger("x").info("it goes on", number=number, large="a" * select.PIPE_BUF)

        logging_ = threading.Thread(target=log, daemon=True)
        logging_.start()
        logging_.join(DEADLINE_SECONDS)
        if logging_.is_alive():
            read.close()  # lets it go
            pytest.fail("it waits for a reader")
        said = read.read(4 * select.PIPE_BUF)
        get_logger("x").info("it is read")
        said += read.read(4 * select.PIPE_BUF)
    found = [json.loads(line) for line in said.splitlines()]
    written = [line["number"] for line in found[:-2]]
    assert written == list(range(len(written)))
    assert found[-2]["count"] == 6 - len(written) > 1
    assert found[-1]["event"] == "it is read"
