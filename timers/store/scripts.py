"""Owns the Lua scripts: loads them from `lua/`, runs them by digest, and translates their errors."""

import asyncio
import hashlib
import re
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import cache
from importlib.resources import files
from itertools import cycle
from typing import Any, Final, TypeVar

from redis.asyncio import Redis
from redis.exceptions import (
    AskError,
    AuthenticationError,
    BusyLoadingError,
    ClusterDownError,
    ConnectionError,
    MovedError,
    NoPermissionError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    ResponseError,
    TimeoutError,
    TryAgainError,
)

from timers.errors import ConfigurationError, Full, Moving, RedisRights, TimersError, Unavailable
from timers.store.servers.connections import A_SENTINEL, ONE_NODE, SLOT_MOVES, NotSent, Scripts
from timers.store.servers.durability import Command, Write, Written

T = TypeVar("T")

Argument = str | int | bytes

Call = tuple[str, Sequence[Argument]]
"""The root of a shard or of other keys on which to run a script, and its arguments."""

FULL: Final = "Redis is full (maxmemory) and takes no new timers until it has room; cancels and runs continue"

PASSING_TROUBLES: Final = ("BUSY", "LOADING", "MASTERDOWN", "MISCONF", "NOREPLICAS", "READONLY")
"""Error codes of a server that cannot do it now; the same command may succeed later."""

_NOBODY: Final = "Protocol error: unauthenticated "
"""How a server that wants a password refuses a long command of who has given none, before reading it; else `NOAUTH`."""

_NO_DB: Final = "DB index is out of range"
"""How a server refuses a connection to a db that it does not have, perhaps since it was started with fewer."""

_REFUSALS: Final = (AuthenticationError, BusyLoadingError, NotSent, ReadOnlyError)
"""Where Redis is away for a caller, and has done nothing of the call for certain."""


_DENIED: Final = re.compile(r"RIGHTS (\S+ \S+)|(?:ERR )?The user executing the script|NOPERM|ACL failure")
"""How a script says what the user may not do, and how servers say it of a script's command."""

_NO_TIME: Final = re.compile(r"(?:ERR )?The user executing the script can't run this command.*")
"""How Redis 7.0 says it, without the command. It can only be the time: all others a script names itself."""


_NO_DATA: Final = re.compile(r"unknown command '(EVALSHA|SELECT|TIME|Z\w+|H\w+)'")
"""How a Sentinel answers, which keeps no data."""

_MOVING: Final = re.compile(r"MOVING (\w+) (\S+)")
"""How a script says that the service is being moved."""

_ASKED_FOR_NO_RIGHT: Final = {"INFO", "PUBLISH", "RENAME", "TIME"}
"""Commands without which a script changes the same: to tell others, to move a foreign value, and two without a key."""

_COMMENT: Final = re.compile(r"--[^\n]*")
_NO_CODE: Final = re.compile(r"--[^\n]*|'[^'\n]*'")
_WORD: Final = re.compile(r"\w+")
_COMMAND: Final = re.compile(r"\bp?call\('([A-Z]+)'")
_DEFINITION: Final = re.compile(r"^(?=local )", re.MULTILINE)
_NAMES: Final = re.compile(r"^local (?:function )?([\w, ]+)")


@cache
def source(name: str) -> str:
    """The script's source: its first line, which tells Redis its flags, then what it uses of the common part, then the
    rest. The name of another room's script begins with the room, `bare/adopt`, which has a common part of its own.

    What stands before a line `---` in a script is its short way, which has only the base of the common part. All the
    rest stands in one function, which the short way does not make; in it a function gets what it uses of the base by
    copying a pointer, where Lua would search a list for each. If the script writes, the long way first asks for the
    right to each of its commands; so does `demand()` in the short one."""
    room, _, script = name.rpartition("/")
    folder = files("timers") / (room or "store") / "lua"
    flags, _, code = (folder / f"{script}.lua").read_text("utf-8").partition("\n")
    base, _, further = (files("timers.store") / "lua" / "common.lua").read_text("utf-8").partition("\n---\n")
    short, _, long = code.rpartition("\n---\n")
    if room:
        long = _used((folder / "common.lua").read_text("utf-8"), long)
    long = _used(further, long)
    if "no-writes" not in flags:
        commands = set(_COMMAND.findall(_used(base, long))) - _ASKED_FOR_NO_RIGHT
        asking = f"demand({str(sorted(commands))[1:-1]})\n"
        short, long = short.replace("demand()", asking), asking + long
    return f"{flags}\n" + _used(base, f"{short}\nlocal function body()\n{long}\nend\nreturn body()\n")


