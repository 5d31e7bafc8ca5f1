"""cancel, purge, reschedule and rearm: what callers may change, and when."""

from collections.abc import Awaitable, Callable

import pytest
import time_machine

from tests.conservation import state_of
from tests.store.acts import (
    PREFIX,
    an_end,
    armed,
    cancelled,
    claim,
    finished,
    in_status,
    read,
    running,
    settle,
    trigger_key,
)
from timers.core.model import Progress, Status
from timers.store.store import Reply, Store

HOUR_MS = 3_600_000
FINISHED = [Status.COMPLETED, Status.FAILED, Status.UNHANDLED]

Change = Callable[..., Awaitable[Reply]]


async def test_a_cancelled_timer_never_runs(store: Store) -> None:
    await armed(store, spec={"payload": 1})
    answer = await store.cancel(PREFIX, "a")
    assert answer.code == "cancelled"
    assert answer.timer is not None
    assert (answer.timer.status, answer.timer.version, answer.timer.payload) == (Status.CANCELLED, 2, 1)
    assert answer.timer.history[0].note == "cancelled"
    assert await claim(store) == []
    state = await state_of(store)
    assert (state.due, state.heads, state.triggers) == ({}, {}, set())
    assert state.finished.keys() == {(Status.CANCELLED, (PREFIX, "a"))}


async def test_cancelling_twice_answers_the_same(store: Store) -> None:
    """Because the first answer may have been lost."""
    first = await cancelled(store)
    again = await store.cancel(PREFIX, "a")
    assert (again.code, again.timer) == ("cancelled", first)


@pytest.mark.parametrize("status", [Status.SCHEDULED, Status.CANCELLED])
async def test_under_retention_0_a_cancelled_timer_is_published_and_gone(store: Store, status: Status) -> None:
    before = await in_status(store, status)
    answer = await store.cancel(PREFIX, "a", keep=False)
    assert answer.code == "cancelled"
    assert answer.timer is not None
    assert (answer.timer.status, answer.timer.payload) == (Status.CANCELLED, before.payload)
    assert await store.get([(PREFIX, "a")]) == [None]
    state = await state_of(store)
    assert (state.due, state.heads, state.triggers, state.finished) == ({}, {}, set(), {})
    assert state.counts == {}
    assert (await store.cancel(PREFIX, "a", keep=False)).code == "missing"


@pytest.mark.parametrize("status", FINISHED)
async def test_other_finished_timers_stay_if_a_cancel_keeps_nothing(store: Store, status: Status) -> None:
    before = await in_status(store, status)
    assert (await store.cancel(PREFIX, "a", keep=False)).code == "finished"
    assert await read(store) == before


async def test_the_head_of_a_queue_moves_on_when_it_is_cancelled(store: Store) -> None:
    await armed(store, "first", due="+1000000")
    second = await armed(store, "second", due="+2000000")
    await store.cancel(PREFIX, "first")
    assert (await state_of(store)).heads == {PREFIX: second.due_ms}
    await store.cancel(PREFIX, "second")
    assert (await state_of(store)).heads == {}


@pytest.mark.parametrize("status", FINISHED)
async def test_a_finished_timer_cannot_be_cancelled(store: Store, status: Status) -> None:
    before = await in_status(store, status)
    answer = await store.cancel(PREFIX, "a")
    assert answer.code == "finished"
    assert answer.timer is not None
    assert (answer.timer.status, answer.timer.version) == (status, before.version)


@pytest.mark.parametrize("status", [Status.SCHEDULED, Status.CANCELLED, *FINISHED])
async def test_a_purge_leaves_nothing_of_it(store: Store, status: Status) -> None:
    await in_status(store, status)
    answer = await store.cancel(PREFIX, "a", purge=True)
    assert answer.code == "purged"
    assert answer.timer is not None
    assert answer.timer.status is (Status.CANCELLED if status is Status.SCHEDULED else status)
    assert await store.get([(PREFIX, "a")]) == [None]
    state = await state_of(store)
    assert (state.due, state.heads, state.triggers, state.finished) == ({}, {}, set(), {})
    assert state.counts == {}
    assert (await store.cancel(PREFIX, "a", purge=True)).code == "missing"


