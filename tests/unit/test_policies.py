"""Policies for retries and repeats."""

from datetime import UTC, datetime

import pytest

from tests.unit.samples import at
from timers.core.durations import DAY_MS
from timers.core.policies import Repeat, RetryPolicy


class TestRetryPolicy:
    def test_defaults(self) -> None:
        assert RetryPolicy().to_json() == {
            "max_attempts": 5,
            "backoff": "exponential",
            "base": "1s",
            "cap": "1h",
            "jitter": True,
        }

    def test_a_ladder_in_milliseconds_and_as_json(self) -> None:
        policy = RetryPolicy.parse({"backoff": ["5s", 30, "2d"]})
        assert policy.ladder_ms == (5_000, 30_000, 2 * DAY_MS)
        assert policy.to_json() == {"backoff": ["5s", 30, "2d"]}
        assert RetryPolicy().ladder_ms is None

    def test_cannot_be_changed(self) -> None:
        with pytest.raises(ValueError, match="frozen"):
            RetryPolicy().max_attempts = 3  # type: ignore[misc]  # that is what is tested


class TestRepeat:
    def test_until_in_milliseconds_from_text_and_number(self) -> None:
        assert Repeat(every="1d", until="2026-11-21T10:00:00Z").until_ms == at("10:00:00")
        assert Repeat(every="1d", until=at("10:00:00")).until_ms == at("10:00:00")
        assert Repeat(every="1d").until_ms is None

    def test_an_end_time_is_kept_as_whole_milliseconds(self) -> None:
        for until in (float(at("10:00:00")), datetime(2026, 11, 21, 10, tzinfo=UTC)):
            kept = Repeat.parse({"every": "1d", "until": until}).until
            assert (type(kept), kept) == (int, at("10:00:00"))

    def test_shows_what_was_given_with_zone_and_mode(self) -> None:
        assert Repeat(cron="0 9 * * *").to_json() == {"cron": "0 9 * * *", "timezone": "UTC", "mode": "fixed_rate"}
