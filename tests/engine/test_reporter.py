"""A pod reports each start once, even if Redis goes away meanwhile."""

from collections import Counter
from typing import Any

import pytest

from tests.engine.fleet import options_of
from timers.engine import maintenance
from timers.engine.maintenance import Maintenance
from timers.engine.peers import Peers
from timers.engine.pod import SLICE_SECONDS, WINDOW_SECONDS, Observer, Pod
from timers.errors import Unavailable
from timers.processor import Registry
from timers.store import keys
from timers.store.membership import Member, Membership
from timers.store.servers import connect
from timers.store.starts import RETRIED, bucket_of
from timers.store.store import Store


def test_a_pod_tells_of_the_last_five_minutes_only(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr("timers.engine.pod.time.monotonic", lambda: now)
    observer = Observer()
    observer.started("test", 0)
    for _ in range(int(WINDOW_SECONDS / SLICE_SECONDS)):
        assert observer.recent_starts()[bucket_of(0)] == 1
        now += SLICE_SECONDS
    observer.started("test", 3)
    assert observer.recent_starts() == {bucket_of(3): 1}


async def test_each_start_is_reported_once_and_none_is_lost_while_redis_is_down(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[tuple[str, Counter[int]]] = []
    away = False

    async def add(_store: object, counts: Any, root: str) -> None:
        if away:
            raise Unavailable("away")
        told.append((root, Counter(counts)))

    monkeypatch.setattr(maintenance, "add_starts", add)
    store = Store(connect("redis://nowhere.invalid"))
    pod = Pod(store, Registry([]), options_of())
    reporter = Maintenance(pod, Peers(Membership(store), Member("a")), lambda _shard: False)
    for late_ms in (0, 3, 3):
        pod.observer.started("test", late_ms)
    pod.observer.failed("test", RETRIED)
    away = True
    with pytest.raises(Unavailable):
        await reporter.report_starts()
    pod.observer.started("test", 3)
    away = False
    await reporter.report_starts()
    await reporter.report_starts()
    assert told == [
        (keys.FIRED_ROOT, Counter({bucket_of(0): 1, bucket_of(3): 3})),
        (keys.FAILED_ROOT, Counter({RETRIED: 1})),
    ]
