"""Retention on a pod: what has ended otherwise than by a run of its own goes soon where nothing is to stay."""

from functools import partial

import pytest

from tests.engine.fleet import Calls, Fleet
from tests.waiting import eventually
from timers.engine import janitor


@pytest.mark.parametrize("retention_ms", [0, 1])
async def test_where_nothing_is_to_stay_the_janitor_looks_more_often(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, retention_ms: int
) -> None:
    """The first look may come when the first timer is there; the second timer needs another."""
    monkeypatch.setattr(janitor, "EVERY_SECONDS", 3600.0)
    monkeypatch.setattr(janitor, "SHORT_EVERY_SECONDS", 0.01)
    await fleet.pod(Calls(), retention_ms=retention_ms)
    for timer_id in ("first", "second"):
        await fleet.client.create("note", timer_id, delay="1h")
        await fleet.client.cancel("note", timer_id)
        await eventually(partial(_gone, fleet, timer_id), f"{timer_id} is gone")


async def _gone(fleet: Fleet, timer_id: str) -> bool:
    return await fleet.store.get([("note", timer_id)]) == [None]
