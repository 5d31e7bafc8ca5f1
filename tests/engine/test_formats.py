"""How pods agree on the format of records: a newer one waits until every live pod reads it, and long enough."""

from collections.abc import Awaitable, Callable

import pytest
from structlog.testing import capture_logs

from tests.engine.fleet import Calls, Fleet
from tests.store.acts import bucket_of
from tests.waiting import eventually
from timers.doctor.checks import Check
from timers.doctor.examining import examine
from timers.engine.peers import Peers
from timers.store import identity
from timers.store.membership import VERSION, Member, Membership

LATER = "note:later"
NEXT = identity.READS + 1


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process reads the next format too, as a later version would."""
    monkeypatch.setattr(identity, "READS", NEXT)


def watch(fleet: Fleet, members: list[Member], seconds: float = 0) -> Callable[[], Awaitable[None]]:
    me = Member("new", settings={VERSION: "9.9"})
    watching = Peers(Membership(fleet.store), me, raise_after_seconds=seconds)
    return lambda: watching.check_identity(members)


OLD, NEW, OTHER = Member("old"), Member("new", format=NEXT), Member("other", format=NEXT)
ODD = Member("odd", trouble="its heartbeat cannot be read")


@pytest.mark.usefixtures("later")
async def test_the_db_is_raised_once_all_pods_have_read_the_format_long_enough(fleet: Fleet) -> None:
    await fleet.redis.hset("timers:meta", "format", "1")
    members = [OLD, NEW]
    pod, patient = watch(fleet, members), watch(fleet, members, 3600)
    for now in ([OLD, NEW], [NEW, OTHER], [OLD, NEW], [ODD, NEW], [NEW, OTHER]):
        members[:] = now
        await pod()
        await patient()
        assert fleet.store.identity.form == 1
    await patient()
    assert fleet.store.identity.form == 1
    with capture_logs() as logs:
        for _ in range(2):
            await pod()
    assert fleet.store.identity.form == NEXT
    assert [line["format"] for line in logs] == [NEXT]


async def test_a_pod_leaves_a_timer_that_it_cannot_read_and_says_so(fleet: Fleet) -> None:
    await fleet.client.create("note", "later", delay=0)
    raw = await fleet.redis.hget(bucket_of(LATER), LATER)
    assert isinstance(raw, bytes)
    newer = b"9 the head of a later version\nand its body"
    await fleet.redis.hset(bucket_of(LATER), LATER, newer)
    calls = Calls()
    with capture_logs() as logs:
        await fleet.pod(calls)
        for timer_id in ("one", "two"):
            await fleet.client.create("note", timer_id, delay=0)
            await fleet.completed(timer_id)

        async def told() -> Check | None:
            found = {check.name: check for check in await examine(fleet.store, wait_seconds=5)}
            return found["format"] if found["format"].level == "fail" else None

        check = await eventually(told, "the doctor names the timer")
    assert check.said == "timers are in a format that pods cannot read: note:later (9)"
    assert [line["format"] for line in logs if line["event"] == "timer left to pods of a later version"] == [9]
    assert await fleet.redis.hget(bucket_of(LATER), LATER) == newer
    await fleet.redis.hset(bucket_of(LATER), LATER, raw)
    await fleet.completed("later")
    assert sorted(calls.ids) == ["later", "one", "two"]
