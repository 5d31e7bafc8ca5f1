"""Owns how durations and times are read and written; all other code counts in integer milliseconds.

A length is a `Duration`: calendar months, calendar days and exact milliseconds. They are kept apart because no month
has a fixed length, and no day does over a daylight-saving change. A point in time is an `int` of milliseconds since
1970-01-01T00:00Z. Fractions of a millisecond are rounded up, so that nothing read here can make a timer early.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise
from types import MappingProxyType
from typing import Final

from whenever import Instant, OffsetDateTime

from timers.errors import InvalidInput

SECOND_MS: Final = 1_000
MINUTE_MS: Final = 60 * SECOND_MS
HOUR_MS: Final = 60 * MINUTE_MS
DAY_MS: Final = 24 * HOUR_MS
WEEK_MS: Final = 7 * DAY_MS
MAX_MS: Final = 3_653 * DAY_MS  # ten calendar years hold at most three leap days
MAX_TIME_MS: Final = 7_289_654_399_999  # 2200-12-31T23:59:59.999Z

_MEAN_MONTH_MS: Final = 2_629_800_000  # 365.25 days / 12; weighs months against MAX_MS, never used to add them
_MAX_CHARACTERS: Final = 64
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

LENGTHS: Final = "a duration such as 250ms, 90s, 15m, 24h, 7d or 1h30m, a number of seconds, or ISO 8601 (PT24H, P1M)"
DURATION_FORMS: Final = f"{LENGTHS}, zero or more and at most 10 years"
TIME_FORMS: Final = (
    "an RFC 3339 time with an offset (2026-11-21T20:00:00Z) or epoch milliseconds, from 1970 to the end of 2200"
)
BOUND_FORMS: Final = f"{TIME_FORMS}, or a duration from now (1h, -1d)"
OFFSET_FORMS: Final = "the same time with its offset, as in 2026-11-21T20:00:00Z or 2026-11-21T21:00:00+01:00"


def _unit(name: str, letter: str, point: str = r"\.") -> str:
    return rf"(?:(?P<{name}>[0-9]+(?:{point}[0-9]+)?){letter})?"


def _iso_unit(name: str) -> str:
    return _unit(name, name[0], "[.,]")


_SECONDS = re.compile(r"(?P<second>[0-9]+(?:\.[0-9]+)?)")
_SHORT = re.compile(
    _unit("week", "w")
    + _unit("day", "d")
    + _unit("hour", "h")
    + _unit("minute", "m")
    + _unit("second", "s")
    + _unit("milli", "ms")
)
_ISO = re.compile(
    f"P{_iso_unit('year')}{_iso_unit('month')}{_iso_unit('week')}{_iso_unit('day')}"
    f"(?:T(?=[0-9]){_iso_unit('hour')}{_iso_unit('minute')}{_iso_unit('second')})?",
    re.IGNORECASE,
)
_FROM_NOW = re.compile(r"(?P<sign>[+-]?)(?P<length>.*[A-Za-z])")
_UNIT_MS = MappingProxyType(
    {"week": WEEK_MS, "day": DAY_MS, "hour": HOUR_MS, "minute": MINUTE_MS, "second": SECOND_MS, "milli": 1}
)


@dataclass(frozen=True, slots=True)
class Duration:
    """A length of time: calendar `months`, calendar `days` and exact `ms`, none negative.

    `1d`, `7d`, `1w`, `P1D` and the days of a `timedelta` are calendar days: added in a zone, they keep the wall time
    over a daylight-saving change. `24h`, `PT24H` and a number of seconds are exact. So `24h` and `1d` are not equal,
    although both are 24 hours long if there is no date to count from, as for a lease or a wait.
    """

    months: int = 0
    days: int = 0
    ms: int = 0

    @classmethod
    def parse(cls, value: object, field: str = "") -> "Duration":
        """Read text, a number of seconds, a `timedelta` or a `Duration`. Raises `InvalidInput` for `field`."""
        duration = _read(value)
        if duration is None:
            raise InvalidInput.of(field, value, DURATION_FORMS)
        return duration

    @classmethod
    def of_ms(cls, ms: int) -> "Duration":
        """For people, with whole days as days: `14d`, not `336h`."""
        return cls(days=ms // DAY_MS, ms=ms % DAY_MS)

    @property
    def exact_ms(self) -> int:
        """Milliseconds if there is no date to count from: a day has 24 hours, a month 30 days, a year 365."""
        years, months = divmod(self.months, 12)
        return (365 * years + 30 * months + self.days) * DAY_MS + self.ms

    @property
    def is_zero(self) -> bool:
        return not (self.months or self.days or self.ms)

    def add_to(self, at_ms: int, timezone: str = "UTC") -> int:
        """Epoch ms of the moment this much later: adds months, then days, in the zone's calendar, then exact
        milliseconds.

        31 January plus a month is the last day of February. A wall time that does not exist moves by the length of the
        gap; for one that exists twice the first counts ("compatible", as in RFC 5545). `timezone` must be a name that
        `parse_timezone` has checked. Repeats add a multiple (`every * 3`) to their first time, so that February loses
        no day.
        """
        if not self.months and (not self.days or timezone == "UTC"):
            return at_ms + self.days * DAY_MS + self.ms
        start = Instant.from_timestamp(at_ms, unit="millisecond").to_tz(timezone)
        # Without the zone, because a zoned time keeps its offset if it can: in the doubled hour of autumn the answer
        # would depend on the season of the start.
        moved = start.to_plain().add(months=self.months, days=self.days)
        return moved.assume_tz(timezone, disambiguation="compatible").timestamp(unit="millisecond") + self.ms

    def __mul__(self, times: int) -> "Duration":
        return Duration(self.months * times, self.days * times, self.ms * times)

    def __str__(self) -> str:
        """The shortest text that `parse` reads back to an equal value: `1d12h`, or ISO 8601 when there are months."""
        hours, ms = divmod(self.ms, HOUR_MS)
        minutes, ms = divmod(ms, MINUTE_MS)
        seconds, ms = divmod(ms, SECOND_MS)
        if not self.months:
            return _joined((self.days, "d"), (hours, "h"), (minutes, "m"), (seconds, "s"), (ms, "ms")) or "0s"
        years, months = divmod(self.months, 12)
        time = _joined((hours, "H"), (minutes, "M"), (f"{seconds}.{ms:03d}" if ms else seconds, "S"))
        return f"P{_joined((years, 'Y'), (months, 'M'), (self.days, 'D'))}{time and f'T{time}'}"


def _joined(*numbers: tuple[int | str, str]) -> str:
    return "".join(f"{number}{unit}" for number, unit in numbers if number)


NAMED_INTERVALS: Final[Mapping[str, Duration]] = MappingProxyType(
    {
        "TEN_MINS": Duration(ms=10 * MINUTE_MS),
        "HOURLY": Duration(ms=HOUR_MS),
        "DAILY": Duration(days=1),
        "WEEKLY": Duration(days=7),
        "MONTHLY": Duration(months=1),
    }
)
INTERVAL_FORMS: Final = f"one of {', '.join(NAMED_INTERVALS)}, or {LENGTHS}, above zero and at most 10 years"


def parse_interval(value: object, field: str = "") -> Duration:
    """A repeat's interval: a name of `NAMED_INTERVALS` or a duration above zero. Raises `InvalidInput` for `field`."""
    if isinstance(value, str) and value in NAMED_INTERVALS:
        return NAMED_INTERVALS[value]
    interval = _read(value)
    if interval is None or interval.is_zero:
        raise InvalidInput.of(field, value, INTERVAL_FORMS)
    return interval


