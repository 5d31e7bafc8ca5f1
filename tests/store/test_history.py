"""History: every transition, at most the newest fifty, with a marker in place of older ones."""

from tests.store.acts import POD, PREFIX, an_end, armed, claim, read, running, settle
from timers.core.model import Status
from timers.core.shapes import HISTORY_LIMIT
from timers.store.store import Store


async def test_it_records_the_life_of_a_timer(store: Store) -> None:
    timer = await running(store)
    await settle(store, an_end(timer, Status.SCHEDULED, due_ms=timer.due_ms, failures=1, note="will retry"))
    (again,) = await claim(store)
    await settle(store, an_end(again, note="completed"))
    await armed(store, if_exists="replace", due="+3600000", cause="replaced")
    await store.cancel(PREFIX, "a")
    found = [(entry.status, entry.attempt, entry.pod, entry.note) for entry in reversed((await read(store)).history)]
    assert found == [
        (Status.SCHEDULED, 0, None, "created"),
        (Status.RUNNING, 1, POD, "sweep"),
        (Status.SCHEDULED, 1, POD, "will retry"),
        (Status.RUNNING, 2, POD, "sweep"),
        (Status.COMPLETED, 2, POD, "completed"),
        (Status.SCHEDULED, 0, None, "replaced"),
        (Status.CANCELLED, 0, None, "cancelled"),
    ]


async def changed(store: Store, times: int) -> list[str]:
    for number in range(times):
        await store.reschedule(PREFIX, "a", spec={"payload": number}, cause=f"change {number}")
    return [entry.note for entry in reversed((await read(store)).history)]


async def test_fifty_entries_are_kept_whole(store: Store) -> None:
    await armed(store, due="+3600000")
    assert await changed(store, 49) == ["created", *(f"change {i}" for i in range(49))]


async def test_a_marker_counts_the_entries_dropped_beyond_fifty(store: Store) -> None:
    await armed(store, due="+3600000")
    notes = await changed(store, 50)
    assert notes == ["2 older entries dropped", *(f"change {i}" for i in range(1, 50))]
    assert len(notes) == HISTORY_LIMIT
    notes = await changed(store, 30)
    assert notes[0] == "32 older entries dropped"
    assert notes[1:] == [*(f"change {i}" for i in range(31, 50)), *(f"change {i}" for i in range(30))]
    timer = await read(store)
    assert (timer.version, timer.payload) == (81, 29)


async def test_the_marker_stands_at_the_creation(store: Store) -> None:
    created = await armed(store, due="+3600000")
    await changed(store, 60)
    timer = await read(store)
    assert timer.created_ms == created.created_ms == timer.history[-1].at_ms
    assert timer.updated_ms == timer.history[0].at_ms
    assert len(timer.history) == HISTORY_LIMIT


async def test_the_newest_entry_of_the_history_comes_first_and_the_creation_last(store: Store) -> None:
    """Stored it is the other way round, so that a change is written behind what is there."""
    await armed(store, due="+3600000")
    await store.reschedule(PREFIX, "a", due="+7200000", cause="rescheduled")
    timer = (await store.cancel(PREFIX, "a")).timer
    assert timer is not None
    assert [entry["note"] for entry in timer.to_json()["history"]] == ["cancelled", "rescheduled", "created"]
    assert [entry.note for entry in timer.history] == ["cancelled", "rescheduled", "created"]
