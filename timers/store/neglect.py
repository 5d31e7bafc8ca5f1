"""Owns noticing that nobody copies the changes of a shard to the ledger."""

from collections.abc import Sequence
from typing import Final

from timers.store.store import Store

SAMPLED: Final = 4
"""About how many notes of a shard are remembered."""


class Neglect:
    """What was seen of some shards at the last look. A pod that copies takes each note away within 0.8 s, so one
    that is still the same at the next look, a second later, was left alone."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._seen: dict[int, dict[bytes, bytes]] = {}

    async def left_alone(self, shards: Sequence[int]) -> list[int]:
        """Those of the shards that have a note from the last look. Raises Unavailable."""
        if not shards:
            self._seen = {}
            return []
        answers = await self._store.of_shards(
            lambda asked, root: asked.hscan(f"{root}changed", count=SAMPLED), (0, {}), shards=shards
        )
        before, self._seen = self._seen, {shard: found for shard, ((_, found),) in zip(shards, answers, strict=True)}
        return [shard for shard in shards if self._seen[shard].items() & before.get(shard, {}).items()]
