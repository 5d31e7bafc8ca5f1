"""Owns retention: removes finished records whose time is over, in small batches, from whichever pod is first in line."""

import asyncio
from collections.abc import Sequence
from typing import Final

from timers.engine.peers import Peers
from timers.store.store import Store

EVERY_SECONDS: Final = 10.0
BATCH: Final = 500


class Janitor:
    """Sweeps out the shards of which this pod has rank 0."""

    name = "janitor"

    def __init__(self, store: Store, peers: Peers, shards: Sequence[int], *, retention_ms: int) -> None:
        self._store, self._peers, self._shards, self._retention_ms = store, peers, shards, retention_ms

    async def run(self) -> None:
        """Now, and then every so often."""
        while True:
            for shard in self._shards:
                if self._peers.rank(shard) == 0:
                    await self._clean(shard)
            await asyncio.sleep(EVERY_SECONDS)

    async def _clean(self, shard: int) -> None:
        """Batch after batch; other callers get their turn between two."""
        while await self._store.expel(shard, retention_ms=self._retention_ms, most=BATCH) == BATCH:
            await asyncio.sleep(0)
