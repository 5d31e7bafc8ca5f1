"""Owns watching bare keys: finds them, copies them into durable records, reads each once more before its timer
runs, and reports the expiries that this pod hears.

Redis announces no deletion: a key that is missing shortly before its deadline was deleted. One that is missing after it
expired, or was deleted while no pod watched. Then its timer fires: better once too often than never.
"""

import asyncio
import time
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine, Iterable, Mapping
from functools import partial
from typing import Any, Final

from timers.bare.keys import GONE, NO_TTL, PAGE_SIZE, BareKeys, Heard, KeyState, Page
from timers.logs import Reminders, get_logger
from timers.store.cooperative import set_within, side_by_side
from timers.store.store import ARM_LIMIT, Identity

LEAD_MS: Final = 200
"""How long before its deadline a key is read again. This leaves time for two reads on a slow server."""

DOUBT_SECONDS: Final = 0.1
"""How long a pod doubts that a missing key was deleted. If it was SET again and expired, its event arrives sooner."""

UNREAD: Final = b"null"
"""Stands for the value of a key that expired before the deadline that was known: it had been set again, and nobody has
read to what."""

LONGEST_SECONDS, IDLE_LONGEST_SECONDS = 1.0, 30.0
"""The longest pause between reads of known keys, since another pod may adopt some; and after a scan that found none."""

FIRST_SECONDS: Final = 5.0
"""How long the first scan waits at most for the subscription: a scan makes Redis announce what has expired."""

BUSY_RESTS, IDLE_RESTS = 4, 256
"""After each step a scan rests this many times as long: it takes a fifth of a core while bare keys are in use, and less
than half a hundredth after a whole scan that found none: all else that an idle server does beside ten million timers
takes the other half."""

LONGEST_STEP_SECONDS: Final = 0.05
"""In a longer step the pod itself stalled, so it does not rest for the excess."""

LATER_SECONDS, AGAIN_SECONDS = 0.05, 0.5
"""When to report an expiry that another pod reports at once (by then it is normally known), and one during a run."""

MEMORY_LIMIT: Final = 500_000
"""Keys waiting to be reported. A server buffers no more for a slow pod."""

_scanner_log = get_logger("timers.bare-scanner")
_expired_log = get_logger("timers.bare-expired")


