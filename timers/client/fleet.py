"""Owns the state of the fleet: who is alive, who serves what, what waits for a pod, and what was ever declared."""

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import filterfalse, groupby, islice
from math import inf
from operator import attrgetter, itemgetter
from typing import Final, Literal, cast

from timers.core.answers import ByStatus, Lateness, PrefixAnswer, StatsAnswer
from timers.core.durations import format_time
from timers.core.explain import explain
from timers.core.fields import is_own, owner
from timers.core.hooks import CALLS
from timers.core.model import Status, Timer
from timers.errors import FieldError, NoProcessor, NotFound, Refused, shown
from timers.store import queries
from timers.store.cooperative import CachedRead, cooperatively
from timers.store.filters import ALL, Filter, Visible
from timers.store.identity import Loss
from timers.store.membership import DELIVERY_STATES, Declaration, Member, Membership, Roster
from timers.store.notifications import is_time
from timers.store.permits import Permits
from timers.store.queries import DueQueue
from timers.store.starts import first_timers, quantiles_ms
from timers.store.store import Queue, Store

LATE_MS: Final = 2_000
"""Timers overdue by more than this are late. It is twice the sweep interval."""

HeldBy = Literal["limit", "pause"]
"""What holds back timers that are due and that a pod serves."""

HELD_MS: Final = 300_000
"""Timers that a limit has held back for so long may be behind runs that do not end."""

NAMES_SHOWN: Final = 20
"""Shards or prefixes that one sentence names; callers can make up any number of prefixes."""

UNSIGNED: Final = "Redis does not take this pod's signs of life, so it cannot tell which pods are alive"
"""Said before the reason."""


def shortened(names: Sequence[object], most: int = NAMES_SHOWN) -> str:
    """The first names, and how many more there are."""
    rest = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(map(str, names[:most])) + rest


@dataclass(frozen=True, slots=True)
class Unserved:
    """What no live pod serves, in order, or why that is not known (see `Fleet`)."""

    shards: Sequence[int]
    prefixes: Sequence[str]
    unsigned: str = ""

    def warnings(self, visible: Callable[[str], bool] | None = None) -> list[str]:
        """A sentence for the shards and one for the prefixes but the service's own, if there are any. Prefixes that may
        not be seen are counted. If it is not known, why."""
        if self.unsigned:
            return [f"{UNSIGNED}: {self.unsigned}"]
        shards = f"shards without a live pod: {shortened(self.shards)}"
        callers = [prefix for prefix in self.prefixes if not is_own(prefix)]
        seen = [prefix for prefix in callers if visible is None or visible(prefix)]
        unseen = len(callers) - len(seen)
        counted = [f"{unseen} prefix{'' if unseen == 1 else 'es'}"] if unseen else []
        prefixes = (
            f"timers are due, but no live pod serves {' and '.join([*filter(None, [shortened(seen)]), *counted])}"
        )
        return [*([shards] if self.shards else ()), *([prefixes] if callers else ())]


ALL_SERVED: Final = Unserved((), ())


@dataclass(frozen=True)
class Fleet:
    """The live pods, what was declared, and the queues with something due, at one moment. `unsigned` is why Redis did
    not take this pod's newest sign of life: it may take no other pod's either, and then all look dead."""

    roster: Roster
    due: Sequence[DueQueue]
    shards: int
    now_ms: int
    unsigned: str = ""

    @cached_property
    def unserved(self) -> Unserved:
        """What no live pod serves, of the shards and of the prefixes with something due. Unknown to a pod whose own
        sign of life was not taken."""
        if self.unsigned:
            return Unserved((), (), unsigned=self.unsigned)
        return self.unserved_of((shard, prefix) for shard, prefix, *_ in self.due)

    def unserved_of(self, queues: Iterable[Queue]) -> Unserved:
        """What no live pod serves, of the shards and of these queues. In an unserved shard a prefix counts as served
        if a pod of another shard serves it, so that one gap is reported once."""
        workers = self.roster.workers
        shards = [shard for shard in range(self.shards) if not any(worker.takes(shard) for worker in workers)]
        prefixes = set[str]()
        for prefix, places in groupby(sorted(queues, key=itemgetter(1)), key=itemgetter(1)):
            serving = self.roster.serving(prefix)
            for shard, _ in places:
                if not any(shard in shards or worker.takes(shard) for worker in serving):
                    prefixes.add(prefix)
        return Unserved(shards, sorted(prefixes))

    def held_back(self, paused: Collection[str]) -> list[str]:
        """The prefixes, without the service's own, with timers that a limit holds back and that have been due for long
        (`HELD_MS`), though a pod serves them and they are not among the `paused` ones."""
        held = self.held_ms(paused).items()
        return sorted(prefix for (prefix, by), ms in held if by == "limit" and ms >= HELD_MS and not is_own(prefix))

    def held_ms(self, paused: Collection[str]) -> Mapping[tuple[str, HeldBy], int]:
        """How long the first due timer of each prefix that a pod serves has been held back, by one of the `paused` ones
        or a limit."""
        found = dict[tuple[str, HeldBy], int]()
        for due in self.due:
            if due.kind == "blocked" and due.prefix not in self.unserved.prefixes and is_time(due.since_ms):
                key: tuple[str, HeldBy] = due.prefix, "pause" if due.prefix in paused else "limit"
                found[key] = max(self.now_ms - int(due.since_ms), found.get(key, 0))
        return found

    def overdue_ms(self, *kinds: str) -> int:
        """How long the oldest due timer of these kinds (`ready`, `blocked`) has waited to be claimed, without the
        service's own."""
        since = (due.since_ms for due in self.due if due.kind in kinds and not is_own(due.prefix))
        return max((self.now_ms - int(ms) for ms in since if is_time(ms)), default=0)


