"""Owns what a write may wait for on its server beyond the answer: the server's disk, or its replicas.

What is asked about a write stands right behind it on the same connection, because a server answers WAIT for what that
connection wrote. It holds up what comes next, so these writes have connections of their own.
"""

import asyncio
import re
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final, Literal, NamedTuple, Protocol

from redis.exceptions import ConnectionError, ResponseError

from timers.logs import get_logger

WaitLevel = Literal["fsync", "replicated"]
FSYNC: Final[WaitLevel] = "fsync"
REPLICATED: Final[WaitLevel] = "replicated"
WAITS: Final = (FSYNC, REPLICATED)

WAIT_MS: Final = {FSYNC: 3000, REPLICATED: 1000}
"""How long a write waits at most. A disk that is flushed every second takes up to one."""

AWAY_SECONDS: Final = 5
"""A replica that has said nothing for so long is not waited for. They speak each second."""

REMEMBERED_SECONDS: Final = 600
"""For how long a replica that is gone still counts. It may be promoted meanwhile."""

Command = tuple[str | int | bytes, ...]

CLOSED: Final = "the connection was closed meanwhile"

_REPLICA: Final = re.compile(rb"^slave\d+:(.*)\r?$", re.MULTILINE)
_VERSION: Final = re.compile(rb"^(redis|valkey|dragonfly)_version:([\d.]+)", re.MULTILINE)

_log = get_logger("timers.durability")


class Verdict(NamedTuple):
    """Whether a write has reached its level; if not, why. `lacks` says what the server would need to reach it ever."""

    reached: bool
    why: str = ""
    lacks: str = ""


class Sender(Protocol):
    """A connection. See `ScriptConnection`, which knows this module."""

    async def together(self, commands: Sequence[Command]) -> list[Any]: ...
    async def aclose(self) -> None: ...


class ReplicasProof:
    """All replicas have the write. WAIT counts them and does not say which, so one that may never be promoted counts
    too: without it, WAIT might have counted it in place of one that may."""

    def __init__(self, known: Callable[[], int]) -> None:
        """`known` is how many there are as somebody else says: Sentinels, or the nodes of a cluster."""
        self._known = known
        self._live, self._most, self._most_until = 0, 0, 0.0

    def asked(self) -> Sequence[Command]:
        """How many have it, and then how many there are."""
        return ("WAIT", self._live, WAIT_MS[REPLICATED]), ("INFO", "replication")

    def judged(self, answers: Sequence[Any]) -> Verdict:
        """The verdict. The most replicas of the last ten minutes count."""
        for answer, what in zip(answers, ("WAIT", "INFO"), strict=True):
            if isinstance(answer, Exception):
                return _denied(what, answer)
        acked, info = answers
        replicas = [_fields(found) for found in _REPLICA.findall(info)]
        self._live = sum(r[b"state"] == b"online" and int(r[b"lag"]) <= AWAY_SECONDS for r in replicas)
        now = time.monotonic()
        if len(replicas) >= self._most or now > self._most_until:
            self._most, self._most_until = len(replicas), now + REMEMBERED_SECONDS
        most = max(self._most, self._known())
        if b"role:master" not in info:
            return Verdict(False, "the server is a replica now")
        if most == 0:
            return Verdict(False, lacks := "it has no replica", lacks)
        return Verdict(acked >= most, f"{acked} of {most} replicas had it")


class DiskProof:
    """The server's disk has the write: because the server answers nothing before that (appendfsync always), or by
    WAITAOF. Before the repair of redis issue 13793 that answers too early, so only Redis 8 and later is asked."""

    def __init__(self) -> None:
        self._version: tuple[str, str] | None = None

    @property
    def _waits(self) -> bool:
        family, version = self._version or ("", "0")
        return family == "redis" and int(version.partition(".")[0]) >= 8

    def asked(self) -> Sequence[Command]:
        """How it is set, and then, or first of all which server it is."""
        config = ("CONFIG", "GET", "appendonly", "appendfsync", "no-appendfsync-on-rewrite")
        if self._version is None:
            return config, ("INFO", "server")
        return (config, ("WAITAOF", 1, 0, WAIT_MS[FSYNC])) if self._waits else (config,)

    def judged(self, answers: Sequence[Any]) -> Verdict:
        """The verdict."""
        config, *more = answers
        if self._version is None and isinstance(more[0], bytes):
            found = {family.decode(): version.decode() for family, version in _VERSION.findall(more[0])}
            self._version = next((name, found[name]) for name in ("dragonfly", "valkey", "redis") if name in found)
            more = [[0]] if self._waits else []
        lacks = _lacks_always(config)
        if not lacks:
            return Verdict(True)
        if self._waits and not lacks.startswith("appendonly"):
            (waited,) = more
            if isinstance(waited, Exception):
                return _denied("WAITAOF", waited)
            return Verdict(waited[0] == 1, "the disk had not confirmed it")
        if self._version is not None and not self._waits and not lacks.startswith("appendonly"):
            lacks += f", and WAITAOF of {' '.join(self._version)} does not prove that the disk has it"
        return Verdict(False, lacks, lacks)


