"""Owns a pod's place among the live pods: its signs of life, which timers it may run, and which events it should act
on.

Every pod hears every event, but not every pod should ask. The pod that an event hashes to (rendezvous hashing) claims
at once; the rest claim a little later and normally find nothing. Source: Thaler and Ravishankar, "A Name-Based Mapping
Scheme for Rendezvous", 1996.
"""

import asyncio
import secrets
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, Final

from timers.engine.supervisor import Supervisor
from timers.errors import ConfigurationError, Unavailable
from timers.logs import Reminders, get_logger
from timers.store.cooperative import set_within
from timers.store.identity import RAISE_AFTER_SECONDS, Move
from timers.store.membership import Member, Membership, Roster
from timers.store.notifications import parts

_log = get_logger("timers.peers")
_losses_log = get_logger("timers.identity")


ALL_BEATS: Final = 20
"""Within so many beats a pod writes a checkpoint to all shards that it leads, reads those of the others, and counts the
timers of all, a few shards at each beat. Besides, one shard of each server is enough, because a server goes back in
time as a whole."""

SOON_SECONDS: Final = 0.2
"""How long timers that became due without events have the server and this pod to themselves after a cut, and how often
at most a pod comes for news, because the pods of a deployment come one after another."""

_QUEUES_REMEMBERED: Final = 100_000
"""Callers can make up prefixes without end."""

_MASK: Final = 0xFFFFFFFF


def weight(seed: int, key: int) -> int:
    """How strongly a key prefers a pod. The finalizer of MurmurHash3 (A. Appleby) mixes both, so that pods are
    independent of each other, which plain CRCs are not."""
    mixed = key ^ seed
    mixed = ((mixed ^ (mixed >> 16)) * 0x85EBCA6B) & _MASK
    mixed = ((mixed ^ (mixed >> 13)) * 0xC2B2AE35) & _MASK
    return mixed ^ (mixed >> 16)


