"""Owns the slow audit: mends a shard's books, one small step at a time, from the pod first in line."""

import asyncio
import time
from typing import Final

from timers.engine.peers import Peers
from timers.engine.pod import Pod
from timers.logs import get_logger
from timers.store.audit import audit

EVERY_SECONDS: Final = 60.0
SHORTEST_PAUSE_SECONDS: Final = 0.02
REST_PER_WORK: Final = 300
"""A step is followed by a pause so many times as long as it took: the audit takes a third of a percent of a core."""

_log = get_logger("timers.auditor")


class Auditor:
    """Audits the shards of which this pod has rank 0, over and over."""

    name = "auditor"

    def __init__(self, pod: Pod, peers: Peers, *, every_seconds: float = EVERY_SECONDS) -> None:
        self._pod, self._peers, self._every_seconds = pod, peers, every_seconds

    async def run(self) -> None:
        """Shard after shard, then a rest."""
        while True:
            await asyncio.sleep(self._every_seconds)
            for shard in self._pod.shards:
                if self._peers.rank(shard) == 0:
                    await self._audit(shard)

    async def _audit(self, shard: int) -> None:
        began = time.monotonic()
        async for found in audit(self._pod.store, shard):
            if found:
                _log.error("the books disagreed and were mended", shard=shard, **found)
            await asyncio.sleep(max(SHORTEST_PAUSE_SECONDS, (time.monotonic() - began) * REST_PER_WORK))
            began = time.monotonic()