def _lacks_always(config: Any) -> str:
    """Why the server does not write everything to its disk before it answers; empty if it does."""
    if isinstance(config, Exception):
        return "CONFIG is denied, so nothing shows that appendfsync is always"
    given = dict(zip(*[iter(config)] * 2, strict=True))
    for name, wanted in (("appendonly", "yes"), ("appendfsync", "always"), ("no-appendfsync-on-rewrite", "no")):
        value = given.get(name.encode(), b"unknown").decode()
        if value != wanted:
            return f"{name} is {value}"
    return ""


def _fields(line: bytes) -> dict[bytes, bytes]:
    return {name: value for name, _, value in (part.partition(b"=") for part in line.split(b","))}


def _denied(what: str, answer: Exception) -> Verdict:
    return Verdict(False, lacks := f"{what} is refused: {answer}", lacks)


Written = tuple[Any, bool]
"""The answer to a command, and whether what it wrote has reached the level in time."""

Write = Callable[[Sequence[Command]], Coroutine[Any, Any, list[Written]]]
"""Sends commands that wait for a level. Errors of the server are among the answers. Raises what breaks the connection;
the commands may have been executed then. None is executed twice."""


_Waiting = tuple[Sequence[Command], "asyncio.Future[tuple[list[Any], Verdict]]"]


class DurableWriter:
    """Writes to one server what waits for one level. Callers at the same time share a wait: what comes meanwhile is
    sent after it, in one pipeline, with one wait for all of it."""

    def __init__(self, level: WaitLevel, connection: Sender, replicas: Callable[[], int] = lambda: 0) -> None:
        """Takes a connection that nobody else uses. `replicas` is how many others say there are."""
        self._level, self._connection = level, connection
        self._proof = ReplicasProof(replicas) if level == REPLICATED else DiskProof()
        """What is asked right behind a write, and what the answers mean. It learns from them what to ask next."""
        self._known: Verdict | None = None
        self._waiting: list[_Waiting] = []
        self._working: asyncio.Task[None] | None = None
        self._is_missed = False

    async def write(self, commands: Sequence[Command]) -> list[Written]:
        """See `Write`."""
        answers, verdict = await self._ask(commands)
        self._tell(verdict)
        return [(answer, verdict.reached) for answer in answers]

    async def lacks(self) -> str:
        """What the server would need to reach the level at all; empty if it has it."""
        known = self._known
        if known is None or known.lacks:
            _, known = await self._ask(())
        return known.lacks

    async def aclose(self) -> None:
        """Close the connection."""
        if self._working is not None:
            self._working.cancel()
        await self._connection.aclose()

    async def _ask(self, commands: Sequence[Command]) -> tuple[list[Any], Verdict]:
        answer: asyncio.Future[tuple[list[Any], Verdict]] = asyncio.get_running_loop().create_future()
        self._waiting.append((commands, answer))
        if self._working is None or self._working.done():
            self._working = asyncio.create_task(self._work())
        return await answer

    async def _work(self) -> None:
        """Send until nobody waits."""
        some: list[_Waiting] = []
        try:
            while self._waiting:
                if self._known is None:
                    self._known = self._proof.judged(await self._together(self._proof.asked()))
                some, self._waiting = [each for each in self._waiting if not each[1].done()], []
                await self._send(some)
        except BaseException as error:
            self._known = None
            if self._level == FSYNC:  # the next server may be another one; the replicas of this one count on
                self._proof = DiskProof()
            some, self._waiting = [*some, *self._waiting], []
            for _, answer in some:
                if not answer.done():
                    answer.set_exception(error if isinstance(error, Exception) else ConnectionError(CLOSED))
            if not isinstance(error, Exception):
                raise

    async def _send(self, some: Sequence[_Waiting]) -> None:
        commands = [command for asked, _ in some for command in asked]
        answers = await self._together([*commands, *self._proof.asked()])
        self._known = verdict = self._proof.judged(answers[len(commands) :])
        place = 0
        for asked, answer in some:
            if not answer.done():
                answer.set_result((answers[place : place + len(asked)], verdict))
            place += len(asked)

    async def _together(self, commands: Sequence[Command]) -> list[Any]:
        answers = await self._connection.together(commands)
        for answer in answers:
            if isinstance(answer, BaseException) and not isinstance(answer, ResponseError):
                raise answer
        return answers

    def _tell(self, verdict: Verdict) -> None:
        """Log when writes begin to miss their level, and when they reach it again."""
        if verdict.reached is self._is_missed:
            self._is_missed = not verdict.reached
            if verdict.reached:
                _log.info("writes are durable again", durability=self._level)
            else:
                _log.warning("writes are less durable than asked for", durability=self._level, why=verdict.why)
