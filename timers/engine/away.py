"""Owns which shards a pod cannot reach while it reaches others: those of a cluster's node that is away, or that are
being moved."""

from collections.abc import Awaitable, Collection, Sequence
from typing import Final

from timers.errors import Unavailable
from timers.logs import get_logger
from timers.store import keys
from timers.store.servers.connections import Connections

AGAIN_SECONDS: Final = 0.5
"""When to try again what a node that is away did not do."""

_log = get_logger("timers.away")


class Away:
    """Where a db lies on several servers, a service goes on with the shards that it reaches."""

    def __init__(self, connections: Connections, shards: Sequence[int]) -> None:
        """`shards` are those of this pod."""
        self._connections, self._mine = connections, shards
        self.shards: dict[int, str] = {}
        """Those that did not answer when last asked, and why."""

    async def reached(self, shard: int, work: Awaitable[object]) -> bool:
        """Do some work on a shard. False if it cannot be reached, which is noted; on a single server Unavailable is
        raised, because there is nothing to go on with."""
        try:
            await work
        except Unavailable as error:
            if not self.note(shard, error):
                raise
            return False
        self.note(shard, None)
        return True

    def note(self, shard: int, error: Unavailable | None) -> bool:
        """Note why a shard cannot be reached, or that it can. False if the db has no other server."""
        if error is None:
            if self.shards:
                self.shards.pop(shard, "")
                if not self.shards:
                    _log.info("all of the cluster is within reach again")
        elif len(self._connections.nodes) == 1:
            return False
        else:
            if not self.shards:
                _log.warning("a part of the cluster is out of reach; the others go on", shard=shard, reason=str(error))
            self.shards[shard] = str(error)
        return True

    @property
    def leaves_some(self) -> bool:
        """Whether the db has several servers, and some shards are within reach as far as is known."""
        return len(self._connections.nodes) > 1 and len(self.shards) < len(self._mine)

    @property
    def is_partial(self) -> bool:
        """Whether some shards are out of reach, but not all."""
        return 0 < len(self.shards) < len(self._mine)

    def has_some_of(self, shards: Collection[int]) -> bool:
        """Whether some of these are out of reach, while others are not: that a server hangs shows shard by shard,
        over many seconds."""
        return self.is_partial and not self.shards.keys().isdisjoint(shards)

    def beside(self, key: str) -> list[int]:
        """The shards of this pod that are on the node of a key."""
        node = self._connections.node_of(key)
        return [shard for shard in self._mine if self._connections.node_of(keys.root(shard)) is node]

    @property
    def warnings(self) -> list[str]:
        """A sentence while shards are out of reach."""
        if not self.shards:
            return []
        first, reason = next(iter(self.shards.items()))
        number = f"{len(self.shards)} of {len(self._mine)}"
        return [f"shards out of reach: {number}, and their timers wait; shard {first}: {reason}"]
