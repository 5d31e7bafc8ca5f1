"""P3, bounded lateness: how long after its time, or after the fault that held it up, a timer may start.

The machine may be busy with other work. So a start is not judged, but counted, if the kernel made its pod and the
server wait for a core for as long as it is late, or any pod for more than a tenth of the time: what waits leaves a
backlog, and the time that one timer then waits in it is not measured (`starvation.py`).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from tests.chaos.findings import Finding, Property
from tests.chaos.processors import PREFIX
from tests.chaos.timeline import EVERY_POD, Faults, Run, Story, released
from tests.chaos.waits import SHARE
from tests.chaos.witness import FaultKind

_MS: Final = 1_000_000

SWEEP_MS: Final = 1_000
"""A lost event is made up for by the next sweep."""

SPARE_MS: Final = 500

SCAN_MS: Final = 11_000
"""How long after the kill of a pod another may begin to scan for bare keys. Adopted ones wait for the scan, and the
witness does not know which pod scanned."""

BEFORE_NS: Final = 5_000_000_000
"""How long before a timer's time its pod may have begun to wait for a core."""

BACK_MS: Final[Mapping[str, int]] = {
    FaultKind.PARTITION: 2_000,
    FaultKind.POWER: 2_000,
    FaultKind.LOSS: 15_000,
    FaultKind.ABSENT: 2_000,
}
"""How long after the end of a fault that nobody could work under: a failover's connections need two seconds, and a
restore from the ledger begins when its leader has noticed the loss."""


@dataclass(slots=True)
class Punctual:
    """Judges the starts of a history. `starved` counts those that are late for no other reason than the machine."""

    faults: Faults
    lease_ms: int
    starved: int = 0

    def late(self, story: Story) -> Iterator[Finding]:
        """P3 for one timer. Queues that run one timer at a time, or are not served by every pod, are not judged."""
        if not story.timer.startswith(f"{PREFIX}/"):
            return
        chains = story.chains()
        for place, runs in enumerate(chains):
            if runs[0].start.attempt == 1 and runs[0].start.due_ms:
                yield from self._first(story, runs[0], chains[place - 1][-1] if place else None)
            yield from self._taken_over(story, runs)

    def _first(self, story: Story, run: Run, before: Run | None) -> Iterator[Finding]:
        start = run.start
        due_ns = start.mono_ns - (start.wall_ns - start.due_ms * _MS)
        asked = max(
            (min(call.until_ns, start.mono_ns) for call in story.calls if call.from_ns < start.mono_ns), default=0
        )
        ended = start.mono_ns if before and before.end is None else before.end.mono_ns if before and before.end else 0
        free_ns = max(due_ns, asked, min(ended, start.mono_ns))
        bounds = [free_ns + (SWEEP_MS + SPARE_MS) * _MS]
        bounds += [off_ns + BACK_MS.get(kind, SWEEP_MS + SPARE_MS) * _MS for kind, off_ns in self.faults.holding(run)]
        if story.is_bare:
            bounds.append(self.faults.last_kill(start.mono_ns) + (SCAN_MS + SPARE_MS) * _MS)
        yield from self._judged(story, run, free_ns, max(bounds))

    def _taken_over(self, story: Story, runs: Sequence[Run]) -> Iterator[Finding]:
        for earlier, later in pairwise(runs):
            killed_ns = self.faults.killed(earlier)
            if killed_ns is None or later.start.attempt != earlier.start.attempt + 1:
                continue
            if not released(earlier, later.start.mono_ns, self.faults):
                held = [off_ns for _, off_ns in self.faults.holding(later)]
                since_ns = max(killed_ns, *held, 0)
                bound_ns = since_ns + (self.lease_ms + SWEEP_MS + SPARE_MS) * _MS
                yield from self._judged(story, later, since_ns, bound_ns)

    def _judged(self, story: Story, run: Run, since_ns: int, bound_ns: int) -> Iterator[Finding]:
        late_ms = (run.start.mono_ns - bound_ns) // _MS
        if late_ms <= 0:
            return
        waited_ms = self._waited_ms(run, since_ns)
        if waited_ms >= late_ms or self.faults.waits.share(since_ns - BEFORE_NS, run.start.mono_ns) > SHARE:
            self.starved += 1
            return
        text = (
            f"it started {(run.start.mono_ns - since_ns) // _MS} ms after it could have, "
            f"{late_ms} ms later than it may; "
            f"its pod and the server waited {waited_ms} ms for a core"
        )
        yield Finding(Property.LATE, story.timer, text, story.lines())

    def _waited_ms(self, run: Run, since_ns: int) -> int:
        """How long the run's pod and the server have waited for a core from a little before then until it started."""
        return sum(
            self.faults.waits.between(pod, since_ns - BEFORE_NS, run.start.mono_ns)
            for pod in (run.start.pod, EVERY_POD)
        )
