"""Owns reading what callers write, and writing JSON for records: models that ignore nothing and whose errors name their
fields, and the values that several models and calls take. Also which prefix serves which."""

import re
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from functools import cache, partial
from typing import Annotated, Any, Final, Self, get_args

from pydantic import BaseModel, ConfigDict, PlainValidator, ValidationError, WithJsonSchema, model_validator
from pydantic_core import from_json, to_json

from timers.core import shapes
from timers.core.durations import Duration, parse_ms, parse_time
from timers.core.shapes import ID_PATTERN, PREFIX_PATTERN, RESERVED_PREFIX
from timers.errors import NOTHING, FieldError, InvalidInput, shown


class StrictModel(BaseModel):
    """A frozen model that refuses unknown names: a misspelt option must not be silently ignored. Its validator is built
    at the first use, because building those of all models takes a command longer than its work."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="constants", defer_build=True)

    @classmethod
    def parse(cls, value: object) -> Self:
        """Make the model from plain data; raises InvalidInput that names each bad field."""
        try:
            # Not `model_validate`, which takes a tenth longer.
            return cls.__pydantic_validator__.validate_python(value)  # type: ignore[no-any-return]  # untyped there
        except ValidationError as error:
            found = invalid_input(error, cls)
        named = {each.field for each in found.errors}
        more = cls._contradictions(value) if isinstance(value, Mapping) else []
        raise InvalidInput([*found.errors, *(each for each in more if each.field not in named)])

    @model_validator(mode="after")
    def _without_contradictions(self) -> Self:
        if errors := self._contradictions(self.__dict__):
            raise InvalidInput(errors)
        return self

    @classmethod
    def _contradictions(cls, given: Mapping[str, Any]) -> list[FieldError]:
        """The errors that concern several fields, which are checked models or plain data. If one field is wrong,
        pydantic skips such checks, but callers want to hear of all errors."""
        return []


_ACCEPTED: Final = {
    "model_type": "an object",
    "dict_type": "an object",
    "tuple_type": "a list",
    "bool_type": "true or false",
}
"""Pydantic's words for Python types, in the words of JSON."""


UNKNOWN_NAMED: Final = 10
"""How many unknown fields of one input have an error each. The others are counted: a body can have thousands, and a
batch a thousand such bodies."""


def one_of(names: Iterable[str]) -> str:
    """The rule that a field's name breaks that is none of these."""
    return f"one of the fields {', '.join(names)}"


def _fields_at(model: Any, path: Iterable[int | str]) -> Iterable[str]:
    """The names of a model's fields, or of those of the model that lies in it at this path."""
    for name in path:
        kind = model.model_fields[name].annotation
        model = next(each for each in (kind, *get_args(kind)) if hasattr(each, "model_fields"))
    return model.model_fields  # type: ignore[no-any-return]


def invalid_input(error: ValidationError, model: type[BaseModel] | None = None) -> InvalidInput:
    """Turn a pydantic error, of this model if it was one, into one of this project's."""
    found: list[FieldError] = []
    known_at = cache(lambda path: one_of(_fields_at(model, path)))  # once, and not for each of thousands
    unknown, unnamed = 0, Counter[tuple[int | str, ...]]()
    for item in error.errors(include_url=False):
        if item["type"] == "extra_forbidden":
            unknown += 1
            if unknown > UNKNOWN_NAMED:
                unnamed[item["loc"][:-1]] += 1
                continue
        cause = item.get("ctx", {}).get("error")
        path = ".".join(str(part) for part in item["loc"])
        if isinstance(cause, InvalidInput):
            found += cause.under(path).errors if path else cause.errors
        elif item["type"] == "missing":
            found.append(FieldError(path, NOTHING, "a value, because the field is required"))
        elif item["type"] == "extra_forbidden":
            found.append(FieldError(path, shown(item["input"]), known_at(item["loc"][:-1])))
        else:
            accepted = _ACCEPTED.get(item["type"], item["msg"].removeprefix("Input should be "))
            found.append(FieldError(path, shown(item["input"]), accepted))
    for within, number in unnamed.items():
        found.append(FieldError(".".join(map(str, within)), f"each of {number} more fields", known_at(within)))
    return InvalidInput(found)


def decode(raw: bytes | str) -> Any:
    """The value: RFC 8259 without NaN, half characters and more than 200 levels. Raises ValueError.

    If a name appears twice, the last value counts, as with nearly every JSON reader. Refusing that would take a decoder
    that makes each object in Python: 5 µs a create instead of 1. Nothing reads a body before this service does.
    """
    return from_json(raw, allow_inf_nan=False)


def decode_text(text: str, field: str) -> Any:
    """The value of JSON that a person wrote into a field. Raises InvalidInput."""
    try:
        return decode(text.encode(errors="surrogateescape"))
    except ValueError as error:
        raise InvalidInput.of(field, text, f"JSON ({error})") from None


_LINE: Final = re.compile(rb"[^ \t\r\n][^\n]*")


def lines_of(raw: bytes) -> Iterator[bytes]:
    """The lines, without empty ones."""
    return (found[0] for found in _LINE.finditer(raw))


def decode_line(line: bytes) -> Any:
    """The value of a line of NDJSON, or the InvalidInput that says what is wrong with it."""
    try:
        return decode(line)
    except ValueError as error:
        return InvalidInput.of("", line.decode(errors="replace"), f"one JSON object per line ({error})")


def encode(value: Any) -> str:
    """The JSON text for a record, in a fifth of the time that `json` takes. Raises ValueError for half characters and
    more than 254 levels."""
    return to_json(value, inf_nan_mode="constants").decode()


