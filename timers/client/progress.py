"""Owns saying how far shards and the ledger have come to agree again after a loss, or for the first time."""

import asyncio
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import Final

from timers.errors import LedgerUnavailable
from timers.ledger.comparing import share_until
from timers.ledger.database import Database
from timers.store import keys
from timers.store.following import BUCKETS, COPY, REBUILD, RESTORE, Stage

ASK_SECONDS: Final = 5.0
"""How often the ledger counts how much was given back."""

COUNT_SECONDS: Final = 5.0
"""How long the counts for a person who asks may take: of hundreds of millions of rows they take minutes."""

_UNCOUNTED: Final = "the count took too long"


async def share(database: Database, shard: int, stage: Stage) -> float:
    """How much of its way to agreement a shard has gone, 0 to 1: first the ledger's timers are given back, then its own
    are copied. Raises LedgerUnavailable."""
    if stage.is_whole:
        return 1.0
    if stage.what == COPY.what:
        return (1 + int(stage.place) / BUCKETS) / 2
    if stage.what in (RESTORE.what, REBUILD) and stage.place:
        given = await share_until(database, shard, *keys.identity_of(stage.place))
        return given if stage.what == REBUILD else given / 2
    return 0.0


async def told(database: Database, stages: Mapping[int, Stage]) -> list[str]:
    """Shards that are not whole, each with what is under way and how far it is, unless that takes too long to count:
    `0 (restore, 43 %)`. Raises LedgerUnavailable."""
    behind = {shard: stage for shard, stage in stages.items() if not stage.is_whole}
    shares = dict[int, str]()
    with suppress(TimeoutError):
        async with asyncio.timeout(COUNT_SECONDS):
            for shard, stage in behind.items():
                shares[shard] = f"{await share(database, shard, stage):.0%}".replace("%", " %")
    return [f"{shard} ({stage.what}, {shares.get(shard, _UNCOUNTED)})" for shard, stage in behind.items()]


class Shares:
    """How far the shards are that one pod leads."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._shares: dict[int, float] = {}
        self._ask_at = 0.0

    async def reached(self, shard: int, stage: Stage) -> None:
        """A shard has reached a stage. Counts in the database now and then only; a count that fails, such as one that
        takes too long, holds up no restore."""
        if stage.what not in (RESTORE.what, REBUILD) or time.monotonic() >= self._ask_at:
            with suppress(LedgerUnavailable):
                self._shares[shard] = await share(self._database, shard, stage)
            self._ask_at = time.monotonic() + ASK_SECONDS

    def share(self, shards: Collection[int]) -> float:
        """Of all these shards; one of which nothing was said is whole."""
        return sum(self._shares.get(shard, 1.0) for shard in shards) / max(len(shards), 1)
