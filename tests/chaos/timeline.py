"""A history by timer and pod: the calls and runs of each timer, the faults of each pod, and what a fault explains."""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from tests.chaos.waits import SHARE, Waits
from tests.chaos.witness import Event, FaultKind, Kind, Made, Outcome, Verb

FOREVER_NS = 1 << 62
EVERY_POD = "*"
ALL = "all"
"""Begins the proof of a fault that lost everything until then."""

SUCCEEDED = frozenset({Outcome.DONE, Outcome.REARMED})

_RELEASING = frozenset({Outcome.FAILED, Outcome.TIMED_OUT, Outcome.SNOOZED})
UNCOPIED_NS = 2_000_000_000
"""How long before a loss a change may have been made that the ledger did not get, if it was not behind and the pods had
their cores."""

UNFOLLOWED_NS = 12_000_000_000
"""How long after a kill the others may think that the pod is alive, which copied the changes. Without a core a pod is
as slow."""

_LOSING = frozenset({FaultKind.LOSS, FaultKind.POWER})
_CUTTING = frozenset({FaultKind.PAUSE, FaultKind.PARTITION})
_HINDERING = frozenset({FaultKind.DISCONNECT, FaultKind.ABSENT, FaultKind.QUOTA, FaultKind.SLOW}) | _CUTTING | _LOSING
_BURNING = frozenset({FaultKind.KILL, FaultKind.DISCONNECT, FaultKind.STARVED}) | _CUTTING | _LOSING
_HOLDING = frozenset({FaultKind.STOP}) | _BURNING


@dataclass(frozen=True, slots=True)
class Call:
    """One call of the driver, with its answer if there was one."""

    invoke: Event
    answer: Event | None

    @property
    def ok(self) -> bool:
        return self.answer is not None and self.answer.kind is Kind.OK

    @property
    def unknown(self) -> bool:
        """True if nobody knows whether it took effect, or still will."""
        return self.answer is None or self.answer.kind is Kind.INFO

    @property
    def outcome(self) -> str:
        return "" if self.answer is None else self.answer.outcome

    @property
    def from_ns(self) -> int:
        return self.invoke.mono_ns

    @property
    def until_ns(self) -> int:
        """The latest time at which it can take effect."""
        return FOREVER_NS if self.answer is None or self.unknown else self.answer.mono_ns

    @property
    def arms(self) -> bool:
        """True if it made a finished or missing timer run (again), or may have."""
        if self.invoke.verb == Verb.CREATE:
            return self.unknown or (self.ok and self.outcome != Made.KEPT)
        return self.invoke.verb == Verb.RETRY and (self.ok or self.unknown)

    def lines(self) -> tuple[Event, ...]:
        return (self.invoke,) if self.answer is None else (self.invoke, self.answer)


