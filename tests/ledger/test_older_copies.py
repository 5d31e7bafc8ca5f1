"""A server that comes back with an older copy of its data gets from the ledger what it lacks, and nothing that was read
of the newer data is kept."""

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Final

import pytest

from tests.engine.fleet import Calls, Fleet, Held, until
from tests.engine.own import OwnServer
from tests.ledger.copies import agreed, in_ledger, say, whole
from tests.rights import as_user, grant
from tests.waiting import eventually
from timers.client import TimerClient, client_over, open_store
from timers.client.copies import enter
from timers.core.shapes import IfExists
from timers.core.spec import NewTimer
from timers.embedded import Family
from timers.engine import comparing
from timers.engine.following import Following
from timers.errors import AlreadyExists, Unavailable
from timers.ledger import facts
from timers.ledger.database import Database
from timers.store.callers import Quotas
from timers.store.following import COPY, LEDGER, WHOLE, advance, founded, notes
from timers.store.servers import connect
from timers.store.store import Store

DATA = "server/appendonlydir"
HOUR_SECONDS = 3600.0

OTHER: Final = "f" * 40
"""The run id of another server."""


class Copied:
    """A server whose data can be copied, and which can go back to the copy."""

    def __init__(self, family: Family, folder: Path) -> None:
        self.server, self._data, self._older = OwnServer(family, folder), folder / DATA, folder / "older"

    def copy(self) -> None:
        """Copy the data as they are now."""
        shutil.copytree(self._data, self._older)

    async def go_back(self, client: TimerClient) -> None:
        """Another server with the copy takes the place of this one, and the client has reached it."""
        self.server.down()
        shutil.rmtree(self._data)
        shutil.copytree(self._older, self._data)
        await self.server.up()

        async def reached() -> bool:
            try:
                return await (await client._open()).now_ms() > 0
            except Unavailable:
                return False

        await eventually(reached, "the client reaches the other server")


@pytest.fixture
async def copied(family: Family, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Copied]:
    monkeypatch.setattr(facts, "HELD_MS", 0)  # the other server need not wait for the ledger
    copied = Copied(family, tmp_path)
    await copied.server.up()
    yield copied
    copied.server.down()


@pytest.fixture
async def fleet(copied: Copied) -> AsyncIterator[Fleet]:
    fleet = await Fleet.over(copied.server.url)
    yield fleet
    await fleet.close()


@pytest.fixture
async def client(fleet: Fleet, database: Database, ledger_url: str) -> AsyncIterator[TimerClient]:
    """A client that writes to the ledger."""
    client = client_over(await open_store(connect(fleet.url)), ledger=ledger_url)
    yield client
    await client.close()


class Gate:
    """Holds the first pod up that is about to copy a timer of this version."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, version: int) -> None:
        self.reached, self.opened, self.passed = asyncio.Event(), asyncio.Event(), asyncio.Event()
        do = Database.do

        async def held_up(database: Database, work: Any, **options: Any) -> Any:
            given = getattr(work, "keywords", {})
            changed = given["changed"] if "lives" in given else ()
            if not any(row.version == version for row in changed) or self.reached.is_set():
                return await do(database, work, **options)
            self.reached.set()
            await self.opened.wait()
            try:
                return await do(database, work, **options)
            finally:
                self.passed.set()

        monkeypatch.setattr(Database, "do", held_up)


def look_from(monkeypatch: pytest.MonkeyPatch, looks: asyncio.Event) -> None:
    """Let pods miss all changes until then."""
    follow = Following._follow

    async def late(following: Following, shard: int) -> bool:
        return looks.is_set() and await follow(following, shard)

    monkeypatch.setattr(Following, "_follow", late)


async def test_what_a_slow_pod_has_read_of_lost_data_is_not_kept(
    copied: Copied, fleet: Fleet, client: TimerClient, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its version is higher, so it would undo a cancel that was answered meanwhile."""
    monkeypatch.setattr(comparing, "COUNT_SECONDS", HOUR_SECONDS)  # the comparison would mend it on a slow machine
    await fleet.pod(Calls(), ledger=database)
    await client.create("note", "x", delay="24h")
    await agreed(database, fleet.store)
    copied.copy()
    # A pod that restores the shard may have been faster than the create, and has raised the version then.
    before = await client.get("note", "x")
    looks, gate = asyncio.Event(), Gate(monkeypatch, version=before.version + 3)
    look_from(monkeypatch, looks)
    for _ in range(3):
        await fleet.client.change("note", "x", delay="48h")
    looks.set()
    await gate.reached.wait()
    await copied.go_back(client)
    await fleet.pod(Calls(), name="b", ledger=database)
    await whole(fleet.store)
    assert (await client.cancel("note", "x")).status == "cancelled"
    gate.opened.set()
    await gate.passed.wait()
    assert (await agreed(database, fleet.store))["note:x"].status == "cancelled"


