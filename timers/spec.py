"""Owns what a caller may ask for: the fields of a new timer and of a change, checked, with errors that name them."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PlainValidator,
    StrictBool,
    StrictInt,
    StrictStr,
    ValidationError,
    WithJsonSchema,
    model_validator,
)

from timers import shapes
from timers.cron import Cron, parse_timezone
from timers.durations import Duration, parse_interval, parse_ms, parse_time
from timers.errors import FieldError, InvalidInput, shown
from timers.shapes import ID_PATTERN, LADDER_LIMIT, PREFIX_PATTERN, RESERVED_PREFIX

PREFIX_RULE: Final = f"a prefix like {PREFIX_PATTERN}, other than 'timers'"
ID_RULE: Final = f"an id like {ID_PATTERN}"
PAYLOAD_LIMIT_BYTES: Final = 64 * 1024
TAG_LIMIT_CHARACTERS: Final = 64

_TRACEPARENT: Final = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
"""W3C Trace Context §3.2: version, trace, parent, flags."""

# Made once: json.dumps with options makes an encoder at every call.
_ENCODE = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode

_PREFIX = re.compile(PREFIX_PATTERN)
_ID = re.compile(ID_PATTERN)
# What JSON can name and UTF-8 cannot hold.
_HALF_CHARACTER = re.compile("[\ud800-\udfff]")

IN_TIME_MS: Final = 1000
"""How late a run may start and still count as in time: the sweep interval, which a healthy service never exceeds."""

DurationInput = str | int | float
TimeInput = str | int


def _checked_duration(value: object) -> DurationInput:
    """Any duration, kept as the caller wrote it (a timedelta in its text form, because records are JSON)."""
    parsed = Duration.parse(value)
    return value if isinstance(value, str | int | float) else str(parsed)


def _checked_exact(value: object) -> DurationInput:
    """As above, without months and years: a retry has an exact length."""
    parse_ms(_checked_duration(value))
    return value if isinstance(value, str | int | float) else str(Duration.parse(value))


def _checked_interval(value: object) -> DurationInput:
    """As a duration, but above zero, and with the named intervals."""
    parsed = parse_interval(value)
    return value if isinstance(value, str | int | float) else str(parsed)


def _checked_timeout(value: object) -> DurationInput:
    """As an exact duration, and long enough for a run to end in it."""
    checked = _checked_exact(value)
    parse_ms(checked, minimum=1)
    return checked


def _checked_time(value: object) -> TimeInput:
    """Text as the caller wrote it, anything else as epoch milliseconds."""
    at_ms = parse_time(value)
    return value if isinstance(value, str) else at_ms


def _checked_backoff(value: object) -> str | tuple[DurationInput, ...]:
    if isinstance(value, str) and value in ("exponential", "fixed"):
        return value
    if not isinstance(value, list | tuple) or not 1 <= len(value) <= LADDER_LIMIT:
        raise InvalidInput.of("", value, f"'exponential', 'fixed' or a list of 1 to {LADDER_LIMIT} durations")
    return tuple(_step(position, step) for position, step in enumerate(value))


def _step(position: int, step: object) -> DurationInput:
    try:
        return _checked_exact(step)
    except InvalidInput as error:
        raise error.under(str(position)) from None


AnyDuration = Annotated[DurationInput, PlainValidator(_checked_duration), WithJsonSchema(shapes.DURATION)]
ExactDuration = Annotated[DurationInput, PlainValidator(_checked_exact), WithJsonSchema(shapes.EXACT_DURATION)]
Interval = Annotated[DurationInput, PlainValidator(_checked_interval), WithJsonSchema(shapes.INTERVAL)]
Timeout = Annotated[DurationInput, PlainValidator(_checked_timeout), WithJsonSchema(shapes.TIMEOUT)]
Time = Annotated[TimeInput, PlainValidator(_checked_time), WithJsonSchema(shapes.TIME)]
Backoff = Annotated[str | tuple[DurationInput, ...], PlainValidator(_checked_backoff), WithJsonSchema(shapes.BACKOFF)]
CronText = Annotated[StrictStr, WithJsonSchema(shapes.CRON)]
Zone = Annotated[StrictStr, WithJsonSchema(shapes.ZONE)]
Payload = Annotated[Any, WithJsonSchema(shapes.PAYLOAD)]
Tags = Annotated[tuple[StrictStr, ...], WithJsonSchema(shapes.TAGS)]
Metadata = Annotated[dict[StrictStr, StrictStr], WithJsonSchema(shapes.METADATA)]


def check_prefix(value: object, field: str = "prefix") -> str:
    """The prefix if it follows the grammar; else InvalidInput."""
    if isinstance(value, str) and value != RESERVED_PREFIX and _PREFIX.fullmatch(value):
        return value
    raise InvalidInput.of(field, value, PREFIX_RULE)


def check_id(value: object, field: str = "id") -> str:
    """The id if it follows the grammar; else InvalidInput."""
    if isinstance(value, str) and _ID.fullmatch(value):
        return value
    raise InvalidInput.of(field, value, ID_RULE)


def check_traceparent(value: object, field: str = "traceparent") -> str:
    """The trace if it is one; else InvalidInput."""
    if isinstance(value, str) and _TRACEPARENT.fullmatch(value):
        return value
    raise InvalidInput.of(field, value, "a W3C traceparent: version-trace-parent-flags in lower case hexadecimal")


def encode_payload(payload: object) -> str:
    """The payload as compact JSON; InvalidInput where it is not JSON or passes 64 KiB."""
    try:
        text = _ENCODE(payload)
        size = len(text.encode())
    except RecursionError:
        raise InvalidInput.of("payload", type(payload), "a JSON value of fewer levels") from None
    except (TypeError, ValueError) as error:
        raise InvalidInput.of("payload", payload, f"a JSON value ({error})") from None
    if size > PAYLOAD_LIMIT_BYTES:
        raise InvalidInput.of("payload", f"{size} bytes", f"at most {PAYLOAD_LIMIT_BYTES} bytes as JSON")
    return text


class _Model(BaseModel):
    """Frozen, and strict about unknown names: a misspelt option must not be silently ignored."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="constants")

    @classmethod
    def parse(cls, value: object) -> Self:
        """The model from plain data; raises InvalidInput naming each bad field."""
        try:
            return cls.model_validate(value)
        except ValidationError as error:
            raise invalid_input(error) from None


