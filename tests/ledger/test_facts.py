"""What else a db needs comes back with its timers: API keys, declarations and pauses."""

from functools import partial

import pytest

from tests.api.conftest import done
from tests.api.harness import running_api
from tests.api.keyed import new_key
from tests.engine.fleet import Calls, Fleet
from tests.ledger.copies import agreed
from tests.waiting import eventually
from timers.client.copies import give_facts_back, keep_facts
from timers.ledger import facts
from timers.ledger.database import Database
from timers.store import keys
from timers.store.callers import Callers
from timers.store.restoring import read_declarations, read_pauses


async def kept(database: Database) -> dict[tuple[str, str], str]:
    return await database.do(facts.read, writes=False)


async def test_keys_declarations_and_pauses_come_back_before_the_timers(fleet: Fleet, database: Database) -> None:
    calls = Calls()
    await fleet.pod(calls, ledger=database)
    callers = Callers(fleet.store)
    await callers.keep("k1", "entry one")
    await callers.keep("k2", "entry two")
    await callers.revoke("k2")
    await fleet.redis.hset("timers:{pods}:declared", "elsewhere", "7 other-pod")
    await fleet.client.pause("note")
    await fleet.client.create("note", "a", delay="0s")

    async def copied() -> bool:
        return {("key", "k1"), ("key", "k2"), ("declared", "elsewhere"), ("paused", "note")} <= (
            await kept(database)
        ).keys()

    await eventually(copied, "the ledger has them")
    await agreed(database, fleet.store)
    await fleet.redis.flushall()
    await agreed(database, fleet.store)
    assert await callers.entries() == {"k1": "entry one", "k2": "revoked"}
    assert "elsewhere" in await read_declarations(fleet.store)
    assert set(await read_pauses(fleet.store)) == {"note"}
    assert len(calls) == 0, "a paused timer did not run"
    await fleet.client.resume("note")

    async def ran() -> bool:
        return len(calls) == 1

    await eventually(ran, "it runs once the prefix is resumed")


async def test_a_pod_that_starts_in_an_emptied_db_leaves_longer_prefixes_alone(
    fleet: Fleet, database: Database
) -> None:
    pod = await fleet.pod(Calls(), Calls("note-special"), ledger=database)

    async def copied() -> bool:
        return ("declared", "note-special") in await kept(database)

    await eventually(copied, "the ledger has the declaration")
    await fleet.kill(pod)
    await fleet.redis.flushall()
    pod = await fleet.pod(Calls(), name="b", ledger=database, beat_ms=3_600_000)
    assert pod.worker.peers.owner("note-special") == "note-special"


async def test_a_key_that_was_lost_is_not_refused_until_it_is_restored(
    fleet: Fleet, database: Database, ledger_url: str
) -> None:
    headers, key = new_key()
    async with running_api(fleet.url, [done], ledger=ledger_url, keys_fresh_seconds=0.0) as api:
        await Callers(api.store).keep(key.id, key.entry)
        await fleet.client.create("note", "a", delay="1h")
        await keep_facts(fleet.store, database)
        statuses = [(await api.call("GET", "/v1/stats", headers=headers)).status]
        await fleet.redis.flushall()
        for call in (("GET", "/v1/stats"), ("PUT", "/v1/timers/test/b", {"delay": "1h"})):
            away = (await api.call(*call, headers=headers)).problem(503, "unavailable")
            assert away["detail"].endswith("; nothing was done") == (call[0] != "GET")
        (await api.call("GET", "/v1/stats")).problem(401, "unauthorized")
        await fleet.pod(Calls(), ledger=database)

        async def serves() -> bool:
            statuses.append((await api.call("GET", "/v1/stats", headers=headers)).status)
            return statuses[-1] == 200

        await eventually(serves, "the key is restored")
        assert set(statuses) <= {200, 503}
        (await api.call("GET", "/v1/stats", headers=new_key()[0])).problem(401, "unauthorized")
        scripts = list[str]()
        api.store.called = lambda script, _: scripts.append(script)
        assert (await api.call("GET", "/v1/stats", headers=headers)).status == 200
        assert "stage" not in scripts, "while no key is missing, the shard is not asked"


@pytest.mark.parametrize("is_away", [False, True])
async def test_an_unknown_key_is_refused_before_any_pod_follows_if_the_ledger_has_no_keys(
    fleet: Fleet, database: Database, ledger_url: str, *, is_away: bool
) -> None:
    url = "sqlite+aiosqlite:////nowhere/ledger.db" if is_away else ledger_url
    headers, key = new_key()
    async with running_api(fleet.url, [done], ledger=url, keys=key.entry, keys_fresh_seconds=0.0) as api:
        assert (await api.call("GET", "/v1/stats", headers=headers)).status == 200
        answer = await api.call("GET", "/v1/stats", headers=new_key()[0])
        answer.problem(*((503, "unavailable") if is_away else (401, "unauthorized")))


async def test_what_was_taken_back_while_no_pod_kept_it_does_not_come_again(fleet: Fleet, database: Database) -> None:
    pod = await fleet.pod(Calls(), ledger=database)
    await fleet.client.pause("note")

    async def is_paused() -> bool:
        return ("paused", "note") in await kept(database)

    async def is_not() -> bool:
        return not await is_paused()

    await eventually(is_paused, "the ledger has the pause")
    await fleet.kill(pod)
    await fleet.client.resume("note")
    await fleet.pod(Calls(), name="b", ledger=database)
    await eventually(is_not, "the next pod deletes it")


async def test_a_ledger_that_lost_them_has_them_again(fleet: Fleet, database: Database) -> None:
    await fleet.pod(Calls(), ledger=database)
    await fleet.client.pause("note")
    await Callers(fleet.store).keep("k1", "entry")
    wanted = {("paused", "note"), ("key", "k1"), ("declared", "note")}

    async def has_them() -> bool:
        return wanted <= (await kept(database)).keys()

    await eventually(has_them, "the ledger has them")
    await database.do(partial(facts.write, changed={}, gone=wanted))
    await eventually(has_them, "the ledger has them again")


async def test_a_lost_db_takes_nothing_from_the_ledger(fleet: Fleet, database: Database) -> None:
    await fleet.client.create("note", "a", delay="24h")
    await fleet.client.pause("note")
    await keep_facts(fleet.store, database)
    before = await kept(database)
    await fleet.redis.delete(keys.META, "timers:{pods}:declared", "timers:{0}:paused", "timers:{0}:pauses")
    await keep_facts(fleet.store, database)
    assert await kept(database) == before
    await give_facts_back(fleet.store, database)
    assert set(await read_pauses(fleet.store)) == {"note"}
    await fleet.redis.flushall()
