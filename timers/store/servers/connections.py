"""Owns the connections to one server: clients with explicit timeouts and retries."""

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Final

from hiredis import Reader, pack_command
from redis.asyncio import BlockingConnectionPool, ConnectionPool, Redis
from redis.asyncio.connection import AbstractConnection, DefaultParser, RedisSSLContext, SSLConnection, parse_url
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError, InvalidResponse, ResponseError

from timers.errors import ConfigurationError
from timers.store import keys
from timers.store.cooperative import shared
from timers.store.servers.durability import CLOSED, WAIT_MS, Command, DurableWriter, WaitLevel, Write

POOL_SIZE: Final = 32
ONE_NODE: Final = "TIMERS_REDIS_URL names one node of a cluster; use redis+cluster://HOST:PORT (or rediss+cluster://)"
SLOT_MOVES: Final = "hash slot {} is being moved to another node of the cluster"
A_SENTINEL: Final = (
    "TIMERS_REDIS_URL names a Sentinel; use redis+sentinel://HOST:PORT/SERVICE/DB (or rediss+sentinel://)"
)

ASK_SECONDS: Final = 1.0
"""How long a server may take that is asked by the way."""

HUNG_UP: Final = "Connection closed by server."

CONNECT_SHARE: Final = 0.4
"""Share of the answer's time that connecting may take."""

_TEXTS: Final = ("username", "password", "host", "path", "client_name", "lib_name", "lib_version")
"""The options of redis-py's connections that are texts, besides those of TLS."""

# No retries in redis-py: it would resend a script whose answer was lost, and a create would then answer "exists" to its
# own author. Callers that may repeat a call do so themselves.
_NEVER: Final = Retry(NoBackoff(), 0)


class Scripts(ABC):
    """Runs scripts for many callers at once, and never sends one again."""

    @abstractmethod
    def execute_command(self, *command: str | int | bytes) -> Awaitable[Any]:
        """As redis-py's: send a command and return its answer."""

    async def together(self, commands: Sequence[Command]) -> list[Any]:
        """The answers to commands that are sent one right behind the other. Errors, also of the connection, are among
        them."""
        return await asyncio.gather(*(self.execute_command(*each) for each in commands), return_exceptions=True)

    @abstractmethod
    async def aclose(self) -> None:
        """Close the connection. The next command opens another."""


