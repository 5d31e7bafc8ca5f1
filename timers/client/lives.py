"""Owns learning in which life a shard is, and saying so in the ledger before anything is given back or written in it.

The functions raise Unavailable and LedgerUnavailable.
"""

from collections.abc import Collection
from functools import partial

from timers.errors import Unavailable
from timers.ledger import lives
from timers.ledger.database import Transacting
from timers.store.following import Stage, founded, stages
from timers.store.store import FOUNDING_TRIES, KEEPS_CHANGING, Store


async def enter(store: Store, database: Transacting, shard: int) -> Stage:
    """The stage of a shard in a life that the ledger knows. What it knew is read first: if somebody says another life
    after that, this one may be over."""
    for _ in range(FOUNDING_TRIES):
        before = (await database.do(partial(lives.known, shards=[shard]), writes=False)).get(shard)
        stage = await founded(store, shard)
        if before == stage.life:
            return stage
        if await database.do(partial(lives.begin, shard=shard, before=before, life=stage.life)):
            return stage
    raise Unavailable(KEEPS_CHANGING)


async def entered(store: Store, database: Transacting, shards: Collection[int]) -> dict[int, Stage]:
    """As `enter`, of several shards."""
    there = await stages(store, sorted(shards))
    known = await database.do(partial(lives.known, shards=sorted(shards)), writes=False)
    return {
        shard: stage if known.get(shard) == stage.life else await enter(store, database, shard)
        for shard, stage in there.items()
    }
