"""The promises about a timer's life: P1 never lost, P2 never early, P6 cancel means cancel, P9 one run per slot,
P10 one identity, one timer, P12 the processor meant, P18 quotas hold."""

from collections.abc import Iterator, Mapping
from itertools import pairwise
from operator import itemgetter

from tests.chaos.findings import FINISHED, EndState, Finding, Property
from tests.chaos.processors import CAP, CAPPED, SERIAL
from tests.chaos.timeline import FOREVER_NS, SUCCEEDED, Call, Faults, Run, Story
from tests.chaos.witness import Made, Verb
from timers.errors import NotFound


def lost(story: Story, end: EndState | None) -> Iterator[Finding]:
    """P1: every timer that was certainly created has ended, in a way that agrees with the witnesses."""
    if end is None:
        if story.forgotten and not story.exists:
            return
        if story.exists:
            yield Finding(Property.LOST, story.timer, "its create was answered, but no record is left", story.lines())
        elif story.runs:
            yield Finding(Property.LOST, story.timer, "it ran, but no record is left", story.lines())
        return
    if complaint := _bad_end(story, end):
        yield Finding(Property.LOST, story.timer, complaint, story.lines())


def denied(story: Story) -> Iterator[Finding]:
    """P1: nobody is told that a timer does not exist after its create was answered. A bare key is no timer until a scan
    finds it."""
    known = (call.until_ns for call in story.of(Verb.CREATE) if call.ok or call.outcome == Made.EXISTS)
    created_ns = min(known, default=FOREVER_NS)
    for call in () if story.is_bare else story.calls:
        if call.outcome == NotFound.__name__ and call.from_ns > created_ns:
            yield Finding(Property.LOST, story.timer, "it was not found, though its create was answered", call.lines())


def served(story: Story) -> Iterator[Finding]:
    """P12: the processor that declared the longest prefix ran it."""
    for run in story.runs:
        if run.start.processor and run.start.processor != story.timer.partition("/")[0]:
            text = f"it was run by the processor {run.start.processor}"
            yield Finding(Property.SERVED, story.timer, text, run.lines())


def one_at_a_time(told: Mapping[str, Story], faults: Faults) -> Iterator[Finding]:
    """P12: a start of a processor that runs one timer at a time came after the end of the run before it, or a fault of
    that run's pod had ended its permit."""
    runs = sorted(
        (run for name, story in told.items() if name.startswith(f"{SERIAL}/") for run in story.runs), key=_began
    )
    open_run: Run | None = None
    for run in runs:
        if open_run and not (open_run.ended_before(_began(run)) or faults.took_over(open_run, _began(run))):
            text = f"{run.start.timer} started while it was running, and only one may at a time"
            yield Finding(Property.SERVED, open_run.start.timer, text, open_run.lines() + run.lines())
        if open_run is None or _ended(run) > _ended(open_run):
            open_run = run


def within_quota(told: Mapping[str, Story]) -> Iterator[Finding]:
    """P18: more timers of callers with a quota were there at once than it allows. Those count that were armed for
    certain and had not started; what runs counts too, but the witness does not see when the service lets it go."""
    moments = list[tuple[int, int, Call]]()
    for name, story in told.items():
        first_ns = min((_began(run) for run in story.runs), default=FOREVER_NS)
        armed = [call for call in story.of(Verb.CREATE) if call.ok and call.until_ns < first_ns]
        if name.startswith(f"{CAPPED}/"):
            moments += [moment for call in armed for moment in ((call.until_ns, 1, call), (first_ns, -1, call))]
    waiting = 0
    for _, more, call in sorted(moments, key=itemgetter(0, 1)):
        waiting += more
        if more > 0 and waiting > CAP:
            text = f"it was armed though {waiting - 1} of its prefix waited, and the quota is {CAP}"
            yield Finding(Property.QUOTAS, call.invoke.timer, text, call.lines())


def _began(run: Run) -> int:
    return run.start.mono_ns


def _ended(run: Run) -> int:
    return FOREVER_NS if run.end is None else run.end.mono_ns


def _bad_end(story: Story, end: EndState) -> str:
    if end.status == "cancelled":
        possible = any(call.ok or call.unknown for call in story.of(Verb.CANCEL))
        return "" if possible else "it is cancelled, but nobody cancelled it"
    if end.status not in FINISHED:
        return f"it is still {end.status} after the drain"
    if end.status == "completed":
        done = any(run.outcome in SUCCEEDED for run in story.runs)
        return "" if done else "it is completed, but no run of it was seen to succeed"
    return "" if end.reason else f"it is {end.status} without a reason"


def early(story: Story, end: EndState | None) -> Iterator[Finding]:
    """P2: no start before the due time, neither the one the driver asked for nor the one the timer shows; and no claim,
    by the record's own word."""
    if end is not None and end.early_ms > 0:
        yield Finding(Property.EARLY, story.timer, f"it was claimed {end.early_ms} ms before it was due", story.lines())
    for run in story.runs:
        due_ms = max(_earliest_due_ms(story, run), run.start.due_ms)
        ahead_ns = due_ms * 1_000_000 - run.start.wall_ns
        if ahead_ns > 0:
            lines = (*(line for call in story.calls for line in call.lines()), run.start)
            yield Finding(Property.EARLY, story.timer, f"it started {ahead_ns / 1e6:.3f} ms before it was due", lines)


