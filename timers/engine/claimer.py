"""Owns claiming: takes from the intake as many timers as this pod has room for. That limit is the backpressure. Blocks
queues that may start nothing, and lets them go on before their blocks end."""

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from itertools import chain, repeat
from typing import Final

from timers.core.policies import Limits
from timers.engine.intake import BACKLOG, CLAIM_BATCH, HOLD_SECONDS, LATER_SECONDS, Intake, QueueClaim
from timers.engine.pod import AGAIN_SECONDS, Pod
from timers.engine.runner import Runner
from timers.engine.runs import named
from timers.errors import TimersError, Unavailable
from timers.logs import get_logger
from timers.store import keys
from timers.store.cooperative import side_by_side
from timers.store.permits import Permit, Reservation
from timers.store.store import Claimed, Identity, Queue

_log = get_logger("timers.claimer")


ROUNDS: Final = 2
"""Claims in progress at once: while the server works on one, this pod starts the runs of the other."""

LIMITED_ROUNDS: Final = 1
"""As `ROUNDS`, for limited queues: two would keep the server busy for twice as long before it serves the others."""


FULL_MS: Final = 500
"""How long to ignore a queue that already runs as many timers as it may. When a run ends, the queue is asked sooner."""

RESUMED: Final = 100
"""Prefixes that one call lets go on in a shard: a few milliseconds of the server's time."""


