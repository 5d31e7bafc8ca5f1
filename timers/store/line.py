"""Owns a connection that is not shared, so that nothing is spent on lending it from a pool: one caller who arms timers
one after the other needs 170 µs of CPU for each instead of 205."""

import asyncio
from typing import Any

from redis.asyncio.connection import AbstractConnection
from redis.exceptions import ResponseError


class Line:
    """One connection for one caller at a time. It opens with the first command, and anew when it broke."""

    def __init__(self, connection: AbstractConnection, *, answer_s: float) -> None:
        """Over a connection without time-outs of its own; an answer may take that long."""
        self._connection, self._answer_s = connection, answer_s

    async def evalsha(self, *arguments: str | int | bytes) -> Any:
        """As redis-py's."""
        return await self._execute("EVALSHA", *arguments)

    async def eval(self, *arguments: str | int | bytes) -> Any:
        """As redis-py's."""
        return await self._execute("EVAL", *arguments)

    async def _execute(self, *command: str | int | bytes) -> Any:
        """A command's answer. Whatever comes between the two closes the connection: what the server still says would
        answer the next command. An error that *is* the answer does not."""
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
