"""Owns keeping time: sleeps until the next due time, touches due keys so that Redis announces them, and finds what no
event announced.

The sweep can do everything that an event does, at most `INTERVAL_MS` later. With several pods, one of them (rank 0 for
a shard) does the touching. The others poll now and then, and at once if they do not hear it do its work.
"""

import asyncio
from collections.abc import Collection
from typing import Final

from timers.engine.canary import Canaries
from timers.engine.intake import Intake
from timers.engine.peers import Peers
from timers.engine.pod import AGAIN_SECONDS, Pod
from timers.errors import Unavailable
from timers.store import keys
from timers.store.cooperative import set_within, side_by_side
from timers.store.store import Touched

INTERVAL_MS: Final = 30_000
"""Longest sleep. Scripts announce any nearer due time within this horizon (lua/common.lua)."""

EARLIER_INTERVAL_MS: Final = 1000
"""The same while the db has records of format 1 only: programs of the version that knows no other may arm timers there,
and they announce what is due within a second."""

CLOCK_SECONDS: Final = 1.0
"""How often a sleeping sweep checks the server's clock as this pod knows it: it may have been changed."""

NO_EVENTS_INTERVAL_MS: Final = 100
"""Longest sleep of a pod that receives no such announcements."""

STAGGER_MS: Final = 20
"""How long each rank waits for the one before it to touch."""

TRUST_MS: Final = 50
"""For how long a pod that hears touching stays away, for each rank before it. Since a pod also hears its own touches,
timers are this late until a dead pod's rank is taken over. It depends on the rank, or all pods would poll at once."""


MOVING_MS: Final = 1000
"""How often to look whether the service goes on here after a move."""

PAGE_PAUSE_MS: Final = 50
"""Pause between polls of parts of a backlog: ten thousand late queues a second cost a few per cent of the server."""


