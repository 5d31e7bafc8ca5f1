"""Owns timers that nobody serves. If a prefix has no live processor, its overdue timers and the runs of its dead pods
become `unhandled`, visibly."""

import asyncio
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Final

from timers.engine.peers import Peers
from timers.engine.pod import Pod
from timers.logs import get_logger

EVERY_SECONDS: Final = 5.0
UNHANDLED_AFTER_MS: Final = 60_000
"""How long a prefix must have been without a live pod, and its timers overdue or their leases expired, before its
timers become `unhandled`. A rolling deploy takes less."""

BATCH: Final = 500

_log = get_logger("timers.unserved")


class Unserved:
    """Watches the queues of the shards for which this pod has rank 0, while its sweep leaves some of their timers."""

    name = "unserved"

    def __init__(
        self,
        pod: Pod,
        peers: Peers,
        leaves_some: Callable[[int], bool],
        *,
        unhandled_after_ms: int = UNHANDLED_AFTER_MS,
    ) -> None:
        """`leaves_some` tells of a shard whether it may have due timers or lost runs that nobody takes."""
        self._pod, self._peers, self._leaves_some = pod, peers, leaves_some
        self._unhandled_after_ms = unhandled_after_ms
        self._unserved_since: dict[tuple[int, str], float] = {}

    async def run(self) -> None:
        """Look at intervals."""
        while True:
            for shard in self._peers.led(self._pod.shards):
                if self._leaves_some(shard) or any(queue[0] == shard for queue in self._unserved_since):
                    await self.look(shard)
            await asyncio.sleep(min(EVERY_SECONDS, self._unhandled_after_ms / 2000))

    async def look(self, shard: int) -> None:
        """Look once. If a queue is served again, or has nothing overdue or orphaned, its wait starts again."""
        (due, now_ms), lost = await self._due(shard), await self._lost(shard)
        unserved = {prefix for prefix in (*due, *lost) if not self._served(shard, prefix)}
        for queue in [q for q in self._unserved_since if q[0] == shard and q[1] not in unserved]:
            del self._unserved_since[queue]
        for prefix in unserved:
            since_ms = self._unserved_since.setdefault((shard, prefix), now_ms)
            if now_ms - since_ms >= self._unhandled_after_ms:
                await self._abandon(shard, prefix, lost.get(prefix, ()), now_ms - self._unhandled_after_ms)

    async def _due(self, shard: int) -> tuple[Set[str], int]:
        """The queues with due timers, and the server's time."""
        touched = await self._pod.store.touch(shard)
        found = set(touched.due)
        while touched.next_rank:
            touched = await self._pod.store.touch(shard, touched.next_rank)
            found.update(touched.due)
        return found, touched.now_ms

    async def _lost(self, shard: int) -> Mapping[str, Sequence[str]]:
        """The runs whose lease has expired, by prefix; for each prefix those that have waited longest."""
        found: dict[str, list[str]] = {}
        orphans, rank = await self._pod.store.orphans(shard)
        while True:
            for prefix, timer_id in orphans:
                found.setdefault(prefix, []).append(timer_id)
            if not rank:
                return {prefix: ids[:BATCH] for prefix, ids in found.items()}
            orphans, rank = await self._pod.store.orphans(shard, rank)

    def _served(self, shard: int, prefix: str) -> bool:
        return self._pod.serves(shard, prefix) or self._peers.serve(shard, prefix)

    async def _abandon(self, shard: int, prefix: str, runs: Sequence[str], before_ms: int) -> None:
        ids = await self._pod.store.abandon(shard, prefix, runs, before_ms=before_ms, most=BATCH, pod=self._pod.name)
        if ids:
            _log.error("timers unhandled: no live pod serves the prefix", prefix=prefix, count=len(ids), first=ids[0])
