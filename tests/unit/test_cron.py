"""Tables of cron expressions and zones: what is accepted and refused, and the runs around changes of the clocks."""

from datetime import datetime
from functools import partial
from zoneinfo import ZoneInfo

import pytest
from cronsim import CronSim

from tests.unit.refusals import refusal
from timers.core.cron import CRON_FORMS, TIMEZONE_FORMS, check_cron, next_after, parse_timezone
from timers.core.durations import format_time, parse_time, to_datetime
from timers.errors import FieldError, InvalidInput, shown


def runs(expression: str, zone: str, after: str, count: int) -> list[str]:
    """The next `count` runs after `after`, as `dd hh:mm±offset` in the zone."""
    at_ms, found = parse_time(after), []
    for _ in range(count):
        at_ms = next_after(at_ms, expression, zone)
        clock = to_datetime(at_ms).astimezone(ZoneInfo(zone))
        found.append(f"{clock:%d %H:%M}{clock.isoformat()[-6:]}")
        assert at_ms % 60_000 == 0
    return found


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("* * * * *", "2026-11-21T20:08:00"),
        ("*/15 * * * *", "2026-11-21T20:15:00"),
        ("5/20 * * * *", "2026-11-21T20:25:00"),
        ("0,7,9 20 * * *", "2026-11-21T20:09:00"),
        ("30-40/5 * * * *", "2026-11-21T20:30:00"),
        ("0 9 * * MON-FRI", "2026-11-23T09:00:00"),
        ("0 9 * * mon-fri", "2026-11-23T09:00:00"),
        ("0 9 * * 0", "2026-11-22T09:00:00"),
        ("0 9 * * 7", "2026-11-22T09:00:00"),
        ("0 9 * FEB *", "2027-02-01T09:00:00"),
        ("0 0 29 2 *", "2028-02-29T00:00:00"),
        ("0 0 L * *", "2026-11-30T00:00:00"),
        ("0 0 LW * *", "2026-11-30T00:00:00"),
        ("0 0 * * MON#1", "2026-12-07T00:00:00"),
        ("0 0 * * 5L", "2026-11-27T00:00:00"),
        # If both day fields are restricted, one must match. If one of them has a star, both must.
        ("0 0 13 * FRI", "2026-11-27T00:00:00"),
        ("0 0 */13 * FRI", "2026-11-27T00:00:00"),
        ("0 0 */14 * FRI", "2027-01-01T00:00:00"),
        ("  0  0 * *\t* ", "2026-11-22T00:00:00"),
        ("@hourly", "2026-11-21T21:00:00"),
        ("@daily", "2026-11-22T00:00:00"),
        ("@Midnight", "2026-11-22T00:00:00"),
        ("@weekly", "2026-11-22T00:00:00"),
        ("@monthly", "2026-12-01T00:00:00"),
        ("@yearly", "2027-01-01T00:00:00"),
        ("@annually", "2027-01-01T00:00:00"),
    ],
)
def test_an_expression_is_taken(expression: str, expected: str) -> None:
    at_ms = next_after(parse_time("2026-11-21T20:07:00Z"), check_cron(expression))
    assert format_time(at_ms) == f"{expected}.000Z"


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        ("", "wrong number of fields"),
        ("* * * *", "wrong number of fields"),
        ("0 * * * * *", "wrong number of fields"),
        ("* * * * * * *", "wrong number of fields"),
        ("@reboot", "wrong number of fields"),
        ("@daily 5", "wrong number of fields"),
        ("60 * * * *", "bad minute"),
        ("*/0 * * * *", "bad minute"),
        ("5-1 * * * *", "bad minute"),
        ("-1 * * * *", "bad minute"),
        ("1,,2 * * * *", "bad minute"),
        ("1.5 * * * *", "bad minute"),
        ("٣ * * * *", "bad minute"),
        ("H * * * *", "bad minute"),
        ("* 24 * * *", "bad hour"),
        ("* * 0 * *", "bad day-of-month"),
        ("* * 32 * *", "bad day-of-month"),
        ("* * ? * *", "bad day-of-month"),
        ("* * * 13 *", "bad month"),
        ("* * * FEBRUARY *", "bad month"),
        ("* * * * 8", "bad day-of-week"),
        ("* * * * MON#6", "bad day-of-week"),
        ("* * * * FRI-MON", "bad day-of-week"),
        ("0 0 31 2 *", "bad day-of-month"),
        ("0 0 31 4,6,9,11 *", "bad day-of-month"),
        ("0 0 */31 2 MON#5", "a date that never comes"),
        ("0 0 */31 * FRI#5", "a date that never comes"),
    ],
)
def test_an_expression_is_refused_with_the_reason(expression: str, reason: str) -> None:
    expected = FieldError("", shown(expression), f"{CRON_FORMS}; here: {reason}")
    assert refusal(lambda: check_cron(expression)) == expected


