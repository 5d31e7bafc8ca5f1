"""What may be changed of a timer, and the result."""

from typing import Any

import pytest

from tests.unit.test_spec import LEAST, complaints
from timers.core.spec import NewTimer, TimerChange

WITH_ALL: dict[str, Any] = {
    "payload": 1,
    "repeat": {"every": "1d"},
    "retry": {"max_attempts": 2},
    "missed": "latest",
    "timeout": "5s",
    "tags": ["a"],
    "metadata": {"k": "v"},
}
CURRENT: dict[str, Any] = {"payload": 1, "tags": ["a"], "missed": "skip", "timeout": "5s"}


class TestChange:
    def test_changes_only_what_is_given(self) -> None:
        change = TimerChange.parse({"payload": 2})
        assert change.changed_spec(CURRENT) == {**CURRENT, "payload": 2}
        assert not change.moves_due

    def test_null_and_empty_take_a_field_away(self) -> None:
        change = TimerChange.parse({"payload": None, "tags": []})
        assert change.changed_spec(CURRENT) == {"missed": "skip", "timeout": "5s"}
        nothing = TimerChange.parse(dict.fromkeys(("payload", "repeat", "retry", "tags", "metadata")))
        current = NewTimer.parse({**LEAST, **WITH_ALL}).spec()
        assert set(current) == {*WITH_ALL}
        assert nothing.changed_spec(current) == {"timeout": "5s"}

    @pytest.mark.parametrize("missed", ["latest", "all"])
    def test_without_repeat_nothing_is_missed_but_one_run(self, missed: str) -> None:
        """A change must not make a timer that could not be created."""
        current = NewTimer.parse({**LEAST, "missed": missed, "repeat": {"every": "1d"}}).spec()
        assert TimerChange.parse({"repeat": None}).changed_spec(current) == {}
        assert TimerChange.parse({"repeat": {"every": "2d"}}).changed_spec(current)["missed"] == missed
        kept = {**current, "missed": "skip"}
        assert TimerChange.parse({"repeat": None}).changed_spec(kept) == {"missed": "skip"}

    def test_of_nothing_changes_nothing(self) -> None:
        assert TimerChange.parse({}).changed_spec(CURRENT) == CURRENT

    @pytest.mark.parametrize("due", [{"delay": "1h"}, {"due_at": 5}])
    def test_moves_the_due_time(self, due: dict[str, Any]) -> None:
        assert TimerChange.parse(due).moves_due

    @pytest.mark.parametrize("given", [{"delay": "1h"}, {"due_at": 5}, {"retry": {"backoff": ["1m"]}}, {"retry": None}])
    def test_of_due_time_or_retry_makes_the_ladder_start_at_its_first_step(self, given: dict[str, Any]) -> None:
        """The timer then has a due time of its own. Otherwise it would skip the first step's wait and its try."""
        current = NewTimer.parse({"prefix": "a", "retry": {"backoff": ["5s"]}}).spec()
        assert "ladder_first" not in TimerChange.parse(given).changed_spec(current)
        assert "ladder_first" in TimerChange.parse({"payload": 1}).changed_spec(current)

    @pytest.mark.parametrize(
        ("given", "field"),
        [
            ({"delay": "1h", "due_at": 5}, "delay"),
            ({"payload": float("nan")}, "payload"),
            ({"retry": {"backoff": ["5s", "x"]}}, "retry.backoff.1"),
            ({"repeat": {"cron": "x"}}, "repeat.cron"),
            ({"delay": None}, "delay"),
            ({"due_at": None}, "due_at"),
            ({"delay": "1h", "due_at": None}, "due_at"),
            ({"tags": [None]}, "tags.0"),
            ({"metadata": {"k": None}}, "metadata.k"),
            ({"prefix": "b"}, "prefix"),
            ({"missed": "skip"}, "missed"),
            ({"if_exists": "keep"}, "if_exists"),
        ],
    )
    def test_refuses_what_a_new_timer_refuses_and_what_cannot_change(self, given: dict[str, Any], field: str) -> None:
        ((found, _, _),) = complaints(given, TimerChange)
        assert found == field
