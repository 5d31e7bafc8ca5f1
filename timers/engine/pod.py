"""Owns what every service of a pod knows: its name, its store, and what it serves."""

from dataclasses import dataclass
from functools import cached_property

from timers.engine.observer import Observer
from timers.processor import Registry
from timers.store.permits import Permits
from timers.store.store import Store


@dataclass(frozen=True)
class Pod:
    """One pod. `shards` are those it takes; `lease_ms` is how long what it claims is its own unless it extends."""

    name: str
    store: Store
    registry: Registry
    shards: tuple[int, ...]
    lease_ms: int
    observer: Observer

    @cached_property
    def permits(self) -> Permits:
        """The permits of limited prefixes."""
        return Permits(self.store)

    def serves(self, shard: int, prefix: str) -> bool:
        """Whether this pod runs a queue."""
        return self.registry.match(prefix) is not None and shard in self.shards
