"""Owns rates and limits: how often, and how many at a time."""

import re
from dataclasses import dataclass
from typing import Final

from timers.errors import InvalidInput

BURST_US: Final = 50_000
"""After a pause, a rate lets through at once what it gives in 50 ms, so that claims come in batches."""

_RATE: Final = re.compile(r"([0-9]{1,7})/([smhd])")
_UNIT_US: Final = {"s": 1_000_000, "m": 60_000_000, "h": 3_600_000_000, "d": 86_400_000_000}


@dataclass(frozen=True, slots=True)
class Rate:
    """At most one start every `interval_us` over all pods; after a pause, `burst` at once."""

    interval_us: int
    burst: int

    @classmethod
    def parse(cls, value: object) -> "Rate":
        """From `"50/s"`, `"100/m"`, `"1000/h"`, `"10/d"`. Raises InvalidInput."""
        match = _RATE.fullmatch(value) if isinstance(value, str) else None
        if match is None or int(match[1]) == 0:
            raise InvalidInput.of("rate", value, "a rate such as '50/s', '100/m', '1000/h' or '10/d'")
        interval_us = _UNIT_US[match[2]] // int(match[1])
        if interval_us == 0:
            raise InvalidInput.of("rate", value, "at most 1000000/s")
        return cls(interval_us, max(1, BURST_US // interval_us))


@dataclass(frozen=True, slots=True)
class Limits:
    """How much of each of a processor's queues may run. None means no limit besides the pod's own."""

    concurrency: int | None = None
    pod_concurrency: int | None = None
    rate: Rate | None = None

    def __post_init__(self) -> None:
        for name in ("concurrency", "pod_concurrency"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
                raise InvalidInput.of(name, value, "a whole number of at least 1")

    def __str__(self) -> str:
        """The limits that all pods share."""
        concurrency = "any number at once" if self.concurrency is None else f"{self.concurrency} at once"
        return concurrency if self.rate is None else f"{concurrency}, one every {self.rate.interval_us / 1e6:g} s"

    @property
    def bounds_concurrency(self) -> bool:
        """True if the end of a run makes room for another."""
        return self.concurrency is not None or self.pod_concurrency is not None

    @property
    def over_fleet(self) -> bool:
        """True if starts must be reserved, because other pods count too."""
        return self.concurrency is not None or self.rate is not None

    @property
    def in_order(self) -> bool:
        """True if timers run one at a time: strictly by due time, then by arming in their shard."""
        return self.concurrency == 1


NO_LIMITS: Final = Limits()
