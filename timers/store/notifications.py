"""Owns what each server of a db announces: expired keys, wake-ups and changes as values, each confirmed subscription,
the flags that it needs to announce anything, and the canary keys that prove it.

Published messages are fire-and-forget, and the server may cut a slow subscriber without a word. The only sign of that
is a new subscribe confirmation, so none is hidden: each means "anything may have been missed until now".
"""

import asyncio
import re
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from typing import Any, Final

from redis._parsers.hiredis import NOT_ENOUGH_DATA
from redis.asyncio import Redis
from redis.asyncio.connection import AbstractConnection
from redis.exceptions import MovedError, ResponseError

from timers.core.durations import MAX_TIME_MS
from timers.core.model import Status, in_english
from timers.errors import Unavailable
from timers.store import codec, keys
from timers.store.cooperative import side_by_side
from timers.store.scripts import reachable, run
from timers.store.servers.connections import Connections
from timers.store.store import Store

MOVED_SECONDS: Final = 1.0
"""How often subscriptions are compared with the servers that there are. One that is no primary any more keeps its
subscribers, and says nothing."""


@dataclass(frozen=True, slots=True)
class Part:
    """What one server has of a db: its shards, and the channels that tell of them. It also announces those keys that
    expire on it, and no others."""

    node: Connections
    shards: frozenset[int]
    wakes: tuple[bytes, ...]
    events: tuple[bytes, ...]


def parts(connections: Connections, shards: int) -> list[Part]:
    """A db of so many shards by server, as far as is known."""
    if not connections.is_spread:
        events = keys.events_channel(connections.db)
        return [Part(connections, frozenset(range(shards)), (connections.wake.encode(),), (events.encode(),))]
    roots = defaultdict[Connections, dict[str, int]](dict)
    for shard in range(shards):
        root = keys.root(shard)
        roots[connections.node_of(root)][root] = shard
    with_pods = connections.node_of(keys.PODS_ROOT)
    return [_part(node, roots[node], [keys.PODS_ROOT] if node is with_pods else []) for node in connections.nodes]


def _part(node: Connections, roots: Mapping[str, int], others: list[str]) -> Part:
    wakes, events = (
        tuple(f"{root}{end}".encode() for root in (*roots, *others)) for end in (keys.OWN_WAKE, keys.OWN_EVENTS)
    )
    return Part(node, frozenset(roots.values()), wakes, events)


async def current_parts(connections: Connections, shards: int) -> list[Part]:
    """As `parts`, after asking the servers. Raises Unavailable."""
    with reachable():
        await connections.refresh()
    return parts(connections, shards)


Sink = Callable[..., None]
"""Called with what was announced, and what comes with it:

`triggers`, shard, prefix, ids: trigger keys of a queue expired, so these timers are due. The ids are as the server
sends them; another program can forge them.
`lease`, shard, prefix, id: a lease expired, because its pod is gone or cannot reach Redis.
`bare`, prefix, id: a key that a client set itself expired. Whether it is a timer depends on who serves its prefix.
`wake`, shard, due_ms: somebody armed a timer that is due before a sweeper would poll.
`posted`, shard: a change waits in an outbox that was empty.
`pods`: a pod came, changed what it is, or went; or a declaration is new.
`canary`, name, at_ms: a canary key expired, whose deadline this was by the server's time; 0 if it names none. The name
is what stands between.
`subscribed`, at_ms: a subscription was confirmed, the first or a later one, so events before it may be lost. The time
is the server's just before it was asked for: its confirmation may be read much later.
"""

Notification = tuple[Any, ...]

_QUEUE = re.compile(rb"(?!timers:)([a-z0-9][a-z0-9_.-]{0,63}):\{(\d{1,9})")
_LEASE = re.compile(rb"timers:\{(\d{1,9})\}:lease:([a-z0-9][a-z0-9_.-]{0,63}):([A-Za-z0-9][A-Za-z0-9_.:@~+=-]{0,199})")
_WAKE = re.compile(rb"\{(\d{1,9})\} (?:(\d{1,15})|outbox)")
_CHANGED: Final = b"{pods} changed"
_CANARY: Final = keys.canary_key("").encode()
_MS = re.compile(r"[0-9]{1,15}")


@lru_cache(maxsize=100_000)
def queue_of(name: bytes) -> tuple[int, str] | None:
    """The shard and prefix of trigger keys whose names begin with this, up to the closing brace; None for others."""
    found = _QUEUE.fullmatch(name)
    return (int(found[2]), found[1].decode()) if found else None


def parse_expired(key: bytes) -> Notification | None:
    """What the expiry of a key other than a trigger means; None for a foreign key."""
    if key.startswith(b"timers:"):
        if lease := _LEASE.fullmatch(key):
            return "lease", int(lease[1]), lease[2].decode(), lease[3].decode()
        if key.startswith(_CANARY):
            name, _, at = key[len(_CANARY) :].decode(errors="replace").rpartition(":")
            return "canary", name, int(at) if _MS.fullmatch(at) else 0
        return None
    bare = keys.BARE.fullmatch(key)
    return ("bare", bare[1].decode(), bare[2].decode()) if bare else None


