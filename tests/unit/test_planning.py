"""When a new timer becomes due, at the limits of what is accepted, and what its id is if the caller gives none."""

import pytest
import time_machine

from timers.client.planning import plan
from timers.core.durations import MAX_MS
from timers.core.fields import check_id
from timers.core.spec import NewTimer
from timers.errors import InvalidInput
from timers.ids import new_id

NOW_MS = 1_795_000_000_000  # 2026-11-18: the next ten years have three leap days


@pytest.mark.parametrize("fraction", [0.0, 0.4, 0.6])
@pytest.mark.parametrize("delay", ["P10Y", MAX_MS // 1000])
def test_the_longest_delay_is_accepted_in_every_part_of_a_millisecond(delay: str | int, fraction: float) -> None:
    due = plan(NewTimer(prefix="note", delay=delay), NOW_MS + fraction).due
    assert due in (f"@{round(NOW_MS + fraction) + MAX_MS}", f"+{MAX_MS}")


@pytest.mark.parametrize("fraction", [0.0, 0.4, 0.6])
def test_a_time_one_millisecond_beyond_the_longest_delay_is_refused(fraction: float) -> None:
    with pytest.raises(InvalidInput, match="at most 10 years ahead"):
        plan(NewTimer(prefix="note", due_at=round(NOW_MS + fraction) + MAX_MS + 1), NOW_MS + fraction)


def test_ids_of_the_service_sort_as_they_were_made_and_never_repeat() -> None:
    """Those of one millisecond had no order, such as those of one batch."""
    ids: list[str] = []
    for year in (2026, 2027, 2100, 3000):
        with time_machine.travel(f"{year}-01-01T00:00:00Z", tick=False) as clock:
            for step in (0.001, -0.002, 0.001):
                ids += [new_id() for _ in range(100)]
                clock.shift(step)
    assert ids == sorted(set(ids))
    assert {len(check_id(id)) for id in ids} == {22}


def test_ids_follow_a_clock_that_was_put_back_far() -> None:
    with time_machine.travel("2100-01-01T00:00:00Z", tick=False):
        later = new_id()
    with time_machine.travel("2050-01-01T00:00:00Z", tick=False):
        assert new_id() < later
