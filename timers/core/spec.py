"""Owns what a caller may ask for: a new timer and a change, each field and as a whole; and any of that as a row of the
ledger's inbox, which is checked by who writes it and again by the pod that carries it out, because anybody may write
rows."""

import json
import re
from collections.abc import Container, Mapping
from typing import Annotated, Any, Final, Literal, NamedTuple, get_args

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, PlainValidator, StrictStr, WithJsonSchema

from timers.core import shapes
from timers.core.durations import Duration, parse_time, within_reach
from timers.core.fields import (
    AnyDuration,
    CallersPrefix,
    Id,
    StrictModel,
    Time,
    Timeout,
    check_callers_prefix,
    check_id,
    check_traceparent,
    decode,
    encode,
    one_of,
)
from timers.core.policies import MissedInput, Repeat, RetryPolicy
from timers.core.shapes import FOR_REPEATS
from timers.errors import FieldError, InvalidInput, both, shown

PAYLOAD_LIMIT_BYTES: Final = 64 * 1024
TAG_LIMIT_CHARACTERS: Final = 64
TAGS_LIMIT: Final = 16

_STRICT: Final = json.JSONEncoder(ensure_ascii=False, check_circular=False, allow_nan=False, separators=(",", ":"))
"""Refuses anything that is not JSON. The encoder for records would turn dates and sets into text."""

# Half characters, which JSON can name and UTF-8 cannot encode.
_HALF_CHARACTER = re.compile("[\ud800-\udfff]")


def encode_payload(payload: object, field: str = "payload", limit_bytes: int = PAYLOAD_LIMIT_BYTES) -> str:
    """The payload as compact JSON. Raises InvalidInput if it is not JSON or exceeds the limit."""
    try:
        text = _encoded(payload)
    except RecursionError:
        raise InvalidInput.of(field, type(payload), "a JSON value with fewer levels of nesting") from None
    except (TypeError, ValueError) as error:
        raise InvalidInput.of(field, payload, f"a JSON value ({error})") from None
    size = len(text.encode())
    if size > limit_bytes:
        raise InvalidInput.of(field, f"{size} bytes", f"at most {limit_bytes} bytes as JSON")
    return text


def _encoded(payload: object) -> str:
    """The payload as JSON. Raises TypeError or ValueError unless it is JSON. A payload that changes when it is written
    and read is a tuple or the like, or not JSON."""
    try:
        if decode(text := encode(payload)) == payload:
            return text
    except ValueError:
        pass
    _STRICT.encode(payload).encode()
    return encode(payload)


def _checked_payload(value: object) -> object:
    encode_payload(value, "")
    return value


def is_tag(text: str) -> bool:
    return 1 <= len(text) <= TAG_LIMIT_CHARACTERS and text.isprintable()


def _checked_tags(tags: tuple[str, ...]) -> tuple[str, ...]:
    if len(tags) > TAGS_LIMIT or not all(map(is_tag, tags)):
        rule = f"up to {TAGS_LIMIT} strings of 1 to {TAG_LIMIT_CHARACTERS} printable characters"
        raise InvalidInput.of("", list(tags), rule)
    return tags


def _checked_metadata(pairs: dict[str, str]) -> dict[str, str]:
    sizes_fit = len(pairs) <= 32 and all(1 <= len(k) <= 64 and len(v) <= 512 for k, v in pairs.items())
    if not sizes_fit or _HALF_CHARACTER.search("".join((*pairs, *pairs.values()))):
        raise InvalidInput.of(
            "", pairs, "up to 32 pairs of strings, with names of 1 to 64 and values of up to 512 characters"
        )
    return pairs


Payload = Annotated[Any, PlainValidator(_checked_payload), WithJsonSchema(shapes.PAYLOAD)]
Tags = Annotated[tuple[StrictStr, ...], AfterValidator(_checked_tags), WithJsonSchema(shapes.TAGS)]
Metadata = Annotated[dict[StrictStr, StrictStr], AfterValidator(_checked_metadata), WithJsonSchema(shapes.METADATA)]


