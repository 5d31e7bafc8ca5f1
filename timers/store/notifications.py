"""Owns what the server announces: expired keys and wake-ups, as values; a fresh subscription is reported as a gap."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from timers.store import keys
from timers.store.connect import Connections
from timers.store.subscription import Subscription


@dataclass(frozen=True, slots=True)
class TriggerExpired:
    """A timer's trigger key expired: it is due."""

    shard: int
    prefix: str
    id: str


@dataclass(frozen=True, slots=True)
class LeaseExpired:
    """A lease ran out: its pod is gone or cannot be heard."""

    shard: int
    prefix: str
    id: str


@dataclass(frozen=True, slots=True)
class BareExpired:
    """A key that a client set by itself expired; whether it is a timer depends on who serves its prefix."""

    prefix: str
    id: str


@dataclass(frozen=True, slots=True)
class Wake:
    """Somebody armed a timer that is due before a sweeper would look."""

    shard: int
    due_ms: int


@dataclass(frozen=True, slots=True)
class Posted:
    """A change waits in an outbox that was empty."""

    shard: int


@dataclass(frozen=True, slots=True)
class CanaryExpired:
    """A pod's canary key expired."""

    pod: str


@dataclass(frozen=True, slots=True)
class Gap:
    """A (re)subscription was confirmed: events before it may be lost."""


Notification = TriggerExpired | BareExpired | LeaseExpired | Wake | Posted | CanaryExpired | Gap
Sink = Callable[[Notification], None]

GAP: Final = Gap()

_TRIGGER = re.compile(rb"([a-z0-9][a-z0-9_.-]{0,63}):\{(\d+)\}:([A-Za-z0-9][A-Za-z0-9_.:@~+=-]{0,199})")
_LEASE = re.compile(rb"timers:\{(\d+)\}:lease:([a-z0-9][a-z0-9_.-]{0,63}):([A-Za-z0-9][A-Za-z0-9_.:@~+=-]{0,199})")
_WAKE = re.compile(rb"\{(\d+)\} (?:(\d+)|outbox)")
_CANARY: Final = keys.canary_key("").encode()


def parse_expired(key: bytes) -> Notification | None:
    """What the expiry of a key means to us; None for a stranger's."""
    if key.startswith(b"timers:"):
        if lease := _LEASE.fullmatch(key):
            return LeaseExpired(int(lease[1]), lease[2].decode(), lease[3].decode())
        if key.startswith(_CANARY):
            return CanaryExpired(key[len(_CANARY) :].decode(errors="replace"))
        return None
    if trigger := _TRIGGER.fullmatch(key):
        return TriggerExpired(int(trigger[2]), trigger[1].decode(), trigger[3].decode())
    bare = keys.BARE.fullmatch(key)
    return BareExpired(bare[1].decode(), bare[2].decode()) if bare else None


class Notifications:
    """The events of one db as a stream into a sink that must not block."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._expired = keys.expired_channel(connections.db).encode()
        self._wake = keys.wake_channel(connections.db).encode()

    async def stream(self, sink: Sink) -> None:
        """Subscribe and report until the connection breaks; then raise Unavailable. Never returns otherwise."""

        def take(channel: bytes, data: bytes | None) -> None:
            notification = self._parse(channel, data)
            if notification is not None:
                sink(notification)

        await Subscription(self._connections, (self._expired, self._wake)).stream(take)

    def _parse(self, channel: bytes, data: bytes | None) -> Notification | None:
        if data is None:
            return GAP if channel == self._expired else None
        if channel == self._expired:
            return parse_expired(data)
        wake = _WAKE.fullmatch(data)
        if wake is None:
            return None
        return Posted(int(wake[1])) if wake[2] is None else Wake(int(wake[1]), int(wake[2]))
