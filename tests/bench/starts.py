"""Owns the starts of runs as processors saw them: one line each in a file a pod, and what can be read from them."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from timers import Timer


@dataclass(frozen=True, slots=True)
class Start:
    """One start. `claim_late_ms` is measured by the server in the claim, `start_late_ms` by the first line of the
    processor on the same host's wall clock."""

    pod: str
    prefix: str
    id: str
    attempt: int
    at_ms: float
    claim_late_ms: float
    start_late_ms: float


def line_of(timer: Timer, now_ms: float) -> bytes:
    """One line of the file."""
    claim_late_ms = timer.history[0].lateness_ms
    return (
        f"{timer.prefix} {timer.id} {timer.attempt} {now_ms:.3f} {claim_late_ms} {now_ms - timer.due_ms:.3f}\n".encode()
    )


def read_starts(folder: Path, prefix: str) -> list[Start]:
    """The starts of one prefix on all pods, in the order of time. A half-written last line is left out."""
    found = [
        _parse(file.stem, line)
        for file in folder.glob("*.starts")
        for line in file.read_text().splitlines(keepends=True)
        if line.startswith(f"{prefix} ") and line.endswith("\n")
    ]
    return sorted(found, key=lambda start: start.at_ms)


def _parse(pod: str, line: str) -> Start:
    prefix, timer_id, attempt, at, claim, start = line.split()
    return Start(pod, prefix, timer_id, int(attempt), float(at), float(claim), float(start))


@dataclass(frozen=True, slots=True)
class Lateness:
    """Milliseconds after due. What never came counts as infinitely late."""

    p50_ms: float
    p99_ms: float
    max_ms: float

    @classmethod
    def of(cls, late_ms: Iterable[float], expected: int) -> Self:
        """The figures of `expected` timers of which these came; percentiles are nearest-rank."""
        came = sorted(late_ms)
        ranked = came + [math.inf] * (expected - len(came))
        return cls(ranked[math.ceil(len(ranked) * 0.5) - 1], ranked[math.ceil(len(ranked) * 0.99) - 1], ranked[-1])


@dataclass(frozen=True, slots=True)
class Tally:
    """How often timers started: `lost` never, `again` more than once; and each pod's share of all starts."""

    lost: int
    again: int
    by_pod: Counter[str]

    @classmethod
    def of(cls, starts: Sequence[Start], expected: int) -> Self:
        """The tally of the starts of `expected` timers."""
        times = Counter(start.id for start in starts)
        return cls(expected - len(times), sum(n > 1 for n in times.values()), Counter(start.pod for start in starts))
