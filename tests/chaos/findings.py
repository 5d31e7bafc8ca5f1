"""What the checker gets about the end of a run, and its verdict."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from tests.chaos.witness import Event

_SHOWN_OF_EACH = 5

FINISHED = frozenset({"completed", "failed", "unhandled"})


class Property(StrEnum):
    """The promises that a history is checked for."""

    LOST = "P1 no lost timer"
    EARLY = "P2 never early"
    LATE = "P3 bounded lateness"
    ONE_WINNER = "P4 one winner"
    TOKENS_RISE = "P5 tokens rise"
    CANCEL = "P6 cancel cancels"
    ZOMBIE = "P7 no zombie result"
    BOUNDED = "P8 bounded attempts"
    REPEATS = "P9 one run per slot"
    IDEMPOTENT = "P10 one identity, one timer"
    CONSERVATION = "P11 conservation"
    SERVED = "P12 the processor meant, and no more at once than it allows"
    ORDERLY = "P13 orderly"
    TOLD = "P14 hooks are told"
    COPIED = "P15 the ledger agrees"
    KEYS = "P16 one idempotency key for an occurrence"
    ONCE = "P17 effects happen once"
    QUOTAS = "P18 quotas hold"


@dataclass(frozen=True, slots=True)
class Completion:
    """One accepted completion in the service's record: which attempt, and when by Redis's clock."""

    attempt: int
    at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EndState:
    """A timer's record after the drain. `failures` is its count of failures, `reason` its last error, `early_ms` by how
    much its earliest claim came before it was due, if that is above 0."""

    status: str
    token: int
    attempt: int
    failures: int = 0
    reason: str = ""
    completions: tuple[Completion, ...] = ()
    early_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """The service's own counts after the drain, and the keys that should be gone."""

    finished: int
    cancelled: int
    scheduled: int
    running: int
    leftover_keys: tuple[str, ...] = ()

    @property
    def armed(self) -> int:
        return self.finished + self.cancelled + self.scheduled + self.running


@dataclass(frozen=True, slots=True)
class Finding:
    """One broken promise, with the history lines that show it."""

    property: Property
    timer: str
    explanation: str
    lines: tuple[Event, ...] = ()

    def __str__(self) -> str:
        return "\n".join(
            [f"{self.property}: {self.timer}: {self.explanation}", *(f"    {e.to_line()}" for e in self.lines)]
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """The run in numbers. Lateness is that of first attempts, in milliseconds; None if there were none.

    `duplicates` counts repeated starts that no failure or hand-back asked for: faults explain all of them if nothing
    was found. `hidden_attempts` were claimed but never seen to start. `takeover_max_ms` is the longest time from a
    kill to the next start of a run that it ended. `starved` counts starts that were later than they may be only
    because the machine had no core for them. `backlog_max_ms` is the time from the server's first answer after an
    outage to the last start of a timer that had become due during it.
    """

    timers: int
    unknown_creates: int
    starts: int
    duplicates: int
    hidden_attempts: int
    max_attempt: int
    lateness_p50_ms: float | None
    lateness_p99_ms: float | None
    lateness_max_ms: float | None
    takeover_max_ms: float | None
    backlog_max_ms: float | None
    starved: int
    faults_proven: int
    faults_unproven: int


@dataclass(frozen=True, slots=True)
class Report:
    """The verdict. Without findings, the history keeps every promise."""

    findings: Sequence[Finding]
    figures: Figures

    @property
    def ok(self) -> bool:
        return not self.findings

    def of(self, broken: Property) -> list[Finding]:
        return [finding for finding in self.findings if finding.property is broken]

    def __str__(self) -> str:
        shown = [str(finding) for broken in Property for finding in self.of(broken)[:_SHOWN_OF_EACH]]
        more = len(self.findings) - len(shown)
        return "\n".join(
            [f"{len(self.findings)} findings; {self.figures}", *shown, *([f"and {more} more"] if more else [])]
        )