class Spec(StrictModel):
    """The fields that a new timer and a change have in common."""

    delay: AnyDuration | None = None
    due_at: Time | None = None
    payload: Payload = None
    repeat: Repeat | None = None
    retry: RetryPolicy | None = None
    tags: Tags = ()
    metadata: Metadata = Field(default_factory=dict)

    @classmethod
    def _contradictions(cls, given: Mapping[str, Any]) -> list[FieldError]:
        if given.get("delay") is not None and given.get("due_at") is not None:
            return [FieldError("delay", shown(given["delay"]), "only one of delay and due_at")]
        return []

    @property
    def moves_due(self) -> bool:
        """True if it gives a due time itself."""
        return self.delay is not None or self.due_at is not None

    def spec(self) -> dict[str, Any]:
        """What the record keeps: only the fields that were given and differ from the defaults, under their JSON
        names."""
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


def own_due_ms(spec: Spec, now_ms: float) -> int | None:
    """The due time that a new timer or a change gives itself, in epoch ms; None if it gives none."""
    if spec.due_at is not None:
        return within_reach(parse_time(spec.due_at, "due_at"), now_ms, "due_at", spec.due_at)
    if spec.delay is not None:
        due_ms = Duration.parse(spec.delay, "delay").add_to(round(now_ms))
        return within_reach(due_ms, now_ms, "delay", spec.delay)
    return None


class PutTimer(Spec):
    """A timer to arm with PUT: like NewTimer, but the path has its prefix and id."""

    model_config = ConfigDict(json_schema_extra=shapes.ALL_OF_PUT_TIMER)

    missed: MissedInput = "fire"
    timeout: Timeout | None = None
    durability: Annotated[shapes.Durability | None, Field(description=shapes.DURABILITY_SAID)] = None

    @classmethod
    def _contradictions(cls, given: Mapping[str, Any]) -> list[FieldError]:
        errors, missed = super()._contradictions(given), given.get("missed")
        if missed in FOR_REPEATS and given.get("repeat") is None:
            errors.append(FieldError("missed", shown(missed), "'latest' and 'all' only with repeat"))
        if given.get("delay") is None and given.get("due_at") is None and not _plans_itself(given):
            rule = "exactly one of delay and due_at, or else a retry ladder or repeat.cron"
            errors.append(FieldError("delay", shown(None), rule))
        return errors

    def spec(self) -> dict[str, Any]:
        """As in the base class; `ladder_first` records that the first step of the ladder was the delay before the first
        try, because nothing else gave a due time."""
        kept = super().spec()
        if self.missed != "fire":
            kept["missed"] = self.missed
        if self.timeout is not None:
            kept["timeout"] = self.timeout
        if self.retry is not None and not self.moves_due and (self.repeat is None or self.repeat.cron is None):
            kept["ladder_first"] = True
        return kept


class NewTimer(PutTimer):
    """A timer to arm with `POST /v1/timers`."""

    model_config = ConfigDict(json_schema_extra=shapes.ALL_OF_NEW_TIMER)

    prefix: CallersPrefix
    id: Id | None = None
    if_exists: Annotated[shapes.IfExists, Field(description=shapes.IF_EXISTS_SAID)] = "error"


def _plans_itself(given: Mapping[str, Any]) -> bool:
    """True if no due time is needed, because a ladder's first step or a cron gives it."""
    return _part(given, "repeat", "cron") is not None or isinstance(_part(given, "retry", "backoff"), list | tuple)


def _part(given: Mapping[str, Any], name: str, inner: str) -> Any:
    """A nested field, either of a checked model or of the caller's plain data."""
    value = given.get(name)
    return value.get(inner) if isinstance(value, Mapping) else getattr(value, inner, None)


def _not_removed(value: object) -> object:
    if value is None:
        raise InvalidInput.of("", value, "another due time, or no such field; a timer always has a due time")
    return value


