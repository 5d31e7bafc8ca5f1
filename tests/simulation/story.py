"""Owns what is told of a failed world: the fewest acts and faults with which it still fails, and what happened then."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from tests.simulation.faults import Fault
from tests.simulation.lives import shown
from tests.simulation.loop import START_SECONDS
from tests.simulation.oracle import CHANGE, RUN
from tests.simulation.workload import Act
from tests.simulation.world import World, play

_TOLD: Final = ("hears", "dies", "starts", "goes on", "has drained")


def shrink(world: World, texts: Mapping[str, str] | None = None) -> World:
    """The world of the same seed that breaks one of the same rules with as few faults and acts as can be had by leaving
    out one part after the other."""
    rules = {finding.rule for finding in world.findings}
    smallest = world

    def fails(acts: Sequence[Act], chosen: Sequence[Fault]) -> bool:
        nonlocal smallest
        again = play(world.seed, plan=replace(world.plan, acts=tuple(acts)), chosen=chosen, texts=texts)
        if rules.isdisjoint(finding.rule for finding in again.findings):
            return False
        smallest = again
        return True

    faults = _fewest(world.faults, lambda some: fails(world.plan.acts, some))
    acts = _fewest(world.plan.acts, lambda some: fails(some, faults))
    _fewest(faults, lambda some: fails(acts, some))
    return smallest


def _fewest(parts: Sequence[Any], fails: Callable[[Sequence[Any]], bool]) -> Sequence[Any]:
    """Leave out halves, then quarters, down to single parts, as long as it still fails. Source: Zeller and Hildebrandt,
    "Simplifying and Isolating Failure-Inducing Input", 2002."""
    size = len(parts)
    while size:
        start = 0
        while start < len(parts):
            fewer = [*parts[:start], *parts[start + size :]]
            if fails(fewer):
                parts = fewer
            else:
                start += size
        size //= 2
    return parts


def tell(world: World) -> Iterator[str]:
    """The world in lines: what it was, what happened in it (in seconds from its beginning), and what was wrong."""
    plan = world.plan
    yield f"seed {world.seed}: pods {', '.join(plan.pods)}; lease {plan.lease_ms} ms; {plan.shards} shards"
    for entry in world.trace:
        if (said := _said(entry)) is not None:
            yield f"{entry[0] - START_SECONDS:9.4f}  {said}"
    for finding in world.findings:
        yield f"WRONG     {finding.timer}: {finding.rule}: {finding.said}"


def _said(entry: tuple[Any, ...]) -> str | None:
    """One thing that happened; None for what a reader need not know."""
    _, who, what, *more = entry
    if who == "fault":
        return f"  fault   {what}"
    if what == CHANGE:
        script, timer, before, after = more
        return f"{who:>7}   {script}: {':'.join(timer)}: {shown(before)} -> {shown(after)}"
    if what == RUN:
        said, timer, token, attempt = more
        return f"{who:>7}   {said}: {':'.join(timer)}, attempt {attempt}, token {token % 10**9}"
    if what == "hears":
        return f"{who:>7}   hears of {more[0]} {more[1]}: {more[2]}"
    if what in _TOLD:
        return f"{who:>7}   {what}"
    return f"          {what}" if not more else None
