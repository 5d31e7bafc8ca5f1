"""Random histories that a correct service could leave under kills, pauses, hand-backs and unanswered calls."""

from dataclasses import dataclass, field
from itertools import count

from hypothesis import strategies as st

from tests.chaos.findings import Completion, Counts
from tests.chaos.histories import EPOCH_MS, LEASE_MS, Past
from tests.chaos.witness import FaultKind, Kind, Made, Outcome, Verb

MAX_ATTEMPTS = 4

_BIRTHS = ("ok", "ok", "ok", "refused", "unknown, took effect", "unknown, lost", "unknown, then exists", "kept")
_LIVES = (
    "plain",
    "plain",
    "plain",
    "rescheduled",
    "cancelled",
    "cancel unknown",
    "repeats",
    "repeats, moved",
    "retried",
    "created again",
)
_FATES = ("done", "failed", "timed-out", "snoozed", "killed", "killed late", "killed unseen", "paused", "stopped")


@dataclass(slots=True)
class _Life:
    timer: str
    now: int
    due: int
    token: int = 0
    occurrence: int = 1
    attempt: int = 0
    failures: int = 0
    done: bool = False
    completions: list[Completion] = field(default_factory=list)


@st.composite
def clean_histories(draw: st.DrawFn) -> Past:
    """A few timers, each with its own life, and their counts and records."""
    service = _Service(draw)
    for number in range(draw(st.integers(1, 6))):
        service.live(f"chaos/{number}")
    return service.past


class _Service:
    """Makes up lives of timers by the rules, and writes what the witnesses would have seen."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.past = Past(counts=Counts(finished=0, cancelled=0, scheduled=0, running=0))
        self._draw = draw
        self._pods = count(1)

    def live(self, timer: str) -> None:
        """One whole life, from the create to the drain."""
        life = _Life(timer, now=self._between(0, 500), due=self._between(1_000, 3_000))
        way = self._draw(st.sampled_from(_LIVES))
        if not self._born(life, slots=2 if way.startswith("repeats") else 0):
            return
        if way.startswith("cancel") and self._cancelled(life, way):
            return
        if way == "rescheduled":
            life.due += 700
            self.past.call(Verb.RESCHEDULE, timer, life.now + 10, due=life.due, took=self._between(1, 40))
        self._occurrence(life, Outcome.REARMED if way.startswith("repeats") else Outcome.DONE)
        self._afterlife(life, way)
        self._end(life, "completed" if life.done else "failed")

    def _between(self, least: int, most: int) -> int:
        return self._draw(st.integers(least, most))

    def _born(self, life: _Life, *, slots: int) -> bool:
        birth = self._draw(st.sampled_from(_BIRTHS))
        answer = {"ok": Kind.OK, "kept": Kind.OK, "refused": Kind.FAIL}.get(birth, Kind.INFO)
        self.past.create(life.timer, life.now, due=life.due, slots=slots, answer=answer)
        if birth == "unknown, then exists":
            self.past.call(Verb.CREATE, life.timer, life.now + 50, due=0, answer=Kind.FAIL, outcome=Made.EXISTS)
        if birth == "kept":
            self.past.call(Verb.CREATE, life.timer, life.now + 50, due=9_000, outcome=Made.KEPT, if_exists="keep")
        return birth not in {"refused", "unknown, lost"}

    def _cancelled(self, life: _Life, way: str) -> bool:
        known = way == "cancelled"
        self.past.call(Verb.CANCEL, life.timer, life.now + 60, answer=Kind.OK if known else Kind.INFO)
        if not known and self._draw(st.booleans()):
            return False
        self._end(life, "cancelled")
        return True

    def _afterlife(self, life: _Life, way: str) -> None:
        if way.startswith("repeats") and life.done:
            life.occurrence, life.attempt, life.due = life.occurrence + 1, 0, life.now + 1_000
            if way == "repeats, moved":
                life.due = self._between(0, life.now + 2_000)
                self.past.call(Verb.RESCHEDULE, life.timer, life.now + 10, due=life.due)
        elif way == "retried" and not life.done:
            self.past.call(Verb.RETRY, life.timer, life.now + 10, due=life.now + 10)
            life.attempt, life.due = self._draw(st.sampled_from([0, life.attempt])), life.now + 10
        elif way == "created again" and life.done:
            life.attempt, life.due = 0, life.now + 500
            life.completions = []
            self.past.create(life.timer, life.now + 10, due=life.due)
        else:
            return
        life.failures, life.done = 0, False
        self._occurrence(life, Outcome.DONE)

    def _occurrence(self, life: _Life, success: Outcome) -> None:
        life.now = max(life.due, life.now + 20)
        while not life.done and life.failures < MAX_ATTEMPTS:
            life.token += self._between(1, 3)
            life.attempt += 1
            self._attempt(life, self._draw(st.sampled_from(_FATES)), success)

    def _attempt(self, life: _Life, fate: str, success: Outcome) -> None:
        pod = f"pod-{next(self._pods)}"
        life.now += self._between(0, 30)
        if fate == "done":
            self._run(life, pod, success)
            life.now += 10
            life.done = True
            life.completions.append(Completion(life.attempt, EPOCH_MS + life.now))
        elif fate in {"failed", "timed-out", "snoozed"}:
            self._run(life, pod, Outcome(fate))
            life.failures += fate != "snoozed"
            life.due = life.now + self._between(10, 500)
            life.now = life.due
        elif fate == "stopped":
            self.past.fault(FaultKind.STOP, pod, life.now + 2, took=50)
            self._run(life, pod, Outcome.HANDED_BACK)
            life.now += 10
        else:
            self._hold_lease(life, fate, pod, success)
            life.failures += 1
            life.now += LEASE_MS + 100

    def _hold_lease(self, life: _Life, fate: str, pod: str, success: Outcome) -> None:
        """A fault after which the lease stays until it ends by itself."""
        if fate == "killed":
            self._run(life, pod, None)
            self.past.fault(FaultKind.KILL, pod, life.now + 3)
        elif fate == "killed late":
            self._run(life, pod, success)
            self.past.fault(FaultKind.KILL, pod, life.now + 6)
        elif fate == "killed unseen":
            self.past.fault(FaultKind.KILL, pod, life.now)
        else:
            self.past.fault(FaultKind.PAUSE, pod, life.now + 1, took=2 * LEASE_MS)
            self._run(life, pod, success, took=2 * LEASE_MS + 5)

    def _run(self, life: _Life, pod: str, outcome: Outcome | None, took: int = 5) -> None:
        self.past.run(
            life.timer,
            life.now,
            pod=pod,
            attempt=life.attempt,
            token=life.token,
            occurrence=life.occurrence,
            due=life.due,
            outcome=outcome,
            took=took,
        )

    def _end(self, life: _Life, status: str) -> None:
        self.past.ended(
            life.timer,
            status,
            attempt=life.attempt,
            token=life.token,
            failures=life.failures,
            reason="" if status == "completed" else "it said no",
            completions=tuple(life.completions),
        )
        self.past.count(status)
