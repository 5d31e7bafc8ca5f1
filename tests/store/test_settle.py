"""settle: the only way out of `running`. It compares the token first; a result counts once."""

import pytest

from tests.conservation import state_of
from tests.store.acts import (
    DAY_MS,
    OTHER,
    POD,
    PREFIX,
    an_end,
    arming,
    claim,
    finished,
    lease_ended,
    lease_key,
    read,
    running,
    settle,
    trigger_key,
)
from timers.core.model import Progress, Status
from timers.core.outcome import NOTE_LIMIT_CHARACTERS
from timers.store.store import Store

ENDS = [Status.COMPLETED, Status.FAILED]


@pytest.mark.parametrize("status", ENDS)
async def test_a_run_ends(store: Store, status: Status) -> None:
    timer = await running(store, spec={"payload": 1})
    assert await settle(store, an_end(timer, status, note="it is over")) == ["settled"]
    after = await read(store)
    assert (after.status, after.version, after.token, after.attempt) == (status, 3, timer.token, 1)
    assert (after.spec, after.lease) == ({"payload": 1}, None)
    entry = after.history[0]
    assert (entry.status, entry.attempt, entry.pod, entry.note, entry.lateness_ms) == (
        status, 1, POD, "it is over", None,
    )  # fmt: skip
    state = await state_of(store)
    assert state.finished == {(status, (PREFIX, "a")): after.updated_ms}
    assert (state.held, state.leases, state.due, state.triggers) == ({}, {}, {}, set())
    assert state.counts == {(status, PREFIX): 1}


async def test_a_retry_is_scheduled_again(store: Store) -> None:
    timer = await running(store)
    progress = Progress(last_error={"type": "ValueError", "reason": "no"})
    due_ms = timer.due_ms + 3_600_000
    end = an_end(timer, Status.SCHEDULED, due_ms=due_ms, failures=1, progress=progress)
    assert await settle(store, end) == ["settled"]
    after = await read(store)
    assert (after.status, after.due_ms, after.attempt, after.failures, after.occurrence) == (
        Status.SCHEDULED, due_ms, 1, 1, 1,
    )  # fmt: skip
    assert after.progress == progress
    state = await state_of(store)
    assert (state.due, state.heads, state.leases) == ({(PREFIX, "a"): due_ms}, {PREFIX: due_ms}, {})
    assert await store.connections.commands.pexpiretime(trigger_key(timer)) == due_ms - 1


async def test_a_new_occurrence_brings_its_own_spec(store: Store) -> None:
    timer = await running(store, spec={"payload": 1, "tags": ["x"]})
    end = an_end(timer, Status.SCHEDULED, attempt=0, occurrence=2, spec={"payload": 2}, due_ms=timer.due_ms)
    assert await settle(store, end) == ["settled"]
    (again,) = await claim(store)
    assert (again.occurrence, again.attempt, again.spec) == (2, 1, {"payload": 2})
    assert again.token > timer.token


@pytest.mark.parametrize("status", [*ENDS, Status.SCHEDULED])
async def test_a_claimed_attempt_that_never_started_is_counted_nowhere(store: Store, status: Status) -> None:
    timer = await running(store)
    await settle(store, an_end(timer, status, attempt=0))
    after = await read(store)
    assert (after.attempt, after.history[0].attempt) == (0, 0)


async def test_the_attempt_of_an_entry_is_that_of_the_run(store: Store) -> None:
    timer = await running(store)
    await settle(store, an_end(timer, Status.SCHEDULED, attempt=0, occurrence=2, due_ms=timer.due_ms + 3_600_000))
    assert [entry.attempt for entry in (await read(store)).history] == [1, 1, 0]


async def test_a_result_that_is_sent_twice_counts_once(store: Store) -> None:
    """Because the first answer may have been lost."""
    timer = await running(store)
    end = an_end(timer)
    assert await settle(store, end) == ["settled"]
    before = await read(store)
    assert await settle(store, end) == ["already"]
    assert await settle(store, an_end(timer, Status.FAILED)) == ["already"]
    assert await read(store) == before


async def test_a_retry_that_is_sent_twice_is_scheduled_once(store: Store) -> None:
    timer = await running(store)
    end = an_end(timer, Status.SCHEDULED, due_ms=timer.due_ms + 3_600_000)
    assert await settle(store, end) == ["settled"]
    assert await settle(store, end) == ["already"]
    assert (await state_of(store)).counts[Status.SCHEDULED, PREFIX] == 1


