"""The client for code without an event loop: in threads, after a fork, on a loop, at the end of a process."""

import asyncio
import inspect
import itertools
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest
from redis import Redis

from tests.waiting import DEADLINE_SECONDS
from timers import (
    Armed,
    BlockingTimerClient,
    Change,
    ConfigurationError,
    InvalidInput,
    NewTimerFields,
    NotFound,
    Open,
    Status,
    TimerClient,
)
from timers.embedded import EmbeddedServer
from timers.ledger.database import Database


@pytest.fixture
def client(server: EmbeddedServer, redis: Redis) -> Iterator[BlockingTimerClient]:
    redis.hset("timers:{pods}:declared", "log", "1 before")
    with BlockingTimerClient(server.url) as opened:
        yield opened


def test_the_methods_are_those_of_the_client_that_is_awaited(client: BlockingTimerClient) -> None:
    created = client.create("log", "a", delay="1h", payload={"n": 1})
    assert client.get("log", "a") == created
    assert client.change("log", "a", payload=2).payload == 2
    assert client.reschedule("log", "a", delay="2h").due_ms > created.due_ms
    assert [timer.id for timer in client.iterate(prefix="log")] == ["a"]
    assert client.act("cancel", {"prefix": "log"}).done == 1
    assert client.retry("log", "a").status is Status.SCHEDULED
    assert client.stats().counts["log"] == {Status.SCHEDULED: 1}
    assert client.cancel("log", "a", purge=True).status is Status.CANCELLED
    with pytest.raises(NotFound):
        client.get("log", "a")


def test_it_is_made_as_the_client_that_is_awaited() -> None:
    assert inspect.signature(BlockingTimerClient) == inspect.signature(TimerClient)


@pytest.mark.parametrize("kind", [TimerClient, BlockingTimerClient])
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"durability": "replicate"}, "durability: 'replicate' is not accepted; expected fast, fsync, replicated or"),
        ({"edit_lock_ms": "5s"}, "edit_lock_ms: '5s' is not accepted; expected a number of milliseconds"),
        ({"edit_lock_ms": -1}, "edit_lock_ms: -1 is not accepted; expected a number of milliseconds"),
    ],
)
def test_options_that_no_client_can_have_are_refused(kind: Any, options: dict[str, Any], said: str) -> None:
    """A misspelt durability was given to every timer, and the answer said that it was reached."""
    with pytest.raises(InvalidInput, match=said):
        kind("redis://127.0.0.1:1", **options)


@pytest.mark.parametrize("version", ["", "1", True, 1.0])
def test_what_is_no_version_is_refused(client: BlockingTimerClient, version: Any) -> None:
    """An empty one, as a form may send it, was no condition at all: the timer was cancelled whatever it was by then."""
    before = client.create("log", "a", delay="1h")
    for call in (client.cancel, partial(client.change, payload=1), partial(client.reschedule, delay="2h")):
        with pytest.raises(InvalidInput, match=r"^version: "):
            call("log", "a", version=version)
    assert client.get("log", "a") == before


@pytest.mark.parametrize("kind", [TimerClient, BlockingTimerClient])
@pytest.mark.parametrize(
    ("urls", "said"),
    [
        (("http://127.0.0.1:1",), "TIMERS_REDIS_URL cannot be used"),
        (("redis://127.0.0.1:1/five",), "TIMERS_REDIS_URL cannot be used"),
        (("redis://127.0.0.1:1", "mysql://127.0.0.1/shop"), "TIMERS_LEDGER_URL"),
    ],
)
def test_a_url_that_cannot_be_used_is_refused_at_once(kind: Any, urls: tuple[str, ...], said: str) -> None:
    """The client without a loop refused it at its first call, perhaps days after the deploy."""
    with pytest.raises(ConfigurationError, match=said):
        kind(urls[0], ledger=urls[1] if len(urls) > 1 else None)


def test_it_writes_to_the_ledger_too(client: BlockingTimerClient, server: EmbeddedServer, tmp_path: Path) -> None:
    ledger = f"sqlite+aiosqlite:///{tmp_path}/ledger.db"
    asyncio.run(upgraded(ledger))
    with BlockingTimerClient(server.url, ledger=ledger) as first:
        assert first.create("log", "a", delay="1h").durability == "ledger"
    with BlockingTimerClient(server.url, ledger=ledger, durability="fast") as fast:
        assert fast.create("log", "b", delay="1h").durability == "fast"


