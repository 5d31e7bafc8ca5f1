"""Owns ends: writes transitions in batches until the server has taken or refused each."""

import asyncio
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Final

from timers.core.model import Status
from timers.engine.janitor import report_removed
from timers.engine.pod import Pod
from timers.engine.runs import Run, Runs
from timers.errors import Unavailable
from timers.logs import get_logger
from timers.store.store import Settlement

SETTLE_BATCH: Final = 500
"""Ends that one script writes: a few milliseconds of the server's time."""

_log = get_logger("timers.settler")


class Settler:
    """The queue of ends. While Redis is down it waits. Leases may expire meanwhile; then the token decides."""

    name = "settler"

    def __init__(
        self,
        pod: Pod,
        runs: Runs,
        *,
        retention_ms: int,
        keeps_failed: bool = True,
        written: Callable[[Sequence[Run]], None],
    ) -> None:
        self._pod, self._runs, self._written = pod, runs, written
        self._retention_ms, self._keeps_failed = retention_ms, keeps_failed
        self._queues = defaultdict[int, deque[tuple[Run, Settlement]]](deque)
        self._something = asyncio.Event()
        self._empty = asyncio.Event()
        self._empty.set()
        self.waiting = 0

    def put(self, run: Run, settlement: Settlement) -> None:
        """Queue one end. The run keeps its lease until the end is written."""
        self._queues[run.shard].append((run, settlement))
        if not self.waiting:
            self._something.set()
            self._empty.clear()
        self.waiting += 1

    async def emptied(self) -> None:
        """Wait until every end is written or refused."""
        await self._empty.wait()

    async def run(self) -> None:
        """Write ends as they come. A batch leaves the queue only after its answer, so a restart repeats it, and the
        script answers `already` for what it has."""
        while True:
            await self._something.wait()
            for shard, queue in list(self._queues.items()):
                if queue:
                    await self._write(shard, queue)
            if self.waiting == 0:
                self._something.clear()
                self._empty.set()

    async def _write(self, shard: int, queue: deque[tuple[Run, Settlement]]) -> None:
        batch = list(islice(queue, SETTLE_BATCH))
        runs = [run for run, _ in batch]
        codes = await self._settle(shard, [settlement for _, settlement in batch])
        await self._release([run for run in runs if run.permit])
        for _ in batch:
            queue.popleft()
        self.waiting -= len(batch)
        self._runs.drop(runs)
        for (run, settlement), code in zip(batch, codes, strict=True):
            if code in ("fenced", "missing"):
                self._pod.observer.refused(run.processor.prefix)
                _log.warning(
                    "late result refused",
                    **run.named,
                    token=run.timer.token,
                    answer=code,
                    result=settlement.transition.status.value,
                )
        self._report_removed(batch, codes)
        self._written(runs)

    def _report_removed(self, batch: Sequence[tuple[Run, Settlement]], codes: Sequence[str]) -> None:
        """Report the failed timers of a batch, by prefix, unless they are kept."""
        removed = defaultdict[str, list[str]](list)
        for (run, settlement), code in zip(batch, codes, strict=True) if not self._keeps_failed else ():
            if code == "settled" and settlement.transition.status is Status.FAILED:
                removed[run.timer.prefix].append(run.timer.id)
        for prefix, ids in removed.items():
            report_removed(self._pod, prefix, Status.FAILED, len(ids), ids[0])

    async def _release(self, runs: Sequence[Run]) -> None:
        """Give back the permits of a batch. If that fails, the batch is written again, which changes nothing."""
        if runs:
            await self._pod.permits.release([run.permit for run in runs if run.permit])
        for run in runs:
            run.permit = None

    async def _settle(self, shard: int, settlements: Sequence[Settlement]) -> list[str]:
        """Write a batch. If that fails, write each end alone, so that one bad end does not hold up the others. The run
        of a bad end is given up: its lease expires and it is rescued."""
        try:
            return await self._pod.store.settle(
                shard,
                settlements,
                pod=self._pod.name,
                retention_ms=self._retention_ms,
                keeps_failed=self._keeps_failed,
            )
        except (Unavailable, asyncio.CancelledError):
            raise
        except BaseException as error:  # noqa: BLE001 (whatever it is, it must not stop all ends of the pod)
            if len(settlements) > 1:
                return [code for one in settlements for code in await self._settle(shard, [one])]
            _log.error("result of a run cannot be written", timer=settlements[0].timer.key, exc_info=error)
            return ["unwritable"]
