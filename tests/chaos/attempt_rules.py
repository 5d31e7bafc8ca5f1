"""The promises about attempts: P4 one winner, P5 tokens rise, P7 no zombie result, P8 bounded attempts."""

from collections.abc import Iterator, Sequence
from itertools import chain, groupby, pairwise

from tests.chaos.findings import Completion, EndState, Finding, Property
from tests.chaos.timeline import FOREVER_NS, SUCCEEDED, Faults, Gap, Run, Story, released
from tests.chaos.witness import Outcome

_UNCOUNTED = frozenset({Outcome.HANDED_BACK, Outcome.SNOOZED})
_FAILING = frozenset({Outcome.FAILED, Outcome.TIMED_OUT, Outcome.GAVE_UP})


def one_winner(story: Story, faults: Faults) -> Iterator[Finding]:
    """P4: the earlier run, or a fault of its pod, made each further start of an occurrence possible."""
    chains = story.chains()
    for runs in chains:
        for earlier, later in pairwise(runs):
            if not _handed_over(earlier, later, faults):
                yield _duplicate(story, earlier, later)
            again = faults.forgotten(earlier, later.start.mono_ns)
            if later.start.attempt <= earlier.start.attempt and not again:
                text = f"attempt {later.start.attempt} follows attempt {earlier.start.attempt}: numbers are used once"
                yield Finding(Property.ONE_WINNER, story.timer, text, earlier.lines() + later.lines())
    for before, after in pairwise(chains):
        if not _over(before[-1], after[0], faults):
            lines = before[-1].lines() + after[0].lines()
            yield Finding(Property.ONE_WINNER, story.timer, "a new occurrence began while a run was going on", lines)


def _handed_over(earlier: Run, later: Run, faults: Faults) -> bool:
    at_ns = max(later.start.mono_ns, earlier.start.mono_ns)
    return released(earlier, at_ns, faults) or faults.took_over(earlier, at_ns)


def _over(earlier: Run, later: Run, faults: Faults) -> bool:
    return earlier.ended_before(later.start.mono_ns) or faults.took_over(earlier, later.start.mono_ns)


def _duplicate(story: Story, earlier: Run, later: Run) -> Finding:
    overlap = "" if earlier.ended_before(later.start.mono_ns) else " and overlaps it"
    text = (
        f"attempt {later.start.attempt} on {later.start.pod} follows attempt {earlier.start.attempt} "
        f"on {earlier.start.pod}{overlap}, and no failure, hand-back or fault of {earlier.start.pod} explains it"
    )
    return Finding(Property.ONE_WINNER, story.timer, text, earlier.lines() + later.lines())


def tokens_rise(story: Story, end: EndState | None, faults: Faults) -> Iterator[Finding]:
    """P5: tokens rise over the whole life, attempts by one in an occurrence, except where proven faults hid some."""
    newest: Run | None = None
    for run in story.runs:
        if newest and run.start.token == newest.start.token:
            yield _token_finding(story, "a token was used twice", newest, run)
        elif newest and run.start.token < newest.start.token and not faults.held_up(run.start):
            yield _token_finding(story, "a start with an older token came after one with a newer", newest, run)
        if newest is None or run.start.token > newest.start.token:
            newest = run
    if newest and end and end.token < newest.start.token and not faults.forgotten(newest, FOREVER_NS):
        text = f"the record's token {end.token} is older than that of a start"
        yield Finding(Property.TOKENS_RISE, story.timer, text, newest.lines())
    yield from _gaps(story, faults)


def _token_finding(story: Story, text: str, newest: Run, run: Run) -> Finding:
    return Finding(Property.TOKENS_RISE, story.timer, text, newest.lines() + run.lines())


def _gaps(story: Story, faults: Faults) -> Iterator[Finding]:
    for gap in story.gaps():
        if not gap.goes_on(faults) and not _swallowed(gap, faults):
            lines = (gap.earlier.lines() if gap.earlier else ()) + gap.run.lines()
            text = f"{gap.hidden} attempts before attempt {gap.run.start.attempt} are missing, and no fault explains it"
            yield Finding(Property.TOKENS_RISE, story.timer, text, lines)