_ACCEPTED: Final = {
    "extra_forbidden": "no field of that name",
    "model_type": "an object",
    "dict_type": "an object",
    "tuple_type": "a list",
}
"""In JSON's words what pydantic says in Python's."""


def invalid_input(error: ValidationError) -> InvalidInput:
    """A pydantic error in this project's words."""
    found: list[FieldError] = []
    for item in error.errors(include_url=False):
        cause = item.get("ctx", {}).get("error")
        path = ".".join(str(part) for part in item["loc"])
        if isinstance(cause, InvalidInput):
            found += cause.under(path).errors if path else cause.errors
        elif item["type"] == "missing":
            found.append(FieldError(path, "nothing", "a value; the field is required"))
        else:
            accepted = _ACCEPTED.get(item["type"], item["msg"].removeprefix("Input should be "))
            found.append(FieldError(path, shown(item["input"]), accepted))
    return InvalidInput(found)


class RetryPolicy(_Model):
    """When to try again after a failed attempt, and how often.

    `backoff` is `exponential` (base × 2^(failures-1), at most cap; with jitter a uniform draw from [half, whole], so a
    herd spreads but nobody retries at once), `fixed` (base each time), or a ladder: a list of waits, each before one
    try. `max_attempts` is the number of failed attempts after which the timer has failed; a ladder brings its own.
    """

    model_config = ConfigDict(json_schema_extra=shapes.LADDER_HAS_ITS_MAXIMUM)

    max_attempts: int = Field(default=5, ge=1, le=1000, strict=True)
    backoff: Backoff = "exponential"
    base: ExactDuration = "1s"
    cap: ExactDuration = "1h"
    jitter: StrictBool = True

    @model_validator(mode="after")
    def _ladder_has_its_own_maximum(self) -> Self:
        if self.ladder_ms is not None and "max_attempts" in self.model_fields_set:
            raise InvalidInput.of(
                "max_attempts", self.max_attempts, "nothing beside a ladder: its number of steps is the maximum"
            )
        return self

    @property
    def ladder_ms(self) -> tuple[int, ...] | None:
        """The ladder's waits in milliseconds; None where the backoff is a formula."""
        if isinstance(self.backoff, str):
            return None
        return tuple(parse_ms(step) for step in self.backoff)

    def to_json(self) -> dict[str, Any]:
        """The policy as the API shows it."""
        if isinstance(self.backoff, tuple):
            return {"backoff": list(self.backoff)}
        return self.model_dump()


