"""Owns noticing lost data: compares the db with what this pod knew, at each sign of life, and reports a loss."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from timers.errors import ConfigurationError
from timers.logs import get_logger
from timers.store.identity import DbIdentity
from timers.store.membership import Member

_log = get_logger("timers.identity")


class IdentityWatch:
    """Marks the progress of this pod's shards and remembers the marks of others. Calls `disagreed` if this pod cannot
    work with the db as it is now."""

    def __init__(
        self,
        identity: DbIdentity,
        *,
        mine: Callable[[], Sequence[int]] = tuple,
        disagreed: Callable[[ConfigurationError], None] | None = None,
    ) -> None:
        self._identity, self._mine, self._disagreed = identity, mine, disagreed
        self._marked: Sequence[int] = ()
        self._told: set[str] = set()

    def said(self) -> Mapping[str, Any]:
        """What other pods should know, since this pod may be gone when the server comes back without its newest
        data."""
        marks = {shard: self._identity.marks[shard] for shard in self._marked if shard in self._identity.marks}
        return {"epoch": self._identity.epoch, "marks": marks}

    async def look(self, members: Sequence[Member]) -> None:
        """Compare after each sign of life."""
        identity = self._identity
        for member in members:
            identity.learn(member.epoch, member.marks)
        self._marked = self._mine()
        try:
            await identity.mark(self._marked)
        except ConfigurationError as error:
            if self._disagreed is None:
                raise
            self._disagreed(error)
        for name in [name for name in identity.losses if name not in self._told]:
            _log.error("data was lost", what=str(identity.losses[name]), acknowledge="timers doctor --acknowledge")
        self._told = set(identity.losses)
