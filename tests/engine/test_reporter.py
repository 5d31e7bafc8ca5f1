"""A pod reports each start once, even if Redis goes away meanwhile."""

from collections import Counter
from typing import Any

import pytest

from timers.core.lateness import bucket_of
from timers.engine.observer import SLICE_SECONDS, WINDOW_SECONDS, Observer, Reporter
from timers.errors import Unavailable


class Ring:
    """A ring that takes reports, or is away."""

    def __init__(self) -> None:
        self.told: list[Counter[int]] = []
        self.away = False

    async def add(self, counts: Any) -> None:
        if self.away:
            raise Unavailable("away")
        self.told.append(Counter(counts))


def test_a_pod_tells_of_the_last_five_minutes_only(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr("timers.engine.observer.time.monotonic", lambda: now)
    observer = Observer()
    observer.started("test", 0)
    for _ in range(int(WINDOW_SECONDS / SLICE_SECONDS)):
        assert observer.lateness.counts()[bucket_of(0)] == 1
        now += SLICE_SECONDS
    observer.started("test", 3)
    assert observer.lateness.counts() == {bucket_of(3): 1}


async def test_each_start_is_reported_once_and_none_is_lost_while_redis_is_down() -> None:
    ring, observer = Ring(), Observer()
    reporter = Reporter(ring.add, observer)
    for late_ms in (0, 3, 3):
        observer.started("test", late_ms)
    ring.away = True
    with pytest.raises(Unavailable):
        await reporter.report()
    observer.started("test", 3)
    ring.away = False
    await reporter.report()
    await reporter.report()
    assert ring.told == [Counter({bucket_of(0): 1, bucket_of(3): 3})]
