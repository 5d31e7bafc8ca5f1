"""Owns the Lua scripts: loading them from `lua/`, running them by digest, with errors in this project's words."""

import asyncio
import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib.resources import files
from itertools import cycle
from typing import Any, Final

from redis.asyncio import Redis
from redis.exceptions import (
    BusyLoadingError,
    ConnectionError,  # noqa: A004 (redis-py's own, on purpose)
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    ResponseError,
    TimeoutError,  # noqa: A004
)

from timers.errors import Full, Unavailable
from timers.store.line import Line

Argument = str | int | bytes

Call = tuple[str, Sequence[Argument]]
"""On which shard (its root) with which arguments."""

FULL: Final = "Redis is full (maxmemory): it takes no new timers until it has room; cancels, runs and their ends go on"

PASSING_TROUBLES: Final = ("BUSY", "LOADING", "MASTERDOWN", "MISCONF", "NOREPLICAS", "READONLY", "CLUSTERDOWN")
"""Error codes of a server that is there but cannot do it now; the same command may succeed later."""


@cache
def source(name: str) -> str:
    """The script's first line, which tells Redis its flags, the common part, and the rest of the script. The name of
    another room's script begins with the room: `bare/adopt`."""
    room, _, script = name.rpartition("/")
    folder = files("timers") / (room or "store") / "lua"
    flags, _, rest = (folder / f"{script}.lua").read_text().partition("\n")
    common = files("timers.store") / "lua" / "common.lua"
    return f"{flags}\n{common.read_text()}\n{rest}"


@cache
def digest(name: str) -> str:
    """The SHA-1 by which the server knows the script."""
    return hashlib.sha1(source(name).encode(), usedforsecurity=False).hexdigest()


@contextmanager
def reachable() -> Iterator[None]:
    """Turns the errors of a server that is away, loading, full or read-only into Unavailable.

    Raises a cancellation that came meanwhile, also where it got lost: `asyncio.wait_for`, by which redis-py sends,
    drops before Python 3.12 one that meets the end of what it waits for. The caller would go on as if nothing had
    happened, and whoever stops it would wait for ever.
    """
    current = asyncio.current_task()
    before = current.cancelling() if current else 0
    try:
        yield
    except OutOfMemoryError as error:
        raise Full(FULL) from error
    except (ConnectionError, TimeoutError, BusyLoadingError, ReadOnlyError, OSError) as error:
        raise Unavailable(f"Redis is not available: {error}") from error
    except ResponseError as error:
        if str(error).startswith(PASSING_TROUBLES):
            raise Unavailable(f"Redis cannot do this now: {error}") from error
        raise
    finally:
        if current and current.cancelling() > before:
            raise asyncio.CancelledError


async def run(redis: Redis | Line, name: str, root: str, arguments: Sequence[Argument]) -> Any:
    """Run a script on a shard. Raises Unavailable; a server that lost its script cache is given the script again."""
    with reachable():
        try:
            return await redis.evalsha(digest(name), 1, root, *arguments)
        except NoScriptError:
            return await redis.eval(source(name), 1, root, *arguments)


async def run_all(redis: Redis, name: str, calls: Sequence[Call], *, line: Line | None = None) -> list[Any]:
    """Run a script several times, in order and in one round trip; a single call over the line if there is one. Raises
    as `run`; the calls before the one that failed have been made, and those after it may have been."""
    if len(calls) == 1:
        return [await run(line or redis, name, *calls[0])]
    with reachable():
        answers = await _pipelined(redis, name, calls)
    # Those that a server without the script did not run: all, or the last after a flush in between, so the order stays.
    for place, answer in enumerate(answers):
        if isinstance(answer, NoScriptError):
            answers[place] = await run(redis, name, *calls[place])
    return answers


async def _pipelined(redis: Redis, name: str, calls: Sequence[Call]) -> list[Any]:
    async with redis.pipeline(transaction=False) as pipeline:
        for root, arguments in calls:
            pipeline.evalsha(digest(name), 1, root, *arguments)
        answers: list[Any] = await pipeline.execute(raise_on_error=False)
    for answer in answers:
        if isinstance(answer, Exception) and not isinstance(answer, NoScriptError):
            raise answer
    return answers


async def read(asked: Any, *empty: object) -> list[Any]:
    """What a pipeline of reads answers. A key that holds a stranger's value of another type counts as missing: `empty`
    is what the commands answer then, in turn."""
    with reachable():
        answers = await asked.execute(raise_on_error=False)
        return [_read(answer, nothing) for answer, nothing in zip(answers, cycle(empty), strict=False)]


def _read(answer: object, empty: object) -> object:
    if isinstance(answer, ResponseError) and str(answer).startswith("WRONGTYPE"):
        return empty
    if isinstance(answer, Exception):
        raise answer
    return answer