@pytest.mark.parametrize("value", [None, 5, True, b"* * * * *", ["*"] * 5, "* " * 1_000], ids=shown)
def test_an_invalid_expression_is_refused(value: object) -> None:
    assert refusal(lambda: check_cron(value)) == FieldError("", shown(value), CRON_FORMS)


@pytest.mark.parametrize(
    ("value", "name"),
    [
        ("UTC", "UTC"),
        ("Europe/Berlin", "Europe/Berlin"),
        ("europe/berlin", "Europe/Berlin"),
        ("America/Argentina/Buenos_Aires", "America/Argentina/Buenos_Aires"),
        ("US/Eastern", "US/Eastern"),
        ("Etc/GMT+5", "Etc/GMT+5"),
    ],
)
def test_a_zone_is_taken_in_its_own_spelling(value: str, name: str) -> None:
    assert parse_timezone(value) == name


BAD_ZONES: list[object] = [
    *("", " ", "Z", "+01:00", "CET-1CEST", "Europe", "Europe/", "Europe/Berlin ", "Europe/Berlin\n", "Mars/Phobos"),
    *("localtime", "LOCALTIME", "posixrules", "Factory", "posix/Europe/Berlin", "right/UTC", "Right/UTC"),
    *("/etc/localtime", "../zoneinfo/UTC", "Europe/../UTC", "./UTC", "zone.tab", "tzdata.zi", "UTC\0", "\ud800"),
    *("A" * 65, "A" * 1_000_000, None, 0, True, b"UTC", ZoneInfo("UTC")),
]


@pytest.mark.parametrize("value", BAD_ZONES, ids=shown)
def test_an_invalid_zone_is_refused_by_name(value: object) -> None:
    expected = FieldError("", shown(value), TIMEZONE_FORMS)
    assert refusal(lambda: parse_timezone(value)) == expected


@pytest.mark.parametrize(
    ("expression", "zone", "after", "expected"),
    [
        # Clocks go forward: a fixed time in the gap runs right after it, once, even if the gap skips several.
        ("30 2 * * *", "America/New_York", "2026-03-07T12:00:00Z", ["08 03:00-04:00", "09 02:30-04:00"]),
        ("0,20,40 2 * * *", "America/New_York", "2026-03-08T05:00:00Z", ["08 03:00-04:00", "09 02:00-04:00"]),
        ("0 2,3 * * *", "America/New_York", "2026-03-08T05:00:00Z", ["08 03:00-04:00", "09 02:00-04:00"]),
        ("15 2 * * *", "Australia/Lord_Howe", "2026-10-03T00:00:00Z", ["04 02:30+11:00", "05 02:15+11:00"]),
        ("@daily", "America/Havana", "2026-03-07T12:00:00Z", ["08 01:00-04:00", "09 00:00-04:00"]),
        ("30 2 * * *", "Pacific/Apia", "2011-12-29T13:00:00Z", ["31 00:00+14:00", "31 02:30+14:00", "01 02:30+14:00"]),
        # An interval does not run in the gap.
        ("*/30 * * * *", "America/New_York", "2026-03-08T06:00:00Z", ["08 01:30-05:00", "08 03:00-04:00"]),
        ("30 * * * *", "America/New_York", "2026-03-08T06:00:00Z", ["08 01:30-05:00", "08 03:30-04:00"]),
        ("0 */2 * * *", "America/New_York", "2026-03-08T04:00:00Z", ["08 00:00-05:00", "08 04:00-04:00"]),
        ("*/20 2 * * *", "America/New_York", "2026-03-08T04:00:00Z", ["09 02:00-04:00", "09 02:20-04:00"]),
        ("*/30 * 8 3 *", "America/Havana", "2026-03-07T12:00:00Z", ["08 01:00-04:00", "08 01:30-04:00"]),
        # Clocks go back: a fixed time runs at the first of its two times, an interval at both.
        ("30 1 * * *", "America/New_York", "2026-10-31T12:00:00Z", ["01 01:30-04:00", "02 01:30-05:00"]),
        ("30 23 * * *", "America/Santiago", "2026-04-04T12:00:00Z", ["04 23:30-03:00", "05 23:30-04:00"]),
        (
            *("*/30 * * * *", "America/New_York", "2026-11-01T05:00:00Z"),
            ["01 01:30-04:00", "01 01:00-05:00", "01 01:30-05:00", "01 02:00-05:00"],
        ),
        ("45 * * * *", "Australia/Lord_Howe", "2026-04-04T14:00:00Z", ["05 01:45+11:00", "05 01:45+10:30"]),
        ("0 */2 * * *", "Australia/Lord_Howe", "2026-04-04T14:50:00Z", ["05 02:00+10:30", "05 04:00+10:30"]),
        # A zone whose clocks go back for Ramadan, and one whose clocks go forward by two hours.
        ("30 2 * * *", "Africa/Casablanca", "2026-02-14T12:00:00Z", ["15 02:30+01:00", "16 02:30+00:00"]),
        ("30 1 * * *", "Antarctica/Troll", "2026-03-28T12:00:00Z", ["29 03:00+02:00", "30 01:30+02:00"]),
    ],
)
def test_runs_around_a_change_of_the_clocks(expression: str, zone: str, after: str, expected: list[str]) -> None:
    assert runs(expression, zone, after, len(expected)) == expected


