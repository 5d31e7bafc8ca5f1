"""Owns claiming: one loop that takes from the intake what this pod has room for. Its bound is the backpressure."""

import asyncio
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

from timers.engine.intake import BACKLOG, CLAIM_BATCH, Ask, Intake, Wanted
from timers.engine.pod import Pod
from timers.engine.runner import Runner
from timers.engine.runs import named
from timers.engine.supervisor import side_by_side
from timers.errors import Unavailable
from timers.logs import get_logger
from timers.store.store import Claimed, Identity

_log = get_logger("timers.claimer")


ROUNDS: Final = 2
"""Claims under way at once: while the server works on one, this pod starts the runs of the other."""


class Claimer:
    """Claims and rescues for one pod."""

    name = "claimer"

    def __init__(self, pod: Pod, intake: Intake, runner: Runner) -> None:
        self._pod, self._intake, self._runner = pod, intake, runner
        self._asked = 0
        self._asked_of: Counter[str] = Counter()
        self._unanswered: set[asyncio.Future[None]] = set()
        self._rounds: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Claim while there is something and room for it, until a claim fails."""
        await side_by_side(self._turn() for _ in range(ROUNDS))

    async def finish(self) -> None:
        """Wait for the claims that were under way when the service was stopped. Cancelled, it gives them up: what they
        may have claimed is left to its lease."""
        await asyncio.gather(*self._rounds, return_exceptions=True)

    async def _turn(self) -> None:
        """Round after round. A round is not cancelled with this service: what it has claimed on the server must not
        be left leased to nobody."""
        while True:
            await self._intake.wait()
            await self._runner.room_free(self._asked)
            claiming = asyncio.create_task(self._round())
            self._rounds.add(claiming)
            claiming.add_done_callback(self._ended)
            await asyncio.shield(claiming)

    def _ended(self, claiming: asyncio.Task[None]) -> None:
        """A round that fails after its turn was cancelled, because another failed, has nobody else to hear of it."""
        self._rounds.discard(claiming)
        error = None if claiming.cancelled() else claiming.exception()
        if error is not None and not isinstance(error, Unavailable):
            _log.error("claim failed", exc_info=error)

    async def _round(self) -> None:
        """Take what there is room for; what other rounds have asked for counts as taken."""
        orphans = self._intake.take_orphans(min(self._runner.room - self._asked, CLAIM_BATCH))
        wanted = self._intake.take(self._runner.room - self._asked - sum(map(len, orphans.values())))
        asked = sum(map(len, orphans.values())) + sum(some.most for some in wanted)
        self._asked += asked
        try:
            for shard, identities in orphans.items():
                await self._rescue(shard, identities)
            for some in wanted:
                await self._claim(some)
        finally:
            self._asked -= asked
            self._runner.room_changed()

    async def _claim(self, wanted: Wanted) -> None:
        most = {ask.prefix: min(ask.most, self._room_of(ask.prefix)) for ask in wanted.asks}
        with self._asking(most):
            asked_at = time.monotonic()
            claimed = await self._pod.store.claim(
                wanted.shard,
                list(most.items()),
                pod=self._pod.name,
                lease_ms=self._pod.lease_ms,
                cause=wanted.cause,
                limits={prefix: self._runner.limits_of(prefix) for prefix in most},
                processors=self._named(most),
            )
            _tell_quarantined(claimed)
            for ask in wanted.asks:
                self._follow_up(wanted, ask, claimed, has_room=most[ask.prefix] == ask.most)
            self._runner.start(wanted.shard, claimed, asked_at)

    async def _rescue(self, shard: int, orphans: Sequence[Identity]) -> None:
        """Take over what this pod has room for; a sweep finds the others again. What the pod itself holds is not lost,
        however long its event loop stood still, nor is what the answers that it has yet to read will bring."""
        if self._unanswered:
            await asyncio.wait(set(self._unanswered))
        held = self._runner.held
        room = {prefix: self._room_of(prefix) for prefix, _ in orphans}
        chosen: list[Identity] = []
        for orphan in orphans:
            if orphan in held:
                continue
            room[orphan[0]] -= 1
            if room[orphan[0]] >= 0:
                chosen.append(orphan)
        if not chosen:
            return
        with self._asking(Counter(prefix for prefix, _ in chosen)):
            asked_at = time.monotonic()
            rescued = await self._pod.store.rescue(
                shard,
                chosen,
                pod=self._pod.name,
                lease_ms=self._pod.lease_ms,
                processors=self._named(prefix for prefix, _ in chosen),
            )
            _tell_quarantined(rescued)
            for timer in rescued.timers:
                self._pod.observer.rescued(timer.prefix)
                _log.warning("run rescued from an expired lease", **named(timer))
            self._runner.start(shard, rescued, asked_at)

    def _named(self, prefixes: Iterable[str]) -> dict[str, str]:
        """The processor of each queue, by the prefix it was declared with."""
        return {prefix: self._pod.registry.require(prefix).prefix for prefix in prefixes}

    def _room_of(self, prefix: str) -> int:
        """What this pod may still take of a queue; what the other round has asked for counts as taken."""
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
            self._unanswered.remove(answered)
            answered.set_result(None)

    def _follow_up(self, wanted: Wanted, ask: Ask, claimed: Claimed, *, has_room: bool) -> None:
        """A full batch, or one that a sweep asked for, leaves the queue dirty. A short one has emptied it, or has met a
        limit: then the end of a run marks it again, or the time at which its rate allows the next."""
        wait_ms = claimed.waits_ms.get(ask.prefix)
        if wait_ms is not None:
            self._intake.mark_after(wanted.shard, ask.prefix, wait_ms / 1000)
        if wait_ms is not None or not has_room or ask.prefix not in claimed.more:
            self._intake.emptied(wanted.shard, ask)
        elif ask.most >= BACKLOG or wanted.cause != "event":
            self._intake.mark_all(wanted.shard, ask.prefix, wanted.cause, deep=ask.most >= BACKLOG)


def _tell_quarantined(claimed: Claimed) -> None:
    for member, reason in claimed.quarantined.items():
        _log.error("timer quarantined", timer=member, reason=reason)
