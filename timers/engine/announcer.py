"""Owns expired bare keys: counts what this pod hears and makes their timers due; then they are claimed like any."""

import asyncio
import time
from typing import Final

from timers.engine.intake import LATER_SECONDS, Intake
from timers.store.bare import ANNOUNCE_BATCH, BareKeys
from timers.store.store import Identity

MEMORY_SECONDS: Final = 5.0
"""How long expiries of a key are counted together: the life of the lock they are compared with (lua/announce.lua)."""

REMEMBERED_LIMIT: Final = 100_000
AGAIN_SECONDS: Final = 0.5
"""When to try again for a key that expired while its last run was under way."""


class Announcer:
    """Announces bare keys' expiries to the store."""

    name = "announcer"

    def __init__(self, bare: BareKeys, intake: Intake) -> None:
        self._bare, self._intake = bare, intake
        self._heard: dict[Identity, tuple[int, float]] = {}
        self._pending: dict[Identity, int] = {}
        self._something = asyncio.Event()

    def heard(self, identity: Identity, *, mine: bool) -> None:
        """A key expired. A pod whose event it is announces at once, the others a little later."""
        now = time.monotonic()
        times, last = self._heard.pop(identity, (0, 0.0))
        times = times + 1 if now - last < MEMORY_SECONDS else 1
        self._heard[identity] = (times, now)
        if len(self._heard) > REMEMBERED_LIMIT:
            self._forget(now)
        self._later(identity, times, 0 if mine else LATER_SECONDS)

    async def run(self) -> None:
        """Announce what is pending, batch after batch. A batch is pending until it is answered."""
        while True:
            await self._something.wait()
            batch = dict(list(self._pending.items())[:ANNOUNCE_BATCH])
            for shard in {self._bare.shard_of(identity) for identity in batch}:
                await self._announce(shard, {i: n for i, n in batch.items() if self._bare.shard_of(i) == shard})
            if not self._pending:
                self._something.clear()

    async def _announce(self, shard: int, heard: dict[Identity, int]) -> None:
        codes = await self._bare.announce(shard, heard)
        for (identity, times), code in zip(heard.items(), codes, strict=True):
            if self._pending.get(identity) == times:
                del self._pending[identity]
            if code == "due":
                self._intake.mark(shard, identity[0])
            elif code == "running":
                self._later(identity, times, AGAIN_SECONDS)

    def _later(self, identity: Identity, times: int, seconds: float) -> None:
        if seconds:
            asyncio.get_running_loop().call_later(seconds, self._add, identity, times)
        else:
            self._add(identity, times)

    def _add(self, identity: Identity, times: int) -> None:
        self._pending[identity] = max(times, self._pending.get(identity, 0))
        self._something.set()

    def _forget(self, now: float) -> None:
        """Drop what is too old to count; the dict is in order of the last hearing."""
        for identity, (_, last) in list(self._heard.items()):
            if now - last < MEMORY_SECONDS:
                return
            del self._heard[identity]
