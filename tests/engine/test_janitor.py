"""Retention on a pod: with retention 0, timers that end without a run are soon removed; failed ones have a retention of
their own, and what goes of them is told."""

import asyncio
from collections.abc import MutableMapping
from functools import partial
from typing import Any

import pytest
from structlog.testing import capture_logs

from tests.engine.fleet import Calls, Fleet, options_of, until
from tests.store.acts import DAY_MS, finished
from tests.waiting import eventually
from timers.core.model import Status
from timers.core.outcome import Fail
from timers.engine import maintenance
from timers.engine.maintenance import Maintenance
from timers.engine.peers import Peers
from timers.engine.pod import Counted, Observer, Pod
from timers.processor import Registry
from timers.store.membership import Member, Membership
from timers.store.upkeep import Pruned


def _janitor(fleet: Fleet, observer: Observer | None = None, **options: Any) -> Maintenance:
    """On a pod that is alone and leads all shards."""
    pod = Pod(fleet.store, Registry([]), options_of(**options), observer or Observer(), lambda _: "note")
    return Maintenance(pod, Peers(Membership(fleet.store), Member("a")), lambda _shard: False)


@pytest.mark.parametrize("retention_ms", [0, 1])
async def test_with_retention_0_the_janitor_looks_more_often(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, retention_ms: int
) -> None:
    """The first look may find the first timer; the second timer needs another look."""
    monkeypatch.setattr(maintenance, "PRUNE_SECONDS", 3600.0)
    monkeypatch.setattr(maintenance, "SHORT_PRUNE_SECONDS", 0.01)
    janitor = _janitor(fleet, retention_ms=retention_ms)
    cleaning = asyncio.create_task(janitor.prune_all())
    for timer_id in ("first", "second"):
        await fleet.client.create("note", timer_id, delay="1h")
        await fleet.client.cancel("note", timer_id)
        await eventually(partial(_gone, fleet, timer_id), f"{timer_id} is gone")
    cleaning.cancel()
    await asyncio.gather(cleaning, return_exceptions=True)


async def _gone(fleet: Fleet, timer_id: str) -> bool:
    return await fleet.store.get([("note", timer_id)]) == [None]


TOLD = "timers removed that had failed or were unhandled: TIMERS_RETENTION_FAILED"


class _Removals(Observer):
    def __init__(self) -> None:
        super().__init__()
        self.removals: list[tuple[object, ...]] = []

    def count(self, what: Counted, *labels: str, by: float = 1) -> None:
        self.removals += [(*labels, by)] if what == "removed" else ()


def _told(lines: list[MutableMapping[str, Any]]) -> list[tuple[object, ...]]:
    return [(line["prefix"], line["status"], line["count"], line["oldest"]) for line in lines if line["event"] == TOLD]


async def test_failed_timers_outlive_the_retention_until_theirs_is_over_which_is_told(fleet: Fleet) -> None:
    await finished(fleet.store, "failed", Status.FAILED, prefix="note")
    await finished(fleet.store, "done", prefix="note")
    watching = _Removals()
    with capture_logs() as lines:
        for failed_ms in (None, DAY_MS):
            await _janitor(fleet, watching, retention_ms=-1, retention_failed_ms=failed_ms).clean(0)
        assert await _gone(fleet, "done")
        assert not await _gone(fleet, "failed")
        assert (_told(lines), watching.removals) == ([], [])
        await _janitor(fleet, watching, retention_ms=-1, retention_failed_ms=-1).clean(0)
    assert await _gone(fleet, "failed")
    assert _told(lines) == [("note", "failed", 1, "failed")]
    assert watching.removals == [("note", "failed", 1)]


async def test_a_failed_timer_that_is_removed_at_once_is_told(fleet: Fleet) -> None:
    async def fail(_timer: object, _context: object) -> None:
        raise Fail("no")

    with capture_logs() as lines:
        await fleet.pod(Calls(act=fail), retention_failed_ms=0)
        await fleet.client.create("note", "a", delay=0)
        await eventually(partial(_gone, fleet, "a"), "the failed timer is gone")
        await until(lambda: _told(lines) != [], "its end is told")
    assert _told(lines) == [("note", "failed", 1, "a")]


async def test_a_turn_among_many_prefixes_ends_and_the_next_goes_on(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    cursors = iter(["7", "3", "9", "0"])

    async def prune(*_: object, cursor: str, **__: object) -> Pruned:
        asked.append(cursor)
        reached = next(cursors)
        return Pruned(0, reached, [], reached == "0")

    monkeypatch.setattr(maintenance, "prune", prune)
    monkeypatch.setattr(maintenance, "FRUITLESS", 3)
    janitor = _janitor(fleet, retention_ms=0)
    await janitor.clean(0)
    assert asked == ["0", "7", "3"]
    await janitor.clean(0)
    assert asked == ["0", "7", "3", "9"]
