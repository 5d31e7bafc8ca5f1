"""Decides from the witnesses' history whether the service kept its promises, in O(n log n) of its lines."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain

from tests.chaos import attempt_rules, key_rules, life_rules
from tests.chaos.figures import figures
from tests.chaos.findings import FINISHED, Counts, EndState, Finding, Property, Report
from tests.chaos.late_rules import Punctual
from tests.chaos.timeline import Faults, Story, stories
from tests.chaos.witness import Event, FaultKind


def check(
    history: Sequence[Event],
    *,
    lease_ms: int,
    end_states: Mapping[str, EndState],
    counts: Counts | None = None,
    max_attempts: int | None = None,
    complaints: Sequence[str] = (),
) -> Report:
    """Checks a whole history, in order, against the promises.

    `end_states` has the record of every timer that still has one after the drain, by `prefix/id`. `counts` are the
    service's own; without them conservation is not checked. `max_attempts` is the limit under which all timers of the
    history ran; without it only the service's own bookkeeping of attempts is checked. `complaints` are what pods logged
    as errors of their own.
    """
    told = stories(history)
    faults = Faults(history, lease_ms)
    punctual = Punctual(faults, lease_ms)
    findings = list(
        chain(
            *(_of_story(story, end_states.get(timer), faults, max_attempts) for timer, story in told.items()),
            *map(punctual.late, told.values()),
            life_rules.one_at_a_time(told, faults),
            life_rules.within_quota(told),
            _strangers(told, end_states),
            _conservation(told, end_states, counts),
            _disorder(history, complaints),
        )
    )
    return Report(findings, figures(history, told, faults, punctual.starved))


def _of_story(story: Story, end: EndState | None, faults: Faults, max_attempts: int | None) -> Iterator[Finding]:
    yield from life_rules.lost(story, end)
    yield from life_rules.denied(story)
    yield from life_rules.early(story, end)
    yield from life_rules.served(story)
    yield from life_rules.cancelled(story, end)
    yield from life_rules.repeated(story, end, faults)
    yield from life_rules.created_twice(story, faults)
    yield from life_rules.never_created(story, end)
    yield from attempt_rules.one_winner(story, faults)
    yield from attempt_rules.tokens_rise(story, end, faults)
    yield from attempt_rules.zombies(story, end, faults)
    yield from key_rules.one_key(story)
    yield from attempt_rules.burnt(story, end, faults)
    if max_attempts is not None:
        yield from attempt_rules.bounded(story, end, faults, max_attempts)


def _disorder(history: Sequence[Event], complaints: Sequence[str]) -> Iterator[Finding]:
    for event in history:
        if event.fault == FaultKind.STOP and event.exit_code:
            text = f"told to stop, it ended with exit code {event.exit_code}"
            yield Finding(Property.ORDERLY, event.pod, text, (event,))
    for complaint in complaints:
        yield Finding(Property.ORDERLY, "all", complaint)


def _strangers(told: Mapping[str, Story], end_states: Mapping[str, EndState]) -> Iterator[Finding]:
    for timer in end_states.keys() - told.keys():
        yield Finding(Property.CONSERVATION, timer, "the service has a timer that nobody armed")


def _conservation(
    told: Mapping[str, Story], end_states: Mapping[str, EndState], counts: Counts | None
) -> Iterator[Finding]:
    if counts is None:
        return
    records = _count_records(end_states)
    if records != replace(counts, leftover_keys=()):
        yield Finding(Property.CONSERVATION, "all", f"the records say {records}, the service counts {counts}")
    certain = sum(story.exists for story in told.values())
    possible = sum(story.may_exist for story in told.values())
    if not certain <= counts.armed <= possible:
        armed = f"{certain}" if certain == possible else f"{certain} to {possible}"
        yield Finding(Property.CONSERVATION, "all", f"{armed} timers were armed, the service accounts for {counts}")
    for key in counts.leftover_keys:
        yield Finding(Property.CONSERVATION, "all", f"the key {key} was left over")


def _count_records(end_states: Mapping[str, EndState]) -> Counts:
    found = Counter("finished" if end.status in FINISHED else end.status for end in end_states.values())
    return Counts(
        finished=found["finished"],
        cancelled=found["cancelled"],
        scheduled=found["scheduled"],
        running=found["running"],
    )
