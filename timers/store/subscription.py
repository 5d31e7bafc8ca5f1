"""Owns a subscriber's connection and passes on its every confirmation.

Published messages are fire-and-forget, and the server may cut a slow subscriber without a word. The only sign of that
is a new subscribe confirmation, so none is hidden: each means "anything may have been missed until now".
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final

from redis.asyncio.connection import AbstractConnection

from timers.errors import Unavailable
from timers.store.connect import Connections
from timers.store.scripts import reachable

SILENCE_SECONDS: Final = 5.0
"""After this silence the connection must give a sign of life; a second silence ends it. So a half-open connection is
found within twice this time."""

Take = Callable[[bytes, bytes | None], None]
"""Called with (channel, data); data is None for the confirmation of the channel's subscription. Must not block."""


async def subscribe(
    connections: Connections, channels: Sequence[bytes], take: Take, *, silence_seconds: float = SILENCE_SECONDS
) -> None:
    """Subscribe and pass on messages until the connection breaks; then raise Unavailable. Never returns otherwise.

    Uses a new connection each time, so that nothing is subscribed twice.
    """
    connection, heard = connections.dial(), asyncio.Event()

    async def pump() -> None:
        while True:
            reply = await connection.read_response(disable_decoding=True, disconnect_on_error=False)
            heard.set()
            if reply[0] == b"message":
                take(reply[1], reply[2])
            elif reply[0] == b"subscribe":
                take(reply[1], None)

    try:
        with reachable():
            await connection.connect()  # type: ignore[no-untyped-call]  # redis-py leaves it untyped
            await connection.send_command("SUBSCRIBE", *channels)
            await _watched(connection, pump(), heard, silence_seconds)
    finally:
        await connection.disconnect()


async def _watched(
    connection: AbstractConnection, pumping: Coroutine[Any, Any, None], heard: asyncio.Event, silence_seconds: float
) -> None:
    """Pump, and check at intervals whether anything came: a timeout on each read would cost more than the read."""
    pump = asyncio.create_task(pumping)
    is_asked = False
    try:
        while True:
            heard.clear()
            done, _ = await asyncio.wait({pump}, timeout=silence_seconds)
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
