"""While Redis is away, new timers are accepted by the ledger alone, and armed as soon as it is back."""

import asyncio
import zlib
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from functools import partial
from typing import Any, NoReturn

import pytest
from sqlalchemy.ext.asyncio import AsyncConnection

from tests.api.conftest import done
from tests.api.harness import running_api
from tests.api.keyed import new_key
from tests.engine.fleet import Calls, Fleet, Held
from tests.engine.own import OwnServer
from tests.ledger.copies import agreed, in_ledger, say, whole
from tests.members import declare
from tests.rights import as_user, grant
from tests.waiting import DEADLINE_SECONDS, eventually
from timers.client import Armed, TimerClient, client_over, copies, open_store
from timers.client.fleet import Declared
from timers.core.model import Status
from timers.core.shapes import IfExists
from timers.core.spec import NewTimer, TimerChange
from timers.engine import comparing, following, inbox
from timers.engine.peers import weight
from timers.errors import AlreadyExists, LedgerUnavailable, NoProcessor, NotFound, Unavailable
from timers.ledger import facts, rows
from timers.ledger.database import Database
from timers.ledger.rows import Identity, NewRow, Row
from timers.store import refusals, restoring
from timers.store.callers import Quota, Quotas
from timers.store.queries import counts
from timers.store.servers import connect
from timers.store.store import Arming, Store

HEADERS, KEY = new_key()
MODES: tuple[IfExists, ...] = ("error", "error", "replace")


@pytest.fixture
async def client(own: OwnServer, database: Database, ledger_url: str) -> AsyncIterator[TimerClient]:
    client = client_over(await open_store(connect(own.url)), ledger=ledger_url)
    yield client
    await client.close()


async def test_creates_are_accepted_and_armed_later(own: OwnServer, client: TimerClient, database: Database) -> None:
    fleet = await Fleet.over(own.url)
    calls = Calls()
    await fleet.pod(calls, ledger=database)
    await client.create("note", "before", delay="24h", payload=1)
    await whole(fleet.store)
    own.down()
    client._declared = Declared(fleet.store, fresh_seconds=0)
    made = await client.create("note", "soon", delay="0s", payload=2)
    assert (made.armed, made.durability, made.to_json().get("armed")) == (False, "ledger", False)
    results = await client.batch([{"prefix": "note", "id": f"b{n}", "delay": "24h"} for n in range(3)])
    assert [result.timer.armed for result in results if isinstance(result, Armed)] == [False] * 3
    with pytest.raises(AlreadyExists):
        await client.create("note", "before", delay="48h")
    with pytest.raises(AlreadyExists):
        await client.create("note", "soon", delay="48h")
    assert (await client.create("note", "before", delay="48h", if_exists="keep")).payload == 1
    with pytest.raises(Unavailable):
        await client.cancel("note", "before")
    await own.up()

    async def ran() -> bool:
        return len(calls) == 1

    await eventually(ran, "the due one runs")
    there = await agreed(database, fleet.store)
    assert set(there) == {"note:before", "note:soon", "note:b0", "note:b1", "note:b2"}
    assert there["note:soon"].status == "completed"
    assert there["note:soon"].created == made.created_ms
    assert {there[name].version for name in ("note:before", "note:b0", "note:b1", "note:b2")} == {1}
    await fleet.close()


async def test_what_only_redis_can_count_is_refused_and_not_armed_later(
    own: OwnServer, client: TimerClient, database: Database
) -> None:
    fleet = await Fleet.over(own.url)
    limited = client.acting("billing", Quota(2, ("note",), 100))
    await limited.create("note", "before", delay="24h")
    own.down()
    client._declared = limited._declared = Declared(fleet.store, fresh_seconds=0)
    with pytest.raises(Unavailable) as single:
        await limited.create("note", "single", delay="24h")
    with pytest.raises(Unavailable) as batch:
        await limited.batch([{"prefix": "note", "id": f"b{n}", "delay": "24h"} for n in range(3)])
    assert (single.value.nothing_done, batch.value.nothing_done) == (True, True)
    assert list(await in_ledger(database)) == ["note:before"]
    await own.up()
    assert (await limited.create("note", "single", delay="24h")).armed
    await fleet.close()