async def read_fleet(store: Store) -> Fleet:
    """The fleet as it is now. Raises Unavailable."""
    roster, (due, now_ms) = await Membership(store).read(), await queries.due(store)
    return Fleet(roster, due, store.shards, now_ms, store.refusals.sign)


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
    the same for timers that may run now (neither paused nor at a limit), `losses` is lost data that nobody has
    acknowledged, and `retrying` is what `read_retrying` found."""

    counts: Mapping[str, Mapping[Status, int]]
    overdue_ms: int
    late_ms: int
    fleet: Fleet
    losses: Sequence[Loss]
    retrying: Sequence[tuple[str, int, int]] = ()

    @property
    def pods(self) -> Sequence[Member]:
        return self.fleet.roster.by_name

    @property
    def by_status(self) -> Mapping[Status, int]:
        """How many timers have each status."""
        return {status: sum(counted.get(status, 0) for counted in self.counts.values()) for status in Status}

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
        states = (pod.delivery for pod in self.pods if pod.works)
        return max(states, key=DELIVERY_STATES.index, default=DELIVERY_STATES[-1])

    def to_json(self) -> StatsAnswer:
        return {
            "by_status": by_name(self.by_status),
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


async def read_stats(store: Store, wanted: Filter = ALL, *, by_prefix: bool = True) -> Stats:
    """The current state of the prefixes that the filter covers. With `by_prefix` False, for all prefixes, the counts
    are summed under an empty name. Raises Unavailable."""
    counts: Mapping[str, Mapping[Status, int]]
    counts = await queries.counts(store) if by_prefix else {"": await queries.totals(store)}
    fleet, covers = await read_fleet(store), wanted.covering()
    if by_prefix:
        whole = cooperatively(counts.items())
        counts = {prefix: counted async for prefix, counted in whole if covers(prefix)}
    late_ms, overdue_ms = fleet.overdue_ms("ready"), fleet.overdue_ms("ready", "blocked")
    if not wanted.is_of_all:  # whose queues may be behind those of others
        late_ms, overdue_ms = [
            max((fleet.now_ms - ms for prefix, ms in earliest.items() if covers(prefix)), default=0)
            for earliest in [await queries.earliest_due(store, blocked=blocked) for blocked in (False, True)]
        ]
    await store.identity.refresh()
    return Stats(
        counts,
        max(0, overdue_ms),
        max(0, late_ms),
        fleet,
        list(store.identity.losses.values()),
        await read_retrying(store, wanted),
    )


async def read_retrying(store: Store, wanted: Filter = ALL, *, own: bool = False) -> Sequence[tuple[str, int, int]]:
    """The prefixes with most retrying timers, and those of which one has failed longest: how many, and for how many ms
    one has failed. With `own` also the service's own. Raises Unavailable."""
    found, now_ms = await queries.retrying(store, wanted, own=own), round(store.clock.now_ms())
    return [(prefix, n, max(0, now_ms - ms)) for prefix, n, ms in found]


async def read_prefixes(store: Store) -> list[PrefixView]:
    """The prefixes by name, also the service's own. Raises Unavailable."""
    counts, paused = await queries.counts(store), set(await queries.paused(store))
    earliest, roster = await queries.earliest_due(store), await Membership(store).read()
    return [
        PrefixView(
            prefix,
            roster.owner(prefix),
            [member.pod for member in roster.serving(prefix)],
            roster.declared.get(prefix),
            prefix in paused,
            counts.get(prefix, {}),
            earliest.get(prefix),
            next((member.limits_of(roster.owner(prefix)) for member in roster.serving(prefix)), ""),
        )
        async for prefix in cooperatively(sorted({*counts, *paused, *roster.declared}))
    ]