async def upgraded(url: str) -> None:
    database = Database(url)
    await database.upgrade()
    await database.close()


def test_a_batch_reads_its_generator_where_it_was_called(client: BlockingTimerClient) -> None:
    """It was read on the loop's thread, where Django's database refuses to be asked and the client cannot wait."""
    client.create("log", "first", delay="1h", payload=5)
    told = threading.local()
    told.here = True

    def rows() -> Iterator[NewTimerFields]:
        for number in range(3):
            payload = [client.get("log", "first").payload, hasattr(told, "here")]
            yield {"prefix": "log", "id": str(number), "delay": "1h", "payload": payload}

    armed = [result.timer.payload for result in client.batch(rows()) if isinstance(result, Armed)]
    assert armed == [[5, True]] * 3


def test_of_a_generator_without_end_a_batch_reads_no_more_than_it_may_arm(client: BlockingTimerClient) -> None:
    numbers = itertools.count()
    rows: Iterator[NewTimerFields] = ({"prefix": "log", "id": str(number), "delay": "1h"} for number in numbers)
    with pytest.raises(InvalidInput, match="timers: 'more than 1000 timers' is not accepted; expected at most 1000"):
        client.batch(rows)
    assert (next(numbers), client.stats().counts) == (1001, {})


def test_threads_share_one_client(client: BlockingTimerClient) -> None:
    def create(first: int) -> None:
        for number in range(first, first + 20):
            client.create("log", str(number), delay="1h")

    threads = [threading.Thread(target=create, args=(20 * n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert client.stats().counts["log"] == {Status.SCHEDULED: 160}


def test_events_can_be_iterated(client: BlockingTimerClient) -> None:
    events = client.events("log")
    assert next(events) == Open()
    client.create("log", "a", delay="1h")
    heard = next(events)
    assert isinstance(heard, Change)
    assert (heard.id, heard.cause) == ("a", "created")


async def test_on_an_event_loop_it_says_what_to_use(client: BlockingTimerClient) -> None:
    with pytest.raises(RuntimeError, match="use TimerClient"):
        client.get("log", "a")


SCRIPT = """
import os
import warnings
from timers import BlockingTimerClient

warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 and later say that to fork with threads is a risk
client = BlockingTimerClient()
client.create("log", "parent", delay="1h")
child = os.fork()
client.create("log", f"after-{child == 0}", delay="1h")
if child:
    assert os.waitpid(child, 0)[1] == 0
    print(sorted(timer.id for timer in client.iterate(prefix="log")))
"""


def test_a_forked_child_has_its_own_connections_and_an_open_client_ends_with_its_process(
    client: BlockingTimerClient, server: EmbeddedServer
) -> None:
    """It finds the server as the command line does."""
    assert printed_by(SCRIPT, server) == "['after-False', 'after-True', 'parent']"


def printed_by(script: str, server: EmbeddedServer) -> str:
    environment = {**os.environ, "TIMERS_REDIS_URL": server.url}
    ended = subprocess.run(
        [sys.executable, "-c", script],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=DEADLINE_SECONDS,
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr == ""
    return ended.stdout.strip()


AT_ONCE: Final = """
import sys, threading
from timers import BlockingTimerClient

client, together = BlockingTimerClient(), threading.Barrier(30)


def create(number):
    together.wait()
    client.create("log", str(number), delay="1h")


sys.setswitchinterval(1e-5)
threads = [threading.Thread(target=create, args=(number,), daemon=True) for number in range(30)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(len(list(client.iterate(prefix="log"))))
"""


def test_threads_that_made_the_first_call_together_got_a_loop_each(
    client: BlockingTimerClient, server: EmbeddedServer
) -> None:
    assert printed_by(AT_ONCE, server) == "30"


AFTER_THE_END: Final = """
import sys
from timers import BlockingTimerClient


class Late:
    client = BlockingTimerClient()
    client.create("log", "a", delay="1h")

    def __del__(self):
        try:
            self.client.get("log", "a")
        except RuntimeError as error:
            print(error)


sys.modules["late"] = Late()
"""


def test_a_call_while_python_ended_waited_for_ever(client: BlockingTimerClient, server: EmbeddedServer) -> None:
    assert printed_by(AFTER_THE_END, server).startswith("Python is ending")