@dataclass(frozen=True, slots=True)
class Run:
    """One start, with its end if the same pod wrote one."""

    start: Event
    end: Event | None

    @property
    def outcome(self) -> str:
        return "" if self.end is None else self.end.outcome

    def ended_before(self, mono_ns: int) -> bool:
        return self.end is not None and self.end.mono_ns <= mono_ns

    def lines(self) -> tuple[Event, ...]:
        return (self.start,) if self.end is None else (self.start, self.end)


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault of a pod from `on_ns` to `off_ns` (FOREVER_NS if it has not ended). The ledger was behind by `lag_ns`."""

    kind: str
    on_ns: int
    off_ns: int
    lag_ns: int = 0


class _Spans:
    """Counts the faults that overlap a span of time, in O(log n)."""

    def __init__(self, faults: Iterable[Fault]) -> None:
        spans = [(fault.on_ns, fault.off_ns) for fault in faults]
        self._ons = sorted(on_ns for on_ns, _ in spans)
        self._offs = sorted(off_ns for _, off_ns in spans)

    def overlapping(self, from_ns: int, until_ns: int) -> int:
        return bisect_right(self._ons, until_ns) - bisect_left(self._offs, from_ns)


class Faults:
    """The proven faults of a history, by pod. `lease_ms` is the pods' lease.

    A pod extends a lease at least every half lease, so being cut off for half a lease may already end it."""

    def __init__(self, events: Sequence[Event], lease_ms: int) -> None:
        self.waits = Waits(events)
        self._lease_ns = lease_ms * 1_000_000
        self._of_pod: defaultdict[str, list[Fault]] = defaultdict(list)
        self.proven = self.unproven = 0
        for pod, fault in self._proven(events):
            self._of_pod[pod].append(fault)
        proven = [fault for faults in self._of_pod.values() for fault in faults]
        self._holding = _Spans([fault for fault in proven if fault.kind in _HOLDING])
        self._burning = _Spans([fault for fault in proven if fault.kind in _BURNING])
        self._kills = [fault.on_ns for fault in proven if fault.kind == FaultKind.KILL]
        self._stopping = _Spans([fault for fault in proven if fault.kind in {FaultKind.STOP} | _LOSING])

    def _proven(self, events: Iterable[Event]) -> Iterator[tuple[str, Fault]]:
        ons: dict[str, Event] = {}
        offs: dict[str, Event] = {}
        for event in events:
            if event.kind is Kind.FAULT_ON:
                ons[event.call] = event
            elif event.kind is Kind.FAULT_OFF:
                offs[event.call] = event
        for call, on in ons.items():
            off = offs.get(call)
            if not (on.proof or (off and off.proof)):
                self.unproven += 1
                continue
            self.proven += on.fault not in (FaultKind.STARVED, FaultKind.ABSENT)
            yield on.pod, Fault(on.fault, on.mono_ns, off.mono_ns if off else FOREVER_NS, on.lag_ms * 1_000_000)

    def took_over(self, run: Run, at_ns: int) -> bool:
        """True if a fault of the run's own pod explains that another run began at `at_ns`."""
        return any(self._ended_lease(fault, run, at_ns) for fault in self._on(run.start.pod))

    def forgotten(self, run: Run, at_ns: int) -> bool:
        """True if the server lost what it knew of the run before the ledger had it, so that it was made again."""
        return any(f.kind in _LOSING and self._forgot(f, run, at_ns) for f in self._on(run.start.pod))

    def _forgot(self, fault: Fault, run: Run, at_ns: int) -> bool:
        if fault.on_ns > at_ns or self._claimed_ns(run) > fault.off_ns:
            return False
        kills = [on_ns for on_ns in self._kills if fault.on_ns - UNFOLLOWED_NS < on_ns < fault.on_ns]
        is_starved = self.waits.share(fault.on_ns - UNFOLLOWED_NS, fault.on_ns) > SHARE
        uncopied_ns = UNFOLLOWED_NS if is_starved else min(UNCOPIED_NS + fault.lag_ns, UNFOLLOWED_NS)
        return run.end is None or run.end.mono_ns > min(kills, default=fault.on_ns) - uncopied_ns

    def _claimed_ns(self, run: Run) -> int:
        """When the run was claimed, less than a lease before its start: its token is that time in microseconds, or a
        little later."""
        before_ns = run.start.wall_ns - run.start.token * 1000
        return run.start.mono_ns - (before_ns if 0 < before_ns < self._lease_ns else 0)

    def held_up(self, start: Event) -> bool:
        """True if the pod was held up so long just before this start that the lease may have ended already."""
        at_ns = start.mono_ns
        return any(
            (fault.kind == FaultKind.PAUSE and self._lasted(fault, at_ns, at_ns))
            or (fault.kind == FaultKind.STARVED and self._ended_half_lease(fault, at_ns, at_ns))
            for fault in self._on(start.pod)
        )

    def last_kill(self, before_ns: int) -> int:
        """When a pod was last killed before `before_ns`; 0 if none was."""
        return max((on_ns for on_ns in self._kills if on_ns < before_ns), default=0)

    def killed(self, run: Run) -> int | None:
        """When the run's pod was killed, if that was after the run began."""
        kills = (f.on_ns for f in self._on(run.start.pod) if f.kind == FaultKind.KILL and f.off_ns >= run.start.mono_ns)
        return next(kills, None)

    def holding(self, run: Run) -> Iterator[tuple[str, int]]:
        """The faults before the run's start that kept its pod, or every pod, from starting anything, and when they
        ended."""
        for fault in self._on(run.start.pod):
            if fault.kind in _HINDERING and fault.on_ns < run.start.mono_ns:
                yield fault.kind, min(fault.off_ns, run.start.mono_ns)

    def burning(self, from_ns: int) -> int:
        """How many faults since then may have ended a run, which then counts as a failure."""
        return self._burning.overlapping(from_ns, FOREVER_NS)

    def stopped(self, pod: str, before_ns: int) -> bool:
        """True if the pod was told to stop before `before_ns`."""
        return any(fault.kind == FaultKind.STOP and fault.on_ns <= before_ns for fault in self._on(pod))

    def swallow(self, claims: int, from_ns: int, until_ns: int, *, besides: int) -> bool:
        """True if the faults between the two times explain `claims` that nobody saw start, and `besides` that started.

        Such a claim ends with its lease, when a stopping pod hands it back, or when the server loses it."""
        if self._holding.overlapping(from_ns, until_ns) < claims + besides:
            return False
        stops = self._stopping.overlapping(from_ns, until_ns)
        return until_ns - from_ns >= max(0, claims - stops) * self._lease_ns

    def _on(self, pod: str) -> Iterator[Fault]:
        yield from self._of_pod.get(pod, ())
        yield from self._of_pod.get(EVERY_POD, ())

    def _ended_lease(self, fault: Fault, run: Run, at_ns: int) -> bool:
        if fault.kind == FaultKind.KILL:
            unsettled_until = FOREVER_NS if run.end is None else run.end.mono_ns + self._lease_ns
            return fault.on_ns <= min(at_ns, unsettled_until) and fault.off_ns >= run.start.mono_ns
        if fault.kind == FaultKind.STARVED:
            return self._ended_half_lease(fault, run.start.mono_ns, at_ns)
        if fault.kind in _LOSING:
            return self._forgot(fault, run, at_ns)
        return fault.kind in _CUTTING and self._lasted(fault, run.start.mono_ns, at_ns)

    def _ended_half_lease(self, fault: Fault, start_ns: int, at_ns: int) -> bool:
        """True if the half lease in which the fault was measured overlaps the run, or the lease before it."""
        return start_ns - self._lease_ns <= fault.on_ns <= at_ns + self._lease_ns // 2

    def _lasted(self, fault: Fault, start_ns: int, at_ns: int) -> bool:
        lasted_ns = min(fault.off_ns, at_ns) - fault.on_ns
        return lasted_ns >= self._lease_ns // 2 and fault.off_ns >= start_ns - self._lease_ns