async def test_a_purge_does_not_touch_another_timer(store: Store) -> None:
    await finished(store, "a")
    await finished(store, "b")
    await store.cancel(PREFIX, "a", purge=True)
    assert (await read(store, "b")).status is Status.COMPLETED


def changes(store: Store) -> dict[str, Change]:
    return {
        "cancel": lambda **guards: store.cancel(PREFIX, "a", **guards),
        "purge": lambda **guards: store.cancel(PREFIX, "a", purge=True, **guards),
        "move": lambda **guards: store.reschedule(PREFIX, "a", due="+5", **guards),
        "edit": lambda **guards: store.reschedule(PREFIX, "a", spec={"payload": 2}, **guards),
    }


ALL = ["cancel", "purge", "move", "edit"]


@pytest.mark.parametrize("name", ALL)
async def test_a_missing_timer_is_missing(store: Store, name: str) -> None:
    assert await changes(store)[name]() == Reply("missing", None)
    assert await changes(store)[name](version=1) == Reply("missing", None)


@pytest.mark.parametrize("name", ALL)
async def test_a_running_timer_is_not_changed(store: Store, name: str) -> None:
    timer = await running(store)
    answer = await changes(store)[name](edit_lock_ms=HOUR_MS)
    assert answer.code == "running"
    assert answer.timer is not None
    assert answer.timer.version == timer.version
    assert await settle(store, an_end(timer)) == ["settled"]


@pytest.mark.parametrize("name", ALL)
async def test_the_edit_lock_begins_before_due(frozen: Store, name: str) -> None:
    await armed(frozen, due="+120000")
    answer = await changes(frozen)[name](edit_lock_ms=120_001)
    assert answer.code == "locked"
    assert (await read(frozen)).version == 1
    assert (await changes(frozen)[name](edit_lock_ms=120_000)).code in ("cancelled", "purged", "changed")


@pytest.mark.parametrize("name", ALL)
async def test_without_an_edit_lock_an_overdue_timer_can_still_be_changed(
    frozen: Store, clock: time_machine.Traveller, name: str
) -> None:
    await armed(frozen)
    clock.shift(60)
    assert (await changes(frozen)[name]()).code in ("cancelled", "purged", "changed")


@pytest.mark.parametrize("name", ALL)
async def test_another_version_is_refused(store: Store, name: str) -> None:
    await armed(store, due="+3600000")
    answer = await changes(store)[name](version=2)
    assert answer.code == "version"
    assert answer.timer is not None
    assert answer.timer.version == 1
    assert (await changes(store)[name](version=1)).code in ("cancelled", "purged", "changed")


@pytest.mark.parametrize("name", ["move", "edit"])
@pytest.mark.parametrize("status", [Status.CANCELLED, *FINISHED])
async def test_a_finished_timer_is_not_rescheduled(store: Store, status: Status, name: str) -> None:
    await in_status(store, status)
    assert (await changes(store)[name]()).code == "finished"


async def test_a_moved_timer_is_due_at_its_new_time_only(store: Store) -> None:
    await armed(store, "a", due="+1000000")
    await armed(store, "b", due="+2000000")
    answer = await store.reschedule(PREFIX, "a", due="+3000000", cause="moved")
    timer = answer.timer
    assert answer.code == "changed"
    assert timer is not None
    assert (timer.version, timer.history[0].note) == (2, "moved")
    state = await state_of(store)
    assert state.due[PREFIX, "a"] == timer.due_ms
    assert state.heads == {PREFIX: state.due[PREFIX, "b"]}
    assert await store.connections.commands.pexpiretime(trigger_key(timer)) == timer.due_ms - 1


async def test_a_timer_moved_to_now_is_due(store: Store) -> None:
    await armed(store, due="+1000000")
    await store.reschedule(PREFIX, "a", due="+0")
    assert len(await claim(store)) == 1


async def test_a_timer_moved_away_from_now_is_not_due(store: Store) -> None:
    await armed(store)
    await store.reschedule(PREFIX, "a", due="+1000000")
    assert await claim(store) == []