async def listen(part: Part, sink: Sink) -> None:
    """Subscribe at a server and report each of its notifications until the connection breaks; then raise Unavailable.
    Never returns otherwise. Triggers that come together are reported together: in a burst, most of a pod's events are
    of a few queues."""
    expired = keys.expired_channel(part.node.db).encode()
    at_ms = 0
    triggers = defaultdict[tuple[int, str], list[bytes]](list)

    def take(channel: bytes, data: bytes | None) -> None:
        if data is None:
            found: Notification | None = ("subscribed", at_ms) if channel == expired else None
        elif channel != expired:
            found = _parse_wake(data)
        else:
            name, brace, timer_id = data.partition(b"}:")
            if brace and (queue := queue_of(name)):
                triggers[queue].append(timer_id)
                return
            found = parse_expired(data)
        if found is not None:
            sink(*found)

    def asked(ms: int) -> None:
        nonlocal at_ms
        at_ms = ms

    def report_triggers() -> None:
        for (shard, prefix), ids in triggers.items():
            sink("triggers", shard, prefix, ids)
        triggers.clear()

    # The last is confirmed when all are.
    await subscribe(part.node, (*part.wakes, expired), take, asked=asked, taken=report_triggers)


def _parse_wake(data: bytes) -> Notification | None:
    if data == _CHANGED:
        return ("pods",)
    wake = _WAKE.fullmatch(data)
    if wake is None:
        return None
    return ("posted", int(wake[1])) if wake[2] is None else ("wake", int(wake[1]), int(wake[2]))


def is_time(score: float) -> bool:
    """Whether a score or a number can be a time of ours."""
    return 0 <= score <= MAX_TIME_MS + 1


@dataclass(frozen=True, slots=True)
class Change:
    """A timer changed: what it is now, and why. `place` names the change, the same on every pod that hears it."""

    prefix: str
    id: str
    status: Status
    version: int
    attempt: int
    due_ms: int
    at_ms: int
    cause: str
    text: str = ""
    processor: str | None = None
    place: str = ""

    @property
    def note(self) -> str:
        """The cause in English, with the details of this change."""
        return in_english(self.cause, self.text)


async def changes(store: Store, sink: Callable[[Change | None], None]) -> None:
    """Pass on every change from now on, and None when the subscription is confirmed. Raises Unavailable when a
    connection breaks, or shards have moved to another server."""
    held = await current_parts(store.connections, store.shards)
    unconfirmed = {part.events[-1] for part in held if part.events}

    def take(channel: bytes, data: bytes | None) -> None:
        if data is None:
            unconfirmed.discard(channel)
        change = None if data is None else _change(data, store.identity.epoch)
        if change is not None or (data is None and not unconfirmed):
            sink(change)

    hearing = [subscribe(part.node, part.events, take) for part in held if part.events]
    if store.connections.is_spread:
        hearing.append(_until_moved(store, held))
    await side_by_side(hearing)


async def _until_moved(store: Store, held: Sequence[Part]) -> None:
    """Raise Unavailable once another server has a part."""
    while True:
        await asyncio.sleep(MOVED_SECONDS)
        if await current_parts(store.connections, store.shards) != held:
            raise Unavailable("other nodes of the cluster have the shards now")


def _change(data: bytes, epoch: str) -> Change | None:
    """The change, or None if no script published this. Its place is a hash with the epoch, which no caller knows: by a
    mere hash, whoever may not see a change could test guesses of it."""
    try:
        member, letter, version, attempt, due, at, processor, said = data.decode().split("\n", 7)
        prefix, _, timer_id = member.partition(":")
        cause, _, text = said.partition(" ")
        if not (keys.BARE.fullmatch(member.encode()) and is_time(int(due)) and is_time(int(at))):
            return None
        return Change(
            prefix,
            timer_id,
            codec.STATUSES[letter],
            version=int(version),
            attempt=int(attempt),
            due_ms=int(due),
            at_ms=int(at),
            cause=cause,
            text=text,
            processor=None if processor == "-" else processor,
            place=blake2b(data, digest_size=8, key=epoch.encode()).hexdigest(),
        )
    except (ValueError, KeyError):
        return None


SILENCE_SECONDS: Final = 5.0
"""After this silence the connection must give a sign of life; a second silence ends it. So a half-open connection is
found within twice this time."""

Take = Callable[[bytes, bytes | None], None]
"""Called with (channel, data); data is None for the confirmation of the channel's subscription. Must not block."""


_MESSAGES: Final = (b"message", b"smessage")
_CONFIRMED: Final = (b"subscribe", b"ssubscribe")


