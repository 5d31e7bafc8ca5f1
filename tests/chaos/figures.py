"""A history in numbers: how much happened, how late timers were, how long takeovers and catching up took."""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from math import ceil

from tests.chaos.findings import Figures
from tests.chaos.timeline import EVERY_POD, Faults, Run, Story, released
from tests.chaos.witness import Event, FaultKind, Kind, Made, Verb

_MS = 1_000_000


def figures(history: Iterable[Event], told: Mapping[str, Story], faults: Faults, starved: int) -> Figures:
    """The figures of a whole history."""
    chains = [runs for story in told.values() for runs in story.chains()]
    late = sorted(late for story in told.values() for late in _lateness_ms(story))
    taken_over = list(_taken_over(chains, faults))
    return Figures(
        timers=len(told),
        unknown_creates=sum(call.unknown for story in told.values() for call in story.of(Verb.CREATE)),
        starts=sum(len(runs) for runs in chains),
        duplicates=len(taken_over),
        hidden_attempts=sum(gap.hidden for story in told.values() for gap in story.gaps()),
        max_attempt=max((run.start.attempt for runs in chains for run in runs), default=0),
        lateness_p50_ms=_quantile(late, 0.5),
        lateness_p99_ms=_quantile(late, 0.99),
        lateness_max_ms=_quantile(late, 1.0),
        takeover_max_ms=max(_after_kills_ms(taken_over, faults), default=None),
        backlog_max_ms=max(_backlog_ms(history, told.values()), default=None),
        starved=starved,
        faults_proven=faults.proven,
        faults_unproven=faults.unproven,
    )


def _firsts(chains: Iterable[Sequence[Run]]) -> Iterator[Run]:
    """First attempts whose due time is known."""
    return (runs[0] for runs in chains if runs[0].start.attempt == 1 and runs[0].start.due_ms)


def _lateness_ms(story: Story) -> Iterator[float]:
    """Lateness of first attempts, from the due time, or from the create call if that came later."""
    for run in _firsts(story.chains()):
        yield round((run.start.wall_ns - max(run.start.due_ms * _MS, _asked_ns(story, run))) / _MS, 1)


def _asked_ns(story: Story, run: Run) -> int:
    """When the create that made the timer was called, in wall time."""
    creates = [call for call in story.of(Verb.CREATE) if call.ok and call.outcome == Made.CREATED]
    return max((call.invoke.wall_ns for call in creates if call.from_ns < run.start.mono_ns), default=0)


def _quantile(ordered: Sequence[float], share: float) -> float | None:
    """Nearest-rank quantile of sorted values."""
    return ordered[max(1, ceil(len(ordered) * share)) - 1] if ordered else None


def _taken_over(chains: Iterable[Sequence[Run]], faults: Faults) -> Iterator[tuple[Run, Run]]:
    """Pairs of starts of one occurrence: a run that had not failed or been handed back, and the start that followed."""
    for runs in chains:
        for earlier, later in pairwise(runs):
            if not released(earlier, later.start.mono_ns, faults):
                yield earlier, later


def _after_kills_ms(taken_over: Iterable[tuple[Run, Run]], faults: Faults) -> Iterator[float]:
    """From the kill that ended a run to the next start. Unknown, so left out, if an attempt in between was not seen;
    and a run that something else had ended before."""
    for earlier, later in taken_over:
        killed_ns = faults.killed(earlier)
        seen = later.start.attempt == earlier.start.attempt + 1
        if killed_ns is not None and killed_ns < later.start.mono_ns and seen:
            yield round((later.start.mono_ns - killed_ns) / _MS, 1)


def _backlog_ms(history: Iterable[Event], told: Iterable[Story]) -> Iterator[float]:
    """For timers that existed and became due while the server did not answer: from its next answer to the start."""
    outages = list(_outages(history))
    begins = [begin_ns for begin_ns, _ in outages]
    for story in told:
        for run in _firsts(story.chains()):
            due_ns = run.start.due_ms * _MS
            index = bisect_right(begins, due_ns) - 1
            if index >= 0 and _asked_ns(story, run) < begins[index] and due_ns <= outages[index][1]:
                yield round((run.start.wall_ns - outages[index][1]) / _MS, 1)


def _outages(history: Iterable[Event]) -> Iterator[tuple[int, int]]:
    """The times when the server answered nobody, in wall time, in order."""
    on: Event | None = None
    for event in history:
        if event.fault != FaultKind.PARTITION or event.pod != EVERY_POD:
            continue
        if event.kind is Kind.FAULT_ON:
            on = event
        elif on is not None and event.proof:
            yield on.wall_ns, event.wall_ns
