"""Owns retention: removes finished records whose time is over, in small batches, from the pod first in line."""

import asyncio
from typing import Final

from timers.engine.peers import Peers
from timers.engine.pod import Pod

EVERY_SECONDS: Final = 10.0
SHORT_EVERY_SECONDS: Final = 1.0
"""Where records stay for less than the above."""

BATCH: Final = 500


class Janitor:
    """Sweeps out the shards of which this pod has rank 0."""

    name = "janitor"

    def __init__(self, pod: Pod, peers: Peers, *, retention_ms: int) -> None:
        self._pod, self._peers, self._retention_ms = pod, peers, retention_ms

    async def run(self) -> None:
        """Now, and then every so often."""
        is_short = self._retention_ms < EVERY_SECONDS * 1000
        while True:
            for shard in self._pod.shards:
                if self._peers.rank(shard) == 0:
                    await self._clean(shard)
            await asyncio.sleep(SHORT_EVERY_SECONDS if is_short else EVERY_SECONDS)

    async def _clean(self, shard: int) -> None:
        """Batch after batch; other callers get their turn between two."""
        removed = BATCH
        while removed == BATCH:
            removed = await self._pod.store.prune(shard, retention_ms=self._retention_ms, most=BATCH)
