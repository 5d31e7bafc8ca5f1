"""Owns a subscriber's connection: one of its own, whose every confirmation is passed on.

Published messages are fire-and-forget, and the server may cut a slow subscriber without a word. The only in-band sign
is a fresh subscribe confirmation, so none is hidden: each says "anything may have been missed until now".
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from redis.asyncio.connection import AbstractConnection

from timers.errors import Unavailable
from timers.store.connect import Connections
from timers.store.scripts import reachable

SILENCE_SECONDS: Final = 5.0
"""Silence after which the connection is asked for a sign of life; a second silence ends it. Half-open connections are
found within twice this time."""

Take = Callable[[bytes, bytes | None], None]
"""Called with (channel, data); data is None for the confirmation of the channel's subscription. Must not block."""


class Subscription:
    """Some channels of one server."""

    def __init__(self, connections: Connections, channels: Sequence[bytes]) -> None:
        self._connections, self._channels = connections, channels
        self._replies = 0

    async def stream(self, take: Take) -> None:
        """Subscribe and pass on until the connection breaks; then raise Unavailable. Never returns otherwise.

        A fresh connection each time: there is nothing to be subscribed twice.
        """
        connection = self._connections.dial()
        try:
            with reachable():
                await connection.connect()  # type: ignore[no-untyped-call]  # redis-py leaves it untyped
                await connection.send_command("SUBSCRIBE", *self._channels)
                await self._watched(connection, take)
        finally:
            await connection.disconnect()

    async def _watched(self, connection: AbstractConnection, take: Take) -> None:
        """Pump, and look now and then whether anything came: a time-out on each read would cost more than the read."""
        pump = asyncio.create_task(self._pump(connection, take))
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

    async def _pump(self, connection: AbstractConnection, take: Take) -> None:
        while True:
            reply = await connection.read_response(disable_decoding=True, disconnect_on_error=False)
            self._replies += 1
            if reply[0] == b"message":
                take(reply[1], reply[2])
            elif reply[0] == b"subscribe":
                take(reply[1], None)