OWN_PREFIXES: Final = "timers."
"""The beginning of the prefixes of the service's own timers."""

PREFIX_RULE: Final = f"a prefix like {PREFIX_PATTERN}, other than 'timers'"
PREFIXES_RULE: Final = f"{PREFIX_RULE}, or the beginning of prefixes followed by *"
ID_RULE: Final = f"an id like {ID_PATTERN}"

# What is checked is returned as a mere text: a member of an enum of texts would appear in keys under its Python name.
_PREFIX: Final = re.compile(rf"(?!{RESERVED_PREFIX}\Z){PREFIX_PATTERN}")
_CALLERS_PREFIX: Final = re.compile(rf"(?!{RESERVED_PREFIX}(?:\.|\Z)){PREFIX_PATTERN}")
_ID: Final = re.compile(ID_PATTERN)
_TRACEPARENT: Final = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
"""W3C Trace Context §3.2: version, trace, parent, flags."""

DurationInput = str | int | float
TimeInput = str | int


def is_own(prefix: str) -> bool:
    """Whether a prefix is one of the service's own."""
    return prefix.startswith(OWN_PREFIXES)


def is_prefix(text: str) -> bool:
    return _PREFIX.fullmatch(text) is not None


def check_prefix(value: object, field: str = "prefix") -> str:
    """The prefix if it is valid, as a mere text; else InvalidInput."""
    if isinstance(value, str) and (found := _PREFIX.fullmatch(value)):
        return found[0]
    raise InvalidInput.of(field, value, PREFIX_RULE)


def check_prefixes(value: object, field: str = "prefix") -> str:
    """What stands for prefixes, if it is valid: a prefix, or the beginning of prefixes and `*`; else InvalidInput."""
    if isinstance(value, str) and is_prefix(value.removesuffix("*")):
        return value[:]
    raise InvalidInput.of(field, value, PREFIXES_RULE)


def covers(prefixes: str, prefix: str) -> bool:
    """Whether a prefix is among those; the same rule as in lua/common.lua. `*` alone stands for all."""
    return prefix.startswith(prefixes[:-1]) if prefixes.endswith("*") else prefix == prefixes


def check_callers_prefix(value: object, field: str = "prefix") -> str:
    """As `check_prefix`, but also refuses the service's own prefixes, whose timers nobody else makes or changes."""
    if isinstance(value, str) and (found := _CALLERS_PREFIX.fullmatch(value)):
        return found[0]
    raise InvalidInput.of(
        field,
        check_prefix(value, field),
        f"a prefix that does not begin with {OWN_PREFIXES!r}, which is reserved for the service",
    )


def check_id(value: object, field: str = "id") -> str:
    """The id if it is valid, as a mere text; else InvalidInput."""
    if isinstance(value, str) and (found := _ID.fullmatch(value)):
        return found[0]
    raise InvalidInput.of(field, value, ID_RULE)


def check_version(value: object) -> int | None:
    """The version that a caller expects, None for any; else InvalidInput. An empty text would be no condition."""
    if value is None or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    raise InvalidInput.of("version", value, "a whole number")


def check_traceparent(value: object) -> str:
    """The trace if it is valid; else InvalidInput."""
    if isinstance(value, str) and _TRACEPARENT.fullmatch(value):
        return value
    rule = "a W3C traceparent: version-trace-parent-flags in lower case hexadecimal"
    raise InvalidInput.of("traceparent", value, rule)


def checked_duration(value: object, *, parse: Callable[[object], Duration] = Duration.parse) -> DurationInput:
    """Any duration that `parse` takes, kept as the caller wrote it (a timedelta as text, because records are JSON)."""
    parsed = parse(value)
    return value if isinstance(value, str | int | float) else str(parsed)


def _checked_timeout(value: object) -> DurationInput:
    """A duration that is long enough for a run to end in it."""
    checked = checked_duration(value)
    parse_ms(checked, minimum=1)
    return checked


def _checked_time(value: object) -> TimeInput:
    """Text as the caller wrote it; anything else as epoch milliseconds."""
    at_ms = parse_time(value)
    return value if isinstance(value, str) else at_ms


Prefix = Annotated[str, PlainValidator(partial(check_prefix, field="")), WithJsonSchema(shapes.PREFIX)]
CallersPrefix = Annotated[
    str,
    PlainValidator(partial(check_callers_prefix, field="")),
    WithJsonSchema({**shapes.PREFIX, "not": {"pattern": r"^timers(\.|$)"}}),
]
PrefixPattern = Annotated[
    str, PlainValidator(partial(check_prefixes, field="")), WithJsonSchema(shapes.PREFIX_PATTERN_OR_GLOB)
]
Id = Annotated[str, PlainValidator(partial(check_id, field="")), WithJsonSchema(shapes.ID)]
AnyDuration = Annotated[DurationInput, PlainValidator(checked_duration), WithJsonSchema(shapes.DURATION)]
Timeout = Annotated[DurationInput, PlainValidator(_checked_timeout), WithJsonSchema(shapes.TIMEOUT)]
Time = Annotated[TimeInput, PlainValidator(_checked_time), WithJsonSchema(shapes.TIME)]


_SEPARATORS: Final = "-_."


def owner(prefix: str, declared: Container[str]) -> str | None:
    """The longest declared prefix that serves `prefix`; None if none does.

    A declared prefix serves itself and every prefix that continues it after `-`, `_` or `.`: `log` serves `log-x` and
    not `login`. Takes at most as many lookups as the prefix has characters, however many prefixes are declared.
    """
    while prefix not in declared:
        end = max(map(prefix.rfind, _SEPARATORS))
        if end < 1:
            return None
        prefix = prefix[:end]
    return prefix
