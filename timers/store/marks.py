"""Owns the marks of rows of the ledger's inbox: that the timer of a row was armed. `arm` sets them, in the same step.

The functions raise Unavailable.
"""

from collections.abc import Mapping
from typing import Final

from timers.store import keys
from timers.store.scripts import reachable
from timers.store.store import Store

Marks = Mapping[str, int]
"""Rows, each as `<seq>.<at>`, and when their timers were armed, in epoch ms."""

CAUSE: Final = "inbox"
"""What the history says before a row: `inbox <seq>.<at>`."""


async def read_marks(store: Store) -> Mapping[int, Marks]:
    """The marks by shard."""
    answers = await store.of_shards(lambda asked, root: asked.hgetall(f"{root}inbox"), {})
    return {
        shard: {keys.text(row): int(at) for row, at in marks.items() if at.isdigit()}
        for shard, (marks,) in enumerate(answers)
        if marks
    }


async def drop_marks(store: Store, shard: int, rows: list[str]) -> None:
    """Forget rows that are deleted for good."""
    with reachable():
        await store.connections.commands.hdel(f"{keys.root(shard)}inbox", *rows)
