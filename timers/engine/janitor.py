"""Owns retention: removes finished records after their retention, in small batches. Only the pod with rank 0 for a
shard does it."""

import asyncio
from typing import Final

from timers.core.model import Status
from timers.engine.observer import UNDECLARED
from timers.engine.peers import Peers
from timers.engine.pod import Pod
from timers.logs import get_logger
from timers.store.retention import prune

EVERY_SECONDS: Final = 60.0
SHORT_EVERY_SECONDS: Final = 5.0
"""The interval when records are kept for less than EVERY_SECONDS; and the shortest pause between two shards, so that a
hundred cost no more than twelve."""

BATCH: Final = 500
FRUITLESS: Final = 20
"""Calls that remove nothing before a shard's turn ends. The next turn goes on there, so that many prefixes do not keep
the server busy."""

_log = get_logger("timers.janitor")


class Janitor:
    """Prunes the shards for which this pod has rank 0."""

    name = "janitor"

    def __init__(
        self,
        pod: Pod,
        peers: Peers,
        *,
        retention_ms: int,
        retention_failed_ms: int | None = None,
        every_seconds: float = EVERY_SECONDS,
        short_every_seconds: float = SHORT_EVERY_SECONDS,
    ) -> None:
        self._pod, self._peers = pod, peers
        self._retention_ms, self._retention_failed_ms = retention_ms, retention_failed_ms
        shortest_ms = min(retention_ms, retention_ms if retention_failed_ms is None else retention_failed_ms)
        self._every_seconds = short_every_seconds if shortest_ms < every_seconds * 1000 else every_seconds
        self._pause_seconds = short_every_seconds
        self._cursors: dict[int, str] = {}

    async def run(self) -> None:
        """Prune one shard after the other, with a rest after each."""
        turn = 0
        while True:
            led = list(self._peers.led(self._pod.shards))
            if led:
                await self.clean(led[turn % len(led)])
                turn += 1
            await asyncio.sleep(max(self._every_seconds / max(len(led), 1), self._pause_seconds))

    async def clean(self, shard: int) -> None:
        """Prune batch after batch from where the last turn ended; other callers get their turn in between."""
        fruitless = 0
        while fruitless < FRUITLESS:
            pruned = await prune(
                self._pod.store,
                shard,
                retention_ms=self._retention_ms,
                retention_failed_ms=self._retention_failed_ms,
                most=BATCH,
                cursor=self._cursors.get(shard, "0"),
            )
            self._cursors[shard] = pruned.cursor
            for removed in pruned.failed:
                report_removed(self._pod, *removed)
            if pruned.is_last:
                return
            fruitless += pruned.number == 0


def report_removed(pod: Pod, prefix: str, status: Status, number: int, oldest: str) -> None:
    """Log and count failed or unhandled timers that their retention has removed: nobody had acted on them."""
    owner = None if pod.owner is None else pod.owner(prefix)
    pod.observer.removed(owner or UNDECLARED, status.value, number)
    _log.warning(
        "timers removed that had failed or were unhandled: TIMERS_RETENTION_FAILED",
        prefix=prefix,
        status=status.value,
        count=number,
        oldest=oldest,
    )