async def subscribe(
    connections: Connections,
    channels: Sequence[bytes],
    take: Take,
    *,
    asked: Callable[[int], None] = lambda _ms: None,
    taken: Callable[[], None] = lambda: None,
) -> None:
    """Subscribe and pass on messages until the connection breaks; then raise Unavailable. Never returns otherwise.
    `asked` is told the server's time just before it takes the subscriptions, and `taken` is called after all messages
    that came together.

    Uses a new connection each time, so that nothing is subscribed twice.
    """
    connection, heard = connections.dial(), asyncio.Event()

    async def pump() -> None:
        parser: Any = connection._parser
        while True:
            reply = await connection.read_response(disable_decoding=True, disconnect_on_error=False)
            # What else has been read by now is taken at once: waiting for each would cost more than all else.
            while reply is not NOT_ENOUGH_DATA:
                if isinstance(reply, Exception):
                    raise reply
                if reply[0] in _MESSAGES:
                    take(reply[1], reply[2])
                else:
                    _answered(reply, take, asked)
                reply = parser._reader.gets(False)
            taken()
            heard.set()

    try:
        with reachable():
            await connection.connect()  # type: ignore[no-untyped-call]  # redis-py leaves it untyped
            for command in _subscribing(channels):
                await connection.send_command(*command)
            try:
                await _watched(connection, pump(), heard)
            except MovedError as error:
                raise Unavailable(f"another node of the cluster has the shard now: {error}") from error
    finally:
        await connection.disconnect(nowait=True)  # a hung server would not answer the end of TLS


def _answered(reply: list[bytes], take: Take, asked: Callable[[int], None]) -> None:
    """Take the answer to TIME or to a subscription."""
    if reply[0].isdigit():
        asked(int(reply[0]) * 1000 + int(reply[1]) // 1000)
    elif reply[0] in _CONFIRMED:
        take(reply[1], None)
    elif reply[0] == b"sunsubscribe":
        raise Unavailable(f"another node of the cluster has the shard of {reply[1].decode()} now")


def _subscribing(channels: Sequence[bytes]) -> Iterator[tuple[str | bytes, ...]]:
    """The commands, first that for the time. Each channel of a shard takes one of its own, before all others."""
    of_shards = [channel for channel in channels if b"{" in channel]
    yield ("TIME",)  # a server takes no other command after the first subscription
    yield from (("SSUBSCRIBE", channel) for channel in of_shards)
    if others := [channel for channel in channels if channel not in of_shards]:
        yield "SUBSCRIBE", *others


async def _watched(connection: AbstractConnection, pumping: Coroutine[Any, Any, None], heard: asyncio.Event) -> None:
    """Pump, and check at intervals whether anything came: a timeout on each read would cost more than the read."""
    pump = asyncio.create_task(pumping)
    is_asked = False
    try:
        while True:
            heard.clear()
            done, _ = await asyncio.wait({pump}, timeout=SILENCE_SECONDS)
            if done:
                return await pump
            if is_asked and not heard.is_set():
                raise Unavailable("the subscriber's connection does not answer")
            is_asked = not heard.is_set()
            if is_asked:
                await connection.send_command("PING")
    finally:
        pump.cancel()
        await asyncio.gather(pump, return_exceptions=True)


_TAGS: Final = 1000
"""So many hash tags are tried to find one that lies on a server without shards."""

NEEDED_FLAGS: Final = frozenset("Ex")
FLAGS: Final = "notify-keyspace-events"
_ALL_EVENTS: Final = frozenset("g$lshzxetd")
"""What the flag `A` stands for."""


def missing_flags(current: str) -> str:
    """The flags of `Ex` that are missing from CONFIG GET's answer (in any order; `A` stands for many)."""
    have = set(current) | (_ALL_EVENTS if "A" in current else set())
    return "".join(sorted(NEEDED_FLAGS - have))


async def ensure_notifications(redis: Redis) -> tuple[bool, str]:
    """Turn `expired` events on and keep all other flags. Returns whether they are on for sure, and a sentence. A server
    that denies CONFIG is no error: the canary tells whether events arrive, and the sweep works without them."""
    with reachable():
        try:
            current = (await redis.config_get(FLAGS)).get(FLAGS) or ""
            missing = missing_flags(current)
            if not missing:
                return True, f"notify-keyspace-events is {current!r}"
            await redis.config_set(FLAGS, current + missing)
        except ResponseError as error:
            return False, f"the server denies CONFIG ({error}); set notify-keyspace-events to at least Ex yourself"
    return True, f"added {missing!r} to notify-keyspace-events {current!r}"


def canary_on(connections: Connections, part: Part, name: str) -> str:
    """What to call a canary that has to lie on a part's server: on a cluster it gets a hash tag for that."""
    if not connections.is_spread:
        return name
    if part.shards:
        return f"{{{min(part.shards)}}}{name}"
    tagged = (f"{{{number}}}{name}" for number in range(_TAGS))
    return next((each for each in tagged if connections.node_of(keys.canary_key(each)) is part.node), name)


async def set_canary(redis: Redis, name: str, ttl_ms: int) -> str:
    """Arm a canary. Returns the name of its key: after the name it has the server's time (ms) at which it expires."""
    (now_ms,) = await run(redis, "canary", keys.canary_key(name), [ttl_ms], "")
    return keys.canary_key(f"{name}:{int(now_ms) + ttl_ms}")


async def touch_canary(redis: Redis, key: str) -> bool:
    """Touch a canary's key, so that Redis announces it if it is due. True while it is still there."""
    with reachable():
        return bool(await redis.exists(key))