def parse_ms(value: object, field: str = "", *, minimum: int = 0) -> int:
    """Milliseconds, at least `minimum`, counted as in `Duration.exact_ms`."""
    ms = Duration.parse(value, field).exact_ms
    if ms < minimum:
        raise InvalidInput.of(field, value, f"a duration from {Duration.of_ms(minimum)} to {Duration.of_ms(MAX_MS)}")
    return ms


def parse_time(value: object, field: str = "") -> int:
    """Epoch ms of RFC 3339 text with an offset, epoch ms (number or digits) or an aware `datetime`.

    A second of 60 counts as the second after it where a leap second is possible, at the end of a UTC day. Raises
    `InvalidInput` for `field`; a missing offset has its own message.
    """
    at_ms = _read_time(value, field)
    if at_ms is None or not 0 <= at_ms <= MAX_TIME_MS:
        raise InvalidInput.of(field, value, TIME_FORMS)
    return at_ms


class FromNow(int):
    """Milliseconds from now, negative into the past."""


def parse_bound(value: object) -> int:
    """A bound for due times: a time as `parse_time` reads it, or a duration from now, returned as FromNow: text with a
    unit (`-1d` is in the past) or a `timedelta`. Raises `InvalidInput`."""
    if isinstance(value, timedelta):
        is_past, length = value.days < 0, _read(abs(value))
    else:
        match = _FROM_NOW.fullmatch(value) if isinstance(value, str) else None
        is_past, length = (match["sign"] == "-", _read(match["length"])) if match else (False, None)
    if length is not None:
        return FromNow(-length.exact_ms if is_past else length.exact_ms)
    try:
        return parse_time(value)
    except InvalidInput:
        raise InvalidInput.of("", value, BOUND_FORMS) from None


def within_reach(due_ms: int, now_ms: float, field: str, given: object) -> int:
    """The due time, which was `given`. Raises `InvalidInput` if it is more than ten years ahead."""
    if due_ms > round(now_ms) + MAX_MS:
        raise InvalidInput.of(field, given, "a time at most 10 years ahead")
    return due_ms


def to_datetime(at_ms: int) -> datetime:
    """The aware UTC `datetime` of an epoch ms, exact to the millisecond."""
    return _EPOCH + timedelta(milliseconds=at_ms)


