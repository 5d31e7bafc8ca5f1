"""Slots that move to another node under load: no timer is lost, run twice, or left in one half of a shard."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from itertools import count

import pytest

from tests.clusters import Cluster, Node, held_open, move_at_once, move_key_by_key
from tests.conftest import SharedServers
from tests.engine.fleet import Calls, Fleet, Held, until
from tests.waiting import eventually
from timers.core.model import Status
from timers.embedded import Family
from timers.engine.worker import PodHealth
from timers.errors import Unavailable
from timers.store import keys, queries
from timers.store.servers.slots import slot_of
from timers.store.store import Arming

SHARDS = 3
"""How many shards move."""

KEPT = 150
"""Timers of each that wait meanwhile; each has a key, and they are moved a few at a time."""

Move = Callable[[int, Node, Node], Awaitable[None]]


MOVES: dict[str, tuple[Family, Move]] = {
    "key by key on Redis": ("redis", move_key_by_key),
    "key by key on Valkey": ("valkey", move_key_by_key),
    "at once on Valkey": ("valkey", move_at_once),
}


async def test_a_slot_that_is_being_moved_leaves_pods_ready(cluster: Cluster) -> None:
    """Also that of their registry."""
    fleet = await Fleet.over(cluster.url, shards=16)
    health = (await fleet.pod(Calls())).worker.health
    await until(lambda: health().ready, "the pod is ready")
    source = await cluster.owner(keys.PODS_ROOT)
    target = next(node for node in await cluster.primaries() if node is not source)
    seen = list[PodHealth]()

    def is_held_up() -> bool:
        seen.append(health())
        return "being moved" in str(seen[-1].services)

    async with held_open(slot_of(keys.PODS_ROOT), source, target):
        await until(is_held_up, "the pod finds the slot open")
    assert seen[-1].ready
    await fleet.close()


@pytest.mark.parametrize("how", MOVES)
async def test_nothing_is_lost_or_split_while_slots_move_under_load(servers: SharedServers, how: str) -> None:
    family, move_slot = MOVES[how]
    cluster = await servers.cluster(family)
    fleet = await Fleet.over(cluster.url, shards=64)
    calls, held = Calls(), Held("held")
    for name in "ab":
        await fleet.pod(calls, held, name=name)
    source = await cluster.owner(keys.root(0))
    target = next(node for node in await cluster.primaries() if node is not source)
    moving = [n for n in range(64) if await cluster.owner(keys.root(n)) is source][:SHARDS]
    ids = (f"{n}" for n in count() if fleet.store.shard_of("note", f"{n}") in moving)
    waiting = [Arming("note", next(ids), "+600000", {}) for _ in range(KEPT * SHARDS)]
    await fleet.store.arm([*waiting, Arming("held", "x", "+0", {})])
    due, is_moved = list[str](), False

    async def load() -> None:
        """Arm timers that are due now or soon, until each is armed, and move some of those that wait."""
        while not is_moved:
            name = next(ids)
            while True:
                with suppress(Unavailable):
                    await fleet.store.arm([Arming("note", name, f"+{len(due) % 3 * 50}", {}, if_exists="keep")])
                    break
            due.append(name)
            with suppress(Unavailable):
                await fleet.store.reschedule("note", waiting[len(due) % len(waiting)].id, due="+700000")

    async def move() -> None:
        nonlocal is_moved
        for shard in moving:
            await move_slot(slot_of(keys.root(shard)), source, target)
        before = len(due)
        await until(lambda: len(due) > before + 10, "timers are armed where the slots are now")
        is_moved = True

    await asyncio.gather(move(), *(load() for _ in range(4)))
    await until(lambda: len(calls) >= len(due), "all that is due has run")
    held.release.set()
    await fleet.completed("x", "held")
    assert sorted(calls.ids) == sorted(due)
    assert [timer for timer in await fleet.store.get([("note", name) for name in due]) if timer is None] == []
    assert {await cluster.owner(keys.root(shard)) for shard in moving} == {target}

    async def is_counted() -> bool:
        found = (await queries.counts(fleet.store))["note"]
        return found == {Status.SCHEDULED: len(waiting), Status.COMPLETED: len(due)}

    await eventually(is_counted, "all ends are written")
    await fleet.close()
