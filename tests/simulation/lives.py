"""Owns what is known of a timer: each state of its record, its runs, and what callers asked and heard."""

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from tests.simulation.loop import Actor
from timers.core.model import Status, Timer
from timers.store.store import Identity

FINISHED: Final = "cfux"
"""The letters of the statuses in which a timer has ended."""

_HEAD: Final = struct.Struct(">2scIIIIQQQ")
_PARTS_OF_LINE: Final = 7


class State(NamedTuple):
    """A record's head, and since when (server's ms) it is so. `status` is a letter; `w` waits for its bare key. `cause`
    is the newest of its history."""

    status: str
    version: int
    attempt: int
    failures: int
    occurrence: int
    token: int
    created: int
    due: int
    at_ms: int
    cause: str

    @classmethod
    def read(cls, raw: bytes, now_ms: int) -> "State":
        """From a record."""
        _, status, version, attempt, failures, occurrence, token, created, due = _HEAD.unpack_from(raw)
        line = raw[raw.rfind(b"\n") + 1 :].split(b" ", _PARTS_OF_LINE)
        cause = line[6].decode() if len(line) >= _PARTS_OF_LINE else "created"
        return cls(status.decode(), version, attempt, failures, occurrence, token, created, due, now_ms, cause)

    def __str__(self) -> str:
        return (
            f"{self.status}(version {self.version}, attempt {self.attempt}, failures {self.failures}, "
            f"occurrence {self.occurrence}, token {self.token % 10**9}, due {self.due % 10**7}, {self.cause})"
        )


def shown(state: State | None) -> str:
    """A state in words."""
    return "nothing" if state is None else str(state)


def letter_of(status: Status) -> str:
    """The letter of a status in a record."""
    return {Status.UNHANDLED: "u", Status.CANCELLED: "x"}.get(status, status.value[0])


@dataclass(slots=True)
class Run:
    """A call of a processor. `how` it ended is None while it has not."""

    pod: Actor
    timer: Timer
    began: float
    ended: float | None = None
    how: str | None = None


@dataclass(slots=True)
class Call:
    """What a caller asked, from when to when, and what was heard: a timer, or an error."""

    actor: str
    verb: str
    timer: Identity
    given: Mapping[str, Any]
    began: float
    ended: float | None = None
    heard: Timer | Exception | None = None


@dataclass(slots=True)
class Key:
    """A bare key that was set: its deadline (server's ms), whether its owner set it again or deleted it before the
    server announced that, and whether it came too late: after the key before it had been read for the last time, and
    before that one's timer ran, which then may stand for both."""

    deadline_ms: int
    is_late: bool = False
    is_replaced: bool = False


class Row(NamedTuple):
    """What the ledger has of a timer."""

    status: str
    created: int
    version: int
    occurrence: int
    pending: int


@dataclass(slots=True)
class Loss:
    """The server has lost everything: when (the loop's seconds), how many states the record had before that, what the
    ledger had of it, and the tokens until then. `is_asked` once somebody has armed the timer anew since."""

    at: float
    states: int
    row: Row | None
    tokens: frozenset[int]
    is_asked: bool = False


@dataclass(slots=True)
class Life:
    """All that is known of one name.

    Its record's states in order (None: no record), since when it had them (the loop's seconds), and its newest bytes;
    its runs, who took it and until when (server's ms) the lease lasts, by token; the newest token; the occurrences that
    were started; who made each record, by its creation; versions that nobody could see, because one script changed it
    twice; its bare keys in order; what was when the server lost everything."""

    states: list[State | None] = field(default_factory=lambda: [None])
    since: list[float] = field(default_factory=lambda: [0.0])
    raw: bytes | None = None
    runs: dict[int, Run] = field(default_factory=dict)
    takers: dict[int, Actor] = field(default_factory=dict)
    leased_until: dict[int, int] = field(default_factory=dict)
    newest_token: int = 0
    fired: set[tuple[int, int]] = field(default_factory=set)
    makers: dict[int, str] = field(default_factory=dict)
    unseen: set[tuple[int, int]] = field(default_factory=set)
    keys: list[Key] = field(default_factory=list)
    lost: "Loss | None" = None

    @property
    def is_missing(self) -> bool:
        """Whether it is still lost, though the ledger has it."""
        lost = self.lost
        return lost is not None and lost.row is not None and not any(self.states[lost.states :])

    @property
    def state(self) -> State | None:
        """The newest state."""
        return self.states[-1]

    def during(self, call: Call) -> list[State | None]:
        """The states in which a call may have met it."""
        until = [*self.since[1:], float("inf")]
        return [state for state, end in zip(self.states, until, strict=True) if end >= call.began]
