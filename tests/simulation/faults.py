"""Owns what can go wrong: faults with names, drawn from a seed or taken from a list.

A fault belongs to one moment of one actor: "pod a, its third `settle`". So a list of faults says the same in a run that
leaves some of them out.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Final

EVENT: Final = "event"
"""The name of what a subscriber hears; each message has a moment of its own."""

BEGIN, COMMIT = "sql begin", "sql commit"
"""The moments of a transaction of the ledger; of one that only reads the first."""

_TELLING: Final = frozenset(
    (
        *("arm", "cancel", "reschedule", "rearm", "claim", "settle", "extend", "rescue"),
        *("reserve", "release", "keep", "bare/adopt", "bare/resolve", "take", "restore", "agree", COMMIT),
    )
)
"""Calls on which timers depend. They fail ten times as often as the others, which are three times as many."""


@dataclass(frozen=True, order=True, slots=True)
class Fault:
    """`actor`'s `number`-th `call` (from 1) goes wrong in the way of `kind`, by `seconds` if that takes time."""

    actor: str
    call: str
    number: int
    kind: str
    seconds: float = 0.0

    @property
    def costs_leases(self) -> bool:
        """Whether a pod may lose a lease or a permit by it. A connection that breaks takes every call on it along."""
        return self.call != EVENT and (self.call not in (BEGIN, COMMIT) or self.kind == FREEZES)

    def __str__(self) -> str:
        took = f" by {self.seconds:.3f} s" if self.seconds else ""
        return f"{self.actor}: {self.call} no. {self.number}: {self.kind}{took}"


LOST_REQUEST: Final = "the connection breaks before it is executed"
LOST_ANSWER: Final = "executed, then the connection breaks"
SLOW_REQUEST: Final = "executed late"
SLOW_ANSWER: Final = "answered late"
DIES_BEFORE: Final = "the pod dies before it is executed"
DIES_AFTER: Final = "executed, then the pod dies"
FREEZES: Final = "executed, and the pod stands still"
STALL: Final = "the server stands still"
AWAY: Final = "the server restarts"
REFUSES: Final = "the server refuses to write"

EVENT_LATE: Final = "late"
EVENT_LOST: Final = "lost"
EVENT_DOUBLED: Final = "doubled"
EVENT_OVERTAKEN: Final = "overtaken by later ones"
EVENT_CUT: Final = "lost with the subscription"

_OF_CALLS: Final = {
    LOST_REQUEST: 5,
    LOST_ANSWER: 6,
    SLOW_REQUEST: 3,
    SLOW_ANSWER: 3,
    DIES_BEFORE: 2,
    DIES_AFTER: 2,
    FREEZES: 4,
    STALL: 1,
    AWAY: 1,
    REFUSES: 1,
}
_OF_EVENTS: Final = {EVENT_LATE: 3, EVENT_LOST: 3, EVENT_DOUBLED: 2, EVENT_OVERTAKEN: 3, EVENT_CUT: 1}
KINDS: Final = frozenset((*_OF_CALLS, *_OF_EVENTS))
_TAKE_TIME: Final = (SLOW_REQUEST, SLOW_ANSWER, FREEZES, STALL, AWAY, REFUSES, EVENT_LATE, EVENT_OVERTAKEN)


class Faults:
    """What goes wrong in a world. Asked at each moment that can fail."""

    def __init__(self, seed: str, share: float, chosen: Iterable[Fault] | None = None) -> None:
        """Draws a fault for this share of the moments; or takes those that were `chosen`, and no others."""
        self._rng, self._share = Random(seed), share
        self._chosen: Mapping[tuple[str, str, int], Fault] | None = (
            None if chosen is None else {(fault.actor, fault.call, fault.number): fault for fault in chosen}
        )
        self.moments = Counter[tuple[str, str]]()
        """How many there were of each actor and call."""
        self.happened: list[Fault] = []
        self.over = False
        """Set it to heal the world: nothing goes wrong any more."""

    def at(self, actor: str, call: str) -> Fault | None:
        """The fault of this moment, if there is one."""
        self.moments[actor, call] += 1
        if self.over:
            return None
        number = self.moments[actor, call]
        if self._chosen is not None:
            fault = self._chosen.get((actor, call, number))
        else:
            share = self._share if call == EVENT or call in _TELLING else self._share / 10
            fault = self._drawn(actor, call, number) if self._rng.random() < share else None
        if fault is not None:
            self.happened.append(fault)
        return fault

    def _drawn(self, actor: str, call: str, number: int) -> Fault:
        kinds = _OF_EVENTS if call == EVENT else _OF_CALLS
        kind = self._rng.choices(list(kinds), list(kinds.values()))[0]
        # Most delays are short; some are longer than a lease or the patience of a client.
        seconds = 0.002 * 10 ** self._rng.uniform(0.0, 3.2)
        if kind == FREEZES:
            seconds = self._rng.uniform(0.2, 3.5)
        seconds = round(seconds, 3) if kind in _TAKE_TIME else 0.0
        return Fault(actor, call, number, kind, seconds)
