"""Owns the policies of a timer: how a failed run is tried again, how a cycle continues, what happens to a missed run;
and the limits of its processor: how often it starts, and how many run at a time."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Final, Self, get_args

from pydantic import (
    AfterValidator,
    ConfigDict,
    Field,
    PlainValidator,
    StrictBool,
    StrictInt,
    StrictStr,
    TypeAdapter,
    ValidationError,
    WithJsonSchema,
    model_validator,
)

from timers.core import shapes
from timers.core.cron import check_cron, parse_timezone
from timers.core.durations import Duration, parse_interval, parse_ms, parse_time
from timers.core.fields import AnyDuration, DurationInput, StrictModel, Time, checked_duration, invalid_input
from timers.core.shapes import LADDER_LIMIT, BackoffFormula, MissedRule, RepeatMode
from timers.errors import FieldError, InvalidInput, shown

IN_TIME_MS: Final = 1000
"""How late a run may start and still count as in time: the sweep interval, which a healthy service never exceeds."""

_LADDER: Final = TypeAdapter(tuple[AnyDuration, ...], config=ConfigDict(defer_build=True))


def _checked_backoff(value: object) -> str | tuple[DurationInput, ...]:
    if isinstance(value, str) and value in get_args(BackoffFormula):
        return value
    if not isinstance(value, list | tuple) or not 1 <= len(value) <= LADDER_LIMIT:
        raise InvalidInput.of("", value, f"'exponential', 'fixed' or a list of 1 to {LADDER_LIMIT} durations")
    try:
        return _LADDER.validate_python(value)
    except ValidationError as error:
        raise invalid_input(error) from None


Interval = Annotated[
    DurationInput, PlainValidator(partial(checked_duration, parse=parse_interval)), WithJsonSchema(shapes.INTERVAL)
]
Backoff = Annotated[str | tuple[DurationInput, ...], PlainValidator(_checked_backoff), WithJsonSchema(shapes.BACKOFF)]
CronText = Annotated[StrictStr, AfterValidator(check_cron), WithJsonSchema(shapes.CRON)]
Zone = Annotated[StrictStr, AfterValidator(parse_timezone), WithJsonSchema(shapes.ZONE)]


class RetryPolicy(StrictModel):
    """When to try again after a failed attempt, and how often.

    `backoff` is `exponential` (base × 2^(failures-1), at most cap; with jitter a uniform draw from [half, whole], so a
    herd spreads but nobody retries at once), `fixed` (base each time), or a ladder: a list of waits, each before one
    try. `max_attempts` is the number of failed attempts after which the timer has failed; a ladder brings its own.
    """

    model_config = ConfigDict(json_schema_extra=shapes.LADDER_HAS_ITS_MAXIMUM)

    max_attempts: int = Field(default=5, ge=1, le=1000, strict=True)
    backoff: Backoff = "exponential"
    base: AnyDuration = "1s"
    cap: AnyDuration = "1h"
    jitter: StrictBool = True

    @model_validator(mode="after")
    def _ladder_has_its_own_maximum(self) -> Self:
        if self.ladder_ms is not None and "max_attempts" in self.model_fields_set:
            raise InvalidInput.of(
                "max_attempts", self.max_attempts, "no value with a ladder, whose number of steps is the maximum"
            )
        return self

    @property
    def ladder_ms(self) -> tuple[int, ...] | None:
        """The ladder's waits in milliseconds; None where the backoff is a formula."""
        if isinstance(self.backoff, str):
            return None
        return tuple(parse_ms(step) for step in self.backoff)

    def to_json(self) -> dict[str, Any]:
        if isinstance(self.backoff, tuple):
            return {"backoff": list(self.backoff)}
        return self.model_dump()


