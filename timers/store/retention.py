"""Owns removing finished timers whose retention is over."""

from collections.abc import Sequence
from typing import Final, NamedTuple

from timers.core.model import Status
from timers.store import codec, keys
from timers.store.store import Store

LOOKS: Final = 500
"""Counts (each of a prefix and a status) that one call looks at: about a millisecond of the server's time."""


class Removed(NamedTuple):
    """Failed or unhandled timers of a prefix that were removed: how many, and the id of the oldest."""

    prefix: str
    status: Status
    number: int
    oldest: str


class Pruned(NamedTuple):
    """How many records were removed, and which of them had failed or were unhandled; where to go on (`0`: from the
    beginning), and whether none is left behind the cursor that was given."""

    number: int
    cursor: str
    failed: Sequence[Removed]
    is_last: bool


async def prune(
    store: Store,
    shard: int,
    *,
    retention_ms: int,
    retention_failed_ms: int | None,
    most: int,
    cursor: str = "0",
    looks: int = LOOKS,
) -> Pruned:
    """Remove at most `most` finished records whose retention is over, looking at about `looks` counts from `cursor` on.
    `retention_failed_ms` is for failed and unhandled timers; None keeps them. Raises Unavailable."""
    failed_ms = "" if retention_failed_ms is None else retention_failed_ms
    number, reached, failed = await store.run("prune", shard, [retention_ms, failed_ms, most, looks, cursor])
    removed = [
        Removed(
            keys.text(failed[i + 1]), codec.STATUSES[failed[i].decode()], int(failed[i + 2]), keys.text(failed[i + 3])
        )
        for i in range(0, len(failed), 4)
    ]
    return Pruned(int(number), keys.text(reached), removed, reached == b"0" and int(number) < most)