async def test_an_edit_keeps_the_due_time_and_what_it_does_not_name(store: Store) -> None:
    progress = Progress(slot_ms=1, anchor_ms=2, step=3, occurrences=4)
    before = await armed(store, due="+1000000", spec={"payload": 1}, progress=progress)
    after = (await store.reschedule(PREFIX, "a", spec={"payload": 2})).timer
    assert after is not None
    assert (after.due_ms, after.spec, after.progress) == (before.due_ms, {"payload": 2}, progress)
    after = (await store.reschedule(PREFIX, "a", progress=Progress(slot_ms=9))).timer
    assert after is not None
    assert (after.spec, after.progress, after.version) == ({"payload": 2}, Progress(slot_ms=9), 3)
    after = (await store.reschedule(PREFIX, "a", progress=Progress())).timer
    assert after is not None
    assert after.progress == Progress()


@pytest.mark.parametrize("status", [Status.FAILED, Status.UNHANDLED, Status.CANCELLED])
async def test_a_revived_timer_is_due_now_with_no_failures_counted(store: Store, status: Status) -> None:
    before = await in_status(store, status)
    answer = await store.rearm(PREFIX, "a", cause="retried")
    timer = answer.timer
    assert answer.code == "changed"
    assert timer is not None
    assert (timer.status, timer.failures, timer.occurrence) == (Status.SCHEDULED, 0, 1)
    assert (timer.attempt, timer.token, timer.version) == (before.attempt, before.token, before.version + 1)
    assert timer.due_ms == timer.updated_ms
    assert (await state_of(store)).finished == {}
    (again,) = await claim(store)
    assert again.attempt == before.attempt + 1


@pytest.mark.parametrize(
    ("status", "code"),
    [(Status.SCHEDULED, "scheduled"), (Status.RUNNING, "running"), (Status.COMPLETED, "completed")],
)
async def test_what_cannot_be_revived(store: Store, status: Status, code: str) -> None:
    before = await in_status(store, status)
    answer = await store.rearm(PREFIX, "a", cause="retried")
    assert answer.code == code
    assert answer.timer is not None
    assert answer.timer.version == before.version


async def test_a_completed_timer_that_is_revived_begins_its_next_occurrence(store: Store) -> None:
    """Its idempotency key must differ from that of the completed run."""
    before = await finished(store)
    due_ms = await store.now_ms() + 60_000
    answer = await store.rearm(PREFIX, "a", due=f"@{due_ms}", completed=True, cause="replayed")
    timer = answer.timer
    assert answer.code == "changed"
    assert timer is not None
    assert (timer.status, timer.due_ms, timer.history[0].note) == (Status.SCHEDULED, due_ms, "replayed")
    assert (timer.occurrence, timer.attempt, timer.token) == (before.occurrence + 1, 0, before.token)
    assert await claim(store) == []


async def test_a_timer_that_has_changed_since_is_not_revived(store: Store) -> None:
    before = await finished(store, status=Status.FAILED)
    again = await store.rearm(PREFIX, "a", version=before.version - 1, cause="replayed")
    assert again.code == "version"
    assert await read(store, "a") == before
    assert (await store.rearm(PREFIX, "a", version=before.version, cause="replayed")).code == "changed"


async def test_a_missing_timer_cannot_be_revived(store: Store) -> None:
    assert await store.rearm(PREFIX, "a", cause="-") == Reply("missing", None)


async def test_timers_that_nobody_serves_end_as_unhandled(store: Store) -> None:
    now_ms = await store.now_ms()
    for timer_id, due in (("a", f"@{now_ms - 300}"), ("b", f"@{now_ms - 200}"), ("c", f"@{now_ms - 100}")):
        await armed(store, timer_id, due=due)
    later = await armed(store, "later", due="+3600000")
    assert await store.abandon(0, PREFIX, [], before_ms=now_ms, most=2, pod="pod-1") == ["a", "b"]
    assert await store.abandon(0, PREFIX, [], before_ms=now_ms - 100, most=2, pod="pod-1") == []
    assert await store.abandon(0, PREFIX, [], before_ms=now_ms - 99, most=2, pod="pod-1") == ["c"]
    timer = await read(store)
    assert (timer.status, timer.attempt) == (Status.UNHANDLED, 0)
    assert timer.history[0].note == "no live pod serves the prefix"
    state = await state_of(store)
    assert (state.heads, state.triggers) == ({PREFIX: later.due_ms}, {(PREFIX, "later")})
    assert state.counts[Status.UNHANDLED, PREFIX] == 3