class Repeat(_Model):
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
    mode: Literal["fixed_rate", "fixed_delay"] = "fixed_rate"

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if (self.every is None) == (self.cron is None):
            raise InvalidInput.of("every", {"every": self.every, "cron": self.cron}, "exactly one of every and cron")
        parse_timezone(self.timezone, "timezone")
        if self.every is not None:
            parse_interval(self.every, "every")
        if self.cron is not None:
            Cron.parse(self.cron, self.timezone, "cron")
        return self

    @property
    def interval(self) -> Duration | None:
        """The interval of `every`."""
        return None if self.every is None else parse_interval(self.every, "every")

    @property
    def until_ms(self) -> int | None:
        """The end of the cycle in epoch ms."""
        return None if self.until is None else parse_time(self.until, "until")

    def to_json(self) -> dict[str, Any]:
        """The cycle as the API shows it."""
        return self.model_dump(exclude_none=True)


@dataclass(frozen=True, slots=True)
class MissedPolicy:
    """What to do with a run that could not start in time: `fire`, `skip`, `grace` (fire up to that much late), and for
    repeats `latest` (one run for all that were missed) or `all` (each of them, bounded)."""

    policy: Literal["fire", "skip", "grace", "latest", "all"] = "fire"
    grace: DurationInput | None = None

    @classmethod
    def parse(cls, value: object) -> "MissedPolicy":
        """From `"fire"` … or `{"grace": "10m"}`."""
        for policy in ("fire", "skip", "latest", "all"):
            if value == policy:
                return cls(policy)
        if isinstance(value, Mapping) and set(value) == {"grace"}:
            try:
                return cls("grace", _checked_exact(value["grace"]))
            except InvalidInput as error:
                raise error.under("grace") from None
        raise InvalidInput.of("", value, "'fire', 'skip', 'latest', 'all' or {\"grace\": duration}")

    @property
    def allowed_ms(self) -> int:
        """How late a run may start and still count as in time."""
        return IN_TIME_MS if self.grace is None else max(parse_ms(self.grace), IN_TIME_MS)

    def to_json(self) -> str | dict[str, Any]:
        """As the API shows it."""
        return self.policy if self.grace is None else {"grace": self.grace}


def _checked_missed(value: object) -> str | dict[str, DurationInput]:
    return MissedPolicy.parse(value).to_json()


Prefix = Annotated[
    str,
    PlainValidator(lambda value: check_prefix(value, "")),
    WithJsonSchema(shapes.PREFIX),
]
Id = Annotated[
    str,
    PlainValidator(lambda value: check_id(value, "")),
    WithJsonSchema(shapes.ID),
]
MissedInput = Annotated[str | dict[str, DurationInput], PlainValidator(_checked_missed), WithJsonSchema(shapes.MISSED)]


def _check_tags(tags: tuple[str, ...]) -> None:
    if len(tags) > 16 or any(not 1 <= len(tag) <= TAG_LIMIT_CHARACTERS or not tag.isprintable() for tag in tags):
        raise InvalidInput.of("tags", tags, "up to 16 strings of 1 to 64 printable characters")


