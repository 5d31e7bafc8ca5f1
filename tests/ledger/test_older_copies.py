"""A server that comes back with an older copy of its data gets from the ledger what it lacks."""

import asyncio
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.engine.fleet import Calls, Fleet
from tests.engine.own import OwnServer
from tests.ledger.copies import agreed
from tests.rights import as_user, grant
from tests.servers import ServerHandle
from tests.waiting import eventually
from timers.embedded import Family
from timers.engine import comparing
from timers.engine.following import Following
from timers.ledger.database import Database
from timers.store.following import LEDGER, notes, stages
from timers.store.servers.connect import connect
from timers.store.store import Store

DATA = "server/appendonlydir"
HOUR_SECONDS = 3600.0


class Gate:
    """Holds the first pod up that is about to copy a changed timer."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reached, self.opened = asyncio.Event(), asyncio.Event()
        do = Database.do

        async def held_up(database: Database, work: Any, **options: Any) -> Any:
            rows = getattr(work, "keywords", {}).get("rows", ())
            if any(row.version > 1 for row in rows) and not self.reached.is_set():
                self.reached.set()
                await self.opened.wait()
            return await do(database, work, **options)

        monkeypatch.setattr(Database, "do", held_up)


def leader_looks_late(monkeypatch: pytest.MonkeyPatch, until: asyncio.Event) -> None:
    """Let the pod that leads a shard miss its changes until then, so that the other one copies them."""
    follow = Following._follow

    async def late(following: Following, shard: int) -> bool:
        leads = following._peers.rank(shard) == 0
        return False if leads and not until.is_set() else await follow(following, shard)

    monkeypatch.setattr(Following, "_follow", late)


@pytest.mark.parametrize("is_leader", [True, False])
async def test_what_a_slow_pod_copies_after_the_check_comes_back_too(
    database: Database, family: Family, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_leader: bool
) -> None:
    monkeypatch.setattr(comparing, "COUNT_SECONDS", HOUR_SECONDS)  # the comparison would mend it on a slow machine
    gate, own, data, older = Gate(monkeypatch), OwnServer(family, tmp_path), tmp_path / DATA, tmp_path / "older"
    await own.up()
    fleet = await Fleet.over(own.url)
    pods = [await fleet.pod(Calls(), name=name, ledger=database) for name in ("a", "b")]
    await fleet.client.create("note", "x", delay="24h", payload="old")
    await agreed(database, fleet.store)
    shutil.copytree(data, older)
    if not is_leader:
        leader_looks_late(monkeypatch, gate.reached)
    await fleet.client.change("note", "x", payload="new")
    await gate.reached.wait()
    own.down()
    shutil.rmtree(data)
    shutil.copytree(older, data)
    await own.up()

    async def checked() -> bool:
        stage = (await stages(fleet.store, [0]))[0]
        found = [pod.worker.following._whole.get(0) for pod in pods if pod.worker.following is not None]
        looks_no_more = stage.server in {each.server for each in found if each is not None}
        return stage.is_whole and (is_leader or looks_no_more)

    await eventually(checked, "the other pod has checked the shard")
    assert (await fleet.client.get("note", "x")).payload == "old"
    gate.opened.set()

    async def back() -> bool:
        return bool((await fleet.client.get("note", "x")).payload == "new")

    await eventually(back, "the change is there again")
    assert not any(pod.seen.drift for pod in pods), "and not by the comparison, a minute later"
    await fleet.close()
    own.down()


async def test_a_shard_that_may_not_ask_which_server_it_is_on_is_followed_all_the_same(
    fleet: Fleet, server: ServerHandle
) -> None:
    await grant(fleet.redis, fleet.store.connections.db, without=["info"])
    await fleet.redis.hset("timers:{0}:hooks", LEDGER, "whole 1 -")
    store = Store(connect(as_user(server.url)))
    await store.identity.refresh()
    assert (await notes(store, 0, 0)).stage.is_whole
    assert (await notes(store, 0, 0)).stage.agreed_ms > 1
    await store.connections.close()
    await grant(fleet.redis, fleet.store.connections.db)