async def test_many_that_wait_are_armed_in_small_steps(
    own: OwnServer, client: TimerClient, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thousand with the largest payloads, armed at once, took a pod half a GiB of memory."""
    fleet = await Fleet.over(own.url)
    await fleet.pod(Calls(), ledger=database)
    await client.create("note", "before", delay="24h")
    await whole(fleet.store)
    own.down()
    client._declared = Declared(fleet.store, fresh_seconds=0)
    await client.batch([{"prefix": "note", "id": f"b{n}", "delay": "24h"} for n in range(150)])
    find, steps = rows.find, list[int]()

    async def noted(connection: AsyncConnection, identities: Collection[Identity]) -> dict[Identity, Row]:
        steps.append(len(identities))
        return await find(connection, identities)

    monkeypatch.setattr(rows, "find", noted)
    await own.up()
    assert len(await agreed(database, fleet.store)) == 151
    assert sum(steps) >= 150
    assert max(steps) <= 64
    await fleet.close()


async def test_what_was_replaced_meanwhile_does_not_run_as_it_was(
    own: OwnServer, client: TimerClient, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was due before Redis came back, and pods claim at once then."""
    monkeypatch.setattr(inbox, "CATCH_UP_SECONDS", DEADLINE_SECONDS)
    fleet = await Fleet.over(own.url)
    calls = Calls()
    await fleet.pod(calls, ledger=database)
    names = [f"n{number}" for number in range(20)]
    due_ms = await fleet.store.now_ms() + 8000  # Redis must be away by then, on a busy machine too
    await client.batch([{"prefix": "note", "id": name, "due_at": due_ms, "payload": "before"} for name in names])
    await whole(fleet.store)
    own.down()
    client._declared = Declared(fleet.store, fresh_seconds=0)
    for name in names:
        assert not (await client.create("note", name, delay=0, payload="after", if_exists="replace")).armed
    clock = fleet.store.clock
    await eventually(partial(_is_past, clock.now_ms, due_ms), "the timers were due")
    await own.up()

    async def ran() -> bool:
        return len(calls) >= len(names)

    await eventually(ran, "all have run")
    assert {(await fleet.completed(name)).payload for name in names} == {"after"}
    assert [timer.payload for timer in calls.timers] == ["after"] * len(names)
    await fleet.close()


async def _is_past(now_ms: Callable[[], float], due_ms: float) -> bool:
    return now_ms() > due_ms


async def test_what_the_redis_user_may_not_arm_holds_up_nothing_else(
    own: OwnServer, client: TimerClient, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others waited for as long as more timers than one look finds were refused."""
    monkeypatch.setattr(rows, "SAVED", 10)
    monkeypatch.setattr(comparing, "COUNT_SECONDS", 3600.0)
    fleet = await Fleet.over(own.url, pods_url=as_user(own.url))
    await declare(fleet.store, "log")
    await grant(fleet.redis, 0, ("note",))
    pod = await fleet.pod(Calls(), ledger=database)
    await client.create("note", "before", delay="24h")
    await whole(fleet.store)

    async def away(*_armings: object, **_how: object) -> NoReturn:
        raise Unavailable("cannot reach Redis")

    assert client._store is not None
    monkeypatch.setattr(client._store, "arm", away)
    for prefix in ("log", "note"):
        made = await client.batch([{"prefix": prefix, "id": f"b{n}", "delay": "24h"} for n in range(25)])
        assert [each.timer.armed for each in made if isinstance(each, Armed)] == [False] * 25

    async def armed(prefix: str, count: int) -> bool:
        return (await counts(fleet.store)).get(prefix, {}).get(Status.SCHEDULED, 0) == count

    await eventually(partial(armed, "note", 26), "the others are armed")
    assert await armed("log", 0)
    assert "log" in pod.store.refusals.lacks
    monkeypatch.setattr(refusals, "TRY_AGAIN_SECONDS", 0.0)
    await grant(fleet.redis, 0)
    await eventually(partial(armed, "log", 25), "they are armed once the user may")
    await fleet.close()


async def test_what_redis_armed_without_an_answer_runs_once(
    own: OwnServer, client: TimerClient, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has run and was removed before a pod looked at what is to be armed."""
    fleet = await Fleet.over(own.url)
    calls = Calls()
    follows = await fleet.pod(Calls("other"), name="follows", ledger=database)
    await fleet.pod(calls, name="runs", retention_ms=0)
    await client.create("note", "before", delay="24h")
    await whole(fleet.store)
    await follows.worker._taking.stop()
    assert client._store is not None
    arm = client._store.arm

    async def unanswered(*armings: Any, **how: Any) -> NoReturn:
        await arm(*armings, **how)
        raise Unavailable("Redis did not answer in time")

    with monkeypatch.context() as patched:
        patched.setattr(client._store, "arm", unanswered)
        assert not (await client.create("note", "x", delay=0)).armed

    async def removed() -> bool:
        return calls.ids == ["x"] and await fleet.store.get_one("note", "x") is None

    await eventually(removed, "it has run and was removed")
    follows.worker._taking.start()
    there = await agreed(database, fleet.store)
    assert set(there) == {"note:before"}
    assert calls.ids == ["x"]
    await fleet.close()


async def test_a_slow_pod_brings_no_removed_timer_back(
    own: OwnServer, client: TimerClient, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has read what is to be armed. Meanwhile another pod arms it, and a caller removes it."""
    monkeypatch.setattr(comparing, "COUNT_SECONDS", 3600.0)  # which would repair it
    fleet = await Fleet.over(own.url)
    first, *_, last = sorted((f"p{n}" for n in range(10)), key=lambda name: weight(zlib.crc32(name.encode()), 0))
    slow = await fleet.pod(Calls(), name=first, ledger=database)
    await client.create("note", "before", delay="24h")
    await whole(fleet.store)
    read, go_on, restore = asyncio.Event(), asyncio.Event(), restoring.restore

    async def late(store: Store, records: Any, **how: Any) -> list[str]:
        if store is slow.store:
            read.set()
            await go_on.wait()
        return await restore(store, records, **how)

    async def away(*_armings: object, **_how: object) -> NoReturn:
        raise Unavailable("cannot reach Redis")

    monkeypatch.setattr(copies, "restore", late)
    assert client._store is not None
    with monkeypatch.context() as patched:
        patched.setattr(client._store, "arm", away)
        assert not (await client.create("note", "x", delay="24h")).armed
    await read.wait()
    await fleet.pod(Calls(), name=last, ledger=database)

    async def armed() -> bool:
        return await fleet.store.get_one("note", "x") is not None

    async def copied() -> bool:
        return not await fleet.redis.hlen("timers:{0}:changed")

    await eventually(armed, "the other pod arms it")
    await client.cancel("note", "x", purge=True)
    await eventually(copied, "the ledger knows")
    go_on.set()
    assert slow.worker.following is not None
    arm_pending, looked = slow.worker.following._arm_pending, asyncio.Event()

    async def arm_and_tell(led: Sequence[int]) -> None:
        await arm_pending(led)
        looked.set()

    monkeypatch.setattr(slow.worker.following, "_arm_pending", arm_and_tell)
    await looked.wait()  # so the look before has come to its end
    assert set(await agreed(database, fleet.store)) == {"note:before"}
    await fleet.close()


@pytest.mark.parametrize("keys", [None, KEY.entry], ids=["open", "with keys"])
async def test_the_api_takes_new_timers_for_as_long_as_redis_is_away(
    own: OwnServer, database: Database, ledger_url: str, keys: str | None
) -> None:
    timer = {"prefix": "test", "delay": "1h"}
    async with running_api(own.url, [done], ledger=ledger_url, keys=keys, keys_fresh_seconds=-1.0) as api:
        await say(api.store, 0, "whole 1")  # so there are no other keys
        before = await api.call("POST", "/v1/timers", {**timer, "id": "before"}, headers=HEADERS)
        assert (before.status, before.body["durability"]) == (201, "ledger")
        own.down()
        api.client._declared = Declared(api.store, fresh_seconds=-1.0)
        for call in (
            ("POST", "/v1/timers", {**timer, "id": "posted"}),
            ("PUT", "/v1/timers/test/put", {"delay": "1h"}),
            ("POST", "/v1/timers", {**timer, "id": "posted", "if_exists": "keep"}),
        ):
            reply = await api.call(*call, headers=HEADERS)
            assert (reply.status, reply.body["armed"], reply.body["durability"]) == (202, False, "ledger")
        kept = await api.call("POST", "/v1/timers", {**timer, "id": "before", "if_exists": "keep"}, headers=HEADERS)
        assert (kept.status, kept.body.get("armed", True)) == (200, True)
        batch = await api.call("POST", "/v1/timers/batch", {"timers": [{**timer, "id": "b"}]}, headers=HEADERS)
        assert [each["timer"]["armed"] for each in batch.body["results"]] == [False]
        mixed = {"timers": [{**timer, "id": "fast", "durability": "fast"}, {**timer, "id": "mixed"}]}
        fast, other = (await api.call("POST", "/v1/timers/batch", mixed, headers=HEADERS)).body["results"]
        assert (fast["status"], other["status"], other["timer"]["armed"]) == (503, 202, False)
        assert fast["problem"]["type"] == "urn:timers:problem:unavailable"
        stranger = await api.call("POST", "/v1/timers", timer, headers={"Authorization": "Bearer nobody's"})
        assert stranger.status == (202 if keys is None else 401)
        (await api.call("GET", "/v1/timers", headers=HEADERS)).problem(503, "unavailable")


async def test_a_hung_redis_is_waited_for_once(
    own: OwnServer, database: Database, ledger_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet = await Fleet.over(own.url)
    await fleet.pod(Calls(), ledger=database)
    async with client_over(await open_store(connect(f"{own.url}&socket_timeout=2")), ledger=ledger_url) as client:
        await client.create("note", "before", delay="24h")
        await whole(fleet.store)
        own.hang()
        # Two of these waits are longer than the API's time for a call.
        monkeypatch.setattr(Quotas, "arm", None)
        replaced = await client.create("note", "before", delay="1h", if_exists="replace")
        own.go_on()
        assert (replaced.armed, replaced.durability) == (False, "ledger")
        monkeypatch.undo()
        await fleet.close()


async def test_without_redis_the_ledger_knows_which_prefixes_nobody_serves(
    own: OwnServer, client: TimerClient, database: Database
) -> None:
    fleet = await Fleet.over(own.url)
    await fleet.pod(Calls(), ledger=database)
    await client.create("note", "before", delay="24h")

    async def are_declared() -> bool:
        return ("declared", "note") in await database.do(facts.read, writes=False)

    await eventually(are_declared, "the ledger knows the declarations")
    own.down()
    client._declared = Declared(fleet.store, fresh_seconds=0)
    assert (await client.create("note", "meanwhile", delay="24h")).armed is False
    with pytest.raises(NoProcessor, match="nobody"):
        await client.create("nobody", "meanwhile", delay="24h")
    (refused,) = await client.batch([{"prefix": "nobody", "id": "meanwhile", "delay": "24h"}])
    assert isinstance(refused, NoProcessor)
    await own.up()
    await fleet.close()


async def test_what_is_replaced_meanwhile_is_replaced_later(
    own: OwnServer, client: TimerClient, database: Database
) -> None:
    fleet = await Fleet.over(own.url)
    held = Held()
    await fleet.pod(held, ledger=database)
    before = await client.create("note", "before", delay="24h", payload=1)
    # A pod that has just found the db may have given the row back before the client armed it: a thousand versions more.
    twice_replaced = before.version + 2
    await client.create("note", "runs", delay="0s")

    async def is_running() -> bool:
        rows = await in_ledger(database)
        return len(held) == 1 and rows["note:runs"].status == "running"

    await eventually(is_running, "the ledger knows that it runs")
    own.down()
    client._declared = Declared(fleet.store, fresh_seconds=0)
    await client.create("note", "before", delay="1h", payload=2, if_exists="replace")
    made = await client.create(
        "note", "before", payload=3, tags=["new"], retry={"backoff": ["2h", "4h"]}, if_exists="replace"
    )
    assert (made.armed, made.durability, made.created_ms) == (False, "ledger", before.created_ms)
    assert made.version in (before.version + 1, twice_replaced)
    assert made.updated_ms == made.history[0].at_ms >= before.created_ms
    await client.create("note", "meanwhile", delay="24h", payload=4)
    await client.create("note", "meanwhile", delay="48h", payload=5, if_exists="replace")
    with pytest.raises(Unavailable):  # it may have ended by now, and then again not
        await client.create("note", "runs", delay="1h", if_exists="replace")
    with pytest.raises(Unavailable) as doubt:
        await client.batch([NewTimer(prefix="note", id=i, delay="24h", if_exists="replace") for i in ("runs", "new")])
    assert not doubt.value.nothing_done  # the new one is written, and will be armed
    await own.up()

    await eventually(partial(payloads_are, client, before=3, meanwhile=5), "all are replaced, and by the last")
    timer = await client.get("note", "before")
    assert (timer.version, timer.created_ms, timer.tags) == (twice_replaced, before.created_ms, ["new"])
    assert timer.due_ms - made.due_ms in range(-1000, 1000)
    assert timer.to_json()["retry"] == made.to_json()["retry"]
    held.release.set()
    rows = await agreed(database, fleet.store)
    assert {name: row.version for name, row in rows.items()}["note:before"] == twice_replaced
    await fleet.close()


async def test_replaces_of_one_timer_that_come_together_meanwhile_all_count(
    own: OwnServer, client: TimerClient, database: Database
) -> None:
    fleet = await Fleet.over(own.url)
    await fleet.pod(Calls(), ledger=database)
    await client.create("note", "before", delay="24h")
    own.down()
    client._declared = Declared(fleet.store, fresh_seconds=0)
    together = [
        client.arm(NewTimer(prefix="note", id="together", delay="24h", payload=n, if_exists="replace"))
        for n in range(4)
    ]
    await asyncio.gather(*(client.create("note", f"other{n}", delay="24h") for n in range(2)), *together)
    answers = await client.batch(
        [NewTimer(prefix="note", id="batch", delay="24h", payload=n, if_exists=mode) for n, mode in enumerate(MODES)]
    )
    assert [getattr(each, "how", None) for each in answers] == ["created", None, "replaced"]
    await own.up()

    async def each_counts() -> bool:
        causes = [entry.cause for entry in (await client.get("note", "together")).history]
        return causes.count("replaced") == 3

    await eventually(partial(payloads_are, client, batch=2), "the batch's last replaces its first")
    await eventually(each_counts, "none of those that came together was dropped")
    await fleet.close()


async def payloads_are(client: TimerClient, **wanted: object) -> bool:
    found = await client.batch([NewTimer(prefix="note", id=name, delay="1h", if_exists="keep") for name in wanted])
    return [each.timer.payload for each in found if isinstance(each, Armed)] == list(wanted.values())


async def test_a_timer_that_no_pod_has_armed_yet_is_there_for_all_who_ask(
    own: OwnServer, client: TimerClient, database: Database
) -> None:
    """Redis is back, and does not know it. Who was told that it is armed may cancel it."""
    names = ("read", "cancelled", "purged", "changed", "replaced", "kept", "refused")
    fleet = await Fleet.over(own.url)
    pod = await fleet.pod(Calls(), ledger=database)
    await client.create("note", "before", delay="24h")
    await whole(fleet.store)
    await fleet.kill(pod)
    own.down()
    client._declared = Declared(fleet.store, fresh_seconds=0)
    made = {name: await client.create("note", name, delay="24h", payload="away") for name in names}
    await own.up()
    read = await client.get("note", "read")
    assert (read.version, read.created_ms, read.payload) == (1, made["read"].created_ms, "away")
    assert (await client.cancel("note", "cancelled")).payload == "away"
    assert (await client.cancel("note", "purged", purge=True)).payload == "away"
    assert (await client.change("note", "changed", TimerChange(payload="new"))).version == 2
    assert (await client.create("note", "replaced", delay="24h", if_exists="replace")).version == 2
    assert (await client.create("note", "kept", delay="48h", if_exists="keep")).payload == "away"
    with pytest.raises(AlreadyExists):
        await client.create("note", "refused", delay="48h")
    await fleet.pod(Calls(), name="b", ledger=database)
    there = await agreed(database, fleet.store)
    assert {name: there[f"note:{name}"].created for name in names if name != "purged"} == {
        name: timer.created_ms for name, timer in made.items() if name != "purged"
    }
    assert "note:purged" not in there
    await fleet.close()


async def test_a_timer_whose_create_was_never_answered_is_armed_once_it_is_asked_for_again(
    own: OwnServer, client: TimerClient, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ledger has it, and Redis does not. Who keeps it while Redis is away is told that it is there."""
    monkeypatch.setattr(comparing, "COUNT_SECONDS", 3600.0)  # which would repair it
    fleet = await Fleet.over(own.url)
    await fleet.pod(Calls(), ledger=database)
    before = await client.create("note", "before", delay="24h")
    await whole(fleet.store)
    now_ms = round(await fleet.store.now_ms())
    unheard = NewRow("note", "unheard", 0, now_ms + 86_400_000, now_ms, '{"payload":1}', "")
    await database.do(partial(rows.insert, rows=[unheard]))

    async def away(*_armings: object, **_how: object) -> NoReturn:
        raise Unavailable("cannot reach Redis")

    assert client._store is not None
    monkeypatch.setattr(client._store, "arm", away)
    kept = await client.create("note", "unheard", delay="48h", payload=2, if_exists="keep")
    assert (kept.payload, kept.created_ms) == (1, now_ms)
    there = await agreed(database, fleet.store)
    assert {name: row.created for name, row in there.items()} == {
        "note:before": before.created_ms,
        "note:unheard": now_ms,
    }
    await fleet.close()


async def test_a_create_in_whose_place_another_has_come_is_not_accepted(
    own: OwnServer, client: TimerClient, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pod has copied it from Redis while the create waited for an answer: armed later, this one would be dropped."""
    fleet = await Fleet.over(own.url)
    await client.create("note", "before", delay="24h")
    assert client._store is not None

    async def overtaken(armings: Sequence[Arming], *_given: object, **_how: object) -> NoReturn:
        ((prefix, timer_id, *_),) = armings
        now_ms = armings[0].created_ms + 1
        other = Row(prefix, timer_id, 0, "completed", 3, 1, 1, 0, 1, now_ms, now_ms, now_ms, "{}", "", "")
        await database.do(partial(rows.save, rows=[other]))
        raise Unavailable("Redis did not answer in time")

    monkeypatch.setattr(client._store, "arm", overtaken)
    with pytest.raises(AlreadyExists, match="completed"):
        await client.create("note", "x", delay="24h")
    kept = await client.create("note", "y", delay="24h", if_exists="keep")
    assert (kept.status, kept.armed) == (Status.COMPLETED, True)
    await fleet.close()


async def test_a_timer_that_runs_is_kept_as_running_meanwhile(
    own: OwnServer, client: TimerClient, database: Database
) -> None:
    fleet = await Fleet.over(own.url)
    held = Held()
    await fleet.pod(held, ledger=database)
    await client.create("note", "long", delay="0s", payload=1)

    async def follows() -> bool:
        return (await in_ledger(database))["note:long"].status == Status.RUNNING

    await eventually(follows, "the ledger knows that it runs")
    own.down()
    client._declared = Declared(fleet.store, fresh_seconds=0)
    kept = await client.create("note", "long", delay="48h", if_exists="keep")
    assert (kept.status, kept.payload, kept.attempt) == (Status.RUNNING, 1, 1)
    await own.up()
    held.release.set()
    await fleet.close()


async def test_what_redis_lacks_is_not_found_while_the_ledger_is_away(
    own: OwnServer, client: TimerClient, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reads go on without the ledger."""

    async def away(*_: object, **_how: object) -> NoReturn:
        raise LedgerUnavailable("the ledger does not answer")

    fleet = await Fleet.over(own.url)
    await fleet.pod(Calls(), ledger=database)
    await client.create("note", "before", delay="24h")
    await whole(fleet.store)
    monkeypatch.setattr(rows, "waiting", away)
    with pytest.raises(NotFound):
        await client.get("note", "nothing")
    with pytest.raises(LedgerUnavailable):
        await client.cancel("note", "nothing")
    await fleet.close()


async def test_the_inbox_replaces_a_timer_that_is_not_armed_yet(
    own: OwnServer, client: TimerClient, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be faster than what arms the timers that wait."""

    async def not_yet(*_: object) -> None:
        return None

    fleet = await Fleet.over(own.url)
    await fleet.pod(Calls(), ledger=database)
    await client.create("note", "before", delay="24h")
    await whole(fleet.store)
    monkeypatch.setattr(following.Following, "_arm_pending", not_yet)
    own.down()
    client._declared = Declared(fleet.store, fresh_seconds=0)
    made = await client.create("note", "one", delay="24h", payload="first")
    await client.create("note", "one", delay="24h", payload="second", if_exists="replace")
    await own.up()
    await eventually(partial(payloads_are, client, one="second"), "the inbox replaces it")
    timer = await client.get("note", "one")
    newest, *_, oldest = [entry.cause for entry in timer.history]  # in between, it may have been restored
    assert (timer.created_ms, newest, oldest) == (made.created_ms, "replaced", "created")
    await fleet.close()


async def test_what_comes_after_a_replacement_that_waits_is_done_after_it(
    own: OwnServer, client: TimerClient, database: Database
) -> None:
    names = ("cancelled", "replaced", "changed")
    fleet = await Fleet.over(own.url)
    pod = await fleet.pod(Calls(), ledger=database)
    for name in names:
        await client.create("note", name, delay="24h", payload="before")
    await whole(fleet.store)
    await fleet.kill(pod)
    own.down()
    client._declared = Declared(fleet.store, fresh_seconds=0)
    for name in names:
        await client.create("note", name, delay="24h", payload="away", if_exists="replace")
    await own.up()
    for refused in (client.cancel("note", "cancelled"), client.change("note", "changed", TimerChange(payload="new"))):
        with pytest.raises(Unavailable, match="inbox") as raised:  # nobody has carried it out yet
            await refused
        assert raised.value.nothing_done
    assert not (await client.create("note", "replaced", delay="24h", payload="new", if_exists="replace")).armed
    await fleet.pod(Calls(), name="b", ledger=database)
    assert (await client.cancel("note", "cancelled")).payload == "away"
    assert (await client.change("note", "changed", TimerChange(payload="new"))).payload == "new"
    await eventually(partial(payloads_are, client, replaced="new", changed="new"), "the last one counts")
    await agreed(database, fleet.store)
    assert (await client.get("note", "cancelled")).status == "cancelled"
    await fleet.close()
