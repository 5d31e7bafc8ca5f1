"""Owns adoption: finds bare keys by scanning, copies them into durable records, and looks at each key once more before
its timer may run.

Redis does not say that a key was deleted (`Ex` has no such event). So shortly before its deadline the key is looked at:
there, its timer is from then on one like any other, and the key goes; gone, it was deleted. Gone after its deadline, it
expired, or was deleted while nobody looked: its timer fires, better once too often than never.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Collection, Mapping
from itertools import islice
from typing import Final

from timers.bare.keys import GONE, NO_TTL, BareKeys, Found, Fresh
from timers.errors import NotPermitted
from timers.logs import get_logger
from timers.store.store import Identity

LOOK_BATCH: Final = 500

LEAD_MS: Final = 200
"""How long before its deadline a key is looked at: time for a look that finds it gone, another, and a slow server."""

DOUBT_SECONDS: Final = 0.1
"""How long a key is missing before it counts as deleted: one that was SET again and has expired since has an event,
which is under way for no longer."""

LONGEST_SECONDS: Final = 1.0
QUIET_SECONDS: Final = 10.0
"""How often to ask for known keys at least; the second where there are none. Another pod may have adopted some."""

AGAIN_MS: Final = 20
"""When to look again at keys of which nothing could be said yet."""

MISSING_LIMIT: Final = 10_000
"""Missing keys that are remembered; the others are missed again in the next round."""

BUSY_RESTS, IDLE_RESTS = 4, 128
"""A scan rests so many times as long as it works. With bare keys in use it takes a fifth of a core; with none, each
takes half as much as the one before, in the end less than a hundredth."""

LONGEST_STEP_SECONDS: Final = 0.05
"""A step that took longer stood still; it is not rested for."""

_log = get_logger("timers.adopter")


class Adopter:
    """Adopts bare keys and looks after them, for all shards, on the one pod for which `leads` is true."""

    name = "adopter"

    def __init__(
        self,
        keys: BareKeys,
        *,
        leads: Callable[[], bool],
        declared: Callable[[str], bool],
        every_ms: int | None,
        lead_ms: int = LEAD_MS,
        told: Callable[[str], None] = lambda _what: None,
    ) -> None:
        """`declared` tells whether a processor was ever declared for a prefix; its pods may be away. With `every_ms`
        None nothing new is adopted. `told` hears that a key was adopted, and what became of one."""
        self._keys, self._leads, self._declared = keys, leads, declared
        self._every_ms, self._lead_ms, self._told = every_ms, lead_ms, told
        self._missing: dict[tuple[Identity, int], float] = {}
        self._rests = BUSY_RESTS
        self._noticed = asyncio.Event()
        self._nearer = asyncio.Event()
        self._warned = False

    def noticed(self) -> None:
        """Bare keys are in use: scan for them as often as that is worth."""
        self._rests = BUSY_RESTS
        self._noticed.set()

    async def run(self) -> None:
        """Look at each key before its deadline; scan, and look at all, now and then."""
        parts = [asyncio.ensure_future(self._watch())]
        if self._every_ms is not None:
            parts.append(asyncio.ensure_future(self._round_after_round(self._every_ms / 1000)))
        try:
            await asyncio.gather(*parts)
        finally:
            for part in parts:
                part.cancel()
            await asyncio.gather(*parts, return_exceptions=True)

    async def expired(self, identities: Collection[Identity]) -> list[Identity]:
        """Look at keys of which an expiry was heard. Answers those that are not there."""
        known = await self._keys.known(identities)
        gone = await self._look({i: ms for i, ms in known.items() if ms is not None}, heard=True)
        return [i for i in identities if i in gone or known[i] is None]

    async def _watch(self) -> None:
        while True:
            if self._leads():
                next_ms = await self._look_at_due()
                longest = QUIET_SECONDS if next_ms is None else LONGEST_SECONDS
            else:
                self._missing.clear()
                next_ms, longest = None, LONGEST_SECONDS
            await self._until(next_ms, longest)

    async def _look_at_due(self) -> int | None:
        """Answers when to look again; None where no key is known."""
        self._nearer.clear()
        clock = self._keys.store.clock
        due, next_ms = await self._keys.first_known(int(clock.now_ms()) + self._lead_ms, LOOK_BATCH)
        await self._look({**dict(islice(self._missing, LOOK_BATCH)), **due})
        if due or self._missing:
            return int(clock.now_ms()) + (AGAIN_MS if len(due) < LOOK_BATCH else 0)
        return None if next_ms is None else next_ms - self._lead_ms

    async def _until(self, next_ms: int | None, longest: float) -> None:
        """Until the next look; a key that was adopted meanwhile may be due before."""
        seconds = longest if next_ms is None else min(self._keys.store.clock.seconds_until(next_ms), longest)
        await _wait(self._nearer, seconds)

    async def _round_after_round(self, every_seconds: float) -> None:
        while True:
            began = time.monotonic()
            if self._leads():
                await self._round()
            await asyncio.sleep(max(every_seconds - (time.monotonic() - began), 0))

    async def _round(self) -> None:
        """Look at all known keys, then at all others."""
        self._noticed.clear()
        for shard in range(self._keys.store.shards):
            await self._review(shard)
        try:
            await self._scan()
        except NotPermitted as error:
            if not self._warned:
                _log.warning("bare keys are not adopted and fire by their event alone", reason=str(error))
            self._warned = True
        if not self._noticed.is_set():
            self._rests = min(self._rests * 2, IDLE_RESTS)

    async def _review(self, shard: int) -> None:
        start, looked = 0, LOOK_BATCH
        while looked == LOOK_BATCH:
            began = time.monotonic()
            known = await self._keys.page_of_known(shard, start, LOOK_BATCH)
            await self._look(known)
            start, looked = start + LOOK_BATCH, len(known)
            if known:
                self.noticed()
                await self._rest(began)

    async def _scan(self) -> None:
        cursor = -1
        while cursor != 0:
            began = time.monotonic()
            cursor, found = await self._keys.scan(max(cursor, 0))
            ours = [identity for identity in found if self._declared(identity[0])]
            if ours:
                known = await self._keys.known(ours)
                await self._look({i: ms for i, ms in known.items() if ms is None})
            await self._rest(began)

    async def _rest(self, began: float) -> None:
        """Where bare keys are noticed meanwhile, that is rest enough."""
        worked = min(time.monotonic() - began, LONGEST_STEP_SECONDS)
        if self._rests == BUSY_RESTS:
            await asyncio.sleep(worked * BUSY_RESTS)
        else:
            await _wait(self._noticed, worked * self._rests)

    async def _look(self, known: Mapping[Identity, int | None], *, heard: bool = False) -> set[Identity]:
        """Look at keys, given with their deadlines as the shards know them, and write what was found. Answers those
        that are not there."""
        if not known:
            return set()
        deadlines, now_ms = await self._keys.deadlines(known)
        worth = [i for i, ms in deadlines.items() if ms >= 0 and (ms != known[i] or ms - now_ms <= self._lead_ms)]
        values = await self._keys.values(worth) if worth else {}
        found: dict[Identity, Found] = {}
        for identity, known_ms in known.items():
            if known_ms is not None:
                what = self._what(identity, known_ms, deadlines[identity], now_ms, heard=heard)
                if what is None and deadlines[identity] >= 0 and identity not in values:
                    what = "deleted"  # something else is in its place
                if what is not None:
                    found[identity] = Found(known_ms, what, values.get(identity))
        await self._resolve(found)
        await self._adopt({i: Fresh(known[i], deadlines[i], v) for i, v in values.items() if deadlines[i] != known[i]})
        return {i for i, ms in deadlines.items() if ms == GONE}

    def _what(self, identity: Identity, known_ms: int, deadline_ms: int, now_ms: int, *, heard: bool) -> str | None:
        """What became of a known key; None where that is to be seen, or where another is in its place."""
        first_missed = self._missing.pop((identity, known_ms), None)
        if deadline_ms == known_ms:
            return "there"
        if deadline_ms != GONE:
            return "lost-ttl" if deadline_ms == NO_TTL else None
        if heard or now_ms >= known_ms:
            return "expired"
        now = time.monotonic()
        if first_missed is not None and now - first_missed >= DOUBT_SECONDS:
            return "deleted"
        if len(self._missing) < MISSING_LIMIT:
            self._missing[identity, known_ms] = now if first_missed is None else first_missed
        return None

    async def _resolve(self, found: Mapping[Identity, Found]) -> None:
        """Write what became of known keys; delete those that are there for nothing."""
        spare: dict[Identity, int] = {}
        for shard, some in self._keys.by_shard(found).items():
            codes = await self._keys.resolve(shard, some, lead_ms=self._lead_ms)
            for (identity, key), code in zip(some.items(), codes, strict=True):
                if code in ("due", "cancelled"):
                    self._told(key.what)
                if key.what == "there" and code in ("due", "spare"):
                    spare[identity] = key.known_ms
        if spare:
            taken = await self._keys.take(spare)
            await self._resolve({identity: Found(spare[identity], "deleted") for identity in taken})

    async def _adopt(self, fresh: Mapping[Identity, Fresh]) -> None:
        for shard, some in self._keys.by_shard(fresh).items():
            for identity, code in zip(some, await self._keys.adopt(shard, some), strict=True):
                if code in ("adopted", "moved"):
                    self._told("adopted")
                    _log.info("bare key adopted", timer=":".join(identity), how=code)
        if fresh:
            self.noticed()
            self._nearer.set()


async def _wait(event: asyncio.Event, seconds: float) -> None:
    """Until the event, at most so long."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