@dataclass(frozen=True, slots=True)
class Gap:
    """`hidden` attempts are missing before `run`, since `from_ns`: after `earlier`, or in what may be another life of
    the timer than that of the run `before` it: the last one of its occurrence, to which a loss may have led back."""

    earlier: Run | None
    run: Run
    hidden: int
    from_ns: int
    before: Run | None = None

    def goes_on(self, faults: "Faults") -> bool:
        """True if it is the same life after all, whose last run the server forgot, so that its number comes again."""
        before, first = self.before, self.run.start
        if before is None or first.attempt > before.start.attempt + 1:
            return False
        return faults.forgotten(before, first.mono_ns)


@dataclass(slots=True)
class Story:
    """Everything that the witnesses saw of one timer, each list in order of time."""

    timer: str
    calls: list[Call] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    forgotten: bool = False
    """Whether an answer was lost with the server's power."""

    @property
    def exists(self) -> bool:
        """True if it was certainly created: a call on it succeeded, or was refused because it existed."""
        return any((call.ok and call.outcome != Made.SET) or call.outcome == Made.EXISTS for call in self.calls)

    @property
    def may_exist(self) -> bool:
        return self.exists or any(call.invoke.verb == Verb.CREATE and call.unknown for call in self.calls)

    @property
    def is_bare(self) -> bool:
        """True if a bare key made it: only such a create says that it runs once."""
        return any(call.invoke.slots == 1 for call in self.of(Verb.CREATE))

    def of(self, verb: Verb) -> list[Call]:
        return [call for call in self.calls if call.invoke.verb == verb]

    def by_token(self) -> list[Run]:
        return sorted(self.runs, key=lambda run: (run.start.token, run.start.mono_ns))

    def lines(self) -> tuple[Event, ...]:
        lines = [line for call in self.calls for line in call.lines()] + [
            line for run in self.runs for line in run.lines()
        ]
        return tuple(sorted(lines, key=lambda event: event.mono_ns))

    def chains(self) -> list[list[Run]]:
        """The runs by token, split at each new occurrence or new life of the timer."""
        runs = self.by_token()
        chains = [runs[:1]] if runs else []
        rearming = [call for call in self.calls if call.arms][1:]
        for earlier, later in pairwise(runs):
            armed_anew = _take_rearming(rearming, earlier, later)
            if armed_anew or earlier.start.occurrence != later.start.occurrence:
                chains.append([])
            chains[-1].append(later)
        return chains

    def gaps(self) -> Iterator[Gap]:
        """Where attempt numbers do not rise by one. A timer armed by hand may count on or begin at 1 again."""
        from_ns = min((call.from_ns for call in self.calls), default=0)
        last: Run | None = None
        newest: dict[int, Run] = {}
        for runs in self.chains():
            first = runs[0]
            counts_on = last and last.start.occurrence == first.start.occurrence
            base = last.start.attempt if last and counts_on and first.start.attempt > last.start.attempt else 0
            if (hidden := first.start.attempt - base - 1) > 0:
                yield Gap(
                    None, first, hidden, last.start.mono_ns if last else from_ns, newest.get(first.start.occurrence)
                )
            for earlier, later in pairwise(runs):
                if (hidden := later.start.attempt - earlier.start.attempt - 1) > 0:
                    yield Gap(earlier, later, hidden, earlier.start.mono_ns)
            last = newest[first.start.occurrence] = runs[-1]


