"""arm: what it creates, what it does if the timer exists, and that nothing is half done."""

import pytest

from tests.conservation import state_of
from tests.store.acts import (
    PREFIX,
    an_end,
    armed,
    arming,
    cancelled,
    claim,
    finished,
    in_status,
    put,
    read,
    running,
    settle,
    trigger_key,
)
from timers.core.model import Progress, Status
from timers.store import keys
from timers.store.following import LEDGER
from timers.store.store import Store

HOUR_MS = 3_600_000
WISHES = {"payload": {"email": "ä@example.org"}, "tags": ["a", "b"], "metadata": {"k": "v"}}
FINISHED = [Status.COMPLETED, Status.FAILED, Status.UNHANDLED, Status.CANCELLED]


async def test_a_new_timer_is_created(store: Store) -> None:
    before_ms = await store.now_ms()
    answer = await put(store, due="+3600000", spec=WISHES, progress=Progress(slot_ms=5, anchor_ms=6))
    timer = answer.timer
    assert answer.code == "created"
    assert timer is not None
    assert (timer.status, timer.version, timer.token, timer.attempt, timer.failures, timer.occurrence) == (
        Status.SCHEDULED, 1, 0, 0, 0, 1,
    )  # fmt: skip
    assert before_ms <= timer.created_ms == timer.updated_ms == timer.due_ms - HOUR_MS <= await store.now_ms()
    assert timer.spec == WISHES
    assert timer.progress == Progress(slot_ms=5, anchor_ms=6)
    assert timer.lease is None
    assert [(entry.status, entry.note, entry.at_ms) for entry in timer.history] == [
        (Status.SCHEDULED, "created", timer.created_ms)
    ]
    assert await read(store) == timer


@pytest.mark.parametrize("has_ledger", [False, True])
@pytest.mark.parametrize("ids", ["a", "abcdabe"])
async def test_the_long_way_leaves_what_the_short_way_leaves(store: Store, ids: str, *, has_ledger: bool) -> None:
    """Of new timers, of which some are due in the same millisecond, some names are taken, some queues alternate, and a
    ledger may have some."""
    due_ms, left, redis = await store.now_ms() + HOUR_MS, [], store.connections.commands
    armings = [arming(i, prefix=f"{PREFIX}{n % 3 // 2}", due=f"@{due_ms + n // 4}") for n, i in enumerate(ids)]
    if has_ledger:
        armings = [a._replace(created_ms=due_ms - HOUR_MS) if n != 1 else a for n, a in enumerate(armings)]
        await put(store, "z", due=f"@{due_ms}")  # founds the shard
        await redis.hset(f"{keys.root(0)}hooks", LEDGER, "copy 0 -")
    for room in (None, len(ids)):  # with a quota every timer goes the long way
        await put(store, "c", prefix=f"{PREFIX}1", due=f"@{due_ms}")
        codes = [reply.code for reply in await store.arm(armings, room=room)]
        state = await state_of(store)
        records = {name: timer._replace(created_ms=0, updated_ms=0) for name, timer in state.records.items()}
        histories = {name: [(e.status, e.note) for e in timer.history] for name, timer in records.items()}
        assert {timer.created_ms for timer in state.records.values()} <= {*range(due_ms - HOUR_MS, state.now_ms + 1)}
        plain = {name: timer._replace(history=()) for name, timer in records.items()}
        noted = set(map(str, await redis.hkeys(f"{keys.root(0)}changed")))
        left.append(
            (codes, plain, histories, state.due, state.heads, state.triggers, state.counts, state.prefixes, noted)
        )
        await redis.delete(f"{keys.root(0)}changed")
        for one in (arming("c", prefix=f"{PREFIX}1"), *armings):
            await store.cancel(one.prefix, one.id, purge=True)
        await redis.delete(f"{keys.root(0)}changed")
    assert left[0] == left[1]
    assert (left[0][-1] != set()) == has_ledger


async def test_an_absolute_due_time_is_kept_to_the_millisecond(store: Store) -> None:
    due_ms = await store.now_ms() + 123_456_789
    assert (await armed(store, due=f"@{due_ms}")).due_ms == due_ms
    state = await state_of(store)
    assert state.due == {(PREFIX, "a"): due_ms}
    assert state.heads == {PREFIX: due_ms}
    assert state.triggers == {(PREFIX, "a")}
    assert state.counts == {(Status.SCHEDULED, PREFIX): 1}


async def test_the_trigger_key_expires_at_the_due_time_and_holds_a_small_number(store: Store) -> None:
    timer = await armed(store, due="+3600000")
    redis = store.connections.commands
    assert await redis.pexpiretime(trigger_key(timer)) == timer.due_ms - 1
    assert await redis.get(trigger_key(timer)) == b"1"


async def test_a_due_time_in_the_past_is_due_at_once(store: Store) -> None:
    timer = await armed(store, due="@1000")
    assert timer.due_ms == 1000
    (claimed,) = await claim(store)
    assert claimed.id == timer.id


async def test_a_trigger_never_gets_a_deadline_in_the_past(frozen: Store) -> None:
    """For such a key Redis publishes `del` or nothing at all, depending on the version."""
    now_ms = await frozen.now_ms()
    for timer_id, due in (("past", "@1000"), ("now", "+0"), ("next", "+1")):
        timer = await armed(frozen, timer_id, due=due)
        assert await frozen.connections.commands.pexpiretime(trigger_key(timer)) == now_ms + 1


@pytest.mark.parametrize("status", [Status.SCHEDULED, Status.RUNNING, *FINISHED])
async def test_if_exists_error_changes_nothing(store: Store, status: Status) -> None:
    before = await in_status(store, status)
    answer = await put(store, due="+5", spec={"payload": 2})
    assert answer.code == "exists"
    assert answer.timer is not None
    assert (answer.timer.status, answer.timer.version, answer.timer.spec) == (status, before.version, {})


