"""What the timers of a run do, when they are due, and what the driver changes meanwhile: all follow from the seed."""

import random
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import cycle
from typing import Final

from tests.chaos.calls import BareChange, Calls
from tests.chaos.processors import CAP, MAX_ATTEMPTS, Behaviour

Wanted = tuple[str, int, Behaviour]
"""A timer to arm: its id, its due time in epoch ms, what it does."""

Change = tuple[float, Callable[[], Awaitable[object]]]
"""Seconds since the begin, and what the driver does then."""

_ONE_IN: Final = 100
"""How rare each kind of change is."""

_ARRIVAL_MS: Final = 2_000
"""The longest delay of a timer that is armed during the run."""

_CANCELLED_AT_ONCE: Final = 3
"""Of so many timers armed during the run, one is cancelled as soon as its create is known."""

_BARE_MS: Final = (3_000, 6_000)
"""How long most bare keys live: mostly long enough to be adopted."""

_SHORT_MS: Final = (50, 900)
"""How long each third of them lives: mostly too short for that."""

_ENOUGH: Final = 200
"""Of each kind of change in a run that is not small."""

_SLOTS: Final = 4

_ROUND_S: Final = 3.0
"""How often the callers with a quota arm timers, all at once and three times as many as they may have."""

_CAPPED_MS: Final = 1_500
"""How long these timers wait."""

_NEAR_MS: Final = 20
"""How close to its due time a timer is cancelled or moved at the last moment."""