async def test_a_result_under_an_old_token_is_refused(store: Store) -> None:
    late = await running(store, lease_ms=1)
    await lease_ended(store, late)
    (rescued,) = (await store.rescue(0, [(PREFIX, "a")], pod=OTHER, lease_ms=30_000)).timers
    assert await settle(store, an_end(late)) == ["fenced"]
    assert (await read(store)).status is Status.RUNNING
    assert await settle(store, an_end(rescued), pod=OTHER) == ["settled"]
    assert await settle(store, an_end(late)) == ["fenced"]


async def test_a_late_pod_of_the_last_occurrence_cannot_settle_this_one(store: Store) -> None:
    late = await running(store)
    await settle(store, an_end(late, Status.SCHEDULED, attempt=0, occurrence=2, due_ms=late.due_ms))
    (today,) = await claim(store)
    assert await settle(store, an_end(late)) == ["fenced"]
    assert await settle(store, an_end(today)) == ["settled"]


async def test_a_late_pod_cannot_settle_a_timer_that_was_purged_and_created_again(store: Store) -> None:
    late = await running(store)
    await settle(store, an_end(late), retention_ms=0)
    anew = await running(store)
    assert anew.token > late.token
    assert await settle(store, an_end(late, Status.FAILED)) == ["fenced"]
    assert await settle(store, an_end(anew)) == ["settled"]


async def test_a_run_whose_lease_has_expired_may_still_end_if_nobody_took_over(store: Store) -> None:
    timer = await running(store, lease_ms=1)
    await lease_ended(store, timer)
    assert await settle(store, an_end(timer)) == ["settled"]


@pytest.mark.parametrize("status", ENDS)
async def test_retention_0_leaves_nothing(store: Store, status: Status) -> None:
    timer = await running(store)
    assert await settle(store, an_end(timer, status), retention_ms=0) == ["settled"]
    assert await store.get([(PREFIX, "a")]) == [None]
    assert await settle(store, an_end(timer, status), retention_ms=0) == ["missing"]
    left = {b"timers:meta", b"timers:{0}:epoch", b"timers:{0}:token"}
    assert set(await store.connections.commands.keys("*")) == left


async def test_retention_0_keeps_a_timer_that_is_scheduled_again(store: Store) -> None:
    timer = await running(store)
    end = an_end(timer, Status.SCHEDULED, due_ms=timer.due_ms + DAY_MS)
    assert await settle(store, end, retention_ms=0) == ["settled"]
    assert (await read(store)).status is Status.SCHEDULED


async def test_a_batch_answers_in_its_order(store: Store) -> None:
    await store.arm([arming(timer_id) for timer_id in "abcd"])
    a, b, c, d = await claim(store)
    await settle(store, an_end(b))
    await settle(store, an_end(d), retention_ms=0)
    answers = await settle(store, an_end(a), an_end(b), an_end(c, Status.SCHEDULED, due_ms=c.due_ms), an_end(d))
    assert answers == ["settled", "already", "settled", "missing"]
    assert [timer.id for timer in await claim(store)] == ["c"]


async def test_five_hundred_ends_in_one_batch(store: Store) -> None:
    await store.arm([arming(str(i)) for i in range(500)])
    timers = await claim(store, 500)
    assert await settle(store, *map(an_end, timers)) == ["settled"] * 500


async def test_the_lease_of_a_refused_result_stays(store: Store) -> None:
    late = await running(store, lease_ms=1)
    await lease_ended(store, late)
    await store.rescue(0, [(PREFIX, "a")], pod=OTHER, lease_ms=30_000)
    await settle(store, an_end(late))
    assert await store.connections.commands.exists(lease_key(late))


async def test_the_processors_words_cannot_break_a_record(store: Store) -> None:
    """Line breaks, control characters, and lone surrogates, which UTF-8 cannot encode."""
    timer = await running(store)
    said = "a\nb\r\x00c \udcff\u2028" + "x" * 5000
    progress = Progress(last_error={"type": "E", "reason": said, "detail": said})
    assert await settle(store, an_end(timer, Status.FAILED, note=said, progress=progress)) == ["settled"]
    after = await read(store)
    assert after.history[0].note.startswith("a b c")
    assert len(after.history[0].note) == NOTE_LIMIT_CHARACTERS
    assert after.last_error is not None
    assert after.last_error["reason"].startswith("a\nb\r\x00c ?")


async def test_a_finished_timer_can_be_read_by_its_last_error(store: Store) -> None:
    await finished(store, status=Status.FAILED, spec={"payload": "x"})
    assert (await read(store)).payload == "x"
