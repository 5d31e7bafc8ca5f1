"""Durations and times over all their values, against the standard library's exact fractions, calendar and zones."""

import calendar
import math
from datetime import UTC, datetime, timedelta, timezone
from fractions import Fraction
from zoneinfo import ZoneInfo

from hypothesis import example, given, settings
from hypothesis import strategies as st

from timers.core.durations import (
    DAY_MS,
    HOUR_MS,
    MAX_MS,
    MAX_TIME_MS,
    MINUTE_MS,
    SECOND_MS,
    WEEK_MS,
    Duration,
    format_time,
    parse_time,
    to_datetime,
)
from timers.errors import InvalidInput

steady = settings(max_examples=200)

# Zones with changes of offset of an hour, of half an hour, at midnight, of a whole day.
TURNS = (
    ("UTC", "2026-01-01T00:00:00Z"),
    ("Europe/Berlin", "2026-03-29T01:00:00Z"),
    ("Europe/Berlin", "2026-10-25T01:00:00Z"),
    ("Australia/Lord_Howe", "2026-04-04T15:00:00Z"),
    ("Australia/Lord_Howe", "2026-10-03T15:30:00Z"),
    ("America/Havana", "2026-03-08T05:00:00Z"),
    ("America/Havana", "2026-11-01T05:00:00Z"),
    ("Pacific/Apia", "2011-12-30T10:00:00Z"),
)
ZONES = sorted({zone for zone, _ in TURNS})
UNITS_MS = {"w": WEEK_MS, "d": DAY_MS, "h": HOUR_MS, "m": MINUTE_MS, "s": SECOND_MS, "ms": 1, "": SECOND_MS}

durations = st.builds(Duration, st.integers(0, 40), st.integers(0, 1_000), st.integers(0, 1_000 * DAY_MS))
instants = st.integers(0, MAX_TIME_MS)


@steady
@given(durations)
@example(Duration())
@example(Duration(months=1, ms=1))
def test_text_reads_back_to_the_same_duration(duration: Duration) -> None:
    assert Duration.parse(str(duration)) == duration


@steady
@given(st.integers(0, 10**9), st.text("0123456789", max_size=20), st.sampled_from(sorted(UNITS_MS)))
def test_a_number_of_units_is_rounded_up_to_the_next_millisecond(whole: int, digits: str, unit: str) -> None:
    number = f"{whole}.{digits}" if digits else f"{whole}"
    expected_ms = math.ceil(Fraction(number) * UNITS_MS[unit])
    if expected_ms > MAX_MS:
        expected_ms = -1
    assert exact_or_refused(f"{number}{unit}") == expected_ms


@steady
@given(st.floats(0, MAX_MS / 1000))
def test_a_float_counts_as_its_decimal_text_and_is_never_early(seconds: float) -> None:
    assert Duration.parse(seconds).exact_ms == math.ceil(Fraction(str(seconds)) * 1000)


@steady
@given(st.timedeltas(timedelta(0), timedelta(days=3_652)))
def test_a_timedelta_is_never_shortened(delta: timedelta) -> None:
    duration = Duration.parse(delta)
    assert duration.exact_ms == math.ceil(Fraction(delta // timedelta(microseconds=1), 1000))
    assert duration.days == delta.days


@steady
@given(st.one_of(st.text(), st.text("0123456789.,wdhmsPYMWDTHS+-eE ", max_size=12), st.floats(), st.integers()))
def test_anything_else_is_refused_and_nothing_else_raised(value: object) -> None:
    assert exact_or_refused(value) <= MAX_MS


@steady
@given(instants, durations, st.sampled_from(ZONES))
def test_adding_agrees_with_the_standard_library(at_ms: int, duration: Duration, zone: str) -> None:
    assert duration.add_to(at_ms, zone) == added(at_ms, duration, ZoneInfo(zone))


@steady
@given(st.sampled_from(TURNS), st.integers(-26 * HOUR_MS, 26 * HOUR_MS), durations)
def test_adding_into_a_change_of_offset_agrees_too(turn: tuple[str, str], near_ms: int, duration: Duration) -> None:
    zone, at = turn
    start_ms = parse_time(at) + near_ms - duration.days * DAY_MS
    days = Duration(days=duration.days)
    assert days.add_to(start_ms, zone) == added(start_ms, days, ZoneInfo(zone))


@steady
@given(instants, durations, durations, st.sampled_from(ZONES))
def test_adding_more_never_gives_an_earlier_time(at_ms: int, some: Duration, more: Duration, zone: str) -> None:
    longer = Duration(some.months + more.months, some.days + more.days, some.ms + more.ms)
    assert at_ms <= some.add_to(at_ms, zone) <= longer.add_to(at_ms, zone)
    assert (some.add_to(at_ms, zone) > at_ms) is not some.is_zero


@steady
@given(instants)
def test_a_written_time_reads_back(at_ms: int) -> None:
    text = format_time(at_ms)
    assert len(text) == len("2026-11-21T20:00:00.000Z")
    assert parse_time(text) == parse_time(at_ms) == parse_time(str(at_ms)) == parse_time(to_datetime(at_ms)) == at_ms
    assert datetime.fromisoformat(text) == to_datetime(at_ms)


@steady
@given(instants, instants)
def test_written_times_sort_as_the_times_do(one_ms: int, other_ms: int) -> None:
    assert (format_time(one_ms) < format_time(other_ms)) is (one_ms < other_ms)


@steady
@given(
    st.datetimes(datetime(1970, 1, 2), datetime(2200, 12, 30)),  # noqa: DTZ001 - the offset comes beside it
    st.integers(-1439, 1439),
    st.text("0123456789", max_size=12),
)
def test_rfc_3339_is_rounded_up_to_the_next_millisecond(wall: datetime, offset_minutes: int, digits: str) -> None:
    zone = timezone(timedelta(minutes=offset_minutes))
    second = wall.replace(microsecond=0, tzinfo=zone)
    text = f"{second.isoformat()[:19]}{'.' if digits else ''}{digits}{offset_text(offset_minutes)}"
    whole_s = (second - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(seconds=1)
    assert parse_time(text) == whole_s * 1000 + math.ceil(Fraction(f"0.{digits}0") * 1000)


def exact_or_refused(value: object) -> int:
    """Milliseconds, with mean months, or -1 if `value` was refused."""
    try:
        duration = Duration.parse(value, "delay")
    except InvalidInput:
        return -1
    return duration.months * 2_629_800_000 + Duration(0, duration.days, duration.ms).exact_ms


def offset_text(minutes: int) -> str:
    return f"{'-' if minutes < 0 else '+'}{abs(minutes) // 60:02d}:{abs(minutes) % 60:02d}"


def added(at_ms: int, duration: Duration, zone: ZoneInfo) -> int:
    """The same with `zoneinfo`. Fold 0 means: in a gap the offset before it, of two equal times the first."""
    if duration.months == duration.days == 0:
        return at_ms + duration.ms
    wall = to_datetime(at_ms).astimezone(zone)
    year, month0 = divmod(wall.year * 12 + wall.month - 1 + duration.months, 12)
    day = min(wall.day, calendar.monthrange(year, month0 + 1)[1])
    moved = wall.replace(year=year, month=month0 + 1, day=day, fold=0) + timedelta(days=duration.days)
    return (moved.astimezone(UTC) - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1) + duration.ms
