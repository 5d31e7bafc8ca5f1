"""Owns adoption: finds bare keys by scanning, copies them into durable records, and notices those that were deleted.

Redis does not say that a key was deleted (`Ex` has no such event). A key that is missing before its due time was
deleted. One that is missing after it either expired, and then every subscriber heard so, or was deleted in the last
moment, and then nobody did. So whoever was listening all along, and has since heard something newer, may say
"deleted"; where nobody was, the timer fires: better once too often than lost.
"""

import asyncio
import time
from collections.abc import Sequence
from typing import Final

from timers.engine.canary import Canary
from timers.engine.intake import LATER_SECONDS
from timers.engine.peers import Peers
from timers.engine.pod import Pod
from timers.errors import NotPermitted
from timers.logs import get_logger
from timers.store.bare import BareKeys, Gone
from timers.store.store import Identity

LOOK_BATCH: Final = 500
ANNOUNCED_SECONDS: Final = 2 * LATER_SECONDS
"""How long after it was heard an expiry may still be on its way from the pod that announces it."""

DUTY: Final = 4
"""A scan rests this many times as long as it works, so that it never takes more than a fifth of a core."""

_log = get_logger("timers.adopter")


class Adopter:
    """Adopts for the shards of which this pod has rank 0; the pod with rank 0 of the first shard scans."""

    name = "adopter"

    def __init__(self, pod: Pod, bare: BareKeys, peers: Peers, canary: Canary, *, every_ms: int) -> None:
        self._pod, self._bare, self._peers, self._canary = pod, bare, peers, canary
        self._every_seconds = every_ms / 1000
        self._overdue = asyncio.Event()
        self._warned = False
        self._doubtful: dict[Gone, float] = {}

    def overdue(self) -> None:
        """Keys of adopted timers went without an event: do not wait for the next round to look."""
        self._overdue.set()

    async def run(self) -> None:
        """Scan and review now and then; review at once when something is overdue, however long a scan takes."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._scan_ever_again())
            group.create_task(self._review_ever_again())

    async def _scan_ever_again(self) -> None:
        while True:
            await self._scan()
            await asyncio.sleep(self._every_seconds)

    async def _review_ever_again(self) -> None:
        while True:
            for shard in self._pod.shards:
                if self._peers.rank(shard) == 0:
                    await self._review(shard)
            await self._pause()

    async def _pause(self) -> None:
        """Until the next round. In doubt, until the canary has sung again; a new overdue key ends the rest early."""
        self._overdue.clear()
        try:
            async with asyncio.timeout(self._every_seconds):
                await (self._canary.next_song() if self._doubtful else self._overdue.wait())
        except TimeoutError:
            return

    async def _scan(self) -> None:
        if self._peers.rank(0) != 0:
            return
        try:
            await self._scan_all()
        except NotPermitted as error:
            if not self._warned:
                _log.warning("bare keys are not adopted and fire by their event alone", reason=str(error))
            self._warned = True

    async def _scan_all(self) -> None:
        cursor = -1
        while cursor != 0:
            began = time.monotonic()
            cursor, found = await self._bare.scan(max(cursor, 0))
            await self._adopt([i for i in found if self._served(i)])
            await asyncio.sleep((time.monotonic() - began) * DUTY)

    def _served(self, identity: Identity) -> bool:
        shard, prefix = self._bare.shard_of(identity), identity[0]
        return self._pod.serves(shard, prefix) or self._peers.serve(shard, prefix)

    async def _adopt(self, identities: Sequence[Identity]) -> None:
        values = await self._bare.values(identities)
        for shard in {self._bare.shard_of(identity) for identity in values}:
            some = {i: value for i, value in values.items() if self._bare.shard_of(i) == shard}
            codes = await self._bare.adopt(shard, some)
            for (prefix, timer_id), code in zip(some, codes, strict=True):
                if code in ("adopted", "moved"):
                    _log.info("bare key adopted", timer=f"{prefix}:{timer_id}", how=code)

    async def _review(self, shard: int) -> None:
        """Look at all adopted timers, in order of due time."""
        start, looked, seen = 0, LOOK_BATCH, set[Gone]()
        while looked == LOOK_BATCH:
            began = time.monotonic()
            gone, looked = await self._bare.look(shard, start, LOOK_BATCH)
            start += LOOK_BATCH
            seen.update(gone)
            await self._judge(shard, gone, began)
        for timer in [t for t in self._doubtful if self._bare.shard_of((t.prefix, t.id)) == shard and t not in seen]:
            del self._doubtful[timer]

    async def _judge(self, shard: int, gone: Sequence[Gone], seen_at: float) -> None:
        """Expired unheard, where the due time has passed and this pod has not listened all along since before it;
        deleted, where it has heard the canary well after it first saw the key missing; else wait."""
        unheard = [timer for timer in gone if self._may_be_unheard(timer)]
        await self._bare.conclude(shard, unheard, deleted=False)
        doubtful = [timer for timer in gone if timer not in unheard]
        first_seen = [self._doubtful.setdefault(timer, seen_at) for timer in doubtful]
        heard_until = self._canary.last_heard_at - ANNOUNCED_SECONDS
        deleted = [timer for timer, at in zip(doubtful, first_seen, strict=True) if at < heard_until]
        await self._bare.conclude(shard, deleted, deleted=True)
        for timer in (*unheard, *deleted):
            self._doubtful.pop(timer, None)

    def _may_be_unheard(self, timer: Gone) -> bool:
        has_passed = timer.due_ms <= self._pod.store.clock.now_ms()
        return has_passed and (self._canary.listening_since_ms >= timer.due_ms or self._canary.is_deaf())
