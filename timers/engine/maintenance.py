"""Owns the upkeep of the shards that a pod leads: removes finished records after their retention, makes timers that
nobody serves `unhandled`, and repairs indexes and counts. Each call is small, so that no timer is late for it."""

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence, Set
from typing import Final

from timers.engine.peers import Peers
from timers.engine.pod import Pod
from timers.engine.supervisor import unhurried
from timers.logs import get_logger
from timers.store import keys
from timers.store.starts import add_starts
from timers.store.upkeep import audit, prune

PRUNE_SECONDS: Final = 60.0
SHORT_PRUNE_SECONDS: Final = 5.0
"""The interval when records are kept for less than PRUNE_SECONDS; and the shortest pause between two shards, so that a
hundred cost no more than twelve."""

FRUITLESS: Final = 20
"""Calls that remove nothing before a shard's turn ends. The next turn goes on there, so that many prefixes do not keep
the server busy."""

UNSERVED_SECONDS: Final = 5.0
"""The longest pause between two searches for timers that nobody serves."""

LAPSE_SECONDS: Final = 30.0
"""A longer pause between two searches (the pod was frozen, or another led the shard) says nothing of who served."""

BATCH: Final = 500

REST_PER_WORK: Final = 300
"""After each step the audit rests 300 times as long as the step took, so that it uses a third of a percent of a
core."""

REPORT_SECONDS: Final = 5.0
"""One call reports all starts of this time. What a pod starts after its last call is not counted."""

_unserved_log = get_logger("timers.unserved")
_auditors_log = get_logger("timers.auditor")


class Maintenance:
    """The upkeep of one pod. Only the pod with rank 0 for a shard does it. Each kind of upkeep is a service of
    its own, so that none that fails or takes long holds up another."""

    def __init__(self, pod: Pod, peers: Peers, leaves_work: Callable[[int], bool]) -> None:
        """`leaves_work` says whether a shard may have due timers or lost runs that nobody takes."""
        self._pod, self._peers, self._leaves_work = pod, peers, leaves_work
        self._options = pod.options
        self._cursors: dict[int, str] = {}
        self._searched_at: dict[int, float] = {}
        self._unserved_since: dict[int, dict[str, float]] = {}
        self._reported = defaultdict[str, Counter[int]](Counter)

    async def _led(self, rest: Callable[[int], float]) -> AsyncIterator[int]:
        """The led shards in turn, for ever, with a rest after each, whose length may follow from their number."""
        turn = 0
        while True:
            if led := list(self._peers.led(self._pod.shards)):
                yield led[turn % len(led)]
                turn += 1
            await asyncio.sleep(rest(len(led)))

    async def prune_all(self) -> None:
        kept_ms = (self._options.retention_ms, self._options.retention_failed_ms)
        is_short = any(ms is not None and ms < PRUNE_SECONDS * 1000 for ms in kept_ms)
        seconds = SHORT_PRUNE_SECONDS if is_short else PRUNE_SECONDS
        async for shard in self._led(lambda led: max(seconds / max(led, 1), SHORT_PRUNE_SECONDS)):
            await self.clean(shard)

    async def clean(self, shard: int) -> None:
        """Prune batch after batch from where the last turn ended; other callers get their turn in between."""
        fruitless = 0
        while fruitless < FRUITLESS:
            pruned = await prune(
                self._pod.store,
                shard,
                retention_ms=self._options.retention_ms,
                retention_failed_ms=self._options.retention_failed_ms,
                most=BATCH,
                cursor=self._cursors.get(shard, "0"),
            )
            self._cursors[shard] = pruned.cursor
            for removed in pruned.failed:
                self._pod.report_removed(*removed)
            if pruned.is_last:
                return
            fruitless += pruned.number == 0

    async def abandon_all(self) -> None:
        for shard in self._peers.led(self._pod.shards):
            if self._leaves_work(shard) or self._unserved_since.get(shard):
                await self.abandon_unserved(shard)

    async def abandon_unserved(self, shard: int) -> None:
        """Make overdue timers and lost runs of queues that no live pod serves `unhandled`, in time. If a queue is
        served again, or has nothing overdue or orphaned, its wait starts again. It counts by this pod's clock: the
        server's may jump during a deploy."""
        after_ms = self._options.unhandled_after_ms
        (due, now_ms), lost = await self._due(shard), await self._lost(shard)
        pod, peers = self._pod, self._peers
        unserved = {p for p in (*due, *lost) if not (pod.serves(shard, p) or peers.serve(shard, p))}
        now, since = time.monotonic(), self._unserved_since.get(shard, {})
        if now - self._searched_at.get(shard, now) > LAPSE_SECONDS:
            since = {}
        self._searched_at[shard] = now
        self._unserved_since[shard] = since = {prefix: since.get(prefix, now) for prefix in unserved}
        for prefix in [prefix for prefix in unserved if (now - since[prefix]) * 1000 >= after_ms]:
            ids = await self._pod.store.abandon(
                shard, prefix, lost.get(prefix, ()), before_ms=now_ms - after_ms, most=BATCH, pod=self._pod.name
            )
            if ids:
                _unserved_log.error(
                    "timers unhandled: no live pod serves the prefix", prefix=prefix, count=len(ids), first=ids[0]
                )

    async def _due(self, shard: int) -> tuple[Set[str], int]:
        """The queues with due timers, and the server's time."""
        found, rank = set[str](), 0
        while True:
            touched = await self._pod.store.touch(shard, rank)
            found.update(touched.due)
            if not (rank := touched.next_rank):
                return found, touched.now_ms

    async def _lost(self, shard: int) -> Mapping[str, Sequence[str]]:
        """The runs whose lease has expired, by prefix; for each prefix those that have waited longest."""
        found, rank = defaultdict[str, list[str]](list), 0
        while True:
            orphans, rank = await self._pod.store.orphans(shard, rank)
            for prefix, timer_id in orphans:
                found[prefix].append(timer_id)
            if not rank:
                return {prefix: ids[:BATCH] for prefix, ids in found.items()}

    async def audit_all(self) -> None:
        await asyncio.sleep(self._options.audit_every_seconds)
        async for shard in self._led(lambda _: self._options.audit_every_seconds):
            async for found in unhurried(audit(self._pod.store, shard), lambda: REST_PER_WORK):
                if found:
                    _auditors_log.error(
                        "indexes or counts disagreed with the records and were repaired", shard=shard, **found
                    )

    async def report_starts(self) -> None:
        """Add this pod's starts and failed attempts since the last time to those of the fleet, if there were any.
        Raises Unavailable and then loses nothing: while Redis is down it keeps counting."""
        observer = self._pod.observer
        for root, numbers in ((keys.FIRED_ROOT, observer.starts), (keys.FAILED_ROOT, observer.failures)):
            counted = Counter(numbers)
            if counts := counted - self._reported[root]:
                await add_starts(self._pod.store, counts, root)
                self._reported[root] = counted