@pytest.mark.parametrize("stage", ["restore -", "rebuild note:w", "copy 16", "whole"])
async def test_an_older_copy_starts_nothing_that_was_cancelled_whatever_it_was_at(
    copied: Copied, fleet: Fleet, client: TimerClient, database: Database, stage: str
) -> None:
    calls = Calls()
    pod = await fleet.pod(calls, ledger=database)
    for name in ("x", "other"):
        await client.create("note", name, delay="24h")
    await whole(fleet.store)
    await agreed(database, fleet.store)
    await fleet.kill(pod)
    made = await client.change("note", "x", delay="1s")
    if stage != "whole":
        await say(fleet.store, 0, stage)
    copied.copy()
    await client.cancel("note", "x")
    await fleet.client.cancel("note", "other", purge=True)
    await copied.go_back(client)

    async def due() -> bool:
        return await fleet.store.now_ms() > made.due_ms

    await eventually(due, "it is due in the copy")
    await fleet.pod(calls, name="b", ledger=database)
    rows = await agreed(database, fleet.store)
    assert {row.id: row.status for row in rows.values()} == {"x": "cancelled", "other": "scheduled"}
    await whole(fleet.store)
    assert calls.ids == []


async def test_a_run_that_has_ended_is_not_rescued_in_an_older_copy(
    copied: Copied, fleet: Fleet, client: TimerClient, database: Database
) -> None:
    held, calls = Held(), Calls()
    pod = await fleet.pod(held, ledger=database, lease_ms=1_000)
    await whole(fleet.store)
    await client.create("note", "x", delay="0s")
    await until(lambda: len(held) == 1, "it runs")
    copied.copy()
    held.release.set()

    async def ended() -> bool:
        return "completed" in {row.status for row in (await in_ledger(database)).values()}

    await eventually(ended, "the ledger knows of its end")
    await fleet.kill(pod)
    await copied.go_back(client)

    async def expired() -> bool:
        return not await fleet.redis.exists("timers:{0}:lease:note:x")

    await eventually(expired, "the lease has expired in the copy")
    await fleet.pod(calls, name="b", ledger=database)
    assert (await agreed(database, fleet.store))["note:x"].status == "completed"
    await whole(fleet.store)
    assert calls.ids == []


async def test_what_was_begun_on_another_server_is_not_said_of_this_one(fleet: Fleet, database: Database) -> None:
    before = await enter(fleet.store, database, 0)
    await say(fleet.store, 0, "copy 16")
    reached = await founded(fleet.store, 0)
    assert (reached.name, reached.life) == ("copy 16", before.life)
    assert not await advance(fleet.store, 0, reached._replace(life=f"{OTHER}/{reached.carried}"), WHOLE)
    await fleet.redis.hset("timers:{0}:hooks", LEDGER, f"copy 16 {OTHER}")
    assert not await advance(fleet.store, 0, reached, WHOLE)
    check = await founded(fleet.store, 0)
    assert check.name == "check 0"
    assert await advance(fleet.store, 0, check, COPY)
    assert (await founded(fleet.store, 0)).name == "copy 0"