class TimerChange(Spec):
    """A change to a scheduled timer with `PATCH`: only the given fields change, each as a whole: a `payload` or
    `metadata` replaces the one before, as `application/merge-patch+json` too. Null removes an optional field."""

    model_config = ConfigDict(json_schema_extra=shapes.ALL_OF_CHANGE)

    delay: Annotated[AnyDuration | None, BeforeValidator(_not_removed), WithJsonSchema(shapes.DURATION)] = None
    due_at: Annotated[Time | None, BeforeValidator(_not_removed), WithJsonSchema(shapes.TIME)] = None
    tags: Annotated[
        Tags, BeforeValidator(lambda tags: () if tags is None else tags), WithJsonSchema(shapes.TAGS_OR_NONE)
    ] = ()
    metadata: Annotated[
        Metadata, BeforeValidator(lambda pairs: {} if pairs is None else pairs), WithJsonSchema(shapes.METADATA_OR_NONE)
    ] = Field(default_factory=dict)

    def changed_spec(self, current: Mapping[str, Any]) -> dict[str, Any]:
        """The record's spec with this change applied."""
        changed = dict(current)
        for name in self.model_fields_set & {"payload", "repeat", "retry", "tags", "metadata"}:
            changed.pop(name, None)
        changed.update(self.spec())
        if "retry" in self.model_fields_set or self.moves_due:
            changed.pop("ladder_first", None)
        if "repeat" not in changed and changed.get("missed") in FOR_REPEATS:
            changed.pop("missed")
        return changed


Plain = Literal["cancel", "retry", "fire", "purge"]
"""What needs no fields."""

Requested = Literal["create", "reschedule", "change"] | Plain
ACTIONS: Final = ("create", "reschedule", "change", *get_args(Plain))

_DUE: Final = frozenset({"delay", "due_at"})


class Request(NamedTuple):
    """A checked request: `new` is the timer of a `create`, `change` what a `reschedule` or `change` changes."""

    action: str
    new: NewTimer | None = None
    change: TimerChange | None = None
    traceparent: str | None = None

    @property
    def body(self) -> str:
        """Its fields as a row of the inbox has them."""
        given = self.new or self.change
        fields = {} if given is None else given.model_dump(exclude_unset=True, exclude={"prefix", "id"})
        return encode(fields if self.traceparent is None else {**fields, "traceparent": self.traceparent})


def check_request(prefix: object, id: object, action: str, fields: Mapping[str, Any]) -> Request:
    """The request if all of it is valid; else InvalidInput."""
    if action == "create":
        return _create(prefix, id, fields)
    both(lambda: check_callers_prefix(prefix), lambda: check_id(id))
    if action not in ACTIONS:
        raise InvalidInput.of("action", action, f"one of {', '.join(ACTIONS)}")
    if action not in ("reschedule", "change"):
        _refuse(fields, fields.keys(), f"no field, because {action} takes none")
        return Request(action)
    if action == "reschedule":
        _refuse(fields, fields.keys() - _DUE, one_of(sorted(_DUE)))
        if len(fields) != 1:
            raise InvalidInput.of("delay", fields.get("delay"), "exactly one of delay and due_at")
    change = TimerChange.parse(fields)
    if not change.model_fields_set:
        raise InvalidInput.of("", {}, f"at least one of {', '.join(TimerChange.model_fields)}")
    return Request(action, change=change)


def read_request(prefix: object, id: object, action: str, body: str) -> Request:
    """As `check_request`, for the text of a row."""
    try:
        fields = decode(body)
    except ValueError:
        raise InvalidInput.of("body", body, "JSON") from None
    if not isinstance(fields, dict):
        raise InvalidInput.of("body", fields, "an object")
    return check_request(prefix, id, action, fields)


def _create(prefix: object, id: object, fields: Mapping[str, Any]) -> Request:
    _refuse(fields, fields.keys() & {"prefix", "id"}, "no such field here, because the request names it already")
    given = {"prefix": prefix, "id": id, **fields}
    trace = given.pop("traceparent", None)
    traceparent, new = both(lambda: trace if trace is None else check_traceparent(trace), lambda: NewTimer.parse(given))
    if new.id is None:
        raise InvalidInput.of("id", None, "an id")
    return Request("create", new, traceparent=traceparent)


def _refuse(fields: Mapping[str, Any], names: Container[str], accepted: str) -> None:
    refused = [name for name in fields if name in names]
    if refused:
        raise InvalidInput([FieldError(name, shown(fields[name]), accepted) for name in refused])
