"""Owns a subscriber's connection: one of its own, whose every confirmation is passed on.

Published messages are fire-and-forget, and the server may cut a slow subscriber without a word. The only in-band sign
is a fresh subscribe confirmation, so none is hidden: each says "anything may have been missed until now".
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final

from redis.asyncio.connection import AbstractConnection

from timers.errors import Unavailable
from timers.store.connect import Connections
from timers.store.scripts import reachable

SILENCE_SECONDS: Final = 5.0
"""Silence after which the connection is asked for a sign of life; a second silence ends it. Half-open connections are
found within twice this time."""

Take = Callable[[bytes, bytes | None], None]
"""Called with (channel, data); data is None for the confirmation of the channel's subscription. Must not block."""


async def subscribe(connections: Connections, channels: Sequence[bytes], take: Take) -> None:
    """Subscribe and pass on until the connection breaks; then raise Unavailable. Never returns otherwise.

    A fresh connection each time: there is nothing to be subscribed twice.
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
            await _watched(connection, pump(), heard)
    finally:
        await connection.disconnect()


async def _watched(connection: AbstractConnection, pumping: Coroutine[Any, Any, None], heard: asyncio.Event) -> None:
    """Pump, and look now and then whether anything came: a time-out on each read would cost more than the read."""
    pump = asyncio.create_task(pumping)
    is_asked = False
    try:
        while True:
            heard.clear()
            done, _ = await asyncio.wait({pump}, timeout=SILENCE_SECONDS)
            if done:
                return await pump
            if is_asked and not heard.is_set():
                raise Unavailable("the subscriber's connection gave no sign of life")
            is_asked = not heard.is_set()
            if is_asked:
                await connection.send_command("PING")
    finally:
        pump.cancel()
        await asyncio.gather(pump, return_exceptions=True)