async def read_blocked(store: Store, fleet: Fleet, covers: Callable[[str], bool], most: int) -> list[tuple[Timer, str]]:
    """The first timer of each prefix of which something is due that nothing starts, and why, those first that have
    waited longest: paused, at a limit, without a pod, or without room for too long. Raises Unavailable."""
    unserved, late_ms = set(fleet.unserved.prefixes), fleet.now_ms - LATE_MS
    waiting: dict[str, int] = {}
    for due in sorted(fleet.due, key=attrgetter("since_ms")):
        waits = due.kind == "blocked" or (due.kind == "ready" and (due.prefix in unserved or due.since_ms < late_ms))
        if waits and covers(due.prefix):
            waiting.setdefault(due.prefix, due.shard)
    found: list[tuple[Timer, str]] = []
    for prefix, shard in islice(waiting.items(), most):
        why = await read_obstacle(store, fleet.roster, prefix, shard)
        found += [(timer, why) for timer in await first_timers(store, shard, prefix, 1)]
    return found


async def read_story(store: Store, timer: Timer) -> list[str]:
    """The timer's life and answers, as `explain` tells them, with what its record does not know: who serves its prefix,
    pauses and limits. Raises Unavailable."""
    now_ms, shard = await store.now_ms(), store.shard_of(timer.prefix, timer.id)
    _, pause = await queries.blocked_until(store, timer.prefix, shard)
    is_due = timer.status is Status.SCHEDULED and timer.due_ms <= now_ms
    roster = await Membership(store).read()
    obstacle = await read_obstacle(store, roster, timer.prefix, shard) if is_due else ""
    return explain(timer, now_ms, obstacle=obstacle, pause=pause)


async def read_obstacle(store: Store, roster: Roster, prefix: str, shard: int) -> str:
    """What keeps the due timers of a queue from being claimed; empty if it is not known. Raises Unavailable."""
    until_ms, pause = await queries.blocked_until(store, prefix, shard)
    processor = roster.owner(prefix)
    serving = [member for member in roster.serving(prefix) if member.takes(shard)]
    if until_ms == inf:
        since = f"has been paused since {format_time(pause[0])}" if len(pause) == 1 else "is paused"
        return f"the prefix {prefix!r} {since}"
    if processor is None:
        return f"no pod has ever declared a processor for {prefix!r}"
    if not serving:
        return f"no live pod serves {prefix!r} with the processor {processor!r}; start one"
    at_once, _, rate = (limits := serving[0].limits_of(processor) or "a limit over all pods").partition(", ")
    most = at_once.partition(" ")[0]
    if most.isdecimal() and await Permits(store).in_use(prefix) >= int(most):
        return f"its queue is at its concurrency limit ({at_once})"
    if until_ms is not None:
        said = f"rate limit ({rate})" if rate else f"limit ({limits})"
        return f"its queue is at its {said}; it is tried again at {format_time(int(until_ms))}"
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


FRESH_SECONDS: Final = 1.0
"""How long the declarations that were read are used: as long as a pod takes between two signs of life. So they cost one
small call a second, not one for each create."""


class Declared:
    """The declared prefixes as one client last read them; while the node of a cluster that has them is away, as it last
    knew them."""

    def __init__(self, store: Store, *, fresh_seconds: float = FRESH_SECONDS) -> None:
        self._membership = Membership(store)
        self._roster = CachedRead(self._read, fresh_seconds)

    async def _read(self) -> Roster:
        return await self._membership.declared(self._roster.last or Roster())

    async def refusals(self, prefixes: Collection[str], visible: Visible | None = None) -> dict[str, NoProcessor]:
        """An error for each prefix for which no processor was ever declared; it names only `visible` ones. Reads the
        declarations again before it returns any. Raises Unavailable."""
        asked_at = time.monotonic()
        known = (await self._roster.known()).declared if prefixes else ()
        unknown = [*filterfalse(partial(owner, declared=known), prefixes)]
        return _refusals(unknown, (await self._roster.since(asked_at)).declared, visible) if unknown else {}

    def refusals_without_redis(
        self, prefixes: Iterable[str], others: Iterable[str], visible: Visible | None = None
    ) -> dict[str, NoProcessor]:
        """As `refusals`, by what was last known and `others` that were declared; none if nothing is known."""
        declared = {*(self._roster.last or Roster()).declared, *others}
        return _refusals(prefixes, declared, visible) if declared else {}

    async def owner(self, prefix: str) -> str | None:
        """The processor that owns timers of the prefix, as of the last second. Raises Unavailable."""
        return (await self._roster.known()).owner(prefix)

    async def calls(self) -> list[str]:
        """The declared prefixes of the calls of hooks, as of the last second. Raises Unavailable."""
        return [prefix for prefix in (await self._roster.known()).declared if prefix.startswith(CALLS)]


def _refusals(prefixes: Iterable[str], declared: Collection[str], visible: Visible | None) -> dict[str, NoProcessor]:
    unknown = [prefix for prefix in prefixes if owner(prefix, declared) is None]
    callers = [each for each in sorted(declared) if not is_own(each)] if unknown else []
    seen = [each for each in callers if visible is None or visible(each)]
    known = shortened(seen) or ("none of this key's is declared" if callers else "no prefix was ever declared")
    rule = f"a prefix that a processor serves ({known})"
    return {prefix: NoProcessor(FieldError("prefix", shown(prefix), rule)) for prefix in unknown}
