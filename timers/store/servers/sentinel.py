"""Owns connections to a server that may change: the primary of a service, as the Sentinels say.

Each connection asks for it when it opens. From then on all Sentinels are watched, and as soon as another server is to
be the primary, every connection is cut. The old one would go on taking writes for some ten seconds, which the new one
never gets, and would announce expired keys that are no longer due."""

import asyncio
import contextlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit
from weakref import WeakSet

from redis.asyncio import Redis
from redis.asyncio.connection import AbstractConnection, Connection, ConnectionPool, parse_url
from redis.exceptions import ConnectionError, NoPermissionError, RedisError, ResponseError

from timers.logs import get_logger
from timers.setting_values import split_hosts
from timers.store.cooperative import set_within, side_by_side
from timers.store.servers.connections import Connections, ScriptConnection, Scripts, connections_over, dial, make_pool

PORT: Final = 26379
"""Of a Sentinel, unless the URL has another."""

ANSWER_SECONDS: Final = 1.0
POLL_SECONDS: Final = 1.0
"""How often a Sentinel is asked, besides at its events."""

AGAIN_SECONDS: Final = 0.5
"""Until a Sentinel is tried again that did not answer."""

FORGET_SECONDS: Final = 10.0
"""For how long the word of a Sentinel counts that no longer answers."""

_EVENTS: Final = (
    *("+elected-leader", "+promoted-slave", "+failover-state-reconf-slaves", "+switch-master", "+config-update-from"),
    *("-failover-abort-not-elected", "-failover-abort-no-good-slave", "-failover-abort-slave-timeout"),
)

_PROMISED: Final = ("select_slave", "send_slaveof_noone", "wait_promotion")
"""What a Sentinel does that was elected to make another server the primary, until it has seen that it is one."""

Address = tuple[str, int]


def shown(address: Address) -> str:
    """As in a URL."""
    return f"[{address[0]}]:{address[1]}" if ":" in address[0] else f"{address[0]}:{address[1]}"


_log = get_logger("timers.sentinel")


@dataclass(frozen=True, slots=True)
class Said:
    """What a Sentinel says of the service: the number of its configuration, which grows with each failover, and the
    primary; None while it makes another one."""

    epoch: int
    primary: Address | None


def primary_of(said: Collection[Said]) -> Address | None:
    """The primary of the newest configuration; None while somebody makes a newer one."""
    newest = max(each.epoch for each in said)
    named = [each.primary for each in said if each.epoch == newest]
    return None if None in named else named[0]


class _WrongUrl(ConnectionError):
    """What answers is not what the URL says."""


