"""Owns adoption: finds bare keys, copies them into durable records, and looks at each once more before its timer runs.

Redis announces no deletion. So a pod looks at each key shortly before its deadline. If the key is there, its timer
becomes one like any other, and the pod deletes the key; if it is missing, somebody deleted it. A key that is missing
after its deadline expired, or was deleted while nobody looked. Its timer fires: better once too often than never.
"""

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from functools import partial
from itertools import islice
from typing import Final

from timers.bare.keys import GONE, NO_TTL, PAGE, BareKeys, Look
from timers.errors import NotPermitted
from timers.logs import get_logger
from timers.store.store import Identity
from timers.store.turns import set_within, side_by_side

LEAD_MS: Final = 200
"""How long before its deadline a key is looked at. This leaves time for two looks on a slow server."""

DOUBT_SECONDS: Final = 0.1
"""How long a key must be missing to count as deleted. If it was SET again and expired, its event arrives sooner."""

LONGEST_SECONDS: Final = 1.0
"""The longest pause between looks at known keys, since another pod may adopt some."""

AGAIN_MS: Final = 20
"""When to look again at missing keys."""

MISSING_LIMIT: Final = 10_000
"""Missing keys to remember; a later round finds the others again."""

BUSY_RESTS, IDLE_RESTS = 4, 128
"""After each step a scan rests this many times as long: it takes a fifth of a core while bare keys are in use, and less
than a hundredth after a whole scan that found none."""

LONGEST_STEP_SECONDS: Final = 0.05
"""In a longer step the pod itself stalled, so it does not rest for the excess."""

_log = get_logger("timers.bare-scanner")