def in_units(ms: float) -> str:
    """A length of time for people, in at most two units, as dashboard.js writes it too: `3 h 20 m`."""
    whole = abs(int(ms))
    units = (("d", DAY_MS), ("h", HOUR_MS), ("m", MINUTE_MS), ("s", SECOND_MS))
    for (unit, size), (small_unit, small_size) in pairwise((*units, ("", whole + 1))):
        if whole >= size:
            small = whole % size // small_size
            return f"{whole // size} {unit} {small} {small_unit}" if small else f"{whole // size} {unit}"
    return f"{whole} ms"


@lru_cache(maxsize=4096)  # the times of one answer are few
def format_time(at_ms: int) -> str:
    """`2026-11-21T20:00:00.000Z`: UTC, always three decimals, so that texts sort as the times do."""
    seconds, ms = divmod(at_ms, 1000)
    return f"{_second(seconds)}.{ms:03d}Z"


@lru_cache(maxsize=4096)  # and share fewer seconds
def _second(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()[:19]


def _read(value: object) -> Duration | None:
    if isinstance(value, str):
        return _read_text(value) if len(value) <= _MAX_CHARACTERS else None
    return _in_range(_read_number(value))


@lru_cache(maxsize=1024)  # bulk creates repeat the same few texts
def _read_text(text: str) -> Duration | None:
    return _in_range(_from_text(text))


def _in_range(duration: Duration | None) -> Duration | None:
    if duration is None or min(duration.months, duration.days, duration.ms) < 0:
        return None
    length_ms = duration.months * _MEAN_MONTH_MS + duration.days * DAY_MS + duration.ms
    return duration if length_ms <= MAX_MS else None


def _read_number(value: object) -> Duration | None:
    match value:
        case Duration():
            return value
        case bool():
            return None
        case int():
            return Duration(ms=value * 1000)
        case float() if math.isfinite(value) and value >= 0:  # by its shortest text, as written: 0.1 is exactly 100 ms
            return Duration(ms=math.ceil(Fraction(repr(float(value) + 0.0)) * 1000))
        case timedelta():
            return Duration(days=value.days, ms=value.seconds * 1000 - (-value.microseconds // 1000))
        case _:
            return None


def _from_text(text: str) -> Duration | None:
    match = _SECONDS.fullmatch(text) or _SHORT.fullmatch(text) or _ISO.fullmatch(text)
    parts = {unit: number for unit, number in match.groupdict().items() if number} if match else {}
    fractional = [unit for unit, number in parts.items() if not number.isdigit()]
    last = list(parts)[-1:]
    if not parts or fractional not in ([], last) or fractional in (["year"], ["month"]):
        return None
    months = int(parts.pop("year", 0)) * 12 + int(parts.pop("month", 0))
    in_ms = {unit: _ceil_ms(number.replace(",", "."), _UNIT_MS[unit]) for unit, number in parts.items()}
    days, rest_ms = divmod(in_ms.pop("week", 0) + in_ms.pop("day", 0), DAY_MS)
    return Duration(months, days, rest_ms + sum(in_ms.values()))


def _ceil_ms(number: str, unit_ms: int) -> int:
    """A number with decimals or without, in milliseconds rounded up."""
    whole, _, decimals = number.partition(".")
    scale: int = 10 ** len(decimals)
    return int(whole) * unit_ms - (-int(decimals or 0) * unit_ms // scale)


_DATE_TIME = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ][0-9]{2}:[0-9]{2}):([0-9]{2})(?:\.([0-9]+))?([Zz]|[+-][0-9]{2}:[0-9]{2})?"
)
"""The form of RFC 3339. ISO 8601 and `whenever` accept more forms; `whenever` checks the calendar."""


def _read_time(value: object, field: str) -> int | None:
    match value:
        case bool():
            return None
        case int():
            return value
        case float():
            return int(value) if value.is_integer() else None
        case datetime() if value.utcoffset() is None:
            raise InvalidInput.of(field, value, OFFSET_FORMS)
        case datetime():
            return -((_EPOCH - value) // timedelta(milliseconds=1))
        case str() if len(value) <= _MAX_CHARACTERS:
            return int(value) if value.isascii() and value.isdigit() else _from_rfc3339(value, field)
    return None


def _from_rfc3339(text: str, field: str) -> int | None:
    match = _DATE_TIME.fullmatch(text)
    if match is None:
        return None
    minute, second, fraction, offset = match.groups()
    if offset is None:
        raise InvalidInput.of(field, text, OFFSET_FORMS)
    leap = second == "60"
    try:
        whole = OffsetDateTime.parse_iso(f"{minute}:{59 if leap else second}{offset}")
    except ValueError:
        return None
    at_ms = whole.timestamp(unit="millisecond") + leap * SECOND_MS
    return None if leap and at_ms % DAY_MS else at_ms + _ceil_ms(f"0.{fraction or 0}", SECOND_MS)
