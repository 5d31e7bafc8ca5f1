"""Owns what the server announces: expired keys and wake-ups as values, and each confirmed subscription."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from timers.store import keys
from timers.store.connect import Connections
from timers.store.subscription import subscribe


@dataclass(frozen=True, slots=True)
class TriggerExpired:
    """A timer's trigger key expired: it is due."""

    shard: int
    prefix: str
    id: str


@dataclass(frozen=True, slots=True)
class LeaseExpired:
    """A lease expired: its pod is gone or cannot reach Redis."""

    shard: int
    prefix: str
    id: str


@dataclass(frozen=True, slots=True)
class BareExpired:
    """A key that a client set itself expired. Whether it is a timer depends on who serves its prefix."""

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
class Subscribed:
    """A subscription was confirmed, the first or a later one: events before it may be lost."""


Notification = TriggerExpired | BareExpired | LeaseExpired | Wake | Posted | CanaryExpired | Subscribed
Sink = Callable[[Notification], None]

SUBSCRIBED: Final = Subscribed()

_TRIGGER = re.compile(rb"([a-z0-9][a-z0-9_.-]{0,63}):\{(\d+)\}:([A-Za-z0-9][A-Za-z0-9_.:@~+=-]{0,199})")
_LEASE = re.compile(rb"timers:\{(\d+)\}:lease:([a-z0-9][a-z0-9_.-]{0,63}):([A-Za-z0-9][A-Za-z0-9_.:@~+=-]{0,199})")
_WAKE = re.compile(rb"\{(\d+)\} (?:(\d+)|outbox)")
_CANARY: Final = keys.canary_key("").encode()


def parse_expired(key: bytes) -> Notification | None:
    """What the expiry of a key means; None for a stranger's key."""
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


async def hear(connections: Connections, sink: Sink) -> None:
    """Subscribe and report each notification of the db until the connection breaks; then raise Unavailable. Never
    returns otherwise."""
    expired = keys.expired_channel(connections.db).encode()

    def take(channel: bytes, data: bytes | None) -> None:
        if data is None:
            found: Notification | None = SUBSCRIBED if channel == expired else None
        else:
            found = parse_expired(data) if channel == expired else _parse_wake(data)
        if found is not None:
            sink(found)

    await subscribe(connections, (expired, keys.wake_channel(connections.db).encode()), take)


def _parse_wake(data: bytes) -> Notification | None:
    wake = _WAKE.fullmatch(data)
    if wake is None:
        return None
    return Posted(int(wake[1])) if wake[2] is None else Wake(int(wake[1]), int(wake[2]))