class Sentinels:
    """The Sentinels of a service, asked and watched from one event loop."""

    def __init__(self, places: Sequence[Address], service: str, pool: ConnectionPool) -> None:
        """`pool` has what connections to a Sentinel need, but for its address."""
        self.places, self.service = places, service
        self._pool = pool
        self.primary: Address | None = None
        """As last known; None before that, and during a failover."""
        self.replicas: Sequence[Address] = ()
        """Those that are up, as a Sentinel said last."""
        self._said: dict[Address, tuple[float, Said]] = {}
        self._troubles: dict[Address, Exception] = {}
        self._left: Address | None = None
        """Which one was the primary until a failover."""
        self._open = WeakSet[Connection]()
        self._news = asyncio.Event()
        self._watch: asyncio.Task[None] | None = None

    def apart(self) -> "Sentinels":
        """The same, for another event loop."""
        return Sentinels(self.places, self.service, self._pool)

    def client(self, place: Address) -> Redis:
        """A client for one of the Sentinels, or for what the Sentinels say is one."""
        options = {**self._pool.connection_kwargs, "host": place[0], "port": place[1]}
        return Redis.from_pool(ConnectionPool(self._pool.connection_class, **options))

    async def find(self, seconds: float) -> Address:
        """The primary. Waits for a failover in progress. Raises ConnectionError if that takes longer, or if no Sentinel
        knows."""
        self._start()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not self._is_known():
                    await self._news.wait()
        if self.primary is None:
            raise ConnectionError(self._why_none())
        return self.primary

    def _is_known(self) -> bool:
        """Whether there is nothing to wait for: the primary, or that no Sentinel knows."""
        return bool(self.silence) or (self.primary is not None and self._is_settled())

    @property
    def silence(self) -> str:
        """Why no Sentinel has said anything for FORGET_SECONDS: a failover goes unnoticed. Empty if one has."""
        return "" if self._said or len(self._troubles) < len(self.places) else self._why_none()

    def _why_none(self) -> str:
        if self._said:
            return f"the Sentinels are making another server the primary of {self.service!r}"
        troubles = [self._troubles[place] for place in self.places if place in self._troubles]
        wrong = [trouble for trouble in troubles if isinstance(trouble, _WrongUrl)]
        asked = ", ".join(map(shown, self.places))
        return str(wrong[0]) if wrong else f"no Sentinel of {asked} can be asked: {next(iter(troubles), 'too late')}"

    def took(self, connection: Connection) -> None:
        """A connection to the primary is open. Raises ConnectionError if that is another one by now."""
        if (connection.host, connection.port) != self.primary:
            raise ConnectionError("the primary has changed")
        self._open.add(connection)

    async def close(self) -> None:
        """End the watch. The next question starts another."""
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.cancel()
            await asyncio.gather(watch, return_exceptions=True)

    def _start(self) -> None:
        """Watch, unless that is done already."""
        if self._watch is None or self._watch.done():
            self._said, self._troubles, self._news = {}, {}, asyncio.Event()
            self._watch = asyncio.create_task(side_by_side(map(self._watch_one, self.places)), name="timers.sentinels")

    async def _watch_one(self, place: Address) -> None:
        while True:
            try:
                await self._stay(place)
            except (RedisError, OSError) as error:
                self._silent(place, error)
            await asyncio.sleep(AGAIN_SECONDS)

    async def _stay(self, place: Address) -> None:
        """Ask a Sentinel at once, at each event that it tells of, and each POLL_SECONDS, until it does not answer."""
        asked, asks = self.client(place), asyncio.Event()
        events = dial(asked.connection_pool)
        try:
            self._hear(place, await self._ask(asked, place))
            await events.connect()  # type: ignore[no-untyped-call]  # redis-py leaves it untyped
            await events.send_command("SUBSCRIBE", *_EVENTS)
            listening = asyncio.create_task(_listen(events, asks))
            try:
                while not listening.done():
                    asks.clear()
                    self._hear(place, await self._ask(asked, place))
                    await set_within(asks, POLL_SECONDS)
                await listening
            finally:
                listening.cancel()
                await asyncio.gather(listening, return_exceptions=True)
        finally:
            await events.disconnect(nowait=True)
            await asked.aclose(close_connection_pool=True)

    async def facts(self, redis: Redis, place: Address) -> Mapping[str, str]:
        """The fields of `SENTINEL MASTER`. Raises ConnectionError if it knows none of this name, or is no Sentinel."""
        asking: Any = redis
        try:
            return fields(await asking.execute_command("SENTINEL", "MASTER", self.service))
        except ResponseError as error:
            raise await self._meant(asking, place, error) from error

    async def known_replicas(self, redis: Redis) -> Sequence[Mapping[str, str]]:
        """The fields of each one of `SENTINEL REPLICAS`."""
        asking: Any = redis
        return [fields(each) for each in await asking.execute_command("SENTINEL", "REPLICAS", self.service)]

    async def against(self, redis: Redis) -> str:
        """Why there can be no failover now; empty if there can."""
        asking: Any = redis
        try:
            await asking.execute_command("SENTINEL", "CKQUORUM", self.service)
        except NoPermissionError:
            return ""
        except ResponseError as error:
            return str(error)
        return ""

    async def _ask(self, redis: Redis, place: Address) -> Said:
        """What the Sentinel says of the service. Raises as `facts`."""
        asking: Any = redis
        known = await self.facts(redis, place)
        found = await self.known_replicas(redis)
        self.replicas = [(each["ip"], int(each["port"])) for each in found if is_up(each)]
        state = known.get("failover-state", "none")
        if state in _PROMISED:
            return Said(int(known["config-epoch"]), None)
        host, port = await asking.execute_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.service)
        return Said(int(known["config-epoch"]), (host.decode(), int(port)))

    async def _meant(self, redis: Any, place: Address, error: ResponseError) -> Exception:
        """What a Sentinel's refusal says of the URL, in one line."""
        at, said = shown(place), str(error).lower()
        if "unknown command" in said:
            return _WrongUrl(f"TIMERS_REDIS_URL names {at}, which is no Sentinel; use redis://{at}/DB (or rediss://)")
        if "no such" not in said:
            return error
        services = [fields(each)["name"] for each in await redis.execute_command("SENTINEL", "MASTERS")]
        known = f"it knows {', '.join(map(repr, services))}" if services else "it knows none"
        return _WrongUrl(f"the Sentinel at {at} knows no service {self.service!r}; {known}")

    def _is_settled(self) -> bool:
        """Whether a majority has spoken, or everybody who can."""
        return 2 * len(self._said) > len(self.places) or len({*self._said, *self._troubles}) == len(self.places)

    def _silent(self, place: Address, why: Exception) -> None:
        was, self._troubles[place] = self.silence, why
        at, _ = self._said.get(place, (0.0, None))
        if at < asyncio.get_running_loop().time() - FORGET_SECONDS:
            self._said.pop(place, None)
        if self.silence and not was and self.primary is not None:
            _log.error("no Sentinel can be asked; a failover goes unnoticed", reason=self.silence)
        self._judge()

    def _hear(self, place: Address, said: Said) -> None:
        if self.silence and self.primary is not None:
            _log.info("a Sentinel answers again")
        self._troubles.pop(place, None)
        self._said[place] = asyncio.get_running_loop().time(), said
        self._judge()

    def _judge(self) -> None:
        """Take over what was said, once it counts. If nobody says anything, the last primary stays it."""
        if self._said and self._is_settled():
            primary = primary_of([self._said[place][1] for place in self.places if place in self._said])
            if primary != self.primary:
                self._leave()
                self._follow(primary)
        news, self._news = self._news, asyncio.Event()
        news.set()

    def _leave(self) -> None:
        """Cut all connections, whatever they wait for."""
        cut, self._open = self._open, WeakSet()
        for connection in cut:
            if connection._writer is not None:
                connection._writer.transport.abort()

    def _follow(self, primary: Address | None) -> None:
        if self.primary is not None:
            self._left = self.primary
            _log.warning("the primary is left for another", service=self.service, left=shown(self.primary))
        if primary is not None and self._left is not None:
            _log.info("connecting to the primary", service=self.service, primary=shown(primary))
        self.primary = primary


