"""Owns what a caller may ask for: the fields of a new timer and of a change, checked, with errors that name them."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
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


def _checked_interval(value: object) -> DurationInput:
    """As a duration, but above zero, and with the named intervals."""
    parsed = parse_interval(value)
    return value if isinstance(value, str | int | float) else str(parsed)


def _checked_timeout(value: object) -> DurationInput:
    """As a duration, and long enough for a run to end in it."""
    checked = _checked_duration(value)
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
    steps: list[DurationInput] = []
    errors: list[FieldError] = []
    for position, step in enumerate(value):
        try:
            steps.append(_checked_duration(step))
        except InvalidInput as error:
            errors += error.under(str(position)).errors
    if errors:
        raise InvalidInput(errors)
    return tuple(steps)


def _checked_zone(value: str) -> str:
    parse_timezone(value, "")
    return value


AnyDuration = Annotated[DurationInput, PlainValidator(_checked_duration), WithJsonSchema(shapes.DURATION)]
Interval = Annotated[DurationInput, PlainValidator(_checked_interval), WithJsonSchema(shapes.INTERVAL)]
Timeout = Annotated[DurationInput, PlainValidator(_checked_timeout), WithJsonSchema(shapes.TIMEOUT)]
Time = Annotated[TimeInput, PlainValidator(_checked_time), WithJsonSchema(shapes.TIME)]
Backoff = Annotated[str | tuple[DurationInput, ...], PlainValidator(_checked_backoff), WithJsonSchema(shapes.BACKOFF)]
CronText = Annotated[StrictStr, WithJsonSchema(shapes.CRON)]
Zone = Annotated[StrictStr, AfterValidator(_checked_zone), WithJsonSchema(shapes.ZONE)]


def _checked_payload(value: object) -> object:
    encode_payload(value, "")
    return value


def _checked_tags(tags: tuple[str, ...]) -> tuple[str, ...]:
    if len(tags) > 16 or any(not 1 <= len(tag) <= TAG_LIMIT_CHARACTERS or not tag.isprintable() for tag in tags):
        raise InvalidInput.of("", tags, "up to 16 strings of 1 to 64 printable characters")
    return tags


def _checked_metadata(pairs: dict[str, str]) -> dict[str, str]:
    sizes_fit = len(pairs) <= 32 and all(1 <= len(k) <= 64 and len(v) <= 512 for k, v in pairs.items())
    if not sizes_fit or _HALF_CHARACTER.search("".join((*pairs, *pairs.values()))):
        raise InvalidInput.of("", pairs, "up to 32 pairs of strings, names of 1 to 64, values up to 512 characters")
    return pairs


Payload = Annotated[Any, PlainValidator(_checked_payload), WithJsonSchema(shapes.PAYLOAD)]
Tags = Annotated[tuple[StrictStr, ...], AfterValidator(_checked_tags), WithJsonSchema(shapes.TAGS)]
Metadata = Annotated[dict[StrictStr, StrictStr], AfterValidator(_checked_metadata), WithJsonSchema(shapes.METADATA)]


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


def encode_payload(payload: object, field: str = "payload") -> str:
    """The payload as compact JSON; InvalidInput where it is not JSON or passes 64 KiB."""
    try:
        text = _ENCODE(payload)
        size = len(text.encode())
    except RecursionError:
        raise InvalidInput.of(field, type(payload), "a JSON value of fewer levels") from None
    except (TypeError, ValueError) as error:
        raise InvalidInput.of(field, payload, f"a JSON value ({error})") from None
    if size > PAYLOAD_LIMIT_BYTES:
        raise InvalidInput.of(field, f"{size} bytes", f"at most {PAYLOAD_LIMIT_BYTES} bytes as JSON")
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
            found = invalid_input(error)
        named = {each.field for each in found.errors}
        more = cls._contradictions(value) if isinstance(value, Mapping) else ()
        raise InvalidInput([*found.errors, *(each for each in more if each.field not in named)])

    @model_validator(mode="after")
    def _without_contradictions(self) -> Self:
        if errors := list(self._contradictions(self.__dict__)):
            raise InvalidInput(errors)
        return self

    @classmethod
    def _contradictions(cls, given: Mapping[str, Any]) -> Iterable[FieldError]:
        """What is wrong between the fields, checked or as they were given: pydantic does not come that far where one
        of them is wrong by itself, and whoever asks wants to hear of all."""
        return ()


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
    base: AnyDuration = "1s"
    cap: AnyDuration = "1h"
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

    @classmethod
    def _contradictions(cls, given: Mapping[str, Any]) -> Iterator[FieldError]:
        every, cron = given.get("every"), given.get("cron")
        if (every is None) == (cron is None):
            yield FieldError("every", shown({"every": every, "cron": cron}), "exactly one of every and cron")

    @model_validator(mode="after")
    def _cron_has_times(self) -> Self:
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
                return cls("grace", _checked_duration(value["grace"]))
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


_FOR_REPEATS: Final = ("latest", "all")
"""The missed policies that say what to do with several occurrences."""


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


class Wishes(_Model):
    """The fields that a new timer and a change have in common."""

    delay: AnyDuration | None = None
    due_at: Time | None = None
    payload: Payload = None
    repeat: Repeat | None = None
    retry: RetryPolicy | None = None
    tags: Tags = ()
    metadata: Metadata = Field(default_factory=dict)

    @classmethod
    def _contradictions(cls, given: Mapping[str, Any]) -> Iterator[FieldError]:
        if given.get("delay") is not None and given.get("due_at") is not None:
            yield FieldError("delay", shown(given["delay"]), "only one of delay and due_at")

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


class NewTimer(Wishes):
    """A timer to arm, as `POST /v1/timers` takes it."""

    model_config = ConfigDict(json_schema_extra=shapes.ALL_OF_NEW_TIMER)

    prefix: Prefix
    id: Id | None = None
    missed: MissedInput = "fire"
    timeout: Timeout | None = None
    if_exists: Literal["error", "replace", "keep"] = "error"

    @classmethod
    def _contradictions(cls, given: Mapping[str, Any]) -> Iterator[FieldError]:
        yield from super()._contradictions(given)
        missed = given.get("missed")
        if missed in _FOR_REPEATS and given.get("repeat") is None:
            yield FieldError("missed", shown(missed), "'latest' and 'all' only with repeat")
        if given.get("delay") is None and given.get("due_at") is None and not _plans_itself(given):
            rule = "exactly one of delay and due_at (or a retry ladder, or repeat.cron)"
            yield FieldError("delay", shown(None), rule)

    @property
    def starts_with_ladder(self) -> bool:
        """True where the first step of the ladder is the delay before the first try."""
        has_own_due = self.delay is not None or self.due_at is not None
        has_cron = self.repeat is not None and self.repeat.cron is not None
        return not has_own_due and not has_cron and self.retry is not None and self.retry.ladder_ms is not None

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


def _plans_itself(given: Mapping[str, Any]) -> bool:
    """True where no due time needs to be given: there is a ladder, whose first step it is, or a cron."""
    return _part(given, "repeat", "cron") is not None or isinstance(_part(given, "retry", "backoff"), list | tuple)


def _part(given: Mapping[str, Any], name: str, inner: str) -> Any:
    """A field of a field, checked or as it was given."""
    value = given.get(name)
    return value.get(inner) if isinstance(value, Mapping) else getattr(value, inner, None)


def _without_default(schema: dict[str, Any]) -> None:
    del schema["default"]


_NOT_GIVEN: Final[Any] = Field(default=None, json_schema_extra=_without_default)
"""None stands for a field that was left out, and is not accepted itself."""


def _not_removed(value: object) -> object:
    if value is None:
        raise InvalidInput.of("", value, "another due time, or the field left out; a timer always has one")
    return value


class TimerChange(Wishes):
    """A change to a scheduled timer, as `PATCH` takes it: only the fields that were given change. None takes away what
    a timer can be without."""

    model_config = ConfigDict(json_schema_extra=shapes.ALL_OF_CHANGE)

    delay: Annotated[AnyDuration | None, BeforeValidator(_not_removed), WithJsonSchema(shapes.DURATION)] = _NOT_GIVEN
    due_at: Annotated[Time | None, BeforeValidator(_not_removed), WithJsonSchema(shapes.TIME)] = _NOT_GIVEN
    tags: Annotated[
        Tags, BeforeValidator(lambda tags: () if tags is None else tags), WithJsonSchema(shapes.TAGS_OR_NONE)
    ] = ()
    metadata: Annotated[
        Metadata, BeforeValidator(lambda pairs: {} if pairs is None else pairs), WithJsonSchema(shapes.METADATA_OR_NONE)
    ] = Field(default_factory=dict)

    def changed_wishes(self, current: Mapping[str, Any]) -> dict[str, Any]:
        """The record's wishes with this change applied."""
        changed = dict(current)
        for name in self.model_fields_set & {"payload", "repeat", "retry", "tags", "metadata"}:
            changed.pop(name, None)
        changed.update(self.wishes())
        if "retry" in self.model_fields_set or self.moves_due:
            changed.pop("ladder_first", None)
        if "repeat" not in changed and changed.get("missed") in _FOR_REPEATS:
            changed.pop("missed")
        return changed

    @property
    def moves_due(self) -> bool:
        """True where the due time changes."""
        return self.delay is not None or self.due_at is not None
