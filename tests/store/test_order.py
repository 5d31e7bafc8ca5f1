"""Order: by due time, then by arming, even within one millisecond."""

from tests.conservation import state_of
from tests.store.acts import PREFIX, an_end, armed, arming, claim, settle
from timers.core.model import Status
from timers.store.store import Store


async def ids_in_order(store: Store, most: int = 2000) -> list[str]:
    return [timer.id for timer in await claim(store, most)]


async def test_timers_of_one_millisecond_run_in_the_order_of_arming(store: Store) -> None:
    names = ["z", "m", "a", "q", "b", "y"]
    due = f"@{await store.now_ms() - 5}"
    for name in names:
        await armed(store, name, due=due)
    assert await ids_in_order(store) == names


async def test_a_batch_is_armed_in_its_order(store: Store) -> None:
    names = [f"{(i * 7919) % 1000:04}" for i in range(1000)]
    due = f"@{await store.now_ms() - 5}"
    await store.arm([arming(name, due=due) for name in names])
    assert await ids_in_order(store) == names


async def test_beyond_1024_in_one_millisecond_the_rest_is_in_the_order_of_ids(store: Store) -> None:
    due_ms = await store.now_ms() - 5
    names = [f"{(i * 7919) % 1500:04}" for i in range(1500)]
    await store.arm([arming(name, due=f"@{due_ms}") for name in names])
    await armed(store, "next", due=f"@{due_ms + 1}")
    scores = (await state_of(store)).due
    assert all(due_ms <= scores[PREFIX, name] < due_ms + 1 for name in names)
    assert await ids_in_order(store) == [*names[:1023], *sorted(names[1023:]), "next"]


async def test_the_order_holds_far_in_the_future(store: Store) -> None:
    """The score of a time in ten years still has enough bits for the fractions."""
    due_ms = await store.now_ms() + 10 * 366 * 24 * 3_600_000
    for name in ("z", "a", "m"):
        await armed(store, name, due=f"@{due_ms}")
    scores = (await state_of(store)).due
    assert sorted(scores, key=lambda name: scores[name]) == [(PREFIX, "z"), (PREFIX, "a"), (PREFIX, "m")]
    assert {int(score) for score in scores.values()} == {due_ms}


async def test_a_timer_that_comes_back_queues_behind_those_of_the_same_millisecond(store: Store) -> None:
    due_ms = await store.now_ms() - 5
    await store.arm([arming(name, due=f"@{due_ms}") for name in ("c", "b", "a")])
    (first,) = await claim(store, 1)
    await settle(store, an_end(first, Status.SCHEDULED, due_ms=due_ms, note="handed back"))
    assert await ids_in_order(store) == ["b", "a", "c"]


async def test_a_replaced_timer_stands_behind_those_of_the_same_millisecond(store: Store) -> None:
    due = f"@{await store.now_ms() - 5}"
    await store.arm([arming(name, due=due) for name in ("c", "b", "a")])
    await armed(store, "c", due=due, if_exists="replace")
    assert await ids_in_order(store) == ["b", "a", "c"]


async def test_a_handed_back_timer_comes_before_later_ones(store: Store) -> None:
    now_ms = await store.now_ms()
    await store.arm([arming("late", due=f"@{now_ms - 50}"), arming("later", due=f"@{now_ms - 40}")])
    (first,) = await claim(store, 1)
    await settle(store, an_end(first, Status.SCHEDULED, due_ms=first.due_ms, note="handed back"))
    assert await ids_in_order(store) == ["late", "later"]


async def test_the_head_keeps_the_exact_score_of_the_first(store: Store) -> None:
    due_ms = await store.now_ms() + 1_000_000
    await store.arm([arming(name, due=f"@{due_ms}") for name in ("a", "b", "c")])
    await store.cancel(PREFIX, "a")
    state = await state_of(store)
    assert state.heads == {PREFIX: state.due[PREFIX, "b"]} == {PREFIX: due_ms + 1 / 1024}