async def _listen(events: AbstractConnection, asks: asyncio.Event) -> None:
    """Pass on that there was an event, until the connection breaks."""
    try:
        while True:
            await events.read_response()
            asks.set()
    finally:
        asks.set()


def is_up(server: Mapping[str, str]) -> bool:
    """Whether the Sentinel reaches a server, given with its fields."""
    return not {"s_down", "o_down", "disconnected"} & set(server["flags"].split(","))


def fields(flat: Sequence[bytes] | Mapping[bytes, bytes]) -> Mapping[str, str]:
    """Names and values in turn as a mapping."""
    said = [each.decode(errors="replace") for each in flat]
    return dict(zip(said[::2], said[1::2], strict=True))


class _ToPrimary(Connection):
    """A connection that asks where the primary is whenever it opens, and that its server says it is one."""

    sentinels: Sentinels

    async def _connect(self) -> None:
        self.host, self.port = await self.sentinels.find(self.socket_connect_timeout or ANSWER_SECONDS)
        await super()._connect()  # type: ignore[no-untyped-call]  # redis-py leaves it untyped
        self.sentinels.took(self)

    async def on_connect_check_health(self, check_health: bool = True) -> None:
        await super().on_connect_check_health(check_health)
        # ROLE would be one right more.
        await self.send_command("INFO", "replication", check_health=False)
        said: Any = await self.read_response(disable_decoding=True)
        if b"role:master" not in said:
            wrong = f"{self.host}:{self.port} is not the primary that the Sentinels take it for"
            raise ConnectionError("; ".join(filter(None, (wrong, self.sentinels.silence))))