@pytest.mark.parametrize("status", [Status.SCHEDULED, Status.RUNNING, *FINISHED])
async def test_if_exists_keep_returns_the_existing_timer(store: Store, status: Status) -> None:
    before = await in_status(store, status)
    answer = await put(store, due="+5", spec={"payload": 2}, if_exists="keep")
    assert answer.code == "kept"
    assert answer.timer is not None
    assert (answer.timer.status, answer.timer.version, answer.timer.due_ms) == (status, before.version, before.due_ms)


@pytest.mark.parametrize("status", [Status.SCHEDULED, *FINISHED])
async def test_replace_is_a_new_life(store: Store, status: Status) -> None:
    before = await in_status(store, status)
    answer = await put(store, due="+7200000", spec={"payload": 2}, if_exists="replace", cause="replaced")
    timer = answer.timer
    assert answer.code == "replaced"
    assert timer is not None
    assert (timer.status, timer.attempt, timer.failures, timer.spec) == (Status.SCHEDULED, 0, 0, {"payload": 2})
    assert (timer.version, timer.token) == (before.version + 1, before.token)
    assert timer.history[0].note == "replaced"
    state = await state_of(store)
    assert state.due == {(PREFIX, "a"): timer.due_ms}
    assert state.heads == {PREFIX: timer.due_ms}
    assert state.finished == {}
    assert await store.connections.commands.pexpiretime(trigger_key(timer)) == timer.due_ms - 1


async def test_replace_does_not_touch_a_running_timer(store: Store) -> None:
    timer = await running(store)
    answer = await put(store, if_exists="replace", spec={"payload": 2})
    assert answer.code == "running"
    assert (await read(store)).version == timer.version
    assert await settle(store, an_end(timer)) == ["settled"]


async def test_replace_before_the_first_run_keeps_the_occurrence(store: Store) -> None:
    await armed(store, due="+3600000")
    assert (await armed(store, due="+3600000", if_exists="replace")).occurrence == 1


async def test_replace_after_a_run_is_the_next_occurrence(store: Store) -> None:
    """Otherwise two different runs would have the same idempotency key."""
    await finished(store, status=Status.FAILED)
    assert (await armed(store, if_exists="replace")).occurrence == 2


async def test_replace_after_a_retry_is_the_next_occurrence(store: Store) -> None:
    timer = await running(store)
    await settle(store, an_end(timer, Status.SCHEDULED, due_ms=timer.due_ms + HOUR_MS, failures=1))
    replaced = await armed(store, if_exists="replace")
    assert (replaced.occurrence, replaced.attempt, replaced.failures) == (2, 0, 0)


async def test_the_edit_lock_keeps_a_timer_from_being_replaced(frozen: Store) -> None:
    await armed(frozen, due="+120000")
    (locked,) = await frozen.arm([arming(if_exists="replace", spec={"payload": 2})], edit_lock_ms=120_001)
    assert locked.code == "locked"
    assert (await read(frozen)).spec == {}
    (open_,) = await frozen.arm([arming(if_exists="replace", spec={"payload": 2})], edit_lock_ms=120_000)
    assert open_.code == "replaced"


async def test_the_edit_lock_is_for_scheduled_timers_only(store: Store) -> None:
    await cancelled(store)
    (answer,) = await store.arm([arming(if_exists="replace")], edit_lock_ms=10 * HOUR_MS)
    assert answer.code == "replaced"


async def test_a_batch_answers_in_its_order(store: Store) -> None:
    await armed(store, "there", due="+3600000")
    await cancelled(store, "ended")
    await running(store, "runs")
    answers = await store.arm(
        [
            arming("new", due="+3600000"),
            arming("there", if_exists="error"),
            arming("there", if_exists="keep"),
            arming("runs", if_exists="replace"),
            arming("ended", if_exists="replace", due="+3600000"),
            arming("new", if_exists="keep"),
            arming("new", if_exists="replace", due="+7200000"),
        ]
    )
    assert [answer.code for answer in answers] == [
        "created", "exists", "kept", "running", "replaced", "kept", "replaced",
    ]  # fmt: skip
    assert [answer.timer.id for answer in answers if answer.timer] == [
        "new", "there", "there", "runs", "ended", "new", "new",
    ]  # fmt: skip


async def test_a_batch_of_many_prefixes_keeps_each_queue_apart(store: Store) -> None:
    await store.arm([arming("a", prefix=prefix) for prefix in ("x", "x.y", "x-y")])
    assert [timer.prefix for timer in await claim(store, prefix="x")] == ["x"]
    state = await state_of(store)
    assert set(state.heads) == {"x.y", "x-y"}
    assert state.counts[Status.SCHEDULED, "x.y"] == 1


@pytest.mark.parametrize("timer_id", ["a:b", "A.b_c:d@e~f+g=h-i", "0" * 200])
async def test_ids_with_every_special_character(store: Store, timer_id: str) -> None:
    await armed(store, timer_id)
    (claimed,) = await claim(store)
    assert claimed.id == timer_id
    assert await settle(store, an_end(claimed)) == ["settled"]


async def test_a_payload_of_64_kib_and_control_characters_survive(store: Store) -> None:
    payload = {"text": "\x00\n\r\u2028ä😀" * 5000, "\n": [None, 1.5, -1, 10**30]}
    await armed(store, spec={"payload": payload})
    (claimed,) = await claim(store)
    assert claimed.payload == payload
    await settle(store, an_end(claimed))
    assert (await read(store)).payload == payload