def _check_metadata(pairs: Mapping[str, str]) -> None:
    sizes_fit = len(pairs) <= 32 and all(1 <= len(k) <= 64 and len(v) <= 512 for k, v in pairs.items())
    if not sizes_fit or _HALF_CHARACTER.search("".join((*pairs, *pairs.values()))):
        raise InvalidInput.of(
            "metadata", dict(pairs), "up to 32 pairs of strings, names of 1 to 64, values up to 512 characters"
        )


class _Wishes(_Model):
    """The fields that a new timer and a change have in common."""

    delay: AnyDuration | None = None
    due_at: Time | None = None
    payload: Payload = None
    repeat: Repeat | None = None
    retry: RetryPolicy | None = None
    tags: Tags = ()
    metadata: Metadata = Field(default_factory=dict)

    @model_validator(mode="after")
    def _common(self) -> Self:
        if self.delay is not None and self.due_at is not None:
            raise InvalidInput.of("delay", self.delay, "only one of delay and due_at")
        encode_payload(self.payload)
        if self.tags:
            _check_tags(self.tags)
        if self.metadata:
            _check_metadata(self.metadata)
        return self

    def wishes(self) -> dict[str, Any]:
        """What the record keeps: the JSON's names, only what was given and differs from the default."""
        kept: dict[str, Any] = {}
        if self.payload is not None:
            kept["payload"] = self.payload
        if self.repeat is not None:
            kept["repeat"] = self.repeat.model_dump(exclude_defaults=True)
        if self.retry is not None:
            kept["retry"] = self.retry.model_dump(exclude_unset=True)
        if self.tags:
            kept["tags"] = list(self.tags)
        if self.metadata:
            kept["metadata"] = self.metadata
        return kept


class NewTimer(_Wishes):
    """A timer to arm, as `POST /v1/timers` takes it."""

    model_config = ConfigDict(json_schema_extra=shapes.ALL_OF_NEW_TIMER)

    prefix: Prefix
    id: Id | None = None
    missed: MissedInput = "fire"
    timeout: Timeout | None = None
    if_exists: Literal["error", "replace", "keep"] = "error"

    @model_validator(mode="after")
    def _own_fields(self) -> Self:
        if self.missed in ("latest", "all") and self.repeat is None:
            raise InvalidInput.of("missed", self.missed, "'latest' and 'all' only with repeat")
        if self.delay is None and self.due_at is None and not self.plans_itself:
            raise InvalidInput.of("delay", None, "exactly one of delay and due_at (or a retry ladder, or repeat.cron)")
        return self

    @property
    def starts_with_ladder(self) -> bool:
        """True where the first step of the ladder is the delay before the first try."""
        has_own_due = self.delay is not None or self.due_at is not None
        return not has_own_due and not self._has_cron and self.retry is not None and self.retry.ladder_ms is not None

    @property
    def _has_cron(self) -> bool:
        return self.repeat is not None and self.repeat.cron is not None

    @property
    def plans_itself(self) -> bool:
        """True where no due time needs to be given: a ladder's first step, or a cron's next time."""
        return self._has_cron or self.starts_with_ladder

    def wishes(self) -> dict[str, Any]:
        """As in the base; `ladder_first` remembers that the first step was used up before the first try."""
        kept = super().wishes()
        if self.missed != "fire":
            kept["missed"] = self.missed
        if self.timeout is not None:
            kept["timeout"] = self.timeout
        if self.starts_with_ladder:
            kept["ladder_first"] = True
        return kept


class TimerChange(_Wishes):
    """A change to a scheduled timer, as `PATCH` takes it: only the fields that were given change."""

    model_config = ConfigDict(json_schema_extra=shapes.ALL_OF_CHANGE)

    def changed_wishes(self, current: Mapping[str, Any]) -> dict[str, Any]:
        """The record's wishes with this change applied."""
        changed = dict(current)
        for name in self.model_fields_set & {"payload", "repeat", "retry", "tags", "metadata"}:
            changed.pop(name, None)
        changed.update(self.wishes())
        if "retry" in self.model_fields_set or self.moves_due:
            changed.pop("ladder_first", None)
        return changed

    @property
    def moves_due(self) -> bool:
        """True where the due time changes."""
        return self.delay is not None or self.due_at is not None
