"""Bare keys as users set them: from a shell and from another language, with plain Redis commands."""

import pytest

from tests.api.harness import running_api
from tests.engine.fleet import DAY_MS, Calls, Fleet
from tests.life.clients import CLIENTS, Client
from tests.life.test_bare_keys import HOUR_MS, OFTEN_MS, adopted
from tests.waiting import eventually
from timers.core.model import Status, Timer
from timers.processor import Context

pytestmark = [pytest.mark.every_server, pytest.mark.one_server]  # in a cluster a client has to follow redirections

HOUR = str(HOUR_MS)
SOON = "30"


@pytest.fixture(params=CLIENTS)
def send(request: pytest.FixtureRequest, fleet: Fleet) -> Client:
    return Client(request.param, fleet.url)


class Leases(Calls):
    """A processor that reads its own lock in Redis while it runs."""

    def __init__(self, fleet: Fleet) -> None:
        super().__init__("note", self._look)
        self._fleet = fleet
        self.seen: list[tuple[object, str]] = []

    async def _look(self, timer: Timer, _context: Context) -> None:
        assert timer.lease is not None
        lock = await self._fleet.redis.get(f"timers:{{0}}:lease:note:{timer.id}")
        self.seen.append((lock, f"{timer.lease.pod} {timer.token}"))


async def test_each_key_fires_once_over_three_pods_under_its_lock(fleet: Fleet, send: Client) -> None:
    calls, ids = Leases(fleet), [f"user-{number}" for number in range(6)]
    for name in ("a", "b", "c"):
        await fleet.pod(calls, name=name, adopt_every_ms=OFTEN_MS)
    for timer_id in ids:
        assert await send("SET", f"note:{timer_id}", "{}", "PX", "500") == "OK"
    for timer_id in ids:
        assert (await fleet.completed(timer_id)).attempt == 1
    await send("SET", "note:last", "{}", "PX", SOON)
    await fleet.completed("last")
    assert sorted(calls.ids) == sorted([*ids, "last"])
    assert [lock for lock, _ in calls.seen] == [holder.encode() for _, holder in calls.seen]


@pytest.mark.parametrize(
    ("value", "payload"),
    [('{"plan": "pro", "n": [1, null]}', {"plan": "pro", "n": [1, None]}), ("17", 17), ("say “hi”: {", "say “hi”: {")],
)
async def test_the_value_is_the_payload_parsed_where_it_is_json(
    fleet: Fleet, send: Client, value: str, payload: object
) -> None:
    calls = Calls()
    await fleet.pod(calls, adopt_every_ms=OFTEN_MS)
    await send("SET", "note:x", value, "PX", HOUR)
    assert (await adopted(fleet, "x")).payload == payload
    await fleet.client.fire("note", "x")
    await fleet.completed("x")
    assert [timer.payload for timer in calls.timers] == [payload]


async def test_a_key_too_short_lived_to_be_seen_fires_with_its_name_alone(fleet: Fleet, send: Client) -> None:
    calls = Calls()
    await send("SET", "note:first", "{}", "PX", HOUR)
    await fleet.pod(calls, adopt_every_ms=DAY_MS)
    await adopted(fleet, "first")
    await send("SET", "note:x", '{"lost": true}', "PX", SOON)
    assert (await fleet.completed("x")).attempt == 1
    assert [(seen.id, seen.payload) for seen in calls.timers] == [("x", None)]


async def test_setting_it_again_moves_it_with_its_new_payload(fleet: Fleet, send: Client) -> None:
    calls = Calls()
    await fleet.pod(calls, adopt_every_ms=OFTEN_MS)
    await send("SET", "note:x", "1", "PX", HOUR)
    first = await adopted(fleet, "x")
    await send("SET", "note:x", "2", "PX", str(2 * HOUR_MS))

    async def moved() -> Timer | None:
        timer = await fleet.client.get("note", "x")
        return timer if timer.version > first.version else None

    timer = await eventually(moved, "the timer has moved")
    assert timer is not None
    assert (timer.payload, timer.occurrence) == (2, 1)
    assert timer.due_ms >= first.due_ms + HOUR_MS
    await fleet.client.fire("note", "x")
    await fleet.completed("x")
    assert [seen.payload for seen in calls.timers] == [2]


async def test_deleting_it_cancels_it(fleet: Fleet, send: Client) -> None:
    calls = Calls()
    await fleet.pod(calls, adopt_every_ms=OFTEN_MS)
    await send("SET", "note:x", "1", "PX", HOUR)
    await adopted(fleet, "x")
    assert await send("DEL", "note:x") == "1"
    timer = await fleet.reached(Status.CANCELLED, "x")
    assert timer.history[0].note == "its bare key was deleted"
    assert len(calls) == 0


async def test_cancelling_it_over_http_soon_deletes_the_key(fleet: Fleet, send: Client) -> None:
    calls = Calls()
    await fleet.pod(calls, adopt_every_ms=OFTEN_MS)
    await send("SET", "note:x", "1", "PX", HOUR)
    await adopted(fleet, "x")
    async with running_api(fleet.url, []) as api:
        reply = await api.call("DELETE", "/v1/timers/note/x")
    assert (reply.status, reply.body["status"]) == (200, "cancelled")

    async def gone() -> bool:
        return await send("EXISTS", "note:x") == "0"

    await eventually(gone, "the key is deleted")


FOREIGN = {
    "session:of-nobody": ("string", ("SET", "session:of-nobody", "1", "PX", HOUR)),
    "note:for-ever": ("string", ("SET", "note:for-ever", "1")),
    "note:hash": ("hash", ("HSET", "note:hash", "field", "1")),
    "note:list": ("list", ("RPUSH", "note:list", "1")),
    "Note:capital": ("string", ("SET", "Note:capital", "1", "PX", HOUR)),
    "note:two words": ("string", ("SET", "note:two words", "1", "PX", HOUR)),
    "note": ("string", ("SET", "note", "1", "PX", HOUR)),
}


async def test_foreign_keys_are_left_alone(fleet: Fleet, send: Client) -> None:
    """Keys of a prefix without processor, without a TTL, of another type, or with a name that no timer can have."""
    calls = Calls()
    for _, command in FOREIGN.values():
        await send(*command)
    await send("PEXPIRE", "note:hash", HOUR)
    before = {key: await fleet.redis.dump(key) for key in FOREIGN}
    await fleet.pod(calls, adopt_every_ms=OFTEN_MS)
    for timer_id in ("first", "second"):
        # A later scan than the one of the first key finds the second; by then all other keys have been seen.
        await send("SET", f"note:{timer_id}", "1", "PX", HOUR)
        await adopted(fleet, timer_id)
    await send("SET", "session:short", "1", "PX", "1")
    await send("PEXPIRE", "note:second", SOON)
    await fleet.completed("second")
    assert calls.ids == ["second"]
    assert {key: await fleet.redis.dump(key) for key in FOREIGN} == before
    assert {key: await send("TYPE", key) for key in FOREIGN} == {key: kind for key, (kind, _) in FOREIGN.items()}
    assert {timer.id async for timer in fleet.client.iterate()} == {"first", "second"}
