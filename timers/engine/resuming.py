"""Owns letting blocked queues go on before their blocks end: nobody polls them until then."""

import asyncio
from contextlib import suppress
from typing import Final

from timers.errors import TimersError
from timers.store.store import Store

PREFIXES: Final = 100
"""Prefixes that one call lets go on in a shard: a few milliseconds of the server's time."""


class Resuming:
    """Lets the queues of prefixes go on in all shards, whichever pods have them, and wakes those pods. If Redis refuses
    that, they wait for the end of their blocks."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._prefixes: dict[str, None] = {}
        self._task: asyncio.Task[None] | None = None

    def resume(self, prefix: str) -> None:
        """Soon. What is asked for a second time before then is done once."""
        self._prefixes[prefix] = None
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._resume_all())

    async def finish(self) -> None:
        """Wait until all is done."""
        if self._task is not None:
            await asyncio.wait({self._task})

    async def _resume_all(self) -> None:
        while some := list(self._prefixes)[:PREFIXES]:
            for prefix in some:
                del self._prefixes[prefix]
            for shard in range(self._store.shards):
                with suppress(TimersError):
                    await self._store.block(shard, dict.fromkeys(some, 0))
