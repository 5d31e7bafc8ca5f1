"""Owns what every service of a pod knows: its options, its store, what it serves, what it cannot reach, and who is told
what happens."""

import time
from collections import Counter, defaultdict, deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Final, Literal, TypeVar

from timers.core.fields import is_own
from timers.core.hooks import Hook
from timers.core.model import Status
from timers.core.shapes import Durability
from timers.engine.spans import Spans
from timers.errors import RedisRights, Unavailable
from timers.logs import get_logger
from timers.processor import Registry
from timers.store import keys
from timers.store.membership import FORGET_AFTER_MS
from timers.store.permits import Permits
from timers.store.queries import FAILING_MS
from timers.store.servers.connections import Connections
from timers.store.starts import RETRIED, bucket_of
from timers.store.store import Store

if TYPE_CHECKING:  # the packages that it needs are an extra
    from timers.ledger.database import Database

NOTICE_SHARE: Final = 20
"""Pods take leases shorter by this part of `lease_ms`, in which another pod notices the end of one and starts the
run."""

UNDECLARED: Final = "-"
"""The label of metrics for prefixes that no processor serves. No prefix can have this name."""

Counted = Literal[
    "retries",
    "refused",
    "rescued",
    "removed",
    "claimed",
    "bare_keys",
    "unposted",
    "inbox",
    "ledger_drift",
    "subscriptions",
    "subscription_gap_seconds",
]
Measured = Literal["claim_size", "loop_lag_seconds"]
"""Names of metrics, without what all names of their kind have."""

WINDOW_SECONDS: Final = 300
SLICE_SECONDS: Final = 30

AGAIN_SECONDS: Final = 0.5
"""When to try again what a node that is away did not do."""

REFUSED_SECONDS: Final = 15.0
"""How long a server counts as one that refuses a right."""

T = TypeVar("T")

_away_log = get_logger("timers.away")
_janitors_log = get_logger("timers.janitor")


def taken_lease_ms(lease_ms: int) -> int:
    """The lease that pods take under this setting."""
    return lease_ms - lease_ms // NOTICE_SHARE


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """What a pod is set to, and below that what only tests change. When it has died, others run its timers within
    `lease_ms`. `shard_subset` None means all shards; `settings` are told to whoever compares the pods; `durability` is
    what the end of a run waits for.

    A prefix must have been without a live pod, and its timers overdue or their leases expired, for `unhandled_after_ms`
    before its timers become `unhandled`; a rolling deploy takes less. A shard is audited every `audit_every_seconds`:
    even an empty one has 256 buckets to look at. An event may take `grace_ms` from the due time before the sweep claims
    without it: twice the others' delay. After the drain timeout, Redis has `hand_back_seconds` to take the last
    ends; another pod rescues the runs of the rest. A hook that no pod has asked for in `forget_hooks_ms` is taken back;
    a deploy and a restart of the fleet take less.

    An alarm sends messages first after `alarm_gather_ms`, then every `alarm_again_ms` while there is more. It is over
    `alarm_calm_ms` after the newest failure, or `alarm_over_ms` after the last poll that saw its state. A timer that
    may run and has waited for longer than `alarm_overdue_ms` is an alarm; taking over a dead pod's runs takes less
    time. So is a failure: one that has failed for longer than `alarm_failing_ms` and is tried again."""

    pod: str
    concurrency: int
    lease_ms: int
    retention_ms: int
    drain_timeout_ms: int
    retention_failed_ms: int | None = None
    roles: tuple[str, ...] = ("worker",)
    shard_subset: tuple[int, ...] | None = None
    adopt_every_ms: int | None = 10_000
    settings: Mapping[str, str] = field(default_factory=dict)
    hooks: tuple[Hook, ...] = ()
    public_url: str | None = None
    spans: Spans | None = None
    ledger: "Database | None" = None
    durability: Durability = "fast"

    unhandled_after_ms: int = 60_000
    audit_every_seconds: float = 600.0
    beat_ms: int = 3000
    canary_every_seconds: float = 5.0
    deaf_seconds: float = 3.0
    grace_ms: int = 100
    hand_back_seconds: float = 1.0
    forget_after_ms: int = FORGET_AFTER_MS
    forget_hooks_ms: int = 600_000
    alarm_gather_ms: int = 5_000
    alarm_again_ms: int = 3_600_000
    alarm_calm_ms: int = 600_000
    alarm_failing_ms: int = FAILING_MS
    alarm_over_ms: int = 60_000
    alarm_overdue_ms: int = 60_000
    alarm_poll_ms: int = 5_000