class Peers:
    """The live pods and the declared prefixes as this pod last saw them."""

    def __init__(
        self,
        membership: Membership,
        me: Member,
        state: Callable[[], Mapping[str, Any]] = dict,
        *,
        beat_ms: int = 3000,
        raise_after_seconds: float = RAISE_AFTER_SECONDS,
        disagreed: Callable[[ConfigurationError], None] | None = None,
    ) -> None:
        """`me` describes this pod, and `state` returns its state at each beat. `disagreed` is called if this pod cannot
        work with the db as it is by now."""
        self._membership, self._state, self._beat_ms = membership, state, beat_ms
        self._me = replace(me, process=secrets.token_hex(8))
        self._identity, self._refusals = membership.store.identity, membership.store.refusals
        self._connections = membership.store.connections
        self._raise_after_seconds, self._disagreed = raise_after_seconds, disagreed
        self._checks = 0
        self._foreign = ""
        self._moving: Move | None = None
        self._common: tuple[int, float] | None = None
        self._own_seed = zlib.crc32(me.pod.encode())
        self._soon = asyncio.Event()
        self._was_cut = False
        self._roster = Roster()
        self._others: list[Member] = []
        self._reminders = Reminders()
        self._losses: set[str] = set()
        self._rivals = lru_cache(_QUEUES_REMEMBERED)(self._find_rivals)
        self.owner = lru_cache(_QUEUES_REMEMBERED)(self._find_owner)
        """The processor that owns timers of a prefix: the longest that any pod ever declared."""
        self.beating = Supervisor({"peers": self.run})

    @property
    def members(self) -> Sequence[Member]:
        """What the live pods are, including this one."""
        return self._roster.members

    async def start(self) -> None:
        """Return after the first sign of life. Raises Unavailable if it cannot be given."""
        try:
            await self.beat()
        except Unavailable:
            if not self.members:
                raise
            # Others know of this pod; some shards are on a node that is away.
        self.beating.start()

    async def stop(self) -> None:
        """Sign off, so that nobody waits for this pod. While Redis is down, let its last sign of life age instead."""
        await self.beating.stop()
        try:
            await self._membership.leave(self._me.pod)
        except Unavailable as error:
            _log.warning("could not sign off", reason=str(error))

    async def run(self) -> None:
        while True:
            self._soon.clear()
            self._was_cut, began = False, time.monotonic()
            await self.beat()
            if await set_within(self._soon, self._beat_ms / 1000):
                pause = SOON_SECONDS if self._was_cut else SOON_SECONDS - (time.monotonic() - began)
                await asyncio.sleep(max(0, min(pause, self._beat_ms / 1000)))

    def hear_news(self) -> None:
        """Come for the news at once: until this pod knows of a new processor, it runs what that one owns."""
        self._soon.set()

    def beat_soon(self) -> None:
        """Give the next sign of life soon: this may be another server, or the same without its newest data."""
        self._was_cut = True
        self._soon.set()

    async def beat(self) -> None:
        """Give one sign of life and take over what has changed."""
        me = replace(self._me, lacks=self._refusals.lacks, newer=self._refusals.newer, **self._state())
        self._log_refusals(me)
        try:
            roster = await self._membership.beat(me)
        except Unavailable as error:
            self._refusals.sign = str(error).rstrip(".")
            if len(self._membership.store.connections.nodes) > 1:  # the registry is away, the shards may be there
                await self.check_identity(())
            raise
        self._refusals.sign = ""
        others = [member for member in roster.workers if member.pod != self._me.pod]
        if roster.version != self._roster.version or len(others) != len(self._others):
            self._rivals.cache_clear()
            self.owner.cache_clear()
            self._log_namesake(roster.members)
        self._roster, self._others = roster, others
        await self.check_identity(roster.members)

    def _log_refusals(self, me: Member) -> None:
        """Log what the Redis user may not do, and which timers this version cannot read, each once a minute."""
        for prefix, said in me.lacks.items():
            if self._reminders.is_due(prefix):
                _log.error("the Redis user lacks a right", prefix=prefix, reason=said)
        for timer, form in me.newer.items():
            if self._reminders.is_due(timer):
                _log.error("timer left to pods of a later version", timer=timer, format=form)

    def _log_namesake(self, members: Iterable[Member]) -> None:
        """Log that this pod has found the sign of another in the place of its own."""
        if any(member.pod == self._me.pod and member.process not in ("", self._me.process) for member in members):
            _log.error("another live pod has the same name", pod=self._me.pod)

    def _find_owner(self, prefix: str) -> str | None:
        return self._roster.owner(prefix)

    def rank(self, shard: int, *, adopting: bool = False) -> int:
        """This pod's rank among the pods that may sweep the shard. Rank 0 usually does the touching. `adopting` leaves
        out those that do not look for bare keys."""
        mine, others = weight(self._own_seed, shard), [m for m in self._others if m.adopts or not adopting]
        return sum(weight(zlib.crc32(m.pod.encode()), shard) > mine for m in others if m.takes(shard))

    def led(self, shards: Iterable[int]) -> Iterator[int]:
        """Those of the shards for which this pod has rank 0, each asked when its turn comes."""
        return (shard for shard in shards if self.rank(shard) == 0)

    def is_mine(self, shard: int, prefix: str, timer_id: str) -> bool:
        """Whether this pod should claim at once for an event of the timer."""
        return self.count_mine(shard, prefix, [timer_id.encode()]) == 1

    def count_mine(self, shard: int, prefix: str, ids: Sequence[bytes]) -> int:
        """For how many of these timers' events this pod should claim at once."""
        rivals = self._rivals(shard, prefix) if self._others else ()
        return sum(self._prefers_this(zlib.crc32(each), rivals) for each in ids) if rivals else len(ids)

    def _prefers_this(self, key: int, rivals: Sequence[int]) -> bool:
        mine = weight(self._own_seed, key)
        return all(weight(seed, key) <= mine for seed in rivals)

    def serve(self, shard: int, prefix: str) -> bool:
        """Whether another live pod serves the queue."""
        return bool(self._rivals(shard, prefix))

    def _find_rivals(self, shard: int, prefix: str) -> Sequence[int]:
        """The hash seeds of the other pods that serve a queue."""
        serving = self._roster.serving(prefix)
        return [zlib.crc32(m.pod.encode()) for m in serving if m.pod != self._me.pod and m.takes(shard)]

    async def check_identity(self, members: Iterable[Member]) -> None:
        """Write checkpoints to the shards that this pod leads and read those of others, because this pod may be the
        one that is left when the server comes back without its newest data. Raise the record format of the db once all
        live pods have read a newer one for long enough."""
        identity = self._identity
        mine = list(self.led(filter(self._me.takes, range(identity.shards))))
        turn, self._checks = self._checks, self._checks + 1
        due = [shard for shard in range(identity.shards) if turn == 0 or shard % ALL_BEATS == turn % ALL_BEATS]
        servers = [part.shards for part in parts(self._connections, identity.shards) if part.shards]
        watched = {*due, *(min(shards.intersection(mine) or shards) for shards in servers)}
        try:
            await identity.check([shard for shard in mine if shard in watched], sorted(watched.difference(mine)))
            await identity.count(watched.intersection(mine).union(due))
            await self._raise_format(members)
        except ConfigurationError as error:
            if self._disagreed is None:
                raise
            self._disagreed(error)
        finally:  # some shards may be on a node that is away
            self._tell_news()

    def _tell_news(self) -> None:
        """Log what is new of the db: lost data, a move, a foreign number of shards."""
        identity = self._identity
        for name in [name for name in identity.losses if name not in self._losses]:
            self._checks = 0  # the other shards may have lost something too
            _losses_log.error(
                "data was lost", what=str(identity.losses[name]), acknowledge="timers doctor --acknowledge"
            )
        self._losses = set(identity.losses)
        self._log_move(identity.moving)
        if identity.foreign != self._foreign:
            self._foreign = identity.foreign
            if self._foreign:
                _losses_log.error("the number of shards was overwritten", what=self._foreign)

    def _log_move(self, now: Move | None) -> None:
        """Log each phase of a move to or from this db, and its end."""
        before, self._moving = self._moving, now
        if now is not None and (before is None or before.phase != now.phase):
            _losses_log.warning("nothing is armed or started here", reason=str(now.error), phase=now.phase)
        elif before is not None and now is None:
            _losses_log.warning("the service goes on here after a move", phase=before.phase)

    async def _raise_format(self, members: Iterable[Member]) -> None:
        """Raise the db to the newest format that all live pods read, if that has not changed for long enough."""
        newest, now = min((member.format for member in members), default=0), time.monotonic()
        if newest <= self._identity.form:
            self._common = None
        elif self._common is None or self._common[0] != newest:
            self._common = newest, now
        elif now - self._common[1] >= self._raise_after_seconds:
            await self._identity.raise_format(newest, self._me.version or "")
            _log.warning("records get a newer format; earlier versions can no longer start", format=newest)
