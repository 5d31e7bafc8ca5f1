"""Records of the first format beside those of the second: they live on, and settling them makes them of the second."""

from typing import Any

import pytest

from tests.conservation import conserved
from tests.store.acts import PREFIX, an_end, armed, bucket_of, claim, put, read, settle
from timers.core.model import Status
from timers.store import identity
from timers.store.store import Store

HOUR = "+3600000"


async def head_of(store: Store, timer_id: str) -> bytes:
    """Format and status of a record."""
    member = f"{PREFIX}:{timer_id}"
    raw: Any = await store.connections.commands.hget(bucket_of(member), member)
    return bytes(raw[:3])


@pytest.fixture
async def raised(store: Store, monkeypatch: pytest.MonkeyPatch) -> Store:
    """A store with timers `due` and `later` of format 1, in which format 2 may be written since."""
    monkeypatch.setattr(store.identity, "newest", 1)
    monkeypatch.setattr(identity, "GRACE_MS", -60_000)
    await armed(store, "due")
    await armed(store, "later", due=HOUR, spec={"payload": "ä"})
    assert [await head_of(store, name) for name in ("due", "later")] == [b"1 s", b"1 s"]
    await store.identity.raise_format(2, "9.9")
    return store


async def test_a_run_that_begins_in_the_first_format_ends_in_the_second(raised: Store) -> None:
    (timer,) = await claim(raised)
    assert await head_of(raised, "due") == b"1 r"
    assert await settle(raised, an_end(timer, Status.SCHEDULED, attempt=1, failures=1)) == ["settled"]
    assert await head_of(raised, "due") == b"2 s"
    (again,) = await claim(raised)
    assert [entry.status for entry in again.history] == [
        Status.RUNNING, Status.SCHEDULED, Status.RUNNING, Status.SCHEDULED,
    ]  # fmt: skip
    assert (again.version, again.attempt, again.failures, again.created_ms) == (4, 2, 1, timer.created_ms)
    assert await settle(raised, an_end(again)) == ["settled"]
    await conserved(raised)


async def test_any_other_change_keeps_the_format(raised: Store) -> None:
    before = await read(raised, "later")
    await raised.reschedule(PREFIX, "later", due="+7200000")
    assert await head_of(raised, "later") == b"1 s"
    await raised.cancel(PREFIX, "later")
    assert await head_of(raised, "later") == b"1 x"
    await raised.rearm(PREFIX, "later", cause="retried", due=HOUR)
    await put(raised, "later", due=HOUR, if_exists="replace", spec={"payload": "ä"})
    assert await head_of(raised, "later") == b"1 s"
    after = await read(raised, "later")
    assert (after.spec, after.created_ms, after.version) == (before.spec, before.created_ms, before.version + 4)
    assert await armed(raised, "new", due=HOUR)
    assert await head_of(raised, "new") == b"2 s"
    await conserved(raised)
