"""Every log line of a run names the timer, the attempt and the pod, no matter which logger writes it."""

import io
import json
import logging
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import structlog

from tests.engine.fleet import Calls, Fleet, Held, until
from timers import Fail, Retry
from timers.core.explain import explain
from timers.core.model import Timer
from timers.logs import configure
from timers.processor import Context, processor


class Log(io.StringIO):
    """The lines that pods log."""

    def of(self, *events: str) -> list[dict[str, Any]]:
        """The lines with these events."""
        lines = [json.loads(line) for line in self.getvalue().splitlines()]
        return [line for line in lines if line["event"] in events]


@pytest.fixture
def log(_short_logs: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Log]:
    """The log as a pod writes it. Loggers must not keep writing to it in other tests."""
    root, written = logging.getLogger(), Log()
    handlers, level = root.handlers[:], root.level
    monkeypatch.setattr(sys, "stderr", written)
    configure("json")
    structlog.configure(cache_logger_on_first_use=False)
    yield written
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.captureWarnings(capture=False)


def names(line: dict[str, Any]) -> tuple[Any, ...]:
    return line["timer"], line["attempt"], line["pod"]


async def test_lines_of_processors_name_their_run(fleet: Fleet, log: Log) -> None:
    """Lines of the context's logger, of others, of the standard library, and in a thread. Each names its own run."""

    async def write(_timer: Timer, context: Context) -> None:
        context.log.info("by the context")
        structlog.get_logger().info("by structlog")
        logging.getLogger("driver").warning("by logging")

    @processor("plain")
    def in_a_thread(_timer: Timer, _context: Context) -> None:
        logging.getLogger("driver").warning("in a thread")

    await fleet.pod(Calls(act=write), in_a_thread)
    for prefix in ("note", "plain"):
        await fleet.client.create(prefix, "x", delay=0)
        await fleet.completed("x", prefix)
    lines = log.of("by the context", "by structlog", "by logging", "in a thread")
    assert [names(line) for line in lines] == [("note:x", 1, "a")] * 3 + [("plain:x", 1, "a")]


@pytest.mark.parametrize("kind", ["async def", "def"])
@pytest.mark.parametrize(
    "error", [ValueError("broken"), Fail("broken"), Retry("broken")], ids=lambda e: type(e).__name__
)
async def test_a_failed_run_names_the_line_of_the_processors_code(
    fleet: Fleet, log: Log, error: Exception, kind: str
) -> None:
    """Not a line of the service, which calls it, nor of a library that it calls."""

    def fail(*_: Any) -> None:
        [*map(_raise, [error])]

    async def fail_later(*_: Any) -> None:
        fail()

    once = {"max_attempts": 1}
    await fleet.pod(processor("note", retry=once)(fail) if kind == "def" else processor("note", retry=once)(fail_later))
    await fleet.client.create("note", "x", delay=0)
    failed = await fleet.failed("x")
    place = f"{__file__}:{_raise.__code__.co_firstlineno + 2} in _raise"
    (line,) = log.of("attempt failed")
    assert (line["where"], (failed.last_error or {})["where"]) == (place, place)
    reasons = explain(failed, failed.updated_ms)
    assert any(reason.endswith(f"the last error: broken ({place})") for reason in reasons), reasons


def _raise(error: Exception) -> None:
    with ExitStack():
        raise error


async def test_what_happens_to_a_run_names_it_too(fleet: Fleet, log: Log) -> None:
    """A run is frozen, rescued by another pod, fails there, and its late result is refused."""

    async def fail(_timer: Timer, _context: Context) -> None:
        raise ValueError("broken")

    held = Held()
    frozen = await fleet.pod(held, name="a")
    await fleet.client.create("note", "x", delay=0)
    await until(lambda: len(held) == 1, "it runs")
    await frozen.freeze()
    await fleet.expire_lease("x")
    await fleet.pod(Calls(act=fail, retry={"max_attempts": 2}), name="b")
    await fleet.failed("x")
    held.release.set()
    await until(lambda: frozen.worker.runner.executing == 0, "the frozen pod's run has ended")
    frozen.thaw()
    await until(lambda: frozen.seen.refusals, "its result was refused")
    lines = log.of("run rescued from an expired lease", "attempt failed", "late result refused")
    assert [(line["event"], *names(line)) for line in lines] == [
        ("run rescued from an expired lease", "note:x", 2, "b"),
        ("attempt failed", "note:x", 2, "b"),
        ("late result refused", "note:x", 1, "a"),
    ]