class Scanner:
    """Adopts bare keys and looks after them, for all shards, on the one pod for which `leads` is true."""

    name = "bare-scanner"

    def __init__(
        self,
        keys: BareKeys,
        *,
        leads: Callable[[], bool],
        declared: Callable[[str], bool],
        every_ms: int | None,
        doubt_seconds: float = DOUBT_SECONDS,
        told: Callable[[str], None] = lambda _what: None,
    ) -> None:
        """`declared` tells whether a processor was ever declared for a prefix, even if its pods are away. If `every_ms`
        is None, nothing new is adopted. `told` is called when a key is adopted and with what becomes of it."""
        self._keys, self._leads, self._declared = keys, leads, declared
        self._every_ms, self._doubt_seconds, self._told = every_ms, doubt_seconds, told
        self._missing: dict[Identity, tuple[int, float]] = {}
        self.rests = BUSY_RESTS
        self._noticed = asyncio.Event()
        self._nearer = asyncio.Event()
        self._warned = False

    def noticed(self) -> None:
        """Bare keys are in use: scan often."""
        self.rests = BUSY_RESTS
        self._noticed.set()

    async def run(self) -> None:
        """Look at each key before its deadline; at intervals look at all known keys and scan for new ones."""
        await side_by_side([self._watch()] if self._every_ms is None else [self._watch(), self._rounds(self._every_ms)])

    async def _watch(self) -> None:
        while True:
            self._nearer.clear()
            await set_within(self._nearer, await self._look_at_due() if self._leads() else LONGEST_SECONDS)

    async def _look_at_due(self) -> float:
        """Look at the keys that are due soon. Returns the seconds until the next look."""
        clock = self._keys.store.clock
        soon_ms = int(clock.now_ms()) + LEAD_MS
        known = await self._keys.first_known(soon_ms + int(LONGEST_SECONDS * 1000))
        due = {identity for identity, ms in known.items() if ms <= soon_ms}
        await self.look(due.union(islice(self._missing, PAGE)))
        if due or self._missing:
            return AGAIN_MS / 1000 if len(due) < PAGE else 0
        return min((clock.seconds_until(ms - LEAD_MS) for ms in known.values()), default=LONGEST_SECONDS)

    async def _rounds(self, every_ms: int) -> None:
        while True:
            began = time.monotonic()
            if self._leads():
                await self.round()
            await asyncio.sleep(max(every_ms / 1000 - (time.monotonic() - began), 0))

    async def round(self) -> None:
        """Look at all known keys, then adopt those that no shard knows."""
        self._noticed.clear()
        for shard in range(self._keys.store.shards):
            async for known in self._pages(partial(self._keys.scan_known, shard)):
                await self.look(known)
        try:
            async for found in self._pages(self._keys.scan):
                looks, _ = await self._keys.look([i for i in found if self._declared(i[0])], LEAD_MS)
                await self._adopt(
                    {i: new for i, new in looks.items() if new.known_ms is None and new.value is not None}
                )
        except NotPermitted as error:
            if not self._warned:
                _log.warning("bare keys are not adopted and fire by their event alone", reason=str(error))
            self._warned = True
        if not self._noticed.is_set():
            self.rests = IDLE_RESTS

    async def _pages(
        self, page: Callable[[int], Awaitable[tuple[int, list[Identity]]]]
    ) -> AsyncIterator[list[Identity]]:
        """Yield page after page, with a rest after each."""
        cursor = -1
        while cursor != 0:
            began = time.monotonic()
            cursor, found = await page(max(cursor, 0))
            yield found
            seconds = self.rests * min(time.monotonic() - began, LONGEST_STEP_SECONDS)
            if self.rests == BUSY_RESTS:
                await asyncio.sleep(seconds)
            else:
                await set_within(self._noticed, seconds)

    async def look(self, identities: Collection[Identity], *, heard: bool = False) -> list[Identity]:
        """Look at known keys and tell their shards what became of them; `heard` means that their expiry was heard.
        Returns the missing keys."""
        looks, now_ms = await self._keys.look(identities, LEAD_MS)
        if looks:
            self.noticed()
        found = defaultdict[str, dict[Identity, Look]](dict)
        for identity, look in looks.items():
            if what := self._verdict(identity, look, now_ms, heard=heard):
                found[what][identity] = look
        await self._adopt(found.pop("adopt", {}))
        for what, some in found.items():
            await self._resolve(what, some)
        return [identity for identity, look in looks.items() if look.deadline_ms == GONE]

    def _verdict(self, identity: Identity, look: Look, now_ms: int, *, heard: bool) -> str | None:
        """What to tell the shard about a key, or `adopt`; None for nothing yet."""
        known_ms, deadline_ms, value = look
        missed_ms, since = self._missing.pop(identity, (None, 0.0))
        if deadline_ms == known_ms:
            return "ending" if deadline_ms - now_ms <= LEAD_MS else "there"
        if value is not None:
            return "adopt"
        if known_ms is None:
            return None
        if deadline_ms != GONE:
            return "lost-ttl" if deadline_ms == NO_TTL else "deleted"  # something else is in its place
        if heard or now_ms >= known_ms:
            return "expired"
        now = time.monotonic()
        if missed_ms != known_ms:
            since = now
        elif now - since >= self._doubt_seconds:
            return "deleted"
        if len(self._missing) < MISSING_LIMIT:
            self._missing[identity] = known_ms, since
        return None

    async def _resolve(self, what: str, looks: Mapping[Identity, Look]) -> None:
        """Tell the shards what became of known keys, and delete keys that no timer waits for any more."""
        codes = await self._keys.resolve(what, looks)
        for code in codes.values():
            if code in ("due", "cancelled"):
                self._told(what)
        spare = {i: ms for i, (_, ms, _) in looks.items() if ms >= 0 and codes[i] in ("due", "spare")}
        if taken := await self._keys.take(spare):
            await self._keys.resolve("deleted", {identity: looks[identity] for identity in taken})

    async def _adopt(self, looks: Mapping[Identity, Look]) -> None:
        codes = await self._keys.adopt(looks)
        for identity, code in codes.items():
            if code in ("adopted", "moved"):
                self._told("adopted")
                _log.info("bare key adopted", timer=":".join(identity), how=code)
        if codes:
            self.noticed()
            self._nearer.set()
