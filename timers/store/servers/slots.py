"""Owns which primary of a cluster has each hash slot, and the connections to each primary."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import chain
from typing import Any, Final, TypeVar

from redis.crc import REDIS_CLUSTER_HASH_SLOTS, key_slot
from redis.exceptions import (
    AskError,
    ClusterDownError,
    ConnectionError,
    MovedError,
    ResponseError,
    TimeoutError,
    TryAgainError,
)

from timers.errors import ConfigurationError
from timers.logs import get_logger
from timers.setting_values import redacted, split_hosts
from timers.store.cooperative import shared
from timers.store.servers.connections import SLOT_MOVES, Connections, Scripts, connect_server
from timers.store.servers.durability import REMEMBERED_SECONDS

T = TypeVar("T")

REFRESH_SECONDS: Final = 1.0
"""How often the cluster is asked while commands are sent. A failover shows by then, however it came about."""

DOUBT_SECONDS: Final = 0.1
"""How often it is asked while a node is away or slots move."""

HANGS_SECONDS: Final = 0.5
"""After this time without an answer to a command its node may hang."""

ASK_SECONDS: Final = 1.0
"""After this time without an answer another node is asked too."""

TELL_SECONDS: Final = 60.0
"""How often it is logged that a node refuses to answer."""

SETTLE_SECONDS: Final = 2.0
"""How long a command waits for its slot to settle."""

SCRIPTS: Final = frozenset(("EVAL", "EVALSHA"))
"""Commands that run a script."""

_NO_KEY: Final = frozenset(("ACL", "CLIENT", "CLUSTER", "CONFIG", "INFO", "PING", "PUBLISH", "SCRIPT", "TIME"))

_LONGEST_PAUSE_SECONDS: Final = 0.1
_NO_CLUSTER: Final = ("cluster support disabled", "unknown command")
_UNKNOWN: Final = "?"
"""What nodes say in place of a host that they do not know. In a URL it would end the part with the host, and what
follows would go to this machine, with the password."""
AWAY: Final = (ConnectionError, TimeoutError, OSError)
"""Errors of a server that does not answer."""

_log = get_logger("timers.cluster")


@lru_cache(maxsize=10_000)
def slot_of(key: str | bytes) -> int:
    """The hash slot of a key."""
    return int(key_slot(key if isinstance(key, bytes) else key.encode()))


def key_of(command: Sequence[Any]) -> str | bytes:
    """The key of a command; empty if there is none."""
    name = command[0]
    if name in SCRIPTS:
        return str(command[3])
    return "" if name.partition(" ")[0] in _NO_KEY or len(command) < 2 else command[1]


_Said = tuple[bool, Sequence[Any]]
"""What a node says of the cluster: whether it sees a healthy one, and of each range of slots the first, the last, the
primary and its replicas, each of those with host, port and id."""


class Slots(Scripts):
    """Which primary has each slot, as one event loop knows it. The nodes say so at the first command, each second while
    there are commands, and in each refusal of a command that another node should have had. A script runs on the primary
    that has its key, over a connection that all callers share."""

    def __init__(self, url: str, *, answer_s: float, scripts_s: float | None = None) -> None:
        """A node's answer may take `answer_s` seconds, or `scripts_s` where it is to a script. Raises
        ConfigurationError for a URL that cannot be used."""
        self._url, self._answer_s, self._scripts_s = url, answer_s, scripts_s
        self._nodes: dict[str, Connections] = {}
        self._owners: list[str] = []
        """By slot: the address of its primary; empty if it has none."""
        _, self._seeds = split_hosts(url)
        self._addresses: Sequence[str] = ()
        """The nodes as the cluster named them, who answered last first."""
        self._peers: dict[str, Mapping[str, float]] = {}
        """By address: the nodes that have the same slots, itself among them, and when the cluster last said so. A node
        that is gone still counts for a while, because it may come back and be promoted."""
        self._asked_at = self._told_at = float("-inf")
        self._asking: asyncio.Task[None] | None = None
        self.seed = self._at(self._seeds[0])

    @property
    def primaries(self) -> Sequence[Connections]:
        """The nodes that have slots, in a fixed order; those of the URL until the cluster was asked."""
        return [self._at(address) for address in sorted({*self._owners} - {""}) or self._seeds]

    @property
    def replicas(self) -> Sequence[Connections]:
        """The other nodes that the cluster has named."""
        return [self._at(address) for address in sorted({*self._addresses} - {*self._owners})]

    def owner(self, key: str | bytes) -> Connections:
        """The primary that has a key, as far as is known. Where it has none, any node says so."""
        address = self._owners[slot_of(key)] if self._owners else ""
        return self._at(address) if address else self.seed

    def apart(self, answer_s: float) -> "Slots":
        """The same, for another event loop. A script may take `answer_s` seconds to answer."""
        return Slots(self._url, answer_s=answer_s, scripts_s=answer_s)

    async def execute_command(self, *command: str | int | bytes) -> Any:
        """See Scripts. While a slot is moved key by key, its node passes on with ASK what finds no key. The root that a
        script declares never exists: so none runs on half a shard, if only nobody follows."""
        return await self.send(key_of(command), lambda node: node.scripts.execute_command(*command))

    async def send(self, key: str | bytes, ask: Callable[[Connections], Awaitable[T]]) -> T:
        """What the primary of a key answers. Asks again only where a node refused the command because the slot is not,
        or not whole, on it: then nothing was done. Raises TryAgainError if it does not settle."""
        for pause in _pauses():
            await self.look()
            node = self.owner(key)
            try:
                return await self.answer(ask(node))
            except MovedError as error:
                self.moved(error, node)
            except (AskError, TryAgainError):
                pass
            except (*AWAY, ClusterDownError):
                self.doubt()
                raise
            await asyncio.sleep(pause)
        raise TryAgainError(SLOT_MOVES.format(slot_of(key)))

    async def answer(self, asked: Awaitable[T]) -> T:
        """The answer of a node. While it keeps us waiting, the cluster is asked again and again: once another has taken
        its place, nobody may wait any longer. When it wakes it would carry out what it was sent, as if it were still
        the primary."""
        loop = asyncio.get_running_loop()
        timer: asyncio.TimerHandle

        def worry() -> None:
            nonlocal timer
            self.doubt()
            timer = loop.call_later(DOUBT_SECONDS, worry)

        timer = loop.call_later(HANGS_SECONDS, worry)
        try:
            return await asked
        finally:
            timer.cancel()

    async def look(self) -> None:
        """Have asked the cluster before the first command, and see to it that it is asked while there are more. Raises
        ConfigurationError if it is none."""
        if not self._owners:
            await asyncio.shield(self._ask())
        elif time.monotonic() - self._asked_at > REFRESH_SECONDS:
            self._ask()

    async def refresh(self) -> None:
        """Ask the cluster now. Raises what redis-py does if no node answers."""
        await asyncio.shield(self._ask())

    def doubt(self) -> None:
        """Ask the cluster soon: a node is away."""
        if time.monotonic() - self._asked_at > DOUBT_SECONDS:
            self._ask()

    def moved(self, error: MovedError, said_by: Connections) -> None:
        """A node said that a slot is on another one. If it does not know where that is, the cluster is asked."""
        if error.host != _UNKNOWN:
            node = self.at(error, said_by)
            self._owners[error.slot_id] = next(address for address, each in self._nodes.items() if each is node)
        self.doubt()

    def at(self, error: AskError, said_by: Connections) -> Connections:
        """The node that a refusal names. Without a host it is that of the node that said so."""
        host = str(said_by.commands.connection_pool.connection_kwargs.get("host"))
        return self._at(_address(error.host if error.host != _UNKNOWN else "", error.port, host))

    async def aclose(self) -> None:
        """Close all connections."""
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.gather(self._asking, return_exceptions=True)
        for node in self._nodes.values():
            await node.close()

    def _at(self, address: str) -> Connections:
        node = self._nodes.get(address)
        if node is None:
            made = connect_server(_at_address(self._url, address), self._answer_s)
            scripts = made.scripts if self._scripts_s is None else made.dial_scripts(self._scripts_s)
            node = self._nodes[address] = replace(
                made,
                scripts=scripts,
                known_replicas=lambda: len(self._peers.get(address, {address: 0})) - 1,  # as the cluster's nodes say
            )
        return node

    def _ask(self) -> asyncio.Task[None]:
        """Ask the cluster, unless it is being asked."""
        if self._asking is None or self._asking.done():
            self._asked_at = time.monotonic()
            self._asking = shared(self._refresh())
        return self._asking

    async def _refresh(self) -> None:
        """Take what the first node says that sees a healthy cluster; otherwise what the last says. A node that does not
        answer for a while is not waited for alone."""
        left = iter(dict.fromkeys(chain(self._addresses, self._seeds)))
        asked: dict[asyncio.Task[_Said], str] = {}
        said: tuple[str, _Said] | None = None
        trouble: BaseException = ConnectionError("no node of the cluster answers")
        try:
            while said is None or not said[1][0]:
                if address := next(left, ""):
                    asked[asyncio.create_task(self._said_at(address))] = address
                if not asked:
                    break
                # Who knows nothing better yet is asked again soon, so nobody waits long for those that hang.
                seconds = DOUBT_SECONDS if said else ASK_SECONDS if address else None
                done, _ = await asyncio.wait(asked, timeout=seconds, return_when="FIRST_COMPLETED")
                if not (done or address):
                    break
                for each in done:
                    address, error = asked.pop(each), each.exception()
                    if error is None:
                        said = address, each.result()
                    elif isinstance(error, (ResponseError, *AWAY)):
                        trouble = error
                        self._tell_refusal(address, error)
                    else:
                        raise error
        finally:
            for each in asked:
                each.cancel()
        if said is None:
            raise trouble
        by, (_, ranges) = said
        await self._take(by, ranges)

    def _tell_refusal(self, address: str, error: Exception) -> None:
        """Log it once in a while, if it is one: what this process knows of the cluster may be old by now."""
        if isinstance(error, ResponseError) and time.monotonic() - self._told_at > TELL_SECONDS:
            self._told_at = time.monotonic()
            _log.error("a node refuses to say who has which slots", node=address, reason=str(error))

    async def _said_at(self, address: str) -> _Said:
        ask = self._at(address).scripts.execute_command
        try:
            info, ranges = await asyncio.gather(ask("CLUSTER", "INFO"), ask("CLUSTER", "SLOTS"))
        except ResponseError as error:
            if any(said in str(error) for said in _NO_CLUSTER):
                plain = redacted(_at_address(self._url, address))
                said = f"TIMERS_REDIS_URL: {address} is not a node of a cluster; for a single server use {plain}"
                raise ConfigurationError(said) from error
            raise
        return b"cluster_state:ok" in info, ranges

    async def _take(self, said_by: str, ranges: Sequence[Any]) -> None:
        host = said_by.rpartition(":")[0]
        owners, known = [""] * REDIS_CLUSTER_HASH_SLOTS, {said_by: None}
        by_primary = dict[str, Sequence[str]]()
        for first, last, *nodes in ranges:
            addresses = [_address(_host_of(at), int(at[1]), host) for at in nodes]
            known |= dict.fromkeys(addresses)
            by_primary[addresses[0]] = addresses
            owners[first : last + 1] = [addresses[0]] * (last + 1 - first)
        self._owners = owners
        self._addresses = list(known)
        self._peers = _peers_now(by_primary, self._peers)
        for address in self._nodes.keys() - known.keys():
            await self._nodes[address].close()  # kept, because whoever still has it may open it again


def _peers_now(
    by_primary: Mapping[str, Sequence[str]], before: Mapping[str, Mapping[str, float]]
) -> dict[str, Mapping[str, float]]:
    """The peers of each node, given the nodes of each primary as they are named now, and the peers until now."""
    now, named = time.monotonic(), set(chain(*by_primary.values()))
    peers = dict[str, Mapping[str, float]]()
    for primary, addresses in by_primary.items():
        gone = {
            address: at
            for address, at in before.get(primary, {}).items()
            if address not in named and now - at < REMEMBERED_SECONDS
        }
        group = gone | dict.fromkeys(addresses, now)
        peers |= ((address, group) for address in addresses)
    return peers


def _pauses() -> Iterator[float]:
    """What to wait between tries: nothing first, then longer and longer, SETTLE_SECONDS in all."""
    until, pause = time.monotonic() + SETTLE_SECONDS, 0.0
    while time.monotonic() < until:
        yield pause
        pause = min(2 * pause + 0.005, _LONGEST_PAUSE_SECONDS)


def _host_of(node: Sequence[Any]) -> str:
    """The host of a node as CLUSTER SLOTS names it; empty if it names none. A node that is to announce a host name and
    has none is still known by its IP address."""
    named = (node[0] or b"").decode()
    if named != _UNKNOWN:
        return named
    more = dict(zip(*[iter(node[3])] * 2, strict=True)) if len(node) > 3 else {}
    return bytes(more.get(b"ip", b"")).decode()


def _address(host: str, port: int, asked: str) -> str:
    """The address of a node, which without a host has that of the node that was asked."""
    host = host or asked.strip("[]")
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _at_address(url: str, address: str) -> str:
    """The URL of one node of a cluster, for a plain connection."""
    parts, _ = split_hosts(url)
    scheme, netloc = parts.scheme.removesuffix("+cluster"), parts.netloc.removesuffix("-") + address
    return parts._replace(scheme=scheme, netloc=netloc).geturl()
