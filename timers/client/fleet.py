"""Owns reading what pods report: who is alive, who serves what, and the state of the fleet."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import cast

from timers.client.coverage import shortened
from timers.core.answers import ByStatus, Lateness, PrefixAnswer, StatsAnswer
from timers.core.durations import format_time
from timers.core.explain import explain
from timers.core.lateness import quantiles_ms
from timers.core.model import Status, Timer
from timers.errors import NotFound, Refused
from timers.store import queries
from timers.store.filters import ALL, Filter
from timers.store.identity import Loss
from timers.store.membership import HEARINGS, Declaration, Member, Membership, Roster
from timers.store.store import Store
from timers.store.turns import in_turns


@dataclass(frozen=True, slots=True)
class PrefixView:
    """A prefix that has timers, was declared, or is paused. `processor` owns its timers, `pods` are the live pods that
    run them, `declaration` is the prefix's own, and `next_due_ms` is its earliest due time. `limits` are those of its
    processor, as one of the pods tells them; empty if none does."""

    prefix: str
    processor: str | None
    pods: Sequence[str]
    declaration: Declaration | None
    paused: bool
    counts: Mapping[Status, int]
    next_due_ms: int | None
    limits: str = ""

    @property
    def away(self) -> bool:
        """Whether its processor was declared but no live pod has it now, so that its timers wait."""
        return self.processor is not None and not self.pods

    def to_json(self) -> PrefixAnswer:
        """The prefix as the API shows it."""
        declared = self.declaration
        return {
            "prefix": self.prefix,
            "processor": self.processor,
            "pods": list(self.pods),
            "away": self.away,
            "declared_at": None if declared is None else format_time(declared.at_ms),
            "declared_by": None if declared is None else declared.pod,
            "paused": self.paused,
            "counts": by_name(self.counts),
            "next_due_at": None if self.next_due_ms is None else format_time(self.next_due_ms),
        }


@dataclass(frozen=True, slots=True)
class Stats:
    """The state of the whole service. `overdue_ms` is how long the oldest due timer has waited to be claimed, `late_ms`
    the same for timers that may run now (neither paused nor at a limit), `failing_ms` how long a timer that is tried
    again has failed, and `losses` is lost data that nobody has acknowledged."""

    counts: Mapping[str, Mapping[Status, int]]
    overdue_ms: int
    late_ms: int
    pods: Sequence[Member]
    losses: Sequence[Loss]
    failing_ms: int = 0

    @property
    def lateness_ms(self) -> Lateness:
        """`p50`, `p99` and `max` over all pods' starts of the last minutes; None without any."""
        total: Counter[int] = Counter()
        for pod in self.pods:
            total.update(pod.lateness)
        return quantiles_ms(total)

    @property
    def notifications(self) -> str:
        """How notifications arrive at the worst pod; `deaf` if no pod listens."""
        return max((pod.hearing for pod in self.pods if pod.works), key=HEARINGS.index, default=HEARINGS[-1])

    def to_json(self) -> StatsAnswer:
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


def by_name(counts: Mapping[Status, int]) -> ByStatus:
    """Every status with its count, zeros included."""
    return cast("ByStatus", {status.value: counts.get(status, 0) for status in Status})


async def read_pods(store: Store) -> list[Member]:
    """The live pods by name. Raises Unavailable."""
    return sorted((await Membership(store).read()).members, key=lambda member: member.pod)


async def read_stats(store: Store, wanted: Filter = ALL, *, by_prefix: bool = True) -> Stats:
    """The current state of the prefixes that the filter covers. With `by_prefix` False, for all prefixes, the counts
    are summed under an empty name. Raises Unavailable."""
    counts: Mapping[str, Mapping[Status, int]]
    counts = await queries.counts(store) if by_prefix else {"": await queries.totals(store)}
    pods, covers = await read_pods(store), wanted.covering()
    if by_prefix:
        whole = in_turns(counts.items())
        counts = {prefix: counted async for prefix, counted in whole if covers(prefix)}
    if wanted.is_of_all:
        oldest_ms = await queries.oldest_due_ms(store)
        late_ms = await queries.oldest_due_ms(store, held=False)
    else:
        oldest_ms, late_ms = [
            min((ms for prefix, ms in (await queries.heads(store, held=held)).items() if covers(prefix)), default=None)
            for held in (True, False)
        ]
    await store.identity.look()
    losses = list(store.identity.losses.values())
    failing_ms = max((ms for _, _, ms in await read_retrying(store, wanted)), default=0)
    return Stats(counts, _waited_ms(store, oldest_ms), _waited_ms(store, late_ms), pods, losses, failing_ms)


