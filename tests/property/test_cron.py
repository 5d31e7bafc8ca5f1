"""Cron against a simple oracle: it tries every minute on the zone's clock, by the standard library.

The oracle gets the fields as sets of numbers, not as text, and knows the zone only through `zoneinfo`.
"""

import calendar
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from functools import cache, lru_cache, partial
from itertools import product
from zoneinfo import ZoneInfo, available_timezones

from hypothesis import given, settings
from hypothesis import strategies as st

from timers.core.cron import check_cron, next_after, parse_timezone
from timers.core.durations import DAY_MS, HOUR_MS, MINUTE_MS, parse_time, to_datetime
from timers.errors import InvalidInput

steady = settings(max_examples=60)

MINUTE = timedelta(minutes=1)
MATCHES = Callable[[datetime], bool]
# Without the names for the machine's own zone, and the placeholder for none.
ZONES = sorted(available_timezones() - {"localtime", "posixrules", "Factory"})
# Changes of half an hour, at midnight, back over midnight, of two hours, for Ramadan, of a whole day (2011), none.
ODD_ZONES = (
    *("America/New_York", "Europe/Berlin", "Australia/Lord_Howe", "America/Havana", "America/Santiago"),
    *("Antarctica/Troll", "Africa/Casablanca", "Africa/Cairo", "Pacific/Apia", "Asia/Kathmandu", "UTC"),
)


def clock(at_ms: int, zone: ZoneInfo) -> datetime:
    return to_datetime(at_ms).astimezone(zone)


@cache
def turns(zone: str, year: int) -> tuple[tuple[int, timedelta, timedelta], ...]:
    """The changes of offset in a year: the epoch ms of the first minute afterwards, the offset before and after."""
    info, start_ms = ZoneInfo(zone), parse_time(f"{year}-01-01T00:00:00Z")
    offsets = [clock(start_ms + day * DAY_MS, info).utcoffset() for day in range(367)]
    days = [day for day in range(366) if offsets[day] != offsets[day + 1]]
    return tuple(turn_between(start_ms + day * DAY_MS, start_ms + (day + 1) * DAY_MS, info) for day in days)


def turn_between(low_ms: int, high_ms: int, zone: ZoneInfo) -> tuple[int, timedelta, timedelta]:
    before, after = clock(low_ms, zone).utcoffset(), clock(high_ms, zone).utcoffset()
    assert before is not None
    assert after is not None
    while high_ms - low_ms > MINUTE_MS:
        middle_ms = (low_ms + high_ms) // 2 // MINUTE_MS * MINUTE_MS
        low_ms, high_ms = (middle_ms, high_ms) if clock(middle_ms, zone).utcoffset() == before else (low_ms, middle_ms)
    return high_ms, before, after


def runs(expression: str, zone: str, after_ms: int, until_ms: int) -> Iterator[int]:
    while (after_ms := next_after(after_ms, expression, zone)) <= until_ms:
        yield after_ms