async def set_back(copied: Copied, fleet: Fleet, client: TimerClient, database: Database) -> None:
    """No pod is there, and Redis lacks the newest payload of a timer."""
    pod = await fleet.pod(Calls(), ledger=database)
    await client.create("note", "x", delay="24h")
    await agreed(database, fleet.store)
    await fleet.kill(pod)
    copied.copy()
    await client.change("note", "x", payload="new")
    await copied.go_back(client)


async def test_a_cancel_of_an_older_copy_is_not_answered(
    copied: Copied, fleet: Fleet, client: TimerClient, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that comes while another is still being checked."""
    await set_back(copied, fleet, client, database)
    run = Store.run

    async def go_back_and_run(store: Store, name: str, *arguments: Any, **options: Any) -> Any:
        if name == "cancel":
            monkeypatch.undo()
            await copied.go_back(client)
        return await run(store, name, *arguments, **options)

    monkeypatch.setattr(Store, "run", go_back_and_run)
    with pytest.raises(Unavailable, match="just lost data"):
        await client.cancel("note", "x")
    await fleet.pod(Calls(), name="b", ledger=database)
    assert (await agreed(database, fleet.store))["note:x"].status == "scheduled"
    assert (await client.get("note", "x")).payload == "new"
    await client.cancel("note", "x")
    assert (await agreed(database, fleet.store))["note:x"].status == "cancelled"


@pytest.mark.parametrize("if_exists", ["error", "keep", "replace"])
async def test_what_an_older_copy_says_of_a_name_counts_once_it_has_what_it_lacked(
    copied: Copied, fleet: Fleet, client: TimerClient, database: Database, if_exists: IfExists
) -> None:
    await set_back(copied, fleet, client, database)
    patched, arm = pytest.MonkeyPatch(), Quotas.arm

    async def go_back_and_arm(*given: Any) -> Any:
        patched.undo()
        await copied.go_back(client)
        return await arm(*given)

    patched.setattr(Quotas, "arm", go_back_and_arm)
    with pytest.raises(AlreadyExists) if if_exists == "error" else nullcontext():
        made = await client.create("note", "x", delay="48h", payload="newest", if_exists=if_exists)
        assert made.payload == ("newest" if if_exists == "replace" else "new")
    await fleet.pod(Calls(), name="b", ledger=database)
    await agreed(database, fleet.store)
    assert (await client.get("note", "x")).payload == ("newest" if if_exists == "replace" else "new")


@pytest.mark.parametrize("if_exists", ["error", "keep", "replace"])
async def test_a_name_that_is_free_again_is_free_although_an_older_copy_has_it(
    copied: Copied, fleet: Fleet, client: TimerClient, database: Database, if_exists: IfExists
) -> None:
    pod = await fleet.pod(Calls(), ledger=database)
    before = await client.create("note", "x", delay="24h", payload="old")
    await agreed(database, fleet.store)
    await whole(fleet.store)
    await fleet.kill(pod)
    copied.copy()
    await client.cancel("note", "x", purge=True)
    await copied.go_back(client)
    made = await client.arm(NewTimer(prefix="note", id="x", delay="48h", payload="new", if_exists=if_exists))
    assert (made.how, made.timer.payload) == ("created", "new")
    assert made.timer.created_ms > before.created_ms
    await fleet.pod(Calls(), name="b", ledger=database)
    await agreed(database, fleet.store)
    assert (await client.get("note", "x")).payload == "new"


async def test_a_shard_that_may_not_ask_which_server_it_is_on_is_followed_all_the_same(
    fleet: Fleet, database: Database
) -> None:
    await enter(fleet.store, database, 0)
    await grant(fleet.redis, fleet.store.connections.db, without=["info"])
    await fleet.redis.hset("timers:{0}:hooks", LEDGER, "whole 1 -")
    store = Store(connect(as_user(fleet.url)))
    await store.identity.refresh()
    assert (await notes(store, 0, 0)).stage.is_whole
    assert (await notes(store, 0, 0)).stage.agreed_ms > 1
    await store.connections.close()
    await grant(fleet.redis, fleet.store.connections.db)