async def read_retrying(store: Store, wanted: Filter = ALL) -> Sequence[tuple[str, int, int]]:
    """The prefixes with most retrying timers: how many, and for how many ms one has failed. Raises Unavailable."""
    return [(prefix, n, _waited_ms(store, ms)) for prefix, n, ms in await queries.retrying(store, wanted)]


async def read_overdue_ms(store: Store) -> int:
    """How long the oldest due timer that may run has waited to be claimed. Raises Unavailable."""
    return _waited_ms(store, await queries.oldest_due_ms(store, held=False))


def _waited_ms(store: Store, due_ms: int | None) -> int:
    return 0 if due_ms is None else max(0, round(store.clock.now_ms()) - due_ms)


async def read_prefixes(store: Store) -> list[PrefixView]:
    """The prefixes by name, also the service's own. Raises Unavailable."""
    counts, paused, heads = await queries.counts(store), set(await queries.paused(store)), await queries.heads(store)
    roster = await Membership(store).read()
    return [
        PrefixView(
            prefix,
            roster.owner(prefix),
            [member.pod for member in roster.serving(prefix)],
            roster.declared.get(prefix),
            prefix in paused,
            counts.get(prefix, {}),
            heads.get(prefix),
            next((member.limits_of(roster.owner(prefix)) for member in roster.serving(prefix)), ""),
        )
        async for prefix in in_turns(sorted({*counts, *paused, *roster.declared}))
    ]


async def read_story(store: Store, timer: Timer) -> list[str]:
    """The timer's life and answers, as `explain` tells them, with what its record does not know: who serves its prefix,
    pauses and limits. Raises Unavailable."""
    now_ms, shard = await store.now_ms(), store.shard_of(timer.prefix, timer.id)
    until_ms, pause = await queries.holds(store, timer.prefix, shard)
    is_due = timer.status is Status.SCHEDULED and timer.due_ms <= now_ms
    obstacle = _obstacle(await Membership(store).read(), timer.prefix, shard, until_ms, pause) if is_due else ""
    return explain(timer, now_ms, obstacle=obstacle, pause=pause)


def _obstacle(roster: Roster, prefix: str, shard: int, until_ms: float | None, pause: Sequence[int]) -> str:
    """What keeps the due timers of a queue from being claimed; empty if it is not known."""
    processor = roster.owner(prefix)
    serving = [member for member in roster.serving(prefix) if member.takes(shard)]
    if until_ms == inf:
        since = f" since {format_time(pause[0])}" if len(pause) == 1 else ""
        return f"the prefix {prefix!r} is paused{since}"
    if processor is None:
        return f"no pod has ever declared a processor for {prefix!r}"
    if not serving:
        return f"no live pod serves {prefix!r} with the processor {processor!r}; start one"
    if until_ms is not None:
        limits = serving[0].limits_of(processor) or "a limit over all pods"
        return f"its queue is at its limit ({limits}); the next look is at {format_time(int(until_ms))}"
    if all(prefix in member.lacks for member in serving):
        return f"{serving[0].lacks[prefix]} (the user of {shortened([member.pod for member in serving])})"
    return f"the pods that serve it have not had room yet: {shortened([member.pod for member in serving])}"


async def forget_prefix(store: Store, prefix: str) -> None:
    """Take back the declaration of a prefix. Raises NotFound, and Refused while a live pod declares it."""
    membership = Membership(store)
    holders = [member.pod for member in (await membership.read()).workers if prefix in member.processors]
    if holders:
        raise Refused(
            f"the prefix {prefix!r} is declared by the live pods {shortened(sorted(holders))}; "
            "stop them, or start them without its processor"
        )
    if not await membership.forget(prefix):
        raise NotFound(f"no pod has declared the prefix {prefix!r}")
