"""The promise about idempotency keys: P16."""

from collections import defaultdict
from collections.abc import Iterator

from tests.chaos.findings import Finding, Property
from tests.chaos.timeline import Run, Story


def one_key(story: Story) -> Iterator[Finding]:
    """P16: all runs of an occurrence have one key, also after a loss, and no other occurrence has it. The occurrences
    of a timer that was armed more than once may be those of several lives."""
    occurrences: defaultdict[int, list[Run]] = defaultdict(list)
    for place, runs in enumerate(story.chains()):
        for run in runs:
            occurrences[run.start.occurrence if _has_one_life(story) else place].append(run)
    owners: dict[str, int] = {}
    for occurrence, runs in occurrences.items():
        keys = {run.start.key for run in runs if run.start.key}
        if len(keys) > 1:
            yield _finding(story, f"the runs of one occurrence had the keys {', '.join(sorted(keys))}", runs)
        for key in keys if _has_one_life(story) else ():
            if owners.setdefault(key, occurrence) != occurrence:
                yield _finding(story, f"the occurrences {owners[key]} and {occurrence} had the key {key}", runs)


def _has_one_life(story: Story) -> bool:
    return sum(call.arms for call in story.calls) <= 1


def _finding(story: Story, text: str, runs: list[Run]) -> Finding:
    return Finding(Property.KEYS, story.timer, text, tuple(line for run in runs for line in run.lines()))
