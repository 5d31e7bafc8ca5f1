"""Owns the slow audit: mends a shard's indexes and counts in small steps. Only the pod with rank 0 for a shard audits
it."""

import asyncio
import time
from typing import Final

from timers.engine.peers import Peers
from timers.engine.pod import Pod
from timers.logs import get_logger
from timers.store.audit import audit

EVERY_SECONDS: Final = 600.0
"""Between the audits of two shards: even an empty shard has 256 buckets to look at."""

SHORTEST_PAUSE_SECONDS: Final = 0.02
LONGEST_PAUSE_SECONDS: Final = 2.0
REST_PER_WORK: Final = 300
"""After each step the audit pauses 300 times as long as the step took, so that it uses a third of a percent of a core.
The longest pause bounds that: a step also seems long when the pod itself stalls, and the audit must still end."""

_log = get_logger("timers.auditor")


class Auditor:
    """Audits the shards for which this pod has rank 0, over and over."""

    name = "auditor"

    def __init__(self, pod: Pod, peers: Peers, *, every_seconds: float = EVERY_SECONDS) -> None:
        self._pod, self._peers, self._every_seconds = pod, peers, every_seconds

    async def run(self) -> None:
        """Audit one shard after the other, with a rest before each."""
        turn = 0
        while True:
            await asyncio.sleep(self._every_seconds)
            led = list(self._peers.led(self._pod.shards))
            if led:
                await self._audit(led[turn % len(led)])
                turn += 1

    async def _audit(self, shard: int) -> None:
        began = time.monotonic()
        async for found in audit(self._pod.store, shard):
            if found:
                _log.error("indexes or counts disagreed with the records and were mended", shard=shard, **found)
            await asyncio.sleep(pause_after(time.monotonic() - began))
            began = time.monotonic()


def pause_after(step_seconds: float) -> float:
    """How many seconds to rest after a step."""
    return min(max(SHORTEST_PAUSE_SECONDS, step_seconds * REST_PER_WORK), LONGEST_PAUSE_SECONDS)
