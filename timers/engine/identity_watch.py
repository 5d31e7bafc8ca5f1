"""Owns noticing lost data: at each sign of life it compares the db with what this pod knew, and says so loudly."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from timers.errors import ConfigurationError
from timers.logs import get_logger
from timers.store.identity import DbIdentity
from timers.store.membership import Member

_log = get_logger("timers.identity")


class IdentityWatch:
    """Marks the progress of the shards that are this pod's to mark, and remembers what the others tell of theirs.
    `disagreed` hears that this pod cannot go on with what the db is by now."""

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
        """What the other pods should know: this pod may be gone when the server comes back without its newest data."""
        marks = {shard: self._identity.marks[shard] for shard in self._marked if shard in self._identity.marks}
        return {"epoch": self._identity.epoch, "marks": marks}

    async def look(self, members: Sequence[Member]) -> None:
        """Look, after each sign of life."""
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
