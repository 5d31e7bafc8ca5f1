"""`timers dev --reload` as a process, while a test edits the file of its processors."""

import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from redis import Redis

from tests.cli.commands import Process
from tests.waiting import eventually
from timers import Status, TimerClient
from timers.embedded import EmbeddedServer

Start = Callable[..., Process]

ROOT = Path(__file__).parents[2]

CODE = """
import asyncio
from pathlib import Path
from timers import Context, Done, Timer, processor

@processor("greet")
async def greet(timer: Timer, context: Context) -> Done:
    while timer.id == "slow" and not Path(__file__).with_name("go").exists():
        await asyncio.sleep(0.01)
    return Done("WORDS")
"""


class Author:
    """The author of `greeting.py`, while `timers dev --reload` runs."""

    def __init__(self, start: Start, server: EmbeddedServer, folder: Path) -> None:
        self._file = folder / "greeting.py"
        self.write("old")
        path = f"{folder}:{ROOT}"
        settings = {"TIMERS_REDIS_URL": server.url, "TIMERS_PROCESSORS": "greeting", "TIMERS_HTTP_PORT": "0"}
        self.process = start("dev", "--reload", PYTHONPATH=path, TIMERS_LOG_FORMAT="json", **settings)

    def write(self, words: str, code: str = CODE) -> None:
        self._file.write_text(code.replace("WORDS", words))

    def let_go(self) -> None:
        self._file.with_name("go").touch()

    async def told(self, text: str, times: int = 1) -> None:
        """Wait until it has said so that many times."""

        async def look() -> bool:
            assert self.process.alive, self.process.err
            return (self.process.out + self.process.err).count(text) >= times

        await eventually(look, f"{text!r} was said {times} times")


@pytest.fixture
def author(start: Start, server: EmbeddedServer, redis: Redis, tmp_path: Path) -> Author:
    folder = tmp_path / "project"
    folder.mkdir()
    return Author(start, server, folder)


async def reached(timers: TimerClient, id: str, status: Status) -> str:
    """The newest note of a timer that has reached a status."""

    async def look() -> str | None:
        timer = await timers.get("greet", id)
        return timer.history[0].note if timer.status is status else None

    return await eventually(look, f"{id} is {status.value}")


async def test_a_change_lets_runs_finish_and_starts_the_new_code_and_broken_code_waits_for_the_next(
    author: Author, server: EmbeddedServer
) -> None:
    async with TimerClient(server.url) as timers:
        await author.told("is running")
        await timers.create("greet", "slow", delay=0)
        await reached(timers, "slow", Status.RUNNING)
        author.write("new")
        await author.told('"event": "stopping;')
        author.let_go()
        assert await reached(timers, "slow", Status.COMPLETED) == "old"
        await author.told("is running", 2)
        await timers.create("greet", "next", delay=0)
        assert await reached(timers, "next", Status.COMPLETED) == "new"
        assert len([e for e in (await timers.get("greet", "slow")).history if e.status is Status.RUNNING]) == 1
        author.write("", "def broken(:\n")
        await author.told("the pod has ended; waiting for a change")
        assert "SyntaxError" in author.process.err
        author.write("mended")
        await author.told("is running", 3)
        await timers.create("greet", "last", delay=0)
        assert await reached(timers, "last", Status.COMPLETED) == "mended"
    author.process.signal(signal.SIGTERM)
    assert author.process.end().code == 0


def test_without_watchfiles_it_says_what_to_install(start: Start, tmp_path: Path) -> None:
    (tmp_path / "watchfiles.py").write_text("raise ImportError\n")
    ended = start("dev", "--reload", PYTHONPATH=f"{tmp_path}:{ROOT}").end()
    assert ended.refusal() == "timers: --reload needs watchfiles: pip install 'redis-timers[reload]'"
