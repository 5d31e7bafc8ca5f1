"""Owns the subscriber: one connection of its own, whose every confirmation is reported as a gap.

Events are fire-and-forget and the server may cut a slow subscriber without a word. The only in-band sign is a fresh
subscribe confirmation, so none is hidden: each says "anything may have been missed until now".
"""

import asyncio
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from redis.asyncio.connection import AbstractConnection

from timers.errors import Unavailable
from timers.store import keys
from timers.store.connect import Connections
from timers.store.scripts import reachable

SILENCE_SECONDS: Final = 5.0
"""Silence after which the connection is asked for a sign of life; a second silence ends it. Half-open connections are
found within twice this time."""


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
class CanaryExpired:
    """A pod's canary key expired."""

    pod: str


@dataclass(frozen=True, slots=True)
class Gap:
    """A (re)subscription was confirmed: events before it may be lost."""


Notification = TriggerExpired | BareExpired | LeaseExpired | Wake | CanaryExpired | Gap
Sink = Callable[[Notification], None]

GAP: Final = Gap()

_TRIGGER = re.compile(rb"([a-z0-9][a-z0-9_.-]{0,63}):\{(\d+)\}:([A-Za-z0-9][A-Za-z0-9_.:@~+=-]{0,199})")
_LEASE = re.compile(rb"timers:\{(\d+)\}:lease:([a-z0-9][a-z0-9_.-]{0,63}):([A-Za-z0-9][A-Za-z0-9_.:@~+=-]{0,199})")
_WAKE = re.compile(rb"\{(\d+)\} (\d+)")
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
        self._replies = 0

    async def stream(self, sink: Sink) -> None:
        """Subscribe and report until the connection breaks; then raise Unavailable. Never returns otherwise.

        A fresh connection each time: there is nothing to be subscribed twice.
        """
        connection = self._connections.dial()
        try:
            async with reachable():
                await connection.connect()  # type: ignore[no-untyped-call]  # redis-py leaves it untyped
                await connection.send_command("SUBSCRIBE", self._expired, self._wake)
                await self._watched(connection, sink)
        finally:
            await connection.disconnect()

    async def _watched(self, connection: AbstractConnection, sink: Sink) -> None:
        """Pump, and look now and then whether anything came: a time-out on each read would cost more than the read."""
        pump = asyncio.create_task(self._pump(connection, sink))
        try:
            asked_at = -1
            while True:
                before = self._replies
                done, _ = await asyncio.wait({pump}, timeout=SILENCE_SECONDS)
                if done:
                    return await pump
                if self._replies == before:
                    if asked_at == before:
                        raise Unavailable("the subscriber's connection gave no sign of life")
                    asked_at = before
                    await connection.send_command("PING")
        finally:
            pump.cancel()
            await asyncio.gather(pump, return_exceptions=True)

    async def _pump(self, connection: AbstractConnection, sink: Sink) -> None:
        while True:
            reply = await connection.read_response(disable_decoding=True, disconnect_on_error=False)
            self._replies += 1
            notification = self._parse(reply)
            if notification is not None:
                sink(notification)

    def _parse(self, reply: Any) -> Notification | None:
        if reply[0] == b"subscribe":
            return GAP if reply[1] == self._expired else None
        if reply[0] != b"message":
            return None
        _, channel, data = reply
        if channel == self._expired:
            return parse_expired(data)
        wake = _WAKE.fullmatch(data)
        return Wake(int(wake[1]), int(wake[2])) if wake else None
