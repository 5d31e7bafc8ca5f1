"""Owns retention: removes finished records after their retention, in small batches. Only the pod with rank 0 for a
shard does it."""

import asyncio
from typing import Final

from timers.engine.peers import Peers
from timers.engine.pod import Pod

EVERY_SECONDS: Final = 10.0
SHORT_EVERY_SECONDS: Final = 1.0
"""The interval when records are kept for less than EVERY_SECONDS."""

BATCH: Final = 500


class Janitor:
    """Prunes the shards for which this pod has rank 0."""

    name = "janitor"

    def __init__(
        self,
        pod: Pod,
        peers: Peers,
        *,
        retention_ms: int,
        every_seconds: float = EVERY_SECONDS,
        short_every_seconds: float = SHORT_EVERY_SECONDS,
    ) -> None:
        self._pod, self._peers, self._retention_ms = pod, peers, retention_ms
        self._every_seconds = short_every_seconds if retention_ms < every_seconds * 1000 else every_seconds

    async def run(self) -> None:
        """Prune now and then at intervals."""
        while True:
            for shard in self._peers.led(self._pod.shards):
                await self._clean(shard)
            await asyncio.sleep(self._every_seconds)

    async def _clean(self, shard: int) -> None:
        """Prune batch after batch; other callers get their turn in between."""
        removed = BATCH
        while removed == BATCH:
            removed = await self._pod.store.prune(shard, retention_ms=self._retention_ms, most=BATCH)