class ShardSweep:
    """The sweep of one shard. Times are the server's. A poll takes the queues that became due last; if there are more,
    they follow part by part. A new due time does not wait for them."""

    def __init__(self, shard: int, sweeper: "Sweeper") -> None:
        self._shard, self._all = shard, sweeper
        self.next_poll_ms = 0.0
        self.heard_ms = 0.0
        """When somebody was heard to touch keys of the shard."""
        self._polled_ms = self._part_ms = 0.0
        self._next_rank = self._next_orphan = 0
        self.leaves_work = False
        """Whether the last polls found due timers that this pod does not serve, or lost runs."""
        self._everything = self._joins = True
        self._due_sooner = asyncio.Event()

    def due_sooner(self, due_ms: float) -> None:
        """A timer of the shard was armed."""
        due_ms += STAGGER_MS * self._all.peers.rank(self._shard)
        if due_ms < self.next_poll_ms:
            self.next_poll_ms = due_ms
            self._due_sooner.set()

    def poll_everything(self) -> None:
        """Poll at once and mark whatever is due."""
        self._everything = True
        self.poll_now()

    def poll_now(self) -> None:
        self.next_poll_ms = 0
        self._due_sooner.set()

    async def run(self) -> None:
        """Poll whenever it is time, unless another pod does."""
        while True:
            await self._sleep()
            if self._is_moving() or self.another_pod_polls():
                continue
            if not await self._all.pod.away.reached(self._shard, self.poll()):
                await asyncio.sleep(AGAIN_SECONDS)

    def _is_moving(self) -> bool:
        """Whether nothing may start here because the service is being moved. Look again in a second."""
        if self._all.pod.store.identity.moving is None:
            return False
        self.next_poll_ms = self._all.pod.store.clock_of(self._shard).now_ms() + MOVING_MS
        return True

    async def _sleep(self) -> None:
        """Wait until it is time to poll; a nearer due time may be announced meanwhile."""
        clock = self._all.pod.store.clock_of(self._shard)
        while (seconds := clock.seconds_until(self._until_ms())) > 0 and clock.known:
            if seconds > self._longest_seconds():
                self.heard_ms = self._polled_ms = self._part_ms = 0.0  # trust no time from before
                self.poll_now()
                return
            self._due_sooner.clear()
            await set_within(self._due_sooner, min(seconds, CLOCK_SECONDS))

    def _longest_seconds(self) -> float:
        """Nothing is planned later than this: if a poll seems to be, the server's clock was set back."""
        return max(self._all.interval_ms(self._shard), MOVING_MS) / 1000 + CLOCK_SECONDS

    def _until_ms(self) -> float:
        return min(self.next_poll_ms, self._part_ms) if self._next_rank else self.next_poll_ms

    def another_pod_polls(self) -> bool:
        """True if an event since the due time shows that another pod touches. Trust that pod for a while."""
        rank, clock = self._all.peers.rank(self._shard), self._all.pod.store.clock_of(self._shard)
        if self._everything or not (clock.known and self._all.receives_events(self._shard)) or rank == 0:
            return False
        trust_ms, now_ms = TRUST_MS * rank, clock.now_ms()
        if self.heard_ms <= now_ms - trust_ms or self._polled_ms <= now_ms - trust_ms:
            return False
        self.next_poll_ms = self._polled_ms + trust_ms
        return True

    async def poll(self) -> None:
        """Poll once: touch what is due, mark what no event announced, and plan the next poll. While a server refuses
        this, it refuses claims too, so the next poll marks whatever is due."""
        everything, self._everything = self._everything, False
        now_ms = self._all.pod.store.clock_of(self._shard).now_ms()
        rank = self._next_rank if now_ms < self.next_poll_ms else 0
        if rank == 0:
            # Set before the call, so that its answer does not overwrite a nearer due time that is announced meanwhile.
            # Shards that polled together because of a gap poll apart from then on.
            share = 1 if self.next_poll_ms else (self._shard + 1) / self._all.pod.store.shards
            self.next_poll_ms = now_ms + self._all.interval_ms(self._shard) * share
        try:
            touched = await self._all.pod.store.touch(self._shard, rank, joins=self._joins)
            self._joins = False
            found_lost = await self._find_orphans(touched)
        except BaseException as error:
            self._all.sweep_everything([self._shard])
            if isinstance(error, Unavailable):
                self._all.intake.hold_orphans(self._all.pod.away.beside(keys.root(self._shard)))
            raise
        self._polled_ms = touched.now_ms
        self._mark(touched, rank, everything=everything)
        self._advance_page(touched, rank, everything=everything)
        self._plan(touched, found_lost=found_lost)

    async def _find_orphans(self, touched: Touched) -> bool:
        """Mark lost runs, one part at a time; if there are more, a poll follows at once. Says if any was marked."""
        if not touched.lost:
            self._next_orphan = 0
            return False
        orphans, self._next_orphan = await self._all.pod.store.orphans(self._shard, self._next_orphan)
        served = [orphan for orphan in orphans if self._all.pod.serves(self._shard, orphan[0])]
        for orphan in served:
            self._all.intake.mark_orphan(self._shard, orphan)
        return bool(served)

    def _mark(self, touched: Touched, rank: int, *, everything: bool) -> None:
        """Mark the due queues that this pod serves, and note whether there are others."""
        served = {prefix: ms for prefix, ms in touched.due.items() if self._all.pod.serves(self._shard, prefix)}
        self.leaves_work = touched.lost or len(served) < len(touched.due) or (rank > 0 and self.leaves_work)
        cause = self._all.cause(self._shard, everything=everything)
        for prefix, due_ms in served.items():
            if cause != "sweep" or due_ms < touched.now_ms - self._all.grace_ms:
                self._all.intake.mark_all(self._shard, prefix, cause)

    def _advance_page(self, touched: Touched, rank: int, *, everything: bool) -> None:
        """Where the next part begins, and when: at once for what has just become due or after a gap."""
        if rank == self._next_rank or touched.next_rank > self._next_rank:
            self._next_rank = touched.next_rank
        is_fresh = any(due_ms >= touched.now_ms - self._all.grace_ms for due_ms in touched.due.values())
        self._part_ms = touched.now_ms + (0 if everything or is_fresh else PAGE_PAUSE_MS)
        self._everything = self._everything or (everything and self._next_rank > 0)

    def _plan(self, touched: Touched, *, found_lost: bool) -> None:
        """When to poll again: at the next due time, soon if a due timer may have lost its event or a lost run
        may have found no room, and at once if there are more orphans than one poll takes."""
        if touched.due or found_lost:
            self.next_poll_ms = min(self.next_poll_ms, touched.now_ms + self._all.grace_ms)
        if touched.next_ms is not None:
            stagger_ms = STAGGER_MS * self._all.peers.rank(self._shard)
            self.next_poll_ms = min(self.next_poll_ms, touched.next_ms + stagger_ms)
        if self._next_orphan:
            self.next_poll_ms = min(self.next_poll_ms, touched.now_ms)