class Observer:
    """Receives the engine's events and keeps the recent lateness, which pods tell each other; metrics count the rest.
    Prefixes are those of the processors, because callers could make up prefixes without end."""

    def __init__(self) -> None:
        self.starts = defaultdict[int, int](int)  # a Counter takes twice as long to count
        """All starts of this pod by lateness bucket."""
        self.failures = defaultdict[int, int](int)
        """All failed attempts of this pod: RETRIED, or FAILED."""
        self._starts_by = deque([(time.monotonic(), Counter[int]())])

    def recent_starts(self) -> dict[int, int]:
        """The starts of the last five minutes by lateness bucket: all, less those by then. It is asked at each sign of
        life. Memory is bounded."""
        now, by = time.monotonic(), self._starts_by
        if now - by[-1][0] >= SLICE_SECONDS:
            by.append((now, Counter(self.starts)))
        while len(by) > 1 and now - by[0][0] >= WINDOW_SECONDS:
            by.popleft()
        return dict(Counter(self.starts) - by[0][1])

    def serves(self, prefixes: Iterable[str]) -> None:
        """The pod has processors of these prefixes."""

    def started(self, prefix: str, lateness_ms: int) -> None:
        if not is_own(prefix):
            self.starts[bucket_of(lateness_ms)] += 1

    def failed(self, prefix: str, bucket: int) -> None:
        """An attempt failed, and the timer retries (RETRIED); or it has failed, or this occurrence of it (FAILED)."""
        if bucket == RETRIED:
            self.count("retries", prefix)
        if not is_own(prefix):
            self.failures[bucket] += 1

    def ended(self, prefix: str, outcome: str, seconds: float) -> None:
        """A run ended after this many seconds; `outcome` is how."""

    def count(self, what: Counted, *labels: str, by: float = 1) -> None:
        """This happened; see `metrics.COUNTERS` for the labels."""

    def measure(self, what: Measured, value: float) -> None:
        """This was measured; see `metrics.HISTOGRAMS`."""


class Away:
    """Which shards a pod cannot reach while it reaches others: those of a cluster's node that is away, or that are
    being moved. The services go on with the others."""

    def __init__(self, connections: Connections, shards: Sequence[int]) -> None:
        """`shards` are those of this pod."""
        self._connections, self._mine = connections, shards
        self._refused = dict[Connections, tuple[float, str]]()
        """By server, when it last refused this pod's user a right, and what it said."""
        self._is_told = False
        self.shards: dict[int, str] = {}
        """Those that did not answer when last asked, and why."""

    async def reached(self, shard: int, work: Awaitable[T]) -> list[T]:
        """Do some work on a shard. Returns what it returns, in a list; an empty one if the shard cannot be reached,
        which is noted. On a single server Unavailable is raised, because there is nothing to go on with."""
        try:
            done = [await work]
        except Unavailable as error:
            if len(self._connections.nodes) == 1:
                raise
            if isinstance(error, RedisRights):  # which `peers` logs
                self._refused[self._connections.node_of(keys.root(shard))] = time.monotonic(), str(error)
            elif not self._is_told:
                self._is_told = True
                _away_log.warning(
                    "a part of the cluster is out of reach; the others go on", shard=shard, reason=str(error)
                )
            self.shards[shard] = str(error)
            return []
        if self.shards.pop(shard, None) is not None and not self.shards and self._is_told:
            self._is_told = False
            _away_log.info("all of the cluster is within reach again")
        return done

    @property
    def refusal(self) -> str:
        """What this pod's user may not do, if all servers with shards of this pod have refused it something of late,
        whatever else they let it do; else empty. On a single server, what is refused fails the service."""
        since = time.monotonic() - REFUSED_SECONDS
        nodes = {self._connections.node_of(keys.root(shard)) for shard in self._mine}
        said = [text for node, (at, text) in self._refused.items() if node in nodes and at > since]
        return said[0] if said and len(said) == len(nodes) else ""

    @property
    def leaves_some(self) -> bool:
        """Whether the db has several servers, and some shards are within reach as far as is known."""
        return len(self._connections.nodes) > 1 and len(self.shards) < len(self._mine)

    @property
    def is_partial(self) -> bool:
        """Whether some shards are out of reach, but not all."""
        return 0 < len(self.shards) < len(self._mine)

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


@dataclass(frozen=True)
class Pod:
    """One pod. `owner` names the processor, on any pod, that owns a prefix (None: this pod is alone)."""

    store: Store
    registry: Registry
    options: WorkerOptions
    observer: Observer = field(default_factory=Observer)
    owner: Callable[[str], str | None] | None = None

    @property
    def name(self) -> str:
        """What it is called in the fleet."""
        return self.options.pod

    @cached_property
    def shards(self) -> tuple[int, ...]:
        subset = self.options.shard_subset
        return tuple(range(self.store.shards)) if subset is None else subset

    @cached_property
    def lease_ms(self) -> int:
        """How long a claimed timer is its own unless it extends the lease."""
        return taken_lease_ms(self.options.lease_ms)

    @cached_property
    def away(self) -> Away:
        return Away(self.store.connections, self.shards)

    @cached_property
    def permits(self) -> Permits:
        return Permits(self.store)

    def serves(self, shard: int, prefix: str) -> bool:
        return shard in self.shards and self.owns(prefix)

    def owns(self, prefix: str) -> bool:
        """Whether timers of the prefix belong to a processor of this pod rather than to a longer one of another pod."""
        found = self.registry.match(prefix)
        return found is not None and (self.owner is None or self.owner(prefix) == found.prefix)

    def report_removed(self, prefix: str, status: Status, count: int, oldest: str) -> None:
        """Log and count failed or unhandled timers that their retention has removed: nobody had acted on them."""
        owner = None if self.owner is None else self.owner(prefix)
        self.observer.count("removed", owner or UNDECLARED, status.value, by=count)
        _janitors_log.warning(
            "timers removed that had failed or were unhandled: TIMERS_RETENTION_FAILED",
            prefix=prefix,
            status=status.value,
            count=count,
            oldest=oldest,
        )