def test_asked_from_the_second_of_two_equal_hours_a_fixed_time_waits_for_tomorrow() -> None:
    assert runs("30 1 * * *", "America/New_York", "2026-11-01T06:10:00Z", 1) == ["02 01:30-05:00"]
    assert runs("*/30 1 * * *", "America/New_York", "2026-11-01T06:10:00Z", 2) == ["01 01:30-05:00", "02 01:00-05:00"]


@pytest.mark.parametrize("zone", ["UTC", "America/New_York"])
@pytest.mark.parametrize("expression", ["0 20 * * *", "0 * * * *"])
def test_the_next_time_is_strictly_later_to_the_millisecond(expression: str, zone: str) -> None:
    after, due_ms = partial(next_after, expression=expression, timezone=zone), parse_time("2026-11-22T01:00:00Z")
    due_ms -= 5 * 3_600_000 if zone == "UTC" else 0
    assert after(due_ms - 1) == due_ms
    assert after(due_ms) > due_ms
    assert after(due_ms + 1) == after(due_ms)


def test_the_rarest_date_is_found_over_forty_years() -> None:
    for expression in ("0 0 * 2 MON#5", "*/30 0 * 2 MON#5"):
        found_ms = next_after(parse_time("2072-03-01T00:00:00Z"), expression, "America/New_York")
        assert format_time(found_ms) == "2112-02-29T05:00:00.000Z"


def test_spaces_and_the_spelling_of_the_zone_do_not_matter() -> None:
    after_ms = parse_time("2026-11-21T20:00:00Z")
    assert next_after(after_ms, check_cron(" 0 9 * *  * "), "europe/berlin") == next_after(
        after_ms, "0 9 * * *", "Europe/Berlin"
    )


def test_looking_ahead_neither_reads_the_expression_again_nor_moves_the_cron(monkeypatch: pytest.MonkeyPatch) -> None:
    cron, now_ms = check_cron("17 3 * * *"), parse_time("2026-11-21T20:00:00Z")

    def read_again(*arguments: object) -> None:
        raise AssertionError(arguments)

    monkeypatch.setattr(CronSim, "__init__", read_again)
    first_ms = next_after(now_ms, cron, "Europe/Berlin")
    assert next_after(first_ms, cron, "Europe/Berlin") > first_ms
    assert next_after(now_ms, cron, "Europe/Berlin") == first_ms
    assert next_after(now_ms, cron, "UTC") == first_ms + 3_600_000


def test_the_whole_sentence_of_an_error() -> None:
    with pytest.raises(InvalidInput) as caught:
        check_cron("0 0 9 * * MON-FRI")
    assert str(caught.value) == (
        "'0 0 9 * * MON-FRI' is not accepted; expected five cron fields (minute, hour, day of month, "
        "month, day of week) such as 0 9 * * MON-FRI, or one of @hourly, @daily, @midnight, @weekly, @monthly, "
        "@yearly, @annually; here: wrong number of fields"
    )


def test_the_clock_of_a_run_is_the_one_asked_for() -> None:
    at_ms = next_after(parse_time("2026-11-21T20:00:00Z"), "0 9 * * *", "Asia/Kathmandu")
    assert to_datetime(at_ms) == datetime(2026, 11, 22, 9, tzinfo=ZoneInfo("Asia/Kathmandu"))