@dataclass(frozen=True, slots=True)
class Workload:
    """The timers armed beforehand, those armed during the run, those that callers with a quota ask for, the bare keys
    (id, ms to live, what becomes of it), and the ids that are changed, some at a time of their own because they are
    about to be due. Times are seconds from the start."""

    timers: list[Wanted]
    arriving: list[tuple[float, Wanted]]
    capped: list[tuple[float, Wanted]]
    bare: list[tuple[float, str, int, BareChange]]
    cancelled: list[str]
    moved: list[str]
    created_again: list[str]
    late_cancels: list[tuple[float, str]]
    late_moves: list[tuple[float, str]]
    late_creates: list[tuple[float, str]]

    @classmethod
    def drawn(
        cls,
        number: int,
        begin_ms: int,
        spread_s: float,
        rng: random.Random,
        one_in: int = _ONE_IN,
        *,
        bare: bool = True,
        capped: bool = True,
        once: bool = False,
        lease_ms: int = 4_000,
    ) -> "Workload":
        """Evenly spread due times. Of `one_in` timers, more in a small run, one is armed during the run, one is a bare
        key, one repeats, one runs alone, with `once` one has an effect in SQL, one is cancelled, one moved, one
        created a second time, and one each is cancelled, moved and created a second time at the last moment; of ten
        times as many one runs for 0.5 to 2 leases."""
        some = max(number // one_in, min(number // 20, _ENOUGH), 1)
        ids = [f"t{index}" for index in range(number)]
        ids[3 * some : 4 * some] = [f"serial-{index}" for index in range(3 * some, 4 * some)]
        if once:
            ids[4 * some : 5 * some] = [f"once-{index}" for index in range(4 * some, 5 * some)]
        late, keys, repeating, early = ids[:some], ids[some : 2 * some], ids[2 * some : 3 * some], ids[2 * some :]
        does = {id_: _behaviour(rng) for id_ in early} | {id_: _repeats(rng) for id_ in repeating}
        does |= {id_: {"run_ms": rng.randrange(20, 60)} for id_ in ids[3 * some : 4 * some]}
        does |= {
            id_: {"run_ms": rng.randrange(lease_ms // 2, 2 * lease_ms)}
            for id_ in rng.sample(ids[4 * some :], max(1, some // 10))
        }
        due = {id_: begin_ms + rng.randrange(int(spread_s * 1000)) for id_ in early}

        def at_last(id_: str) -> tuple[float, str]:
            return (due[id_] - begin_ms + rng.uniform(-_NEAR_MS, _NEAR_MS)) / 1000, id_

        return cls(
            timers=[(id_, due[id_], does[id_]) for id_ in early],
            arriving=[_arrival(id_, begin_ms, rng.uniform(0, spread_s), rng) for id_ in late],
            capped=list(_capped(begin_ms, spread_s)) if capped else [],
            bare=[(rng.uniform(0, spread_s / 2), id_, *_bare(place, rng)) for place, id_ in enumerate(keys) if bare],
            cancelled=rng.sample(early, some),
            moved=rng.sample(early, some),
            created_again=rng.sample(early, some),
            late_cancels=[at_last(id_) for id_ in rng.sample(early, some)],
            late_moves=[at_last(id_) for id_ in rng.sample(early, some)],
            late_creates=[at_last(id_) for id_ in rng.sample(early, some)],
        )

    @property
    def ids(self) -> list[str]:
        """The ids of all timers."""
        armed = [timer[0] for timer in self.timers] + [timer[0] for _, timer in (*self.arriving, *self.capped)]
        return armed + [id_ for _, id_, *_ in self.bare]

    def changes(self, calls: Calls, by_http: Calls, begin_ms: int, within_s: float, rng: random.Random) -> list[Change]:
        """What the driver does during the run, by time. It arms half of the cancelled timers again a little later. Half
        of all calls go over HTTP."""
        late_ms, either = begin_ms + int(within_s * 1000), cycle((calls, by_http))
        actions: list[Callable[[], Awaitable[object]]] = [
            *(partial(one.cancel, id_) for one, id_ in zip(either, self.cancelled, strict=False)),
            *(partial(one.retry, id_) for one, id_ in zip(either, self.cancelled[::2], strict=False)),
            *(partial(one.reschedule, id_, late_ms) for one, id_ in zip(either, self.moved, strict=False)),
            *(partial(one.create, id_, late_ms, {}) for one, id_ in zip(either, self.created_again, strict=False)),
        ]
        changes = [(rng.uniform(0, within_s), action) for action in actions]
        return sorted([*changes, *self._arrivals(either)], key=lambda change: change[0])

    def late_changes(self, calls: Calls, begin_ms: int, within_s: float) -> list[Change]:
        """Cancels, moves and second creates at the last moment. None waits for another."""
        late_ms = begin_ms + int(within_s * 1000)
        return [
            *((at_s, partial(calls.cancel, id_)) for at_s, id_ in self.late_cancels),
            *((at_s, partial(calls.reschedule, id_, late_ms)) for at_s, id_ in self.late_moves),
            *((at_s, partial(calls.create, id_, late_ms, {})) for at_s, id_ in self.late_creates),
        ]

    def bare_keys(self, calls: Calls) -> list[Change]:
        """The bare keys to set. Each call lasts as long as its key."""
        return [
            (at_s, partial(calls.set_bare, id_, life_ms, {"run_ms": 5}, change))
            for at_s, id_, life_ms, change in self.bare
        ]

    def capped_creates(self, callers: Sequence[Calls]) -> list[Change]:
        """The timers that callers with a quota ask for, each in turn."""
        turns = zip(self.capped, cycle(callers), strict=False)
        return [(at_s, partial(calls.create, *wanted)) for (at_s, wanted), calls in turns]

    def _arrivals(self, either: Iterator[Calls]) -> Iterator[Change]:
        for place, ((at_s, wanted), calls) in enumerate(zip(self.arriving, either, strict=False)):
            create = calls.create_surely if place % _CANCELLED_AT_ONCE else calls.create_and_cancel
            yield at_s, partial(create, *wanted)


def _arrival(timer_id: str, begin_ms: int, at_s: float, rng: random.Random) -> tuple[float, Wanted]:
    due_ms = begin_ms + int(at_s * 1000) + rng.randrange(_ARRIVAL_MS)
    return at_s, (timer_id, due_ms, _behaviour(rng))


def _capped(begin_ms: int, spread_s: float) -> Iterator[tuple[float, Wanted]]:
    for number in range(3 * CAP * max(1, int(spread_s / _ROUND_S))):
        at_s = number // (3 * CAP) * _ROUND_S
        yield at_s, (f"capped-{number}", begin_ms + int(at_s * 1000) + _CAPPED_MS, {})


def _bare(place: int, rng: random.Random) -> tuple[int, BareChange]:
    """How long a bare key lives, and what its owner does with it before its end."""
    if place % 3 == 0:
        return rng.randrange(*_SHORT_MS), ""
    return rng.randrange(*_BARE_MS), rng.choice(("", "", "set", "short", "deleted"))


def _repeats(rng: random.Random) -> Behaviour:
    """One in five fails at first, for each of its slots."""
    run_ms = rng.randrange(10)
    return {"run_ms": run_ms, "slots": _SLOTS, "fail_first": 1 if run_ms < 2 else 0}


def _behaviour(rng: random.Random) -> Behaviour:
    """Mostly short runs; one in twenty fails at first, one in two hundred always, one in ten is long enough to hit."""
    luck = rng.random()
    if luck < 0.005:
        return {"run_ms": rng.randrange(5), "fail_first": MAX_ATTEMPTS}
    if luck < 0.05:
        return {"run_ms": rng.randrange(5), "fail_first": rng.randrange(1, 3)}
    return {"run_ms": rng.randrange(300) if luck < 0.15 else rng.randrange(10)}
