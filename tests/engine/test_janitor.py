"""Retention on a pod: with retention 0, timers that end without a run are soon removed."""

import asyncio
from functools import partial

import pytest

from tests.engine.fleet import CALM_LEASE_MS, Fleet
from tests.waiting import eventually
from timers.engine.janitor import Janitor
from timers.engine.observer import Observer
from timers.engine.peers import Peers
from timers.engine.pod import Pod
from timers.processor import Registry
from timers.store.membership import Member, Membership


@pytest.mark.parametrize("retention_ms", [0, 1])
async def test_with_retention_0_the_janitor_looks_more_often(fleet: Fleet, retention_ms: int) -> None:
    """The first look may find the first timer; the second timer needs another look."""
    pod = Pod("a", fleet.store, Registry([]), (0,), CALM_LEASE_MS, Observer())
    alone = Peers(Membership(fleet.store), Member("a"))
    janitor = Janitor(pod, alone, retention_ms=retention_ms, every_seconds=3600.0, short_every_seconds=0.01)
    cleaning = asyncio.create_task(janitor.run())
    for timer_id in ("first", "second"):
        await fleet.client.create("note", timer_id, delay="1h")
        await fleet.client.cancel("note", timer_id)
        await eventually(partial(_gone, fleet, timer_id), f"{timer_id} is gone")
    cleaning.cancel()
    await asyncio.gather(cleaning, return_exceptions=True)


async def _gone(fleet: Fleet, timer_id: str) -> bool:
    return await fleet.store.get([("note", timer_id)]) == [None]