class BareWatch:
    """Watches the bare keys of all shards on the one pod for which `leads` is true, and on each pod reports the
    expiries that it hears to the shards. Hearing one costs O(1), however many others wait."""

    def __init__(
        self,
        keys: BareKeys,
        *,
        leads: Callable[[], bool],
        declared: Callable[[str], bool],
        every_ms: int | None,
        mark: Callable[[int, str], None] = lambda _shard, _prefix: None,
        count: Callable[[str], None] = lambda _what: None,
        divide: Callable[[], None] = lambda: None,
    ) -> None:
        """`declared` says whether a processor was ever declared for a prefix, even if its pods are gone. If `every_ms`
        is None, nothing new is adopted or reported. `mark` is called for a queue with due timers, `count` when a key
        is adopted and with what becomes of it, and with `refused` for each expiry that may change nothing. `divide` is
        asked for a canary at once, so that what pods hear from then on counts as later than what a read has found."""
        self._keys, self._leads, self._declared = keys, leads, declared
        self._every_ms, self._mark, self._count_as, self._divide = every_ms, mark, count, divide
        self.rests = BUSY_RESTS
        self._noticed, self._nearer, self._now = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._waiting = {s: deque[tuple[float, Identity, Heard]]() for s in (0.0, LATER_SECONDS, AGAIN_SECONDS)}
        self._something = asyncio.Event()
        self._dropped = self._refused = 0
        self._reminders = Reminders()

    @property
    def services(self) -> Mapping[str, Callable[[], Coroutine[Any, Any, None]]]:
        """By name. If bare keys are switched off, only those that were adopted before are watched."""
        scans = {"bare-scanner": self.scan}
        return scans if self._every_ms is None else {**scans, "bare-expired": self.report}

    def noticed(self) -> None:
        """Bare keys are in use: scan and read them often."""
        if self.rests != BUSY_RESTS:
            self._nearer.set()
        self.rests = BUSY_RESTS
        self._noticed.set()

    def scan_now(self) -> None:
        """Expiries may have been missed: do not wait for the next scan."""
        self.noticed()
        self._now.set()

    async def scan(self) -> None:
        """Read each key before its deadline; at intervals read all known keys and scan for new ones."""
        await side_by_side([self._watch()] if self._every_ms is None else [self._watch(), self._rounds(self._every_ms)])

    async def _watch(self) -> None:
        while True:
            self._nearer.clear()
            await set_within(self._nearer, await self._inspect_due() if self._leads() else LONGEST_SECONDS)

    async def _inspect_due(self) -> float:
        """Read the keys that are due soon. Returns the seconds until the next round."""
        clock = self._keys.store.clock
        longest = LONGEST_SECONDS if self.rests == BUSY_RESTS else IDLE_LONGEST_SECONDS
        await self._inspect_meanwhile()
        soon_ms = int(clock.now_ms()) + LEAD_MS
        known = await self._keys.known_until(soon_ms + int(longest * 1000))
        due = [identity for identity, ms in known.items() if ms <= soon_ms]
        await self.inspect(due)
        if due:
            return LEAD_MS / 4000 if len(due) < PAGE_SIZE else 0
        return min((clock.seconds_until(ms - LEAD_MS) for ms in known.values()), default=longest)

    async def _inspect_meanwhile(self) -> None:
        """Read the keys that were set during a run of their timer, and adopt those whose run has ended."""
        if not (found := await self._keys.meanwhile()):
            return
        states, _ = await self._keys.inspect(found, LEAD_MS)
        codes = await self._keys.after_runs({i: state.deadline_ms == GONE for i, state in states.items()})
        self._told("adopted", codes)

    async def _rounds(self, every_ms: int) -> None:
        await set_within(self._now, min(every_ms / 1000, FIRST_SECONDS))
        while True:
            began, seconds = time.monotonic(), every_ms / 1000
            self._now.clear()
            if self._leads():
                await self.round()
            else:
                self.rests = BUSY_RESTS  # whoever leads may adopt some
                seconds = min(seconds, LONGEST_SECONDS)  # it may be gone
            await set_within(self._now, max(seconds - (time.monotonic() - began), 0))

    async def round(self) -> None:
        """Read all known keys, then adopt those that no shard knows."""
        self._noticed.clear()
        for shard in await self._keys.shards_with_keys():
            async for known in self._pages(partial(self._keys.scan_known, shard)):
                await self.inspect(known)
        async for found in self._pages(self._keys.scan):
            states, _ = await self._keys.inspect([i for i in found if self._declared(i[0])], LEAD_MS)
            new = {i: state for i, state in states.items() if state.known_ms is None and state.value is not None}
            await self._report_states("adopted", new)
        if not self._noticed.is_set():
            self.rests = IDLE_RESTS

    async def _pages(self, page: Callable[[int], Awaitable[Page]]) -> AsyncIterator[list[Identity]]:
        """Yield page after page, with a rest after each."""
        cursor = -1
        while cursor != 0:
            began = time.monotonic()
            cursor, found = await page(max(cursor, 0))
            yield found
            seconds = self.rests * min(time.monotonic() - began, LONGEST_STEP_SECONDS)
            await (asyncio.sleep(seconds) if self.rests == BUSY_RESTS else set_within(self._noticed, seconds))

    async def inspect(
        self, identities: Collection[Identity], heard: Mapping[Identity, Heard] | None = None
    ) -> list[Identity]:
        """Read known keys and report to their shards what became of them, of which this pod has `heard` that they
        expired. Returns the missing keys."""
        states, now_ms = await self._keys.inspect(identities, LEAD_MS)
        found = defaultdict[str, dict[Identity, KeyState]](dict)
        for identity, seen in states.items():
            state = seen._replace(heard=None if heard is None else heard[identity])
            if what := _verdict(state, now_ms):
                is_unread = what == "expired" and now_ms < (state.known_ms or 0)
                found[what][identity] = state._replace(value=UNREAD) if is_unread else state
        deleted = found.pop("deleted", {})
        for what, some in found.items():
            await self._report_states(what, some)
        if deleted:  # unless the shards have learned by then that they expired
            await asyncio.sleep(DOUBT_SECONDS)
            await self._report_states("deleted", deleted)
        return [identity for identity, state in states.items() if state.deadline_ms == GONE]

    async def _report_states(self, what: str, states: Mapping[Identity, KeyState]) -> None:
        """Report what was found to the shards, and delete keys that no timer waits for any more."""
        codes = await self._keys.report(what, states)
        self._told(what, codes)
        if what == "expired" or (what == "adopted" and self._has_overdue(states.values())):
            self._divide()
        spare = {i: ms for i, (_, ms, *_) in states.items() if ms >= 0 and codes[i] in ("due", "spare")}
        if taken := await self._keys.take(spare):
            await self._keys.report("deleted", {identity: states[identity] for identity in taken})

    def _has_overdue(self, states: Iterable[KeyState]) -> bool:
        """Whether the shards may take one of these keys for one that had expired before it was set again."""
        now_ms = self._keys.store.clock.now_ms()
        return any(state.known_ms is not None and state.known_ms <= now_ms for state in states)

    def _told(self, what: str, codes: Mapping[Identity, str]) -> None:
        """What became of keys that were reported."""
        if codes:
            self.noticed()
        for identity, code in codes.items():
            if code in ("adopted", "moved", "due", "cancelled"):
                self._count_as(what)
            if code in ("adopted", "moved"):
                self._nearer.set()
                _scanner_log.info("bare key adopted", timer=":".join(identity), how=code)

    @property
    def waiting(self) -> int:
        """How many expiries wait to be reported."""
        return sum(map(len, self._waiting.values()))

    def heard(self, identity: Identity, heard: Heard, *, mine: bool) -> None:
        """A key expired. This pod reports at once what is `mine`."""
        self.noticed()
        self._add(identity, heard, 0.0 if mine else LATER_SECONDS)

    async def report(self) -> None:
        """Report expiries batch by batch."""
        while True:
            self._something.clear()
            if batch := self.take():
                await self._announce(batch)
            else:
                await set_within(self._something, LATER_SECONDS if self.waiting else None)

    def _add(self, identity: Identity, heard: Heard, seconds: float) -> None:
        if self.waiting >= MEMORY_LIMIT:
            self._dropped += 1
        else:
            self._waiting[seconds].append((time.monotonic() + seconds, identity, heard))
            self._something.set()

    def take(self) -> dict[Identity, Heard]:
        """Take the next batch of what is to be reported now."""
        now, batch = time.monotonic(), dict[Identity, Heard]()
        for queue in self._waiting.values():
            while queue and len(batch) < ARM_LIMIT and queue[0][0] <= now:
                _, identity, heard = queue.popleft()
                batch[identity] = max(heard, batch.get(identity, heard))
        return batch

    async def _announce(self, batch: dict[Identity, Heard]) -> None:
        left, self._dropped = self._dropped, 0
        if left:
            _expired_log.error("too many bare keys expired at once for this pod; other pods report the rest", left=left)
        try:
            codes = await self._keys.announce(batch)
            for identity, code in codes.items():
                if code == "due":
                    self._mark(self._keys.store.shard_of(*identity), identity[0])
                elif code == "running":
                    self._add(identity, batch[identity]._replace(again=True), AGAIN_SECONDS)
                elif code == "refused":
                    self._refuse(identity)
            # A key that exists again has nothing to report. Once it was read, the shard can judge the others.
            for identity in await self.inspect([i for i, code in codes.items() if code == "look"], batch):
                self._add(identity, batch[identity], LATER_SECONDS)
        except BaseException:
            for identity, heard in batch.items():
                self._add(identity, heard, 0.0)
                self._mark(self._keys.store.shard_of(*identity), identity[0])  # due by now, if only the answer was lost
            raise

    def _refuse(self, identity: Identity) -> None:
        self._count_as("refused")
        self._refused += 1
        if self._reminders.is_due("refused"):
            _expired_log.warning("announced bare keys changed nothing", timer=":".join(identity), count=self._refused)
            self._refused = 0


def _verdict(state: KeyState, now_ms: int) -> str | None:
    """What the state of a key means; None for nothing that a shard should know."""
    known_ms, deadline_ms, value, heard = state
    if deadline_ms == known_ms:
        return "ending" if deadline_ms - now_ms <= LEAD_MS else "there"
    if value is not None:
        return "adopted"
    if known_ms is None:
        return None
    if deadline_ms == GONE and (heard is not None or now_ms >= known_ms):
        return "expired"
    return "lost-ttl" if deadline_ms == NO_TTL else "deleted"  # or something else is in its place