class ScriptConnection(Scripts):
    """One connection that many callers share: commands are executed and answered in the order in which they were sent.
    It opens with the first command and reopens after it broke. It needs no lending from a pool, which costs 35 µs of
    CPU a create, and redis-py only opens it: its way to the socket and back costs 17."""

    def __init__(
        self, connection: AbstractConnection, *, answer_s: float, closed: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        """Takes a connection without its own timeouts; an answer may take `answer_s` seconds. `closed` is called after
        `aclose`."""
        self._connection, self._answer_s, self._closed = connection, answer_s, closed
        self._wire: _RedisProtocol | None = None
        self._opening: asyncio.Task[_RedisProtocol] | None = None

    def execute_command(self, *command: str | int | bytes) -> Awaitable[Any]:
        wire = self._wire
        return self._execute_anew(command) if wire is None or wire.has_ended() else wire.ask(command)

    async def _execute_anew(self, command: Command) -> Any:
        wire = await self._opened()
        # It may have ended before those who waited had their turn; uvloop raises RuntimeError at what is written then.
        if wire.has_ended():
            raise NotSent(HUNG_UP)
        return await wire.ask(command)

    async def _opened(self) -> "_RedisProtocol":
        """All who come while the connection opens share that attempt."""
        if self._opening is None or self._opening.done():
            self._opening = shared(self._open())
        opening, caller = self._opening, asyncio.current_task()
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            if opening.cancelled() and not (caller and caller.cancelling()):
                # By `aclose`. Whoever waits was not cancelled, and must not look so.
                raise ConnectionError(CLOSED) from None
            raise

    async def _open(self) -> "_RedisProtocol":
        await self._connection.disconnect(nowait=True)
        try:
            async with asyncio.timeout(self._answer_s):
                await self._connection.connect()  # type: ignore[no-untyped-call]  # redis-py leaves it untyped
        except BaseException:
            await self._connection.disconnect(nowait=True)
            raise
        self._wire = _RedisProtocol(self._connection._writer.transport, self._answer_s)  # type: ignore[union-attr]
        return self._wire

    async def aclose(self) -> None:
        if self._opening is not None:
            self._opening.cancel()
        self._wire = None
        await self._connection.disconnect(nowait=True)
        if self._closed is not None:
            await self._closed()


class _RedisProtocol(asyncio.Protocol):
    """An open connection, taken from redis-py: what is written goes to its socket, and what comes to its parser, with
    nothing between. All questions share one timer of the loop, set to the time limit of the first, which has usually
    been answered by then; one for each takes 5 µs. An answer that nobody waits for any more is read and dropped; but if
    any answer is late, the connection ends. Callers with less patience would never find out that it is dead."""

    def __init__(self, transport: asyncio.WriteTransport, answer_s: float) -> None:
        self._transport, self._answer_s = transport, answer_s
        self._loop = asyncio.get_running_loop()
        self._parser = Reader(protocolError=InvalidResponse, replyError=DefaultParser.parse_error)
        self._asked: deque[tuple[float, asyncio.Future[Any]]] = deque()
        self._next_expiry: asyncio.TimerHandle | None = None
        self.has_ended = transport.is_closing
        """Once the server has hung up, or has said anything that nobody asked for, as it does before."""
        transport.set_protocol(self)

    def ask(self, command: Command) -> "asyncio.Future[Any]":
        """The answer to a command. Raises it if it is an error."""
        self._transport.write(pack_command(command))  # type: ignore[arg-type]  # typed as a tuple of one
        answer, until = self._loop.create_future(), self._loop.time() + self._answer_s
        self._asked.append((until, answer))
        if self._next_expiry is None:
            self._next_expiry = self._loop.call_at(until, self._expire_due)
        return answer

    def _expire_due(self) -> None:
        """Give up if the time of a question is over, and come again when the next one's is."""
        self._next_expiry, now = None, self._loop.time()
        for until, answer in self._asked:
            if until > now:
                self._next_expiry = self._loop.call_at(until, self._expire_due)
                break
            _settle(answer, TimeoutError())
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        self._parser.feed(data)
        while (answer := self._parser.gets()) is not False:
            if self._asked:
                _settle(self._asked.popleft()[1], answer)
            else:
                self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        error = exc or ConnectionError(HUNG_UP)
        while self._asked:
            _settle(self._asked.popleft()[1], error)


def _settle(asked: asyncio.Future[Any], answer: object) -> None:
    if asked.done():  # given up
        return
    if isinstance(answer, Exception):
        asked.set_exception(answer)
    else:
        asked.set_result(answer)


@dataclass(frozen=True, slots=True)
class Connections:
    """The connections to one db. `commands` is a bounded pool, for commands and for answers of any size. `scripts` is
    shared by all single calls of scripts. `dial` makes one for a caller who closes it: a subscriber, or another
    thread. `known_replicas` says how many replicas somebody else than the server knows."""

    is_spread: ClassVar[bool] = False
    """Whether the db may lie on several servers, and move between them."""

    commands: Redis
    db: int
    scripts: Scripts
    known_replicas: Callable[[], int] = field(default=lambda: 0, kw_only=True, compare=False, repr=False)
    _durable: dict[str, DurableWriter] = field(default_factory=dict, kw_only=True, compare=False, repr=False)

    @property
    def user(self) -> str:
        """The name of the Redis user."""
        return str(self.commands.connection_pool.connection_kwargs.get("username") or "default")

    @property
    def options(self) -> str:
        """What makes `redis-cli` reach this db, without user and password."""
        given = self.commands.connection_pool.connection_kwargs
        place = f"-s {given['path']}" if "path" in given else f"-h {given.get('host')} -p {given.get('port')}"
        return f"{place}{' --tls' if 'ssl_cert_reqs' in given else ''} -n {self.db}"

    @property
    def address(self) -> str:
        """Where the server is, for people."""
        given = self.commands.connection_pool.connection_kwargs
        return str(given["path"] if "path" in given else f"{given.get('host')}:{given.get('port')}")

    @property
    def nodes(self) -> Sequence["Connections"]:
        """The servers that hold the db's keys, each with connections of its own: this one alone."""
        return (self,)

    @property
    def replicas(self) -> Sequence["Connections"]:
        """Servers that may be promoted to take the place of one of `nodes`, as far as that needs care."""
        return ()

    @property
    def unwatched(self) -> str:
        """Why a failover would go unnoticed; empty if it would not."""
        return ""

    def node_of(self, _key: str) -> "Connections":
        """The one of `nodes` that holds a key."""
        return self

    async def check_form(self) -> None:
        """Raise ConfigurationError if this is one node of a cluster: it has only a part of a db."""
        if self.is_spread:  # whoever was asked for the slots has said whether this is a cluster
            return
        with suppress(ResponseError):  # the user may not ask
            if not (await self.commands.info("cluster"))["cluster_enabled"]:
                return
            info: Any = await self.commands.cluster("INFO")
            if int(info["cluster_size"]) > 1:
                raise ConfigurationError(ONE_NODE)

    @property
    def wake(self) -> str:
        """What scripts are told of the channel for wake-ups."""
        return keys.OWN_WAKE if self.is_spread else keys.wake_channel(self.db)

    async def refresh(self) -> None:
        """Ask the servers again which of them has what. Raises what redis-py does."""

    def dial(self) -> AbstractConnection:
        """A connection of its own, not yet open, whose reads wait without limit."""
        return dial(self.commands.connection_pool)

    def dial_scripts(self, answer_s: float) -> Scripts:
        """A connection for scripts of its own, which its caller closes; an answer may take `answer_s` seconds."""
        return ScriptConnection(self.dial(), answer_s=answer_s)

    def durable(self, level: WaitLevel) -> Write:
        """What writes with this durability."""
        return (self._durable.get(level) or self._writer(level)).write

    async def lacks(self, level: WaitLevel, _root: str = "") -> str:
        """What the server of this root, or without one each server, would need to reach the level at all; empty if it
        has it."""
        return await self._writer(level).lacks()

    def _writer(self, level: WaitLevel) -> DurableWriter:
        if level not in self._durable:
            answer_s = self.commands.connection_pool.connection_kwargs["socket_timeout"] + WAIT_MS[level] / 1000
            connection = ScriptConnection(self.dial(), answer_s=answer_s)
            self._durable[level] = DurableWriter(level, connection, self.known_replicas)
        return self._durable[level]

    def other(self, host: str, port: int) -> Redis:
        """A client for another server with the same users and certificates, to be asked now and then."""
        given = self.commands.connection_pool.connection_kwargs
        same = {name: value for name, value in given.items() if name.startswith(("username", "password", "ssl_"))}
        kind = {"connection_class": SSLConnection} if "ssl_cert_reqs" in same else {}
        place = {"host": host, "port": port, "db": self.db, "socket_connect_timeout": ASK_SECONDS}
        return Redis.from_pool(make_pool({**same, **kind, **place}, ASK_SECONDS))

    async def close(self) -> None:
        """Close those that `dial` has not made."""
        await self.scripts.aclose()
        for writer in self._durable.values():
            await writer.aclose()
        await self.commands.aclose(close_connection_pool=True)


def dial(pool: ConnectionPool) -> AbstractConnection:
    """A connection as those of the pool, but not one of them, whose reads wait without limit."""
    connection: AbstractConnection = pool.connection_class(**{**pool.connection_kwargs, "socket_timeout": None})
    return connection


def connect_server(url: str, answer_s: float) -> Connections:
    """Clients for the URL of one server. Opens nothing yet. Raises TypeError or ValueError for what cannot be used."""
    return connections_over(make_pool(parse_url(url), answer_s))


def connections_over(pool: ConnectionPool) -> Connections:
    """A pool, and a connection for scripts beside it. Raises TypeError for an unknown option, which a pool accepts."""
    scripts = ScriptConnection(dial(pool), answer_s=pool.connection_kwargs["socket_timeout"])
    return Connections(Redis.from_pool(pool), pool.connection_kwargs.get("db", 0), scripts)


def make_pool(
    options: Mapping[str, Any], answer_s: float, *kinds: type[AbstractConnection], **more: Any
) -> BlockingConnectionPool:
    """A pool for the options of a URL, which win over the defaults. Its connections are improved, and of these kinds
    too, whose attributes `more` has. Raises TypeError for an option that text cannot be, such as a class."""
    given: dict[str, Any] = {
        "max_connections": POOL_SIZE,
        "timeout": answer_s,
        "socket_timeout": answer_s,
        "socket_connect_timeout": CONNECT_SHARE * answer_s,
    }
    # With protocol 3, the pool would hand out connections that the server has closed.
    fixed = {
        "retry": _NEVER,
        "protocol": 2,
        "decode_responses": False,
        "encoding": "utf-8",
        "encoding_errors": "strict",
    }
    for name in [name for name, value in options.items() if isinstance(value, str) and name not in fixed]:
        if name not in _TEXTS and not name.startswith("ssl_"):
            raise TypeError(f"unexpected keyword argument '{name}'")
    pool = BlockingConnectionPool(**{**given, **options, **fixed})
    kind = pool.connection_class
    more["opening_s"] = pool.connection_kwargs["socket_timeout"]
    pool.connection_class = type(f"Improved{kind.__name__}", (*kinds, _Improved, kind), more)
    return pool


class NotSent(ConnectionError):
    """No connection could be opened for a command, or it ended at once, so the server never got it."""


class _Improved(AbstractConnection):
    """redis-py's connection, but it says if it cannot be opened, gives up in time, reads renewed certificates when it
    opens, and stops when it is cancelled. redis-py waits for the first answers as long as for all later ones, which is
    without limit for a subscriber. It sends through `asyncio.wait_for`, which makes a task of every send and, before
    Python 3.12, swallows a cancellation that comes as the send ends. A drain once hung that way."""

    opening_s: float
    """How long the server may take to accept it and to answer what is said first."""
    _written: Sequence[float] = ()

    async def connect(self) -> None:
        """As redis-py's. Raises NotSent instead of a ConnectionError that is none of a narrower kind, and
        TimeoutError."""
        if isinstance(self, SSLConnection) and not self.is_connected:
            was, self._written = self._written, _written(self.ssl_context)
            if self._written != was:
                self.ssl_context.context = None
        try:
            async with asyncio.timeout(self.opening_s):
                await super().connect()  # type: ignore[no-untyped-call]  # redis-py leaves it untyped
        except ConnectionError as error:
            if type(error) is ConnectionError:
                raise NotSent(str(error)) from error
            raise

    async def send_packed_command(self, command: bytes | str | Iterable[bytes], check_health: bool = True) -> None:
        """As redis-py's, under the same time limit."""
        seconds, self.socket_timeout = self.socket_timeout, None
        if seconds is None:
            return await super().send_packed_command(command, check_health)
        try:
            async with asyncio.timeout(seconds):
                await super().send_packed_command(command, check_health)
        finally:
            self.socket_timeout = seconds


def _written(context: RedisSSLContext) -> Sequence[float]:
    """When the files of a TLS context were written, as far as they are there. To read all again takes 25 ms."""
    files = (context.ca_certs, context.ca_path, context.certfile, context.keyfile)
    return [Path(file).stat().st_mtime for file in files if file and Path(file).exists()]