class Claimer:
    def __init__(self, pod: Pod, intake: Intake, runner: Runner) -> None:
        self._pod, self._intake, self._runner = pod, intake, runner
        self.catch_up: Callable[[], Awaitable[None]] | None = None
        """Carries out what was accepted while Redis was out of reach."""
        self._caught_up, self._catching_up = -1, asyncio.Lock()
        self._asked = 0
        self._asked_of: Counter[str] = Counter()
        self._short: set[Queue] = set()
        """Queues for which there was less room than they asked for, because of claims under way."""
        self._unanswered: set[asyncio.Future[None]] = set()
        self._rounds: set[asyncio.Task[None]] = set()
        self._to_resume: dict[str, None] = {}
        self._resuming: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Claim while there is work and room for it, until a claim fails. Queues with limits over the fleet have turns
        of their own: they take more round trips, for which the others do not wait."""
        lanes = chain(repeat(False, ROUNDS), repeat(True, LIMITED_ROUNDS))
        await side_by_side(self._turn(limited=limited) for limited in lanes)

    @property
    def is_idle(self) -> bool:
        return not self._rounds

    async def finish(self) -> None:
        """Wait for the claims that were in progress when the service was stopped. If this is cancelled, whatever those
        claims took is left to its leases."""
        await asyncio.gather(*self._rounds, return_exceptions=True)

    async def _turn(self, *, limited: bool) -> None:
        """Claim in rounds. A round is not cancelled with the service: the timers it claimed on the server must not stay
        leased to nobody."""
        while True:
            await self._intake.wait(limited=limited)
            await self._runner.room_free(lambda: self._asked)
            await self._after_gap()
            claiming = asyncio.create_task(self._round(limited=limited))
            self._rounds.add(claiming)
            claiming.add_done_callback(self._ended)
            await asyncio.shield(claiming)

    async def _after_gap(self) -> None:
        """Catch up first: a timer that was replaced meanwhile must not start as it was."""
        while self._caught_up != (gaps := self._intake.gaps):
            async with self._catching_up:
                if self._caught_up < gaps and self.catch_up is not None:
                    await self.catch_up()
                self._caught_up = max(self._caught_up, gaps)

    def _ended(self, claiming: asyncio.Task[None]) -> None:
        """Log the failure of a round whose turn was cancelled because the other turn failed; nobody else would hear of
        it."""
        self._rounds.discard(claiming)
        error = None if claiming.cancelled() else claiming.exception()
        if error is not None and not isinstance(error, Unavailable):
            _log.error("claim failed", exc_info=error)

    async def _round(self, *, limited: bool) -> None:
        """Claim as many timers as there is room for. What other rounds have asked for counts as taken. Limited queues
        may start fewer than they are asked for, so they leave half of the room to the others meanwhile."""
        room = self._runner.room - self._asked
        orphans = {} if limited else self._intake.take_orphans(min(room, CLAIM_BATCH))
        room = (room + 1) // 2 if limited else room - sum(map(len, orphans.values()))
        wanted = self._intake.take(room, limited=limited)
        asked = sum(map(len, orphans.values())) + sum(ask.most for asks in wanted for ask in asks)
        self._asked += asked
        unclaimed = list(wanted)
        try:
            for shard, identities in orphans.items():
                await self._pod.away.reached(shard, self._rescue(shard, identities))
            for asks in wanted:
                if await self._pod.away.reached(asks[0].shard, self._claim(asks, limited=limited)):
                    unclaimed.remove(asks)
        finally:
            for ask in chain(*unclaimed):  # nobody else may know that these queues are due
                self._intake.mark_after(ask.shard, ask.prefix, AGAIN_SECONDS, ask.cause)
            self._asked -= asked
            self._runner.room_changed()

    async def _claim(self, asks: Sequence[QueueClaim], *, limited: bool) -> None:
        """Claim from all queues in one call; if they have limits over the fleet, reserve the starts before."""
        shard, cause = asks[0].shard, asks[0].cause
        held_off = {ask.prefix: ms for ask in asks if (ms := self._runner.held_off_ms(ask.prefix))}
        for prefix, ms in held_off.items():
            self._intake.mark_after(shard, prefix, ms / 1000)
        if cause == "sweep":
            await self._block(shard, held_off)
        most = {ask.prefix: min(ask.most, self._room_of(ask.prefix)) for ask in asks}
        self._short.update((shard, a.prefix) for a in asks if most[a.prefix] < a.most and self._asked_of[a.prefix])
        if limited:
            await self._claim_limited(shard, asks, most)
            return
        with self._asking(most):
            claimed = await self._take(shard, most, asks) if any(most.values()) else None
            for ask in asks:
                is_full = claimed is not None and most[ask.prefix] == ask.most and ask.prefix in claimed.more
                self._follow_up(ask, has_more=is_full)

    async def _claim_limited(self, shard: int, asks: Sequence[QueueClaim], most: Mapping[str, int]) -> None:
        """Reserve starts, claim as many timers, and give unused starts back: a round trip each for all queues."""
        with self._asking(most):
            reserved = await self._reserve({prefix: (self._runner.limits_of(prefix), n) for prefix, n in most.items()})
            async with self._giving_back(reserved) as used:
                places = await self._places(shard, reserved)
                await self._claim_reserved(asks, reserved, places, used)
        for prefix, place in places.items():
            if place not in self._pod.shards:
                await self._pod.store.block(place, {prefix: 0})  # its pods were told that there is no room
        waits = {ask.prefix: self._after(ask, most, reserved[ask.prefix], used[ask.prefix]) for ask in asks}
        await self._block(shard, waits)
        await self._look_again(
            shard, [p for p, each in reserved.items() if each.limits.in_order and waits[p] == FULL_MS]
        )

    @asynccontextmanager
    async def _giving_back(self, reserved: Mapping[str, Reservation]) -> AsyncIterator[Counter[str]]:
        """Count the starts used of each reservation in what this yields, and give the others back; after a call that
        failed only if it did nothing. Otherwise its timers may be claimed, and the permits end with their leases."""
        used = Counter[str]()
        try:
            yield used
        except Unavailable as error:
            if error.nothing_done:
                with suppress(Unavailable):
                    await self._give_back(reserved, used)
            raise
        await self._give_back(reserved, used)

    async def _give_back(self, reserved: Mapping[str, Reservation], used: Counter[str]) -> None:
        await self._pod.permits.give_back((each, used[prefix]) for prefix, each in reserved.items())

    async def _block(self, shard: int, waits: Mapping[str, int]) -> None:
        """Every poll would find a queue at its limit due and ask for it again. A short wait is not worth a call."""
        await self._pod.store.block(shard, {prefix: ms for prefix, ms in waits.items() if ms >= FULL_MS})

    def resume(self, prefix: str) -> None:
        """Soon let the queues of a prefix go on in all shards, whichever pods have them, and wake those pods: nobody
        polls them until their blocks end. If Redis refuses that, they wait for this end. What is asked for a second
        time before it is done is done once."""
        self._to_resume[prefix] = None
        if self._resuming is None or self._resuming.done():
            self._resuming = asyncio.create_task(self._resume_all())

    async def resumed(self) -> None:
        """Wait until all queues that are to go on do."""
        if self._resuming is not None:
            await asyncio.wait({self._resuming})

    async def _resume_all(self) -> None:
        while some := list(self._to_resume)[:RESUMED]:
            for prefix in some:
                del self._to_resume[prefix]
            for shard in range(self._pod.store.shards):
                with suppress(TimersError):
                    await self._pod.store.block(shard, dict.fromkeys(some, 0))

    async def _look_again(self, shard: int, prefixes: Sequence[str]) -> None:
        """The run that held the only permit may have ended while its queue was being blocked. Whoever let the queue go
        on came before the block then, and nobody else would for `FULL_MS`. Or there is no run: another pod has the
        permit only to see whether it may start something, and may give it back."""
        for prefix in prefixes:
            if not await self._pod.permits.in_use(prefix):
                self._intake.mark_all(shard, prefix, "room")
            elif not await self._pod.permits.running(prefix):
                self._intake.mark_after(shard, prefix, LATER_SECONDS, "room")

    async def _places(self, shard: int, reserved: Mapping[str, Reservation]) -> dict[str, int]:
        """Where to claim from the queues that may start something. A queue that runs one timer at a time has one order
        over all shards: its earliest timer comes first, whichever shard it is in, and whichever pods take that."""
        starting = {prefix: each.limits.in_order for prefix, each in reserved.items() if each.count}
        try:
            ordered = await self._pod.permits.next_shards([prefix for prefix, in_order in starting.items() if in_order])
        except Unavailable as error:
            error.nothing_done = True  # it only looked
            raise
        places = {prefix: ordered.get(prefix, shard) for prefix in starting}
        return {prefix: place for prefix, place in places.items() if place is not None}

    async def _claim_reserved(
        self,
        asks: Sequence[QueueClaim],
        reserved: Mapping[str, Reservation],
        places: Mapping[str, int],
        used: Counter[str],
    ) -> None:
        """Claim in one call for each shard and kind of order. Adds to `used` how many came from each queue."""
        together: defaultdict[tuple[int, bool], list[QueueClaim]] = defaultdict(list)
        for ask in asks:
            if places.get(ask.prefix) in self._pod.shards:
                together[places[ask.prefix], reserved[ask.prefix].limits.in_order].append(ask)
        for (shard, in_order), some in together.items():
            most = {ask.prefix: reserved[ask.prefix].count for ask in some}
            permits = [permit for ask in some for permit in reserved[ask.prefix].permits]
            used.update(_numbers(await self._take(shard, most, some, in_order=in_order, permits=permits)))

    def _after(self, ask: QueueClaim, most: Mapping[str, int], reserved: Reservation, used: int) -> int:
        """Plan what follows a claim from a limited queue. Returns for how many ms nothing of it may start."""
        if used == reserved.count and reserved.wait_ms:
            self._intake.mark_after(ask.shard, ask.prefix, reserved.wait_ms / 1000)
            self._follow_up(ask, has_more=False)
            return reserved.wait_ms
        self._follow_up(ask, has_more=0 < used == ask.most)
        is_full = used == reserved.count < most[ask.prefix]
        # When a run has ended, its place is taken again; the block from before then lasts.
        return FULL_MS if is_full and (not used or ask.cause.startswith("sweep")) else 0

    async def _take(
        self,
        shard: int,
        most: Mapping[str, int],
        asks: Sequence[QueueClaim],
        *,
        in_order: bool = False,
        permits: Sequence[Permit] = (),
    ) -> Claimed:
        """Claim up to the given number from each queue and start the runs."""
        asked_at, cause = time.monotonic(), asks[0].cause
        claimed = await self._pod.store.claim(
            shard,
            list(most.items()),
            pod=self._pod.name,
            lease_ms=self._pod.lease_ms,
            cause=cause,
            in_order=in_order,
            processors=self._named(most),
        )
        self._count_claimed(cause, claimed)
        self._runner.start(shard, claimed, asked_at, permits, {ask.prefix: ask.known_at for ask in asks})
        return claimed

    async def _rescue(self, shard: int, orphans: Sequence[Identity]) -> None:
        """Rescue as many runs as this pod has room and permits for; a sweep finds the rest again. Runs that this pod
        holds itself are not lost, however long its event loop stalled, nor are those in answers it has yet to read."""
        if self._unanswered:
            await asyncio.wait(set(self._unanswered))
        held = self._runner.held
        room = {prefix: self._room_of(prefix) for prefix, _ in orphans}
        chosen: list[Identity] = []
        limited: defaultdict[str, list[Identity]] = defaultdict(list)
        for orphan in orphans:
            if orphan in held:
                continue
            prefix = orphan[0]
            room[prefix] -= 1
            if room[prefix] >= 0:
                (limited[prefix] if self._runner.limits_of(prefix).concurrency else chosen).append(orphan)
        with self._asking(Counter(prefix for prefix, _ in (*chosen, *chain(*limited.values())))):
            concurrency = {prefix: Limits(self._runner.limits_of(prefix).concurrency) for prefix in limited}
            reserved = await self._reserve({prefix: (concurrency[prefix], len(limited[prefix])) for prefix in limited})
            for prefix, some in limited.items():
                chosen += some[: reserved[prefix].count]
            if not chosen:
                return
            permits = [permit for each in reserved.values() for permit in each.permits]
            async with self._giving_back(reserved) as used:
                used.update(await self._take_over(shard, chosen, permits))

    async def _take_over(self, shard: int, orphans: Sequence[Identity], permits: Sequence[Permit]) -> Counter[str]:
        """Rescue runs and start them. Returns how many came from each queue."""
        processors = self._named(prefix for prefix, _ in orphans)
        asked_at = time.monotonic()
        rescued = await self._pod.store.rescue(
            shard, orphans, pod=self._pod.name, lease_ms=self._pod.lease_ms, processors=processors
        )
        self._count_claimed("rescue", rescued)
        for timer in rescued.timers:
            self._pod.observer.count("rescued", processors[timer.prefix])
            _log.warning("run rescued from an expired lease", **named(timer, processors[timer.prefix]))
        self._runner.start(shard, rescued, asked_at, permits)
        return _numbers(rescued)

    def _count_claimed(self, cause: str, claimed: Claimed) -> None:
        self._pod.observer.count("claimed", cause, by=len(claimed.timers))
        self._pod.observer.measure("claim_size", len(claimed.timers))
        for member, reason in claimed.quarantined.items():
            _log.error("timer quarantined", timer=member, reason=reason)

    async def _reserve(self, wanted: Mapping[str, tuple[Limits, int]]) -> dict[str, Reservation]:
        """For a while after Redis was down, reserve nothing: live pods must keep the permits of their runs first."""
        held = set(filter(self._is_held, wanted if self._intake.held else ()))
        hold_ms = round(HOLD_SECONDS * 1000)
        asked = {prefix: ask for prefix, ask in wanted.items() if ask[1] and prefix not in held}
        reserved = await self._pod.permits.reserve(asked, pod=self._pod.name, lease_ms=self._pod.lease_ms)
        return {
            prefix: reserved.get(prefix)
            or Reservation(prefix, limits, 0, hold_ms if most and prefix in held else 0, ())
            for prefix, (limits, most) in wanted.items()
        }

    def _is_held(self, prefix: str) -> bool:
        return not self._intake.held.isdisjoint(self._pod.away.beside(keys.limits_root(prefix)))

    def _named(self, prefixes: Iterable[str]) -> dict[str, str]:
        """The processor for each queue, by the prefix it was declared with."""
        return {prefix: self._pod.registry.require(prefix).prefix for prefix in prefixes}

    def _room_of(self, prefix: str) -> int:
        """How many timers of a queue this pod may still take. What the other round has asked for counts as taken. None
        once another pod has declared a longer prefix, nor while the Redis user lacks the right to the prefix."""
        if not self._pod.owns(prefix) or self._pod.store.refusals.waits(prefix):
            return 0
        return max(self._runner.room_of(prefix) - self._asked_of[prefix], 0)

    @contextmanager
    def _asking(self, most: Mapping[str, int]) -> Iterator[None]:
        answered = asyncio.get_running_loop().create_future()
        self._unanswered.add(answered)
        self._asked_of.update(most)
        try:
            yield
        finally:
            self._asked_of -= Counter(most)
            # This claim may have needed less than the room that it asked for.
            for shard, prefix in [queue for queue in self._short if queue[1] in most]:
                self._short.remove((shard, prefix))
                self._intake.mark_all(shard, prefix, "room")
            self._unanswered.remove(answered)
            answered.set_result(None)

    def _follow_up(self, ask: QueueClaim, *, has_more: bool) -> None:
        """After a full batch, or one that a sweep asked for, the queue stays marked. A short batch has emptied the
        queue or met a limit; then the end of a run, or the time when the rate allows the next start, marks it again."""
        if not has_more:
            self._intake.emptied(ask)
        elif ask.most >= BACKLOG or ask.cause != "event":
            deep = ask.most >= BACKLOG
            self._intake.mark_all(ask.shard, ask.prefix, ask.cause, deep=deep, known_at=ask.known_at)


def _numbers(claimed: Claimed) -> Counter[str]:
    """How many came from each queue."""
    return Counter(timer.prefix for timer in (*claimed.timers, *(timer for timer, _ in claimed.unreadable)))
