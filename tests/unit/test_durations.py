"""Tables of durations and times, in every form that is accepted or refused."""

import math
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from zoneinfo import ZoneInfo

import pytest

from tests.unit.refusals import refusal
from timers.core.durations import (
    DAY_MS,
    DURATION_FORMS,
    INTERVAL_FORMS,
    MAX_MS,
    NAMED_INTERVALS,
    OFFSET_FORMS,
    TIME_FORMS,
    Duration,
    format_time,
    parse_interval,
    parse_ms,
    parse_time,
    to_datetime,
)
from timers.errors import FieldError, InvalidInput, shown


@pytest.mark.parametrize(
    ("given", "expected", "text"),
    [
        ("250ms", Duration(ms=250), "250ms"),
        ("90s", Duration(ms=90_000), "1m30s"),
        ("15m", Duration(ms=900_000), "15m"),
        ("24h", Duration(ms=DAY_MS), "24h"),
        ("7d", Duration(days=7), "7d"),
        ("1w", Duration(days=7), "7d"),
        ("1h30m", Duration(ms=5_400_000), "1h30m"),
        ("1w2d3h4m5s6ms", Duration(days=9, ms=11_045_006), "9d3h4m5s6ms"),
        ("2d6ms", Duration(days=2, ms=6), "2d6ms"),
        ("1.5h", Duration(ms=5_400_000), "1h30m"),
        ("1h0.5m", Duration(ms=3_630_000), "1h30s"),
        ("1.5d", Duration(days=1, ms=DAY_MS // 2), "1d12h"),
        ("1.5w", Duration(days=10, ms=DAY_MS // 2), "10d12h"),
        ("0.5ms", Duration(ms=1), "1ms"),
        ("0s", Duration(), "0s"),
        (0, Duration(), "0s"),
        (-0.0, Duration(), "0s"),
        (5, Duration(ms=5_000), "5s"),
        (86_400, Duration(ms=DAY_MS), "24h"),
        (1.5, Duration(ms=1_500), "1s500ms"),
        (0.1, Duration(ms=100), "100ms"),
        (0.0010001, Duration(ms=2), "2ms"),
        (5e-324, Duration(ms=1), "1ms"),
        ("90", Duration(ms=90_000), "1m30s"),
        ("0.25", Duration(ms=250), "250ms"),
        ("1.0001", Duration(ms=1_001), "1s1ms"),
        ("PT24H", Duration(ms=DAY_MS), "24h"),
        ("P1D", Duration(days=1), "1d"),
        ("P2W", Duration(days=14), "14d"),
        ("P1M", Duration(months=1), "P1M"),
        ("p1m", Duration(months=1), "P1M"),
        ("PT1M", Duration(ms=60_000), "1m"),
        ("P1Y", Duration(months=12), "P1Y"),
        ("P14M", Duration(months=14), "P1Y2M"),
        ("P1Y2M3DT4H5M6.0071S", Duration(14, 3, 14_706_008), "P1Y2M3DT4H5M6.008S"),
        ("P1MT0.5S", Duration(1, 0, 500), "P1MT0.500S"),
        ("PT1,5S", Duration(ms=1_500), "1s500ms"),
        ("P1.5D", Duration(days=1, ms=DAY_MS // 2), "1d12h"),
        ("P10Y", Duration(months=120), "P10Y"),
        ("3653d", Duration(days=3_653), "3653d"),
        (MAX_MS // 1_000, Duration(ms=MAX_MS), "87672h"),
        (timedelta(days=1), Duration(days=1), "1d"),
        (timedelta(hours=36), Duration(days=1, ms=DAY_MS // 2), "1d12h"),
        (timedelta(microseconds=1), Duration(ms=1), "1ms"),
        (Duration(2, 3, 4), Duration(2, 3, 4), "P2M3DT0.004S"),
    ],
)
def test_a_duration_is_read_and_written(given: object, expected: Duration, text: str) -> None:
    assert Duration.parse(given, "delay") == expected
    assert str(expected) == text
    assert Duration.parse(text) == expected


class Float64(float):
    """As that of NumPy, which is a float with another repr."""

    def __repr__(self) -> str:
        return f"np.float64({float(self)})"

    def __add__(self, other: float) -> "Float64":
        return Float64(float(self) + other)


def test_a_number_of_numpy_is_a_number_of_seconds() -> None:
    assert Duration.parse(Float64(0.1)) == Duration(ms=100)


REFUSED_DURATIONS: list[object] = [
    *(True, False, None, [], {}, b"1s", Decimal(1), date(2026, 1, 1), datetime(2026, 1, 1, tzinfo=UTC)),
    *(-1, -0.0001, math.nan, math.inf, -math.inf, 1e308, 10**400, MAX_MS // 1_000 + 1),
    *("", " ", " 1s", "1s ", "1s\n", "1 s", "1h 30m", "soon", "s", "d1", "1x", "1H", "1M", "1D", "24H", "1mo", "1y"),
    *("-1s", "+1s", "1e3", "1_000", "0x10", "٣s", "1.s", ".5s", "1,5s", "1.5.5s", "nan", "inf"),
    *("1h30", "30m1h", "1s1s", "1.5h30m", "1d1w"),
    *("P", "PT", "P1DT", "P1", "1P", "P1S", "PT1D", "P1D1M", "P-1D", "-P1D", "+P1D", "P1.5M", "P0.5Y", "P1.5DT1H"),
    *("P1H", "PT1H1H", "PT.5S", "P1M ", "P 1M"),
    *("11y", "P11Y", "P10Y1D", "P121M", "3654d", "999999999h", "9" * 64, "9" * 65, "1" * 1_000_000 + "s"),
    *(timedelta(-1), timedelta(microseconds=-1), timedelta.max, Duration(ms=-1), Duration(days=-1), Duration(121)),
]


@pytest.mark.parametrize("given", REFUSED_DURATIONS, ids=shown)
def test_an_invalid_duration_is_refused_by_name(given: object) -> None:
    expected = FieldError("delay", shown(given), DURATION_FORMS)
    assert refusal(lambda: Duration.parse(given, "delay")) == expected


def test_without_a_date_a_day_has_24_hours_a_month_30_days_and_a_year_365() -> None:
    assert Duration(days=2, ms=3).exact_ms == 2 * DAY_MS + 3
    assert Duration(months=1).exact_ms == parse_ms("P1M") == 30 * DAY_MS
    assert Duration(months=14, days=1).exact_ms == (365 + 60 + 1) * DAY_MS
    assert parse_ms("P10Y") == 3650 * DAY_MS


def test_only_an_empty_duration_is_zero() -> None:
    assert Duration().is_zero
    assert not any(d.is_zero for d in (Duration(months=1), Duration(days=1), Duration(ms=1)))


@pytest.mark.parametrize(
    ("start", "length", "zone", "expected"),
    [
        ("2026-01-31T12:00:00Z", "P1M", "UTC", "2026-02-28T12:00:00.000Z"),
        ("2028-01-31T12:00:00Z", "P1M", "UTC", "2028-02-29T12:00:00.000Z"),
        ("2028-02-29T12:00:00Z", "P1Y", "UTC", "2029-02-28T12:00:00.000Z"),
        ("2026-01-30T12:00:00Z", "P1M1D", "UTC", "2026-03-01T12:00:00.000Z"),
        ("2026-12-31T23:59:59.999Z", "P2M", "UTC", "2027-02-28T23:59:59.999Z"),
        # A day keeps the wall-clock time, 24 hours do not.
        ("2026-03-28T09:00:00+01:00", "1d", "Europe/Berlin", "2026-03-29T07:00:00.000Z"),
        ("2026-03-28T09:00:00+01:00", "24h", "Europe/Berlin", "2026-03-29T08:00:00.000Z"),
        ("2026-10-24T09:00:00+02:00", "1d", "Europe/Berlin", "2026-10-25T08:00:00.000Z"),
        ("2026-10-24T09:00:00+02:00", "24h", "Europe/Berlin", "2026-10-25T07:00:00.000Z"),
        # If 02:30 is skipped, it is 03:30. If 02:30 comes twice, it is the first.
        ("2026-03-28T02:30:00+01:00", "1d", "Europe/Berlin", "2026-03-29T01:30:00.000Z"),
        ("2026-10-24T02:30:00+02:00", "1d", "Europe/Berlin", "2026-10-25T00:30:00.000Z"),
        ("2026-01-25T02:30:00+01:00", "P9M", "Europe/Berlin", "2026-10-25T00:30:00.000Z"),
        # From the second 02:30: without a calendar part it stays the second.
        ("2026-10-25T02:30:00+01:00", "1d", "Europe/Berlin", "2026-10-26T01:30:00.000Z"),
        ("2026-10-25T02:30:00+01:00", "1ms", "Europe/Berlin", "2026-10-25T01:30:00.001Z"),
        # First the calendar month, then the exact hour: after the change the clock shows 04:30.
        ("2026-02-28T01:30:00+01:00", "P1M1DT1H", "Europe/Berlin", "2026-03-29T01:30:00.000Z"),
        # Samoa skipped a whole day.
        ("2011-12-29T09:00:00-10:00", "1d", "Pacific/Apia", "2011-12-30T19:00:00.000Z"),
    ],
)
def test_adding_follows_the_calendar_of_the_zone(start: str, length: str, zone: str, expected: str) -> None:
    assert format_time(Duration.parse(length).add_to(parse_time(start), zone)) == expected


def test_repeats_add_a_multiple_so_that_the_31st_comes_back() -> None:
    start, month = parse_time("2026-01-31T12:00:00Z"), Duration(months=1)
    assert [format_time((month * n).add_to(start))[:10] for n in range(4)] == [
        *("2026-01-31", "2026-02-28", "2026-03-31", "2026-04-30")
    ]
    assert Duration(1, 2, 3) * 4 == Duration(4, 8, 12)


def test_milliseconds_are_exact_and_bounded() -> None:
    assert parse_ms("1d") == DAY_MS
    assert parse_ms(0) == 0
    assert parse_ms("10s", minimum=10_000) == 10_000
    assert refusal(lambda: parse_ms("x", "lease")) == FieldError("lease", "'x'", DURATION_FORMS)
    bounds = "a duration from 1s to 3653d"
    for given in ("999ms", 0, 0.5):
        error = refusal(lambda given=given: parse_ms(given, "lease", minimum=1_000))  # type: ignore[misc]
        assert error == FieldError("lease", repr(given), bounds)


def test_an_interval_has_a_name_or_a_length_above_zero() -> None:
    assert {name: str(parse_interval(name)) for name in NAMED_INTERVALS} == {
        "TEN_MINS": "10m",
        "HOURLY": "1h",
        "DAILY": "1d",
        "WEEKLY": "7d",
        "MONTHLY": "P1M",
    }
    assert parse_interval("P1Y") == Duration(months=12)
    for given in (0, "0s", "PT0S", "daily", "YEARLY", "P11Y", -1, None, True):
        error = refusal(lambda given=given: parse_interval(given, "every"))  # type: ignore[misc]
        assert error == FieldError("every", shown(given), INTERVAL_FORMS)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("2026-11-21T20:00:00Z", "2026-11-21T20:00:00.000Z"),
        ("2026-11-21t20:00:00z", "2026-11-21T20:00:00.000Z"),
        ("2026-11-21 21:00:00+01:00", "2026-11-21T20:00:00.000Z"),
        ("2026-11-21T14:15:00-05:45", "2026-11-21T20:00:00.000Z"),
        ("2026-11-21T20:00:00-00:00", "2026-11-21T20:00:00.000Z"),
        ("2026-11-21T20:00:00.5Z", "2026-11-21T20:00:00.500Z"),
        ("2026-11-21T20:00:00.123000000000000000Z", "2026-11-21T20:00:00.123Z"),
        ("2026-11-21T20:00:00.123000000000000001Z", "2026-11-21T20:00:00.124Z"),
        ("2026-12-31T23:59:59.9991Z", "2027-01-01T00:00:00.000Z"),
        ("2016-12-31T23:59:60Z", "2017-01-01T00:00:00.000Z"),
        ("2017-01-01T00:59:60.25+01:00", "2017-01-01T00:00:00.250Z"),
        ("2028-02-29T00:00:00Z", "2028-02-29T00:00:00.000Z"),
        ("1970-01-01T00:00:00Z", "1970-01-01T00:00:00.000Z"),
        ("1969-12-31T23:00:00-01:00", "1970-01-01T00:00:00.000Z"),
        ("2200-12-31T23:59:59.999Z", "2200-12-31T23:59:59.999Z"),
        (0, "1970-01-01T00:00:00.000Z"),
        (1_795_291_200_123, "2026-11-21T20:00:00.123Z"),
        (1_795_291_200_123.0, "2026-11-21T20:00:00.123Z"),
        ("1795291200123", "2026-11-21T20:00:00.123Z"),
        (datetime(2026, 11, 21, 20, tzinfo=UTC), "2026-11-21T20:00:00.000Z"),
        (datetime(2026, 11, 21, 20, 0, 0, 1, tzinfo=UTC), "2026-11-21T20:00:00.001Z"),
        (datetime(2026, 11, 21, 20, 0, 0, 1_000, tzinfo=UTC), "2026-11-21T20:00:00.001Z"),
        (datetime(2026, 11, 21, 21, tzinfo=timezone(timedelta(hours=1))), "2026-11-21T20:00:00.000Z"),
        (datetime(2026, 10, 25, 2, 30, fold=1, tzinfo=ZoneInfo("Europe/Berlin")), "2026-10-25T01:30:00.000Z"),
    ],
)
def test_a_time_is_read_and_written(given: object, expected: str) -> None:
    at_ms = parse_time(given, "due_at")
    assert format_time(at_ms) == expected
    assert to_datetime(at_ms) == datetime.fromisoformat(expected)


REFUSED_TIMES: list[object] = [
    *(True, False, None, [], {}, b"0", date(2026, 1, 1), timedelta(1), Decimal(0)),
    *(-1, 7_289_654_400_000, 10**400, 0.5, -1.0, math.nan, math.inf, 1e308, "-1", "+1", "1e3", "1.0", "٣", "9" * 65),
    *("", " ", "now", "2026-11-21", "20:00:00Z", "2026-11-21T20:00Z", "2026-11-21T20Z", "20261121T200000Z"),
    *("2026-11-21_20:00:00Z", "2026-11-21T20:00:00 Z", " 2026-11-21T20:00:00Z", "2026-11-21T20:00:00Z\n"),
    *("2026-11-21T20:00:00.Z", "2026-11-21T20:00:00,5Z", "2026-11-21T20:00:00+0100", "2026-11-21T20:00:00+01"),
    *("2026-11-21T20:00:00+24:00", "2026-11-21T20:00:00+01:60", "2026-11-21T20:00:00\N{MINUS SIGN}01:00"),
    *("2026-02-29T00:00:00Z", "2026-13-01T00:00:00Z", "2026-00-01T00:00:00Z", "2026-11-31T00:00:00Z"),
    *("2026-11-21T24:00:00Z", "2026-11-21T20:60:00Z", "2026-11-21T20:00:61Z", "0000-01-01T00:00:00Z"),
    *("2026-11-21T20:00:60Z", "2016-12-31T23:59:60+01:00", "1969-12-31T23:59:59.999Z", "0001-01-01T00:00:00+23:59"),
    *("2201-01-01T00:00:00Z", "2200-12-31T23:59:59.9991Z", "9999-12-31T23:59:59-23:59", "2026-11-21T20:00:00Z" * 9),
    *(datetime.max.replace(tzinfo=timezone(-timedelta(hours=23))), datetime(1, 1, 1, tzinfo=UTC)),
]


@pytest.mark.parametrize("given", REFUSED_TIMES, ids=shown)
def test_an_invalid_time_is_refused_by_name(given: object) -> None:
    expected = FieldError("due_at", shown(given), TIME_FORMS)
    assert refusal(lambda: parse_time(given, "due_at")) == expected


@pytest.mark.parametrize(
    "given",
    ["2026-11-21T20:00:00", "2026-11-21 20:00:00.123", datetime(2026, 11, 21, 20)],  # noqa: DTZ001 - that is the point
)
def test_a_time_without_an_offset_is_explained(given: object) -> None:
    expected = FieldError("due_at", shown(given), OFFSET_FORMS)
    assert refusal(lambda: parse_time(given, "due_at")) == expected


def test_the_whole_sentence_of_an_error() -> None:
    with pytest.raises(InvalidInput) as caught:
        Duration.parse("1 fortnight", "delay")
    assert str(caught.value) == (
        "delay: '1 fortnight' is not accepted; expected a duration such as 250ms, 90s, 15m, 24h, 7d or 1h30m, "
        "a number of seconds, or ISO 8601 (PT24H, P1M), zero or more and at most 10 years"
    )