def _take_rearming(arming: list[Call], earlier: Run, later: Run) -> bool:
    """Removes from `arming` a call that may have armed the timer between two starts. Returns False if there is none."""
    for call in arming:
        if call.from_ns < later.start.mono_ns and call.until_ns > earlier.start.mono_ns:
            arming.remove(call)
            return True
    return False


def released(run: Run, at_ns: int, faults: Faults) -> bool:
    """True if the run ended before `at_ns` so that another could start: it failed, or a stopping pod handed it back."""
    if run.end is None or not run.ended_before(at_ns):
        return False
    if run.outcome == Outcome.HANDED_BACK:
        return faults.stopped(run.start.pod, run.end.mono_ns)
    return run.outcome in _RELEASING


def stories(history: Sequence[Event]) -> dict[str, Story]:
    """The history by timer."""
    found: dict[str, Story] = {}
    losses = _power_losses(history)
    answers: dict[str, Event] = {}
    invokes: list[Event] = []
    starts: list[Event] = []
    ends: defaultdict[tuple[object, ...], list[Event]] = defaultdict(list)
    for event in history:
        if event.kind is Kind.INVOKE:
            invokes.append(event)
        elif event.kind is Kind.START:
            starts.append(event)
        elif event.kind is Kind.END:
            ends[_run_key(event)].append(event)
        elif event.timer:
            answers[event.call] = event
    for invoke in invokes:
        story = found.setdefault(invoke.timer, Story(invoke.timer))
        answer = answers.get(invoke.call)
        if answer is not None and any(on <= answer.mono_ns and invoke.mono_ns <= off for on, off in losses):
            answer, story.forgotten = replace(answer, kind=Kind.INFO, outcome=""), True
        story.calls.append(Call(invoke, answer))
    for start in starts:
        matching = ends.get(_run_key(start))
        story = found.setdefault(start.timer, Story(start.timer))
        story.runs.append(Run(start, matching.pop(0) if matching else None))
    return found


def _power_losses(history: Sequence[Event]) -> list[tuple[int, int]]:
    """When what was done was lost for good: with the power, or all until then."""
    ons = {
        event.call: event.mono_ns for event in history if event.kind is Kind.FAULT_ON and event.fault == FaultKind.POWER
    }
    offs = [event for event in history if event.kind is Kind.FAULT_OFF and event.call in ons]
    return [(0 if off.proof.startswith(ALL) else ons[off.call], off.mono_ns) for off in offs]


def _run_key(event: Event) -> tuple[object, ...]:
    return event.timer, event.occurrence, event.attempt, event.token, event.pod, event.pid
