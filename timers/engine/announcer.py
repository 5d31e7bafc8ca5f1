"""Owns expired bare keys: counts what this pod hears and makes their timers due; then they are claimed like any."""

import asyncio
import time
from typing import Final, NamedTuple

from timers.engine.canary import Canary
from timers.engine.intake import LATER_SECONDS, Intake
from timers.engine.pod import Pod
from timers.store.bare import ANNOUNCE_BATCH, BareKeys, Heard
from timers.store.store import Identity

MEMORY_SECONDS: Final = 5.0
"""How long expiries of a key are counted together: as long as the count in its lock (lua/announce.lua)."""

REMEMBERED_LIMIT: Final = 100_000
AGAIN_SECONDS: Final = 0.5
"""When to try again for a key that expired while its last run was under way."""


CLOCK_SLACK_MS: Final = 50
"""By how much the server's clock as it is known here may lag behind the server's own."""


class _Memory(NamedTuple):
    """How often a key was heard within MEMORY_SECONDS, when last (monotonic), and the server's time at which all of
    these were answered."""

    times: int
    last: float
    answered_ms: int = 0


class Announcer:
    """Announces bare keys' expiries to the store."""

    name = "announcer"

    def __init__(self, pod: Pod, bare: BareKeys, intake: Intake, canary: Canary) -> None:
        self._clock, self._bare, self._intake, self._canary = pod.store.clock, bare, intake, canary
        self._heard: dict[Identity, _Memory] = {}
        self._pending: dict[Identity, Heard] = {}
        self._something = asyncio.Event()

    def heard(self, identity: Identity, *, mine: bool) -> None:
        """A key expired. A pod whose event it is announces at once, the others a little later."""
        now = time.monotonic()
        before = self._heard.pop(identity, _Memory(0, 0.0))
        times = before.times + 1 if now - before.last < MEMORY_SECONDS else 1
        self._heard[identity] = _Memory(times, now, before.answered_ms)
        if len(self._heard) > REMEMBERED_LIMIT:
            self._forget(now)
        heard = Heard(times, max(self._canary.heard_until_ms(), before.answered_ms))
        self._later(identity, heard, 0 if mine else LATER_SECONDS)

    async def run(self) -> None:
        """Announce what is pending, batch after batch. A batch is pending until it is answered."""
        while True:
            await self._something.wait()
            batch = dict(list(self._pending.items())[:ANNOUNCE_BATCH])
            for shard in {self._bare.shard_of(identity) for identity in batch}:
                await self._announce(shard, {i: h for i, h in batch.items() if self._bare.shard_of(i) == shard})
            if not self._pending:
                self._something.clear()

    async def _announce(self, shard: int, batch: dict[Identity, Heard]) -> None:
        codes = await self._bare.announce(shard, batch)
        answered_ms = int(self._clock.now_ms()) + CLOCK_SLACK_MS
        for (identity, heard), code in zip(batch.items(), codes, strict=True):
            if self._pending.get(identity) == heard:
                del self._pending[identity]
            if code != "running" and identity in self._heard:
                self._heard[identity] = self._heard[identity]._replace(answered_ms=answered_ms)
            if code == "due":
                self._intake.mark(shard, identity[0])
            elif code == "running":
                self._later(identity, heard, AGAIN_SECONDS)

    def _later(self, identity: Identity, heard: Heard, seconds: float) -> None:
        if seconds:
            asyncio.get_running_loop().call_later(seconds, self._add, identity, heard)
        else:
            self._add(identity, heard)

    def _add(self, identity: Identity, heard: Heard) -> None:
        self._pending[identity] = max(heard, self._pending.get(identity, heard))
        self._something.set()

    def _forget(self, now: float) -> None:
        """Drop what is too old to count; the dict is in order of the last hearing."""
        for identity, memory in list(self._heard.items()):
            if now - memory.last < MEMORY_SECONDS:
                return
            del self._heard[identity]