def _earliest_due_ms(story: Story, run: Run) -> int:
    """The earliest due time that any call in force at the start may have set."""
    calls = [call for call in story.calls if call.from_ns <= run.start.mono_ns and _sets_due(call)]
    settled = [call.from_ns for call in calls if call.ok and call.until_ns <= run.start.mono_ns]
    superseded_ns = max(settled, default=0)
    return min((call.invoke.due_ms for call in calls if call.until_ns > superseded_ns), default=0)


def _sets_due(call: Call) -> bool:
    if call.invoke.verb == Verb.RESCHEDULE:
        return call.ok or call.unknown
    return call.arms


def cancelled(story: Story, end: EndState | None) -> Iterator[Finding]:
    """P6: no attempt starts after a cancel was answered, unless something armed the timer again."""
    arming = [call for call in story.calls if call.arms]
    for cancel in story.of(Verb.CANCEL):
        if not cancel.ok:
            continue
        armed_anew = [call for call in arming if call.until_ns > cancel.from_ns]
        for run in story.runs:
            excused = any(call.from_ns < run.start.mono_ns for call in armed_anew)
            if run.start.mono_ns > cancel.until_ns and not excused:
                lines = (*cancel.lines(), run.start)
                yield Finding(Property.CANCEL, story.timer, "it started after its cancel was answered", lines)
        if end is not None and end.status != "cancelled" and not armed_anew:
            yield Finding(Property.CANCEL, story.timer, f"it was cancelled, but ended {end.status}", cancel.lines())


def repeated(story: Story, end: EndState | None, faults: Faults) -> Iterator[Finding]:
    """P9: a repeating timer has as many occurrences as were asked for, each due later than the one before, unless a
    call moved it in between. A timer that was armed more than once is not judged."""
    if sum(call.arms for call in story.calls) > 1:
        return
    firsts = [runs[0] for runs in story.chains() if runs[0].start.attempt == 1]
    for earlier, later in pairwise(firsts):
        again = _moved_between(story, earlier, later) or faults.forgotten(earlier, later.start.mono_ns)
        if later.start.due_ms <= earlier.start.due_ms and not again:
            text = f"occurrence {later.start.occurrence} is not due later than the one before"
            yield Finding(Property.REPEATS, story.timer, text, earlier.lines() + later.lines())
    wanted = max((call.invoke.slots for call in story.of(Verb.CREATE)), default=0)
    made = len({run.start.occurrence for run in story.runs})
    if wanted and end is not None and end.status == "completed" and made != wanted:
        text = f"{made} occurrences were made where {wanted} were asked for"
        yield Finding(Property.REPEATS, story.timer, text, story.lines())


def _moved_between(story: Story, earlier: Run, later: Run) -> bool:
    """True if a call may have set the later run's due time after the earlier run started."""
    moves = (call for call in story.of(Verb.RESCHEDULE) if call.ok or call.unknown)
    return any(call.from_ns < later.start.mono_ns and call.until_ns > earlier.start.mono_ns for call in moves)


def created_twice(story: Story, faults: Faults) -> Iterator[Finding]:
    """P10: a strict create never succeeds for an identity that is taken."""
    strict = [call for call in story.of(Verb.CREATE) if call.ok and call.invoke.if_exists == "error"]
    for call in strict:
        if call.outcome != Made.CREATED:
            text = f"a create that asked for an error was answered {call.outcome}"
            yield Finding(Property.IDEMPOTENT, story.timer, text, call.lines())
    for earlier, later in pairwise(strict):
        if not _freed_between(story, earlier, later, faults):
            lines = earlier.lines() + later.lines()
            yield Finding(Property.IDEMPOTENT, story.timer, "two strict creates of one identity both succeeded", lines)


def _freed_between(story: Story, earlier: Call, later: Call, faults: Faults) -> bool:
    begin_ns, until_ns = earlier.from_ns, later.until_ns
    cancels = (call for call in story.of(Verb.CANCEL) if call.ok or call.unknown)
    if any(call.from_ns < until_ns and call.until_ns > begin_ns for call in cancels):
        return True
    runs = (run for run in story.runs if begin_ns < run.start.mono_ns < until_ns)
    return any(run.ended_before(until_ns) or faults.took_over(run, until_ns) for run in runs)


def never_created(story: Story, end: EndState | None) -> Iterator[Finding]:
    """P10: a timer that nobody created, or that was refused, neither runs nor has a record."""
    creates = [call for call in story.of(Verb.CREATE) if call.ok or call.unknown or call.outcome == Made.EXISTS]
    begin_ns = min((call.from_ns for call in creates), default=None)
    for run in story.runs:
        if begin_ns is None or run.start.mono_ns < begin_ns:
            yield Finding(Property.IDEMPOTENT, story.timer, "it started though nobody had created it", run.lines())
    if begin_ns is None and end is not None:
        yield Finding(Property.IDEMPOTENT, story.timer, "its create was refused, but it has a record", story.lines())