def _used(common: str, rest: str) -> str:
    """The rest of a script, after the definitions of the common part that it uses, without comments. Redis runs the
    whole text at each call, and a function costs about as much as a read, used or not: all of them cost 10 µs, those of
    a claim 7."""
    words = set(_words(rest))
    for definition in reversed(_DEFINITION.split(common)[1:]):
        if words & _words(_NAMES.findall(definition)[0]):
            words |= _words(definition)
            rest = _COMMENT.sub("", definition) + rest
    return rest


@cache
def _words(code: str) -> frozenset[str]:
    return frozenset(_WORD.findall(_NO_CODE.sub("", code)))


@cache
def digest(name: str) -> str:
    """The SHA-1 by which the server knows the script."""
    return hashlib.sha1(source(name).encode(), usedforsecurity=False).hexdigest()


def load_all() -> None:
    """Read all scripts now. A pod that has no file descriptor left, or whose files an upgrade replaces while it runs,
    goes on with what it has."""
    for room, place in (("store", ""), ("bare", "bare/")):
        for file in (files("timers") / room / "lua").iterdir():
            if file.name.endswith(".lua") and file.name != "common.lua":
                digest(f"{place}{file.name.removesuffix('.lua')}")


class reachable:  # noqa: N801 (it reads as a word after `with`)
    """Turn the errors of a server that is away, loading, full or read-only into Unavailable, and what its user may not
    do into RedisRights. If a command is `alone`, nothing was done if the server refuses it or is not reached.

    Also raises a cancellation that got lost meanwhile: before Python 3.12 `asyncio.wait_for`, which redis-py sends
    through, drops a cancellation that comes just as its wait ends. The caller would continue as if nothing had
    happened, and whoever stops it would wait for ever.
    """

    __slots__ = ("_alone", "_before", "_task")

    def __init__(self, *, alone: bool = False) -> None:
        self._alone = alone

    def __enter__(self) -> None:
        self._task = asyncio.current_task()
        self._before = self._task.cancelling() if self._task else 0

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        task = self._task
        # Ctrl-C cancels in the midst of a step of the task: it still gets that cancellation at its next await.
        if task and task.cancelling() > self._before and not getattr(task, "_must_cancel", False):
            raise asyncio.CancelledError
        if error is not None and (meant := _meant(error, self._alone)) is not None:
            raise meant from error


def _meant(error: BaseException, alone: bool) -> TimersError | None:
    """What an error of redis-py means, or None if it means nothing else."""
    if isinstance(error, OutOfMemoryError):
        return Full(FULL, nothing_done=alone)
    if isinstance(error, ConnectionError | TimeoutError | BusyLoadingError | ReadOnlyError | OSError):
        refused = alone and isinstance(error, _REFUSALS)
        said = str(error) or "it did not answer in time"
        return Unavailable(f"Redis is not available: {said}", nothing_done=refused)
    if isinstance(error, MovedError):  # over connections to a cluster it never comes so far
        return ConfigurationError(ONE_NODE)
    if isinstance(error, ResponseError):
        if str(error).startswith((_NOBODY, _NO_DB)):
            said = "Authentication required." if str(error).startswith(_NOBODY) else str(error)
            return Unavailable(f"Redis is not available: {said}", nothing_done=alone)
        if isinstance(error, AskError | ClusterDownError | TryAgainError) or str(error).startswith(PASSING_TROUBLES):
            said = SLOT_MOVES.format(error.slot_id) if isinstance(error, AskError) else str(error).rstrip(".")
            return Unavailable(f"Redis cannot do this now: {said}", nothing_done=alone)
        if _NO_DATA.match(str(error)):
            return ConfigurationError(A_SENTINEL)
        if moving := _MOVING.match(str(error)):
            return Moving.of(moving[1], moving[2])
        denied = _DENIED.match(str(error))
        if denied or isinstance(error, NoPermissionError):
            command = denied[1] if denied else None
            said = _NO_TIME.sub("this user has no permissions to run the 'time' command", command or str(error))
            return RedisRights(f"the Redis user lacks a right: {said}", command)
    return None