def _swallowed(gap: Gap, faults: Faults) -> bool:
    """True if there were faults and time enough for every attempt that was claimed but never seen to start."""
    at_ns = gap.run.start.mono_ns
    of_earlier = gap.earlier is not None and not released(gap.earlier, at_ns, faults)
    return faults.swallow(gap.hidden, gap.from_ns, at_ns, besides=int(of_earlier))


def zombies(story: Story, end: EndState | None, faults: Faults) -> Iterator[Finding]:
    """P7: an occurrence has at most one accepted completion, and it belongs to the newest attempt, or to the one before
    those that the server forgot."""
    if end is None or not end.completions:
        return
    newest = [run for runs in story.chains() for run in _last(runs, faults)]
    for completion in end.completions:
        if not any(_completed(run, completion) for run in newest):
            text = f"attempt {completion.attempt} was accepted as completed: not the newest, or not (yet) successful"
            yield Finding(Property.ZOMBIE, story.timer, text, story.lines())
    if len(end.completions) > len(newest):
        text = f"{len(end.completions)} completions were accepted for {len(newest)} occurrences"
        yield Finding(Property.ZOMBIE, story.timer, text, story.lines())
    if end.status == "completed" and end.completions[-1].attempt != end.attempt:
        text = f"attempt {end.completions[-1].attempt} was accepted after attempt {end.attempt} had been claimed"
        yield Finding(Property.ZOMBIE, story.timer, text, story.lines())


def _last(runs: Sequence[Run], faults: Faults) -> Iterator[Run]:
    for run in reversed(runs):
        yield run
        if not faults.forgotten(run, FOREVER_NS):
            return


def _completed(run: Run, completion: Completion) -> bool:
    """True if the run had succeeded when its completion was accepted. Its end is written before the service hears."""
    if run.end is None or run.outcome not in SUCCEEDED:
        return False
    return run.start.attempt == completion.attempt and run.end.wall_ns // 1_000_000 <= completion.at_ms


def bounded(story: Story, end: EndState | None, faults: Faults, max_attempts: int) -> Iterator[Finding]:
    """P8: never more attempts than the limit, and a timer fails only after all of them. The lives of an occurrence are
    taken together: a call that was answered late may have begun the next one after any of the starts meanwhile."""
    chains = story.chains()
    for _, lives in groupby(chains, lambda runs: runs[0].start.occurrence):
        runs = list(lives)
        counted = sum(run.outcome not in _UNCOUNTED and not faults.forgotten(run, FOREVER_NS) for run in chain(*runs))
        limit = max_attempts * len(runs)
        if counted > limit:
            text = f"{counted} attempts were made where {limit} are the limit"
            yield Finding(Property.BOUNDED, story.timer, text, story.lines())
    if chains and end is not None and end.status == "failed":
        used = end.attempt - sum(run.outcome in _UNCOUNTED for run in chains[-1])
        if used < max_attempts and chains[-1][-1].outcome != Outcome.GAVE_UP:
            text = f"it counts as failed after {used} of {max_attempts} attempts"
            yield Finding(Property.BOUNDED, story.timer, text, story.lines())


def burnt(story: Story, end: EndState | None, faults: Faults) -> Iterator[Finding]:
    """P8: each failure in the record is one attempt's, which was seen to fail or may have been ended by a fault."""
    if end is None or not end.failures:
        return
    tried = end.attempt - (end.status == "completed")
    if end.failures > tried:
        text = f"{end.failures} failures are counted, of {tried} attempts that can have failed"
        yield Finding(Property.BOUNDED, story.timer, text, story.lines())
    seen = sum(run.outcome in _FAILING for run in story.runs)
    begin_ns = min((line.mono_ns for line in story.lines()), default=0)
    if end.failures > seen + faults.burning(begin_ns):
        text = f"{end.failures} failures are counted, {seen} were seen, and faults do not explain the rest"
        yield Finding(Property.BOUNDED, story.timer, text, story.lines())