@dataclass(frozen=True)
class SentinelConnections(Connections):
    """Connections to the primary behind Sentinels."""

    sentinels: Sentinels = field(kw_only=True)
    _made: dict[Address, Connections] = field(default_factory=dict, kw_only=True, compare=False, repr=False)

    @property
    def replicas(self) -> Sequence[Connections]:
        return [self._to(address) for address in self.sentinels.replicas]

    def _to(self, address: Address) -> Connections:
        """Connections to one server, whatever its role."""
        if address not in self._made:
            self._made[address] = connections_over(self.other(*address).connection_pool)
        return self._made[address]

    @property
    def address(self) -> str:
        """The name of the service, whoever is its primary."""
        return self.sentinels.service

    @property
    def unwatched(self) -> str:
        return self.sentinels.silence and f"a failover goes unnoticed: {self.sentinels.silence}"

    @property
    def options(self) -> str:
        host, port = self.sentinels.primary or ("PRIMARY", 6379)
        tls = " --tls" if "ssl_cert_reqs" in self.commands.connection_pool.connection_kwargs else ""
        return f"-h {host} -p {port}{tls} -n {self.db}"

    def dial_scripts(self, answer_s: float) -> Scripts:
        """With a watch of its own, because it may be used in another thread."""
        connection: Any = self.dial()
        connection.sentinels = apart = self.sentinels.apart()
        return ScriptConnection(connection, answer_s=answer_s, closed=apart.close)

    async def close(self) -> None:
        for each in self._made.values():
            await each.close()
        await Connections.close(self)
        await self.sentinels.close()


def connect_sentinels(url: str, answer_s: float) -> SentinelConnections:
    """Connections for `redis+sentinel://user:password@host:port,host:port/SERVICE/DB`. User and password are the
    server's; `sentinel_username` and `sentinel_password` of the query are the Sentinels', and all other options count
    for both. Raises TypeError and ValueError."""
    split, hosts = split_hosts(url)
    service, _, db = split.path[1:].partition("/")
    plain = split._replace(scheme=split.scheme.partition("+")[0], path=f"/{db}")
    options: dict[str, Any] = {**parse_url(plain.geturl())}
    del options["host"]
    asking = {name: options.pop(f"sentinel_{name}", None) for name in ("username", "password")}
    shared = {name: value for name, value in options.items() if name not in ("username", "password", "db")}
    asking |= dict.fromkeys(("socket_timeout", "socket_connect_timeout"), ANSWER_SECONDS)
    sentinels = Sentinels(list(map(_place, hosts)), service, make_pool({**shared, **asking}, answer_s))
    to = connections_over(make_pool(options, answer_s, _ToPrimary, sentinels=sentinels))
    # Replicas that the Sentinels reach may be promoted, whether the primary does or not.
    return SentinelConnections(
        to.commands, to.db, to.scripts, sentinels=sentinels, known_replicas=lambda: len(sentinels.replicas)
    )


def _place(text: str) -> Address:
    split = urlsplit(f"//{text}")
    return split.hostname or "", split.port or PORT