async def run(redis: Redis | Scripts, name: str, root: str, arguments: Sequence[Argument], wake: str) -> Any:
    """Run a script. Each has the channel of wake-ups as its first argument. Raises Unavailable. A server that lost its
    script cache gets the script again."""
    execute: Callable[..., Awaitable[Any]] = redis.execute_command
    try:
        try:
            return await execute("EVALSHA", digest(name), 1, root, wake, *arguments)
        except NoScriptError:
            return await execute("EVAL", source(name), 1, root, wake, *arguments)
    except Exception as error:  # as `reachable`, which takes more calls: our connections lose no cancellation
        if (meant := _meant(error, alone=True)) is not None:
            raise meant from error
        raise


async def run_all(via: Redis | Scripts | Write, name: str, calls: Sequence[Call], wake: str) -> list[Written]:
    """Run a script several times, in order and in one round trip. Of each call its answer, or the error with which it
    failed, and whether what it wrote is as durable as `via` says."""
    alone = len(calls) == 1
    with reachable(alone=alone):
        asked = [("EVALSHA", digest(name), 1, root, wake, *arguments) for root, arguments in calls]
        written = await _sent(via, asked)
        # A server without the script refused either all, or the last ones after a flush in between: the order stays.
        if unknown := [place for place, (answer, _) in enumerate(written) if isinstance(answer, NoScriptError)]:
            again = await _sent(via, [("EVAL", source(name), *asked[place][2:]) for place in unknown])
            for place, each in zip(unknown, again, strict=True):
                written[place] = each
    for place, (answer, reached) in enumerate(written):
        if isinstance(answer, Exception):
            written[place] = _meant(answer, alone) or answer, reached
    return written


async def _sent(via: Redis | Scripts | Write, commands: Sequence[Command]) -> list[Written]:
    """The answers to commands, errors among them."""
    if not isinstance(via, Redis | Scripts):
        return await via(commands)
    if len(commands) == 1:  # which takes less than a group or a pipeline of one
        execute: Callable[..., Awaitable[Any]] = via.execute_command
        try:
            return [(await execute(*commands[0]), True)]
        except ResponseError as error:
            return [(error, True)]
    if isinstance(via, Scripts):
        answers = await via.together(commands)
    else:
        async with via.pipeline(transaction=False) as pipeline:
            asked: Any = pipeline
            for command in commands:
                asked.execute_command(*command)
            answers = await pipeline.execute(raise_on_error=False)
    return [(answer, True) for answer in answers]


def grouped(flat: Sequence[Any], size: int) -> Iterator[tuple[Any, ...]]:
    """What a script answers in a flat list, so many at a time. As `itertools.batched`, which Python 3.11 lacks."""
    return zip(*[iter(flat)] * size, strict=True)


def batched(items: Sequence[T], most: int) -> Iterator[Sequence[T]]:
    """The items in batches of at most so many."""
    return (items[start : start + most] for start in range(0, len(items), most))


async def read(redis: Redis, ask: Callable[[Any], object], *empty: object) -> list[Any]:
    """The answers to what `ask` puts into a pipeline. A key with a foreign value of another type counts as missing;
    `empty` is what each command in turn answers then."""
    with reachable(alone=True):
        async with redis.pipeline(transaction=False) as asked:
            ask(asked)
            answers = await asked.execute(raise_on_error=False)
        return [or_empty(answer, nothing) for answer, nothing in zip(answers, cycle(empty), strict=False)]


def or_empty(answer: Any, empty: object) -> Any:
    """An answer out of a pipeline; `empty` if the key has a foreign value of another type. Raises any other error."""
    if isinstance(answer, ResponseError) and str(answer).startswith("WRONGTYPE"):
        return empty
    if isinstance(answer, Exception):
        raise answer
    return answer
