"""Owns who serves what: shards and prefixes that no live pod covers, and whether a processor was ever declared for a
prefix."""

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Final

from timers.core.fields import is_own
from timers.core.hooks import CALLS
from timers.errors import FieldError, NoProcessor, shown
from timers.store import queries
from timers.store.membership import Membership, Roster
from timers.store.store import Queue, Store

NAMES_SHOWN: Final = 20
"""Shards or prefixes that one sentence names; callers can make up any number of prefixes."""


@dataclass(frozen=True, slots=True)
class Uncovered:
    """What no live pod covers, in order."""

    shards: Sequence[int]
    prefixes: Sequence[str]

    def warnings(self, visible: Callable[[str], bool] | None = None) -> list[str]:
        """A sentence for the shards and one for the prefixes but the service's own, if there are any. Prefixes that may
        not be seen are counted."""
        shards = f"no live pod takes the shards {shortened(self.shards)}"
        callers = [prefix for prefix in self.prefixes if not is_own(prefix)]
        seen = [prefix for prefix in callers if visible is None or visible(prefix)]
        named = [f"of the prefixes {shortened(seen)}"] if seen else []
        counted = [f"of {len(callers) - len(seen)} prefixes"] if len(seen) < len(callers) else []
        prefixes = f"no live pod takes due timers {' and '.join([*named, *counted])}"
        return [*([shards] if self.shards else ()), *([prefixes] if callers else ())]


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
    return uncovered(await Membership(store).read(), await queries.due_queues(store), store.shards)


def shortened(names: Sequence[object]) -> str:
    """The first names, and how many more there are."""
    rest = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
    return ", ".join(map(str, names[:NAMES_SHOWN])) + rest


FRESH_SECONDS: Final = 1.0
"""How long the declarations that were read are used: as long as a pod takes between two signs of life. So they cost one
small call a second, not one for each create."""


class Declared:
    """The declared prefixes as one client last read them."""

    def __init__(self, store: Store, *, fresh_seconds: float = FRESH_SECONDS) -> None:
        self._membership, self._fresh_seconds = Membership(store), fresh_seconds
        self._roster = Roster()
        self._read_at = float("-inf")
        self._reading = asyncio.Lock()

    async def refusals(self, prefixes: Iterable[str]) -> dict[str, NoProcessor]:
        """As `refusal`, for several prefixes: an error for each that has one."""
        asked_at = time.monotonic()
        found = [(prefix, await self.refusal(prefix, asked_at)) for prefix in prefixes]
        return {prefix: refused for prefix, refused in found if refused is not None}

    async def refusal(self, prefix: str, asked_at: float | None = None) -> NoProcessor | None:
        """An error if no processor was ever declared for the prefix. Reads the declarations again before it returns an
        error, unless somebody did since `asked_at` (None: now). Raises Unavailable."""
        asked_at = time.monotonic() if asked_at is None else asked_at
        for at in (asked_at - self._fresh_seconds, asked_at):
            if self._read_at < at:
                await self._read_since(at)
            if self._roster.owner(prefix) is not None:
                return None
        return self._refusal(prefix)

    async def owner(self, prefix: str) -> str | None:
        """The processor that owns timers of the prefix, as of the last second. Raises Unavailable."""
        await self._read_since(time.monotonic() - self._fresh_seconds)
        return self._roster.owner(prefix)

    async def calls(self) -> list[str]:
        """The declared prefixes of the calls of hooks, as of the last second. Raises Unavailable."""
        await self._read_since(time.monotonic() - self._fresh_seconds)
        return [prefix for prefix in self._roster.declared if prefix.startswith(CALLS)]

    def _refusal(self, prefix: str) -> NoProcessor:
        callers = [prefix for prefix in sorted(self._roster.declared) if not is_own(prefix)]
        known = shortened(callers) or "no prefix was ever declared"
        return NoProcessor(FieldError("prefix", shown(prefix), f"a prefix that a processor serves ({known})"))

    async def _read_since(self, at: float) -> None:
        """Read, unless somebody began to read at that time or later; callers who wait for the same read share it."""
        if self._read_at >= at:
            return
        async with self._reading:
            if self._read_at < at:
                began = time.monotonic()
                self._roster = await self._membership.declared(self._roster)
                self._read_at = began
