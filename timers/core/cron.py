"""Owns cron: which expressions and zones are accepted, and the next time of an expression in a zone.

`cronsim` reads and matches the fields, on wall times without a zone. From wall time to instant the rules of Debian's
cron(8) hold, worked out here from the zone's changes of offset:

* A fixed time (neither minute nor hour starts with `*`) runs once for each of its wall times. If clocks going forward
skip it, it runs in the first minute after the gap; if clocks going back repeat it, it runs the first time.

* Anything else is an interval and simply continues: it runs at every instant whose wall time matches, so not at all in
a gap and twice in a repeated hour.
"""

from collections.abc import Iterator
from copy import copy
from datetime import datetime, timedelta
from functools import lru_cache
from types import MappingProxyType
from typing import Final

from cronsim import CronSim, CronSimError
from whenever import Instant, PlainDateTime, TimeZoneNotFoundError, ZonedDateTime

from timers.errors import InvalidInput

_MACROS: Final = MappingProxyType(
    {
        "@hourly": "0 * * * *",
        "@daily": "0 0 * * *",
        "@midnight": "0 0 * * *",
        "@weekly": "0 0 * * 0",
        "@monthly": "0 0 1 * *",
        "@yearly": "0 0 1 1 *",
        "@annually": "0 0 1 1 *",
    }
)
CRON_FORMS: Final = (
    "five cron fields (minute, hour, day of month, month, day of week) such as 0 9 * * MON-FRI, "
    f"or one of {', '.join(_MACROS)}"
)
TIMEZONE_FORMS: Final = "an IANA time zone such as Europe/Berlin or UTC"

_MAX_CHARACTERS: Final = 256  # all sixty minutes as a list are 169
_SECOND: Final = timedelta(seconds=1)
_MINUTE: Final = timedelta(minutes=1)
_MS: Final = timedelta(milliseconds=1)
_ANY_START: Final = datetime(2000, 1, 1)  # noqa: DTZ001 - a wall time, on purpose without a zone
# Files beside the zones, and copies of the zones with other clocks: they name a machine, not a place.
_NOT_A_PLACE: Final = frozenset({"localtime", "posixrules", "Factory"})
_COPIES: Final = ("posix/", "right/")


def check_cron(expression: object) -> str:
    """The expression if it is valid, else InvalidInput without a field: five fields (names, lists, ranges, steps, `L`,
    `LW`, `MON#2`, `5L`) or a name such as `@daily`, with a date that comes at some time."""
    if not isinstance(expression, str) or len(expression) > _MAX_CHARACTERS:
        raise InvalidInput.of("", expression, CRON_FORMS)
    try:
        _read(expression)
    except CronSimError as error:
        raise InvalidInput.of("", expression, f"{CRON_FORMS}; here: {str(error).lower()}") from None
    return expression


def next_after(at_ms: int, expression: str, timezone: str = "UTC") -> int:
    """Epoch ms of the first run strictly later than `at_ms`, on a whole minute. The texts have been checked."""
    fields, start = _read(expression), Instant.from_timestamp(at_ms, unit="millisecond").to_tz(timezone)
    minute, hour = fields.parts[1:3]
    if minute.startswith("*") or hour.startswith("*"):
        return _next_of_interval(fields, start)
    # Wall times in order give instants in order, so the first that is late enough is the answer. In the second of two
    # equal hours, the instant of the next wall time may be in the past, because it is the first of the two.
    return next(ms for wall in _walls_after(fields, _wall(start)) if (ms := _first_ms(wall, timezone)) > at_ms)


def _next_of_interval(fields: CronSim, start: ZonedDateTime) -> int:
    """Walk from change to change of the zone's offset: in between, wall time and instants differ by a constant."""
    at_ms, wall = _epoch_ms(start), _wall(start)
    match = next(_walls_after(fields, wall))
    turn = start.next_transition()
    while turn and at_ms + (match - wall) // _MS >= _epoch_ms(turn):
        just_before = _wall(turn) - _SECOND  # on the clock after the turn: the turn itself may match
        if not wall <= just_before < match:
            match = next(_walls_after(fields, just_before))
        at_ms, wall = _epoch_ms(turn) - 1000, just_before
        turn = turn.next_transition()
    return at_ms + (match - wall) // _MS


def _walls_after(fields: CronSim, wall: datetime) -> Iterator[datetime]:
    """All matching wall times after `wall`. cronsim gives up after 50 years. `_read` has seen one match, and the rarest
    dates, 29 February on a given weekday, are at most 40 years apart."""
    walk = copy(fields)
    walk.dt = wall.replace(microsecond=0)
    return walk


def parse_timezone(value: object) -> str:
    """The IANA name in its own spelling (`europe/berlin` is `Europe/Berlin`). Raises InvalidInput without a field."""
    if not isinstance(value, str):
        raise InvalidInput.of("", value, TIMEZONE_FORMS)
    try:
        name = Instant.from_timestamp(0).to_tz(value).tz_id
    except TimeZoneNotFoundError:
        name = None
    if name is None or name in _NOT_A_PLACE or name.startswith(_COPIES):
        raise InvalidInput.of("", value, TIMEZONE_FORMS)
    return name


@lru_cache(maxsize=1024)  # a repeat is read again at every occurrence
def _read(expression: str) -> CronSim:
    """The fields, never advanced: iterate over a copy."""
    text = " ".join(expression.split())
    expanded = _MACROS.get(text.lower(), text)
    if len(expanded.split()) != 5:
        raise CronSimError("Wrong number of fields")
    fields = CronSim(expanded, _ANY_START)
    if next(copy(fields), None) is None:
        raise CronSimError("A date that never comes")
    return fields


def _epoch_ms(moment: ZonedDateTime) -> int:
    return moment.timestamp(unit="millisecond")


def _wall(moment: ZonedDateTime) -> datetime:
    return moment.to_plain().to_stdlib()


def _first_ms(wall: datetime, timezone: str) -> int:
    """The earliest instant with this wall time; if a gap swallowed it, the first whole minute after the gap."""
    while True:
        plain = PlainDateTime(wall)
        moment = plain.assume_tz(timezone, disambiguation="earlier")
        if moment.to_plain() == plain:
            return _epoch_ms(moment)
        wall += _MINUTE
