"""Owns reading what pods say of themselves: who is alive, who serves what, and how the fleet is."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from timers.core.durations import format_time
from timers.core.lateness import quantiles_ms
from timers.core.model import Status
from timers.core.prefixes import owner
from timers.store.identity import Loss
from timers.store.queries import Queries
from timers.store.store import PodSign, Store

FORGET_AFTER_MS: Final = 4000
"""A pod silent for four beats counts as gone; until then its share of events costs the others a late look."""

HEARINGS: Final = ("ok", "late", "deaf")
"""How notifications arrive at a pod, the worst last."""

_NOBODY: Final = ""
"""No pod can have this name: who signs off with it only asks who is there."""


async def live_pods(store: Store) -> list[PodSign]:
    """The pods that gave a sign of life lately. Raises Unavailable."""
    return await store.beat(_NOBODY, None, forget_after_ms=FORGET_AFTER_MS)


async def live_workers(store: Store) -> list[PodSign]:
    """Those of them that run timers."""
    return [pod for pod in await live_pods(store) if "worker" in pod.info.get("roles", ())]


def serves(info: Mapping[str, Any], prefix: str) -> bool:
    """Whether a pod that says this of itself runs timers of the prefix."""
    only = info.get("only", ())
    return owner(prefix, info.get("serves", ())) is not None and (not only or owner(prefix, only) is not None)


def takes(info: Mapping[str, Any], shard: int) -> bool:
    """Whether a pod that says this of itself runs timers of the shard."""
    shards = info.get("shards")
    return shards is None or shard in shards


@dataclass(frozen=True, slots=True)
class PodView:
    """A live pod as it is shown. `lateness` counts its starts of the last minutes by bucket."""

    sign: PodSign

    @property
    def name(self) -> str:
        """The pod's name."""
        return self.sign.pod

    @property
    def notifications(self) -> str:
        """How notifications arrive there; `deaf` for a pod that does not say."""
        said = self.sign.info.get("notifications")
        return said if said in HEARINGS else HEARINGS[-1]

    @property
    def roles(self) -> tuple[str, ...]:
        """What it does: `api`, `worker` or both."""
        return tuple(self.sign.info.get("roles", ()))

    @property
    def works(self) -> bool:
        """Whether it runs timers."""
        return "worker" in self.roles

    @property
    def lateness(self) -> Mapping[int, int]:
        """Starts by bucket; JSON made the buckets text."""
        return {int(bucket): int(n) for bucket, n in self.sign.info.get("lateness", {}).items()}

    def to_json(self) -> dict[str, Any]:
        """The pod as the API shows it."""
        info = self.sign.info
        return {
            "pod": self.name,
            "seen_at": format_time(self.sign.seen_ms),
            "roles": list(self.roles),
            "serves": info.get("serves", []),
            "only": info.get("only", []),
            "shards": info.get("shards"),
            "running": info.get("running", 0),
            "concurrency": info.get("concurrency", 0),
            "notifications": self.notifications if self.works else None,
            "lateness_ms": quantiles_ms(self.lateness),
        }


@dataclass(frozen=True, slots=True)
class PrefixView:
    """A prefix that has timers, a processor, or is paused. `processor` is the longest of what pods run that it
    starts with, `pods` who runs it, `next_due_ms` its earliest due time."""

    prefix: str
    processor: str | None
    pods: Sequence[str]
    paused: bool
    counts: Mapping[Status, int]
    next_due_ms: int | None

    def to_json(self) -> dict[str, Any]:
        """The prefix as the API shows it."""
        return {
            "prefix": self.prefix,
            "processor": self.processor,
            "pods": list(self.pods),
            "paused": self.paused,
            "counts": by_name(self.counts),
            "next_due_at": None if self.next_due_ms is None else format_time(self.next_due_ms),
        }


@dataclass(frozen=True, slots=True)
class Stats:
    """The state of the whole service. `overdue_ms` is how long the oldest due timer has waited to be claimed, `losses`
    what was lost and nobody has acknowledged."""

    counts: Mapping[str, Mapping[Status, int]]
    overdue_ms: int
    pods: Sequence[PodView]
    losses: Sequence[Loss]

    @property
    def lateness_ms(self) -> dict[str, int | None]:
        """`p50`, `p99` and `max` of all pods' starts of the last minutes; None without any."""
        total: Counter[int] = Counter()
        for pod in self.pods:
            total.update(pod.lateness)
        return quantiles_ms(total)

    @property
    def notifications(self) -> str:
        """How they arrive at the pod where they arrive worst; `deaf` where no pod listens."""
        return max((pod.notifications for pod in self.pods if pod.works), key=HEARINGS.index, default=HEARINGS[-1])

    def to_json(self) -> dict[str, Any]:
        """The state as the API shows it."""
        total: Counter[Status] = Counter()
        for counted in self.counts.values():
            total.update(counted)
        return {
            "by_status": by_name(total),
            "by_prefix": {prefix: by_name(self.counts[prefix]) for prefix in sorted(self.counts)},
            "lateness_ms": self.lateness_ms,
            "overdue_ms": self.overdue_ms,
            "notifications": self.notifications,
            "pods": [pod.to_json() for pod in self.pods],
            "losses": [loss.to_json() for loss in self.losses],
        }


def by_name(counts: Mapping[Status, int]) -> dict[str, int]:
    """Every status with its count, also those without any timer."""
    return {status.value: counts.get(status, 0) for status in Status}


async def read_pods(store: Store) -> list[PodView]:
    """The live pods by name. Raises Unavailable."""
    return sorted((PodView(sign) for sign in await live_pods(store)), key=lambda pod: pod.name)


async def read_stats(store: Store) -> Stats:
    """The state now. Raises Unavailable."""
    queries = Queries(store)
    counts, oldest_ms, pods = await queries.counts(), await queries.oldest_due_ms(), await read_pods(store)
    overdue_ms = 0 if oldest_ms is None else max(0, round(store.clock.now_ms()) - oldest_ms)
    await store.identity.look()
    return Stats(counts, overdue_ms, pods, list(store.identity.losses.values()))


async def read_prefixes(store: Store) -> list[PrefixView]:
    """The prefixes by name. Raises Unavailable."""
    queries = Queries(store)
    counts, paused, heads = await queries.counts(), set(await queries.paused()), await queries.heads()
    workers = await live_workers(store)
    declared = {prefix for worker in workers for prefix in worker.info.get("serves", ())}
    return [
        PrefixView(
            prefix,
            owner(prefix, declared),
            [worker.pod for worker in workers if serves(worker.info, prefix)],
            prefix in paused,
            counts.get(prefix, {}),
            heads.get(prefix),
        )
        for prefix in sorted({*counts, *paused, *declared})
    ]