class Repeat(StrictModel):
    """A declared cycle: exactly one of `every` (a duration or a name such as `DAILY`) and `cron` (five fields).

    `timezone` (IANA) is where days, months and cron fields are counted. `count` is the number of occurrences in all;
    nothing is planned after `until`. `fixed_rate` plans from the previous planned time, `fixed_delay` from the end of
    the run.
    """

    model_config = ConfigDict(json_schema_extra=shapes.EVERY_OR_CRON)

    every: Interval | None = None
    cron: CronText | None = None
    timezone: Zone = "UTC"
    count: StrictInt | None = Field(default=None, ge=1, le=1_000_000_000)
    until: Time | None = None
    mode: RepeatMode = "fixed_rate"

    @classmethod
    def _contradictions(cls, given: Mapping[str, Any]) -> list[FieldError]:
        every, cron = given.get("every"), given.get("cron")
        if (every is None) != (cron is None):
            return []
        return [FieldError("every", shown(every), "exactly one of every and cron")]

    @property
    def interval(self) -> Duration | None:
        return None if self.every is None else parse_interval(self.every, "every")

    @property
    def until_ms(self) -> int | None:
        """The end of the cycle in epoch ms."""
        return None if self.until is None else parse_time(self.until, "until")

    def to_json(self) -> dict[str, Any]:
        return self.model_dump(exclude_none=True)


MissedPolicy = str | dict[str, DurationInput]
"""What to do with a run that could not start in time: `fire`, `skip`, `{"grace": "10m"}` (fire if at most that late),
and for repeats `latest` (one run for all that were missed) or `all` (each of them, bounded)."""


def check_missed(value: object) -> MissedPolicy:
    """The policy if it is valid; else InvalidInput."""
    if isinstance(value, str) and value in get_args(MissedRule):
        return value
    if isinstance(value, Mapping) and set(value) == {"grace"}:
        return {"grace": checked_duration(value["grace"], parse=partial(Duration.parse, field="grace"))}
    raise InvalidInput.of("", value, "'fire', 'skip', 'latest', 'all' or {\"grace\": duration}")


def allowed_ms(missed: MissedPolicy) -> int:
    """How late a run may start and still count as in time."""
    return IN_TIME_MS if isinstance(missed, str) else max(parse_ms(missed["grace"]), IN_TIME_MS)


MissedInput = Annotated[MissedPolicy, PlainValidator(check_missed), WithJsonSchema(shapes.MISSED)]


BURST_US: Final = 50_000
"""After a pause, a rate lets through at once what it gives in 50 ms, so that claims come in batches."""

_RATE: Final = re.compile(r"([0-9]{1,7})/([smhd])")
_UNIT_US: Final = {"s": 1_000_000, "m": 60_000_000, "h": 3_600_000_000, "d": 86_400_000_000}


@dataclass(frozen=True, slots=True)
class Rate:
    """At most one start every `interval_us` over all pods; after a pause, `burst` at once."""

    interval_us: int
    burst: int

    @classmethod
    def parse(cls, value: object) -> "Rate":
        """From `"50/s"`, `"100/m"`, `"1000/h"`, `"10/d"`. Raises InvalidInput."""
        match = _RATE.fullmatch(value) if isinstance(value, str) else None
        if match is None or int(match[1]) == 0:
            raise InvalidInput.of("rate", value, "a rate such as '50/s', '100/m', '1000/h' or '10/d'")
        interval_us = _UNIT_US[match[2]] // int(match[1])
        if interval_us == 0:
            raise InvalidInput.of("rate", value, "at most 1000000/s")
        return cls(interval_us, max(1, BURST_US // interval_us))


@dataclass(frozen=True, slots=True)
class Limits:
    """How much of each of a processor's queues may run. None means no limit besides the pod's own."""

    concurrency: int | None = None
    pod_concurrency: int | None = None
    rate: Rate | None = None

    def __post_init__(self) -> None:
        for name in ("concurrency", "pod_concurrency"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
                raise InvalidInput.of(name, value, "a whole number of at least 1")

    def __str__(self) -> str:
        """The limits that all pods share."""
        concurrency = "any number at once" if self.concurrency is None else f"{self.concurrency} at once"
        return concurrency if self.rate is None else f"{concurrency}, one every {self.rate.interval_us / 1e6:g} s"

    @property
    def bounds_concurrency(self) -> bool:
        """True if the end of a run makes room for another."""
        return self.concurrency is not None or self.pod_concurrency is not None

    @property
    def over_fleet(self) -> bool:
        """True if starts must be reserved, because other pods count too."""
        return self.concurrency is not None or self.rate is not None

    @property
    def in_order(self) -> bool:
        """True if timers run one at a time: strictly by due time, then by arming in their shard."""
        return self.concurrency == 1


NO_LIMITS: Final = Limits()
