"""How long the processes of a history had to wait for a core, as `starvation.py` measured it."""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable
from typing import Final

from tests.chaos.witness import Event, Kind

SHARE: Final = 0.1
"""Of the time: who waits longer for a core gets less than the run needs."""


class Waits:
    """How long each pod, and all of them together (the server), have waited for a core by any moment."""

    def __init__(self, history: Iterable[Event]) -> None:
        self._at_ns = defaultdict[str, list[int]](list)
        self._sum_ms = defaultdict[str, list[int]](lambda: [0])
        for event in history:
            if event.kind is Kind.WAITED:
                self._at_ns[event.pod].append(event.mono_ns)
                sums = self._sum_ms[event.pod]
                sums.append(sums[-1] + event.waited_ms)

    def share(self, from_ns: int, until_ns: int) -> float:
        """The share of this time that the one waited which waited longest."""
        longest_ms = max((self.between(pod, from_ns, until_ns) for pod in list(self._at_ns)), default=0)
        return longest_ms * 1_000_000 / (until_ns - from_ns)

    def between(self, pod: str, from_ns: int, until_ns: int) -> int:
        """How many ms a pod waited in this time."""
        moments, sums = self._at_ns[pod], self._sum_ms[pod]
        return sums[min(bisect_right(moments, until_ns) + 1, len(moments))] - sums[bisect_left(moments, from_ns)]
