"""Made-up histories for testing the checker, with a virtual clock and one method for each thing a witness can write."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Unpack

from tests.chaos.checker import check
from tests.chaos.findings import FINISHED, Completion, Counts, EndState, Report
from tests.chaos.witness import Event, FaultKind, Kind, Made, Outcome, Said, Verb

LEASE_MS = 2_000
EPOCH_MS = 1_900_000_000_000
_MS = 1_000_000


@dataclass(slots=True)
class Past:
    """A history under construction. All times are milliseconds since its start."""

    events: list[Event] = field(default_factory=list)
    end_states: dict[str, EndState] = field(default_factory=dict)
    counts: Counts | None = None
    complaints: list[str] = field(default_factory=list)
    _calls: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def call(
        self,
        verb: Verb,
        timer: str,
        at: int,
        *,
        answer: Kind | None = Kind.OK,
        outcome: str = "",
        due: int | None = None,
        slots: int = 0,
        took: int = 1,
        if_exists: str = "error",
    ) -> None:
        """A call at `at` and its answer `took` later. `answer=None` means that the driver got no answer."""
        name, due_ms = f"c{next(self._calls)}", 0 if due is None else EPOCH_MS + due
        self._add(Kind.INVOKE, at, timer=timer, verb=verb, call=name, due_ms=due_ms, slots=slots, if_exists=if_exists)
        if answer is not None:
            self._add(answer, at + took, timer=timer, verb=verb, call=name, outcome=outcome)

    def create(
        self, timer: str, at: int = 0, *, due: int = 1_000, slots: int = 0, answer: Kind | None = Kind.OK
    ) -> None:
        """A strict create; if the answer is OK, it made the timer."""
        outcome = Made.CREATED if answer is Kind.OK else ""
        self.call(Verb.CREATE, timer, at, due=due, slots=slots, answer=answer, outcome=outcome)

    def run(
        self,
        timer: str,
        at: int,
        *,
        pod: str,
        attempt: int = 1,
        token: int | None = None,
        occurrence: int = 1,
        due: int = 1_000,
        outcome: Outcome | None = Outcome.DONE,
        took: int = 5,
        key: str = "",
    ) -> None:
        """A start at `at` and, unless `outcome` is None, its end `took` later."""
        run: Said = {
            "timer": timer,
            "pod": pod,
            "attempt": attempt,
            "token": token or attempt,
            "occurrence": occurrence,
        }
        start: Said = {**run, "due_ms": EPOCH_MS + due, "key": key}
        self._add(Kind.START, at, **start)
        if outcome is not None:
            end: Said = {**run, "outcome": outcome}
            self._add(Kind.END, at + took, **end)

    def fault(
        self,
        kind: FaultKind,
        pod: str,
        at: int,
        *,
        took: int = 1,
        proof: str = "seen",
        exit_code: int = 0,
        lag_ms: int = 0,
    ) -> None:
        """A fault of `pod` from `at` on, for `took`."""
        name = f"f{next(self._calls)}"
        self._add(Kind.FAULT_ON, at, fault=kind, pod=pod, call=name, lag_ms=lag_ms)
        self._add(Kind.FAULT_OFF, at + took, fault=kind, pod=pod, call=name, proof=proof, exit_code=exit_code)

    def waited(self, pod: str, at: int, waited_ms: int) -> None:
        """`pod` has waited so long for a core by then."""
        self._add(Kind.WAITED, at, pod=pod, waited_ms=waited_ms)

    def completed(self, timer: str, at: int, *, attempt: int = 1, token: int | None = None) -> None:
        """The record says that `attempt`, the newest, completed the timer at `at`."""
        self.ended(timer, "completed", attempt=attempt, token=token, completions=(Completion(attempt, EPOCH_MS + at),))

    def ended(
        self,
        timer: str,
        status: str,
        *,
        attempt: int = 1,
        token: int | None = None,
        failures: int = 0,
        reason: str = "",
        completions: tuple[Completion, ...] = (),
    ) -> None:
        """The record after the drain."""
        self.end_states[timer] = EndState(
            status=status,
            attempt=attempt,
            token=token or attempt,
            failures=failures,
            reason=reason,
            completions=completions,
        )

    def count(self, status: str) -> None:
        """One more timer in the service's own counts."""
        counts = self.counts or Counts(finished=0, cancelled=0, scheduled=0, running=0)
        name = "finished" if status in FINISHED else status
        self.counts = replace(counts, **{name: getattr(counts, name) + 1})

    def judged(self, max_attempts: int | None = None) -> Report:
        """The checker's verdict on the events, sorted by time."""
        history = sorted(self.events, key=lambda event: event.mono_ns)
        return check(
            history,
            lease_ms=LEASE_MS,
            end_states=self.end_states,
            counts=self.counts,
            max_attempts=max_attempts,
            complaints=self.complaints,
        )

    def _add(self, kind: Kind, at: int, **said: Unpack[Said]) -> None:
        said.setdefault("pod", "driver")
        self.events.append(Event(kind=kind, mono_ns=at * _MS, wall_ns=(EPOCH_MS + at) * _MS, pid=1, **said))
