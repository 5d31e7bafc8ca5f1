"""Owns what every service of a pod knows: its name, its store, and what it serves."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from timers.engine.observer import Observer
from timers.engine.spans import Spans
from timers.processor import Registry
from timers.store.permits import Permits
from timers.store.store import Store


@dataclass(frozen=True)
class Pod:
    """One pod. `shards` are the shards it takes, and `lease_ms` is how long a claimed timer is its own unless it
    extends the lease. `owner` names the processor, on any pod, that owns a prefix (None: this pod is alone). `spans`
    traces the runs."""

    name: str
    store: Store
    registry: Registry
    shards: tuple[int, ...]
    lease_ms: int
    observer: Observer
    owner: Callable[[str], str | None] | None = None
    spans: Spans | None = None

    @cached_property
    def permits(self) -> Permits:
        """The permits of limited prefixes."""
        return Permits(self.store)

    def serves(self, shard: int, prefix: str) -> bool:
        """Whether this pod serves a queue."""
        return shard in self.shards and self.owns(prefix)

    def owns(self, prefix: str) -> bool:
        """Whether timers of the prefix belong to a processor of this pod rather than to a longer one of another pod."""
        found = self.registry.match(prefix)
        return found is not None and (self.owner is None or self.owner(prefix) == found.prefix)
