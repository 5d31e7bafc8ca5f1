"""Owns who else is alive: the pod's signs of life, and whose event an event is (rendezvous hashing).

Every pod hears every event, but not every pod should ask. The pod that an event hashes to claims at once; the rest look
a little later and normally find nothing. Source: Thaler and Ravishankar, "A Name-Based Mapping Scheme for Rendezvous",
1996.
"""

import asyncio
import zlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

from timers.client.fleet import FORGET_AFTER_MS, serves, takes
from timers.store.store import PodSign, Store

BEAT_SECONDS: Final = 1.0
_MASK: Final = 0xFFFFFFFF


def weight(seed: int, key: int) -> int:
    """How strongly a key wants a pod: both mixed by the finalizer of MurmurHash3 (A. Appleby), so that pods are
    independent of each other, which bare CRCs are not."""
    mixed = key ^ seed
    mixed = ((mixed ^ (mixed >> 16)) * 0x85EBCA6B) & _MASK
    mixed = ((mixed ^ (mixed >> 13)) * 0xC2B2AE35) & _MASK
    return mixed ^ (mixed >> 16)


class Peers:
    """The live worker pods as this pod last saw them."""

    name = "peers"

    def __init__(
        self,
        store: Store,
        pod: str,
        info: Callable[[], Mapping[str, Any]],
        look: Callable[[Sequence[PodSign]], Awaitable[None]] | None = None,
    ) -> None:
        """`info` is what the pod says of itself; `look` is done after each sign of life, with those of all pods."""
        self._store, self._pod, self._info, self._look = store, pod, info, look
        self._soon = asyncio.Event()
        self._others: list[PodSign] = []
        self._seeds: dict[str, list[int]] = {}
        self._own_seed = zlib.crc32(pod.encode())

    async def run(self) -> None:
        """Give a sign of life at once and at every beat."""
        while True:
            self._soon.clear()
            await self.beat()
            try:
                async with asyncio.timeout(BEAT_SECONDS):
                    await self._soon.wait()
            except TimeoutError:
                continue

    def beat_soon(self) -> None:
        """The next sign of life at once: it may be another server, or the same without its newest data."""
        self._soon.set()

    async def beat(self) -> list[PodSign]:
        """One sign of life; answers all live pods."""
        signs = await self._store.beat(self._pod, self._info(), forget_after_ms=FORGET_AFTER_MS)
        self._others = [s for s in signs if s.pod != self._pod and "worker" in s.info.get("roles", ())]
        self._seeds.clear()
        if self._look is not None:
            await self._look(signs)
        return signs

    async def leave(self) -> None:
        """Take this pod off the list: its share goes to the others at their next beat."""
        await self._store.beat(self._pod, None, forget_after_ms=FORGET_AFTER_MS)

    def rank(self, shard: int) -> int:
        """This pod's place among those that may sweep the shard; 0 usually does the touching."""
        mine = weight(self._own_seed, shard)
        return sum(weight(zlib.crc32(s.pod.encode()), shard) > mine for s in self._others if takes(s.info, shard))

    def mine(self, shard: int, prefix: str, timer_id: str) -> bool:
        """Whether this pod is the one to claim at once for an event of the timer."""
        if not self._others:
            return True
        key = zlib.crc32(timer_id.encode())
        mine = weight(self._own_seed, key)
        return all(weight(seed, key) <= mine for seed in self._rivals(shard, prefix))

    def serve(self, shard: int, prefix: str) -> bool:
        """Whether another live pod serves the queue."""
        return bool(self._rivals(shard, prefix))

    def _rivals(self, shard: int, prefix: str) -> Sequence[int]:
        """The seeds of the other pods that serve a queue."""
        queue = f"{shard}:{prefix}"
        if queue not in self._seeds:
            rivals = [s for s in self._others if takes(s.info, shard) and serves(s.info, prefix)]
            self._seeds[queue] = [zlib.crc32(s.pod.encode()) for s in rivals]
        return self._seeds[queue]