@lru_cache(maxsize=1)
def minutes_of(zone: str, after_ms: int, until_ms: int) -> list[tuple[int, datetime, datetime, int]]:
    """Each minute of a window, what the clock showed before it, what it shows then, and 1 if it shows that again."""
    info, found = ZoneInfo(zone), []
    first_ms = (after_ms // MINUTE_MS + 1) * MINUTE_MS
    wall = clock(first_ms - MINUTE_MS, info).replace(tzinfo=None, fold=0)
    for at_ms in range(first_ms, until_ms + 1, MINUTE_MS):
        shown, before = clock(at_ms, info), wall
        wall = shown.replace(tzinfo=None, fold=0)
        found.append((at_ms, before, wall, shown.fold))
    return found


def expected_runs(matches: MATCHES, zone: str, after_ms: int, until_ms: int, *, interval: bool) -> list[int]:
    """An interval runs whenever the clock matches, a fixed time when the clock first shows it or just skipped it."""
    found = []
    for at_ms, before, wall, fold in minutes_of(zone, after_ms, until_ms):
        if interval:
            due = matches(wall)
        else:
            left_out = (before + MINUTE * n for n in range(1, (wall - before) // MINUTE))
            due = (fold == 0 and matches(wall)) or any(map(matches, left_out))
        if due:
            found.append(at_ms)
    return found


def numbers(low: int, high: int) -> st.SearchStrategy[tuple[str, frozenset[int]]]:
    """A field as text, and as the numbers that it means."""
    number = st.integers(low, high)
    ends = st.tuples(st.integers(low, high - 1), number).filter(lambda pair: pair[0] < pair[1])
    return st.one_of(
        st.just(("*", frozenset(range(low, high + 1)))),
        st.integers(1, high).map(lambda n: (f"*/{n}", frozenset(range(low, high + 1, n)))),
        st.sets(number, min_size=1, max_size=5).map(lambda ns: (",".join(map(str, ns)), frozenset(ns))),
        st.tuples(ends, st.integers(1, 7)).map(
            lambda t: (f"{t[0][0]}-{t[0][1]}/{t[1]}", frozenset(range(t[0][0], t[0][1] + 1, t[1])))
        ),
    )


@st.composite
def crons(draw: st.DrawFn) -> tuple[str, MATCHES]:
    """An expression for all months, with its meaning. With single months, some dates would never come."""
    (minute, minutes), (hour, hours) = draw(numbers(0, 59)), draw(numbers(0, 23))
    (day, days), (weekday, weekdays) = draw(numbers(1, 31)), draw(numbers(0, 6))
    both = day.startswith("*") or weekday.startswith("*")

    def matches(wall: datetime) -> bool:
        of_month, of_week = wall.day in days, wall.isoweekday() % 7 in weekdays
        of_day = (of_month and of_week) if both else (of_month or of_week)
        return of_day and wall.minute in minutes and wall.hour in hours

    return f"{minute} {hour} {day} * {weekday}", matches


@st.composite
def windows(draw: st.DrawFn) -> tuple[str, int, int]:
    """Two days in a zone, mostly around a change of its offset. They do not start at a whole minute."""
    zone, year = draw(st.sampled_from(ODD_ZONES)), draw(st.integers(1980, 2060))
    near = [at_ms for at_ms, _, _ in turns(zone, year)] or [parse_time(f"{year}-05-31T12:00:00Z")]
    start_ms = draw(st.sampled_from(near)) - draw(st.integers(-4 * HOUR_MS, 30 * HOUR_MS))
    return zone, start_ms, start_ms + 2 * DAY_MS


@steady
@given(crons(), windows())
def test_runs_agree_with_the_oracle(cron: tuple[str, MATCHES], window: tuple[str, int, int]) -> None:
    (expression, matches), (zone, after_ms, until_ms) = cron, window
    interval = any(field.startswith("*") for field in expression.split()[:2])
    expected = expected_runs(matches, zone, after_ms, until_ms, interval=interval)
    assert list(runs(expression, zone, after_ms, until_ms)) == expected


@steady
@given(crons(), windows(), st.integers(0, DAY_MS))
def test_the_next_time_does_not_depend_on_where_one_asks(
    cron: tuple[str, MATCHES], window: tuple[str, int, int], later_ms: int
) -> None:
    after, at_ms = partial(next_after, expression=cron[0], timezone=window[0]), window[1]
    next_ms = after(at_ms)
    assert next_ms > at_ms
    assert next_ms % MINUTE_MS == 0
    assert (after(at_ms + later_ms) == next_ms) is (at_ms + later_ms < next_ms)


@steady
@given(
    st.one_of(
        st.text(max_size=20),
        st.text("0123456789*/,-#LW @", max_size=20),
        st.lists(st.text("0123456789*/,-#LWMONFEB", min_size=1, max_size=6), min_size=5, max_size=5).map(" ".join),
    )
)
def test_any_text_is_a_cron_that_runs_or_is_refused(text: str) -> None:
    try:
        check_cron(text)
    except InvalidInput:
        return
    assert next_after(0, text) > 0


@steady
@given(st.one_of(st.text(max_size=30), st.text("AEILMNOPUTaceilmnoprstu/_+-.0123456789", max_size=30)))
def test_any_text_is_a_zone_of_the_list_or_refused(text: str) -> None:
    try:
        name = parse_timezone(text)
    except InvalidInput:
        return
    assert name in ZONES
    assert parse_timezone(name) == name


# The following tests cover all zones. Many change their clocks alike, so expectations are computed once for each
# change, and those for a whole year once for each behaviour.

YEAR = 2026
YEAR_MS = (parse_time(f"{YEAR}-01-01T00:00:00Z"), parse_time(f"{YEAR + 1}-01-01T00:00:00Z"))


def every_day(hour: int, minute: int) -> MATCHES:
    return lambda wall: (wall.hour, wall.minute) == (hour, minute)


CRONS: dict[str, MATCHES] = {
    "30 2 * * *": every_day(2, 30),
    "30 1 * * *": every_day(1, 30),
    "*/30 * * * *": lambda wall: wall.minute in (0, 30),
    "0 9 * * MON-FRI": lambda wall: every_day(9, 0)(wall) and wall.weekday() < calendar.SATURDAY,
}


def test_every_zone_runs_right_around_its_changes() -> None:
    expected: dict[tuple[object, str], list[int]] = {}
    changes = [(zone, turn) for zone in ZONES for turn in turns(zone, YEAR)]
    assert len(changes) > 300
    for (zone, turn), (expression, matches) in product(changes, CRONS.items()):
        window, interval = (turn[0] - 27 * HOUR_MS, turn[0] + 27 * HOUR_MS), expression.startswith("*")
        if (turn, expression) not in expected:
            expected[turn, expression] = expected_runs(matches, zone, *window, interval=interval)
        elif interval:
            continue  # over a hundred runs, as in the first zone that changes so
        assert list(runs(expression, zone, *window)) == expected[turn, expression], (zone, expression)


def test_every_zone_misses_no_day_of_a_year() -> None:
    behaviours = {(clock(YEAR_MS[0], ZoneInfo(zone)).utcoffset(), turns(zone, YEAR)): zone for zone in ZONES}
    assert len(behaviours) > 50
    for zone in behaviours.values():
        for expression in ("30 2 * * *", "30 1 * * *", "0 9 * * MON-FRI"):
            check_year(expression, zone)


def check_year(expression: str, zone: str) -> None:
    """Check one run per calendar day, at the time asked for, or at the end of the gap if the clock skips that."""
    info, (hour, minute) = ZoneInfo(zone), map(int, expression.split()[1::-1])
    found = [clock(at_ms, info) for at_ms in runs(expression, zone, *YEAR_MS)]
    days = [found[0].date() + timedelta(days=n) for n in range((found[-1].date() - found[0].date()).days + 1)]
    wanted = [day for day in days if expression.endswith("*") or day.weekday() < calendar.SATURDAY]
    assert [run.date() for run in found] == wanted, (zone, expression)
    assert len(days) >= 363
    gap_ends = {clock(turn_ms, info) for turn_ms, before, after in turns(zone, YEAR) if after > before}
    odd = [run for run in found if (run.hour, run.minute) != (hour, minute)]
    assert gap_ends.issuperset(odd), (zone, expression)
    assert all(run.fold == 0 and run.second == 0 for run in found), (zone, expression)


def test_every_zone_is_taken_and_shows_the_clock_of_the_standard_library() -> None:
    for zone in ZONES:
        assert parse_timezone(zone) == zone
        noons = [clock(at_ms, ZoneInfo(zone)) for at_ms in runs("0 12 1 * *", zone, *YEAR_MS)]
        assert {(noon.day, noon.hour, noon.minute) for noon in noons} == {(1, 12, 0)}, zone
        assert {noon.month for noon in noons} == set(range(1, 13)), zone
