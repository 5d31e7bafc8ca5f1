"""Owns what no live pod covers: shards that no pod takes, and prefixes with timers that no pod runs."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Final

from timers.store.membership import Membership, Roster
from timers.store.queries import Queries
from timers.store.store import Queue, Store

NAMES_SHOWN: Final = 20
"""Shards or prefixes that one sentence names; callers can make up any number of prefixes."""


@dataclass(frozen=True, slots=True)
class Uncovered:
    """What no live pod covers, in order."""

    shards: Sequence[int]
    prefixes: Sequence[str]

    def warnings(self, visible: Callable[[str], bool] | None = None) -> list[str]:
        """A sentence for the shards and one for the prefixes, if there are any. Prefixes that may not be seen are
        counted."""
        shards = f"no live pod takes the shards {few(self.shards)}"
        seen = [prefix for prefix in self.prefixes if visible is None or visible(prefix)]
        named = [f"of the prefixes {few(seen)}"] if seen else []
        counted = [f"of {len(self.prefixes) - len(seen)} prefixes"] if len(seen) < len(self.prefixes) else []
        prefixes = f"timers are due that no live pod takes, {' and '.join([*named, *counted])}"
        return [*([shards] if self.shards else ()), *([prefixes] if self.prefixes else ())]


def uncovered(roster: Roster, queues: Iterable[Queue], shards: int) -> Uncovered:
    """What the live pods leave uncovered of a db's shards and of these queues. In an uncovered shard a prefix counts as
    served if a pod of another shard serves it, so that one gap is reported once."""
    open_shards = [shard for shard in range(shards) if not any(worker.takes(shard) for worker in roster.workers)]
    missing = set[str]()
    for prefix, places in groupby(sorted(queues, key=itemgetter(1)), key=itemgetter(1)):
        serving = roster.serving(prefix)
        for shard, _ in places:
            if not any(shard in open_shards or worker.takes(shard) for worker in serving):
                missing.add(prefix)
    return Uncovered(open_shards, sorted(missing))


async def read_uncovered(store: Store) -> Uncovered:
    """What nobody covers now; only prefixes with timers that are due or waiting for rescue. Raises Unavailable."""
    return uncovered(await Membership(store).read(), await Queries(store).due_queues(), store.shards)


def few(names: Sequence[object]) -> str:
    """The first names, and how many more there are."""
    rest = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
    return ", ".join(map(str, names[:NAMES_SHOWN])) + rest