class Sweeper:
    def __init__(self, pod: Pod, intake: Intake, peers: Peers, canaries: Canaries) -> None:
        self.pod, self.intake, self.peers, self.grace_ms = pod, intake, peers, pod.options.grace_ms
        self.receives_events, self._canaries = canaries.receives_events, canaries
        self._gap = "sweep-start"
        self.sweeps = {shard: ShardSweep(shard, self) for shard in pod.shards}

    async def run(self) -> None:
        """Sweep all shards side by side until one sweep fails."""
        await side_by_side([*(sweep.run() for sweep in self.sweeps.values()), self._watch_leases()])

    async def _watch_leases(self) -> None:
        """Poll all shards once in each lease while anything runs, on whichever pod: a poll says when the next lease
        ends, so a dead pod's runs are found in time however long a sweep sleeps."""
        while True:
            await asyncio.sleep(self.pod.lease_ms / 1000)
            if await self._anything_runs():
                for sweep in self.sweeps.values():
                    sweep.poll_now()

    async def _anything_runs(self) -> bool:
        try:
            return await self.pod.store.has_runs(self.pod.shards)
        except Unavailable:
            if self.pod.away.is_partial:
                return True
            raise

    def interval_ms(self, shard: int) -> int:
        """How long to sleep while nothing is planned."""
        if not self.receives_events(shard):
            return NO_EVENTS_INTERVAL_MS
        return INTERVAL_MS if self.pod.store.identity.form > 1 else EARLIER_INTERVAL_MS

    def leaves_work(self, shard: int) -> bool:
        """Whether there may be due timers of the shard, or lost runs, that no pod serves."""
        return self.sweeps[shard].leaves_work

    def wake(self, shard: int, due_ms: int) -> None:
        """A timer was armed that is due before the next poll."""
        if shard in self.sweeps:
            self.sweeps[shard].due_sooner(due_ms)

    def heard(self, shard: int) -> None:
        """A trigger of the shard expired: somebody is touching."""
        if shard in self.sweeps:
            self.sweeps[shard].heard_ms = self.pod.store.clock_of(shard).now_ms()

    def cause(self, shard: int, *, everything: bool) -> str:
        """Why a poll finds due timers that no event has announced; `sweep` if their events should have arrived."""
        canary = self._canaries.of_shard(shard)
        if canary is not None and canary.delivery == "deaf":
            return "sweep-deaf"
        return self._gap if everything or not self.receives_events(shard) else "sweep"

    def sweep_everything(self, shards: Collection[int], cause: str = "sweep-gap") -> None:
        """After a gap, whose cause this is: poll these shards at once and mark whatever is due."""
        self._gap = cause
        self.intake.gaps += 1
        for shard, sweep in self.sweeps.items():
            if shard in shards:
                sweep.poll_everything()
