"""Owns the input that only HTTP has: batches, and the parameters of paths, queries and headers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

from pydantic import ConfigDict, Field, PlainValidator, WithJsonSchema

from timers.client import BATCH_LIMIT
from timers.core import shapes
from timers.core.spec import NewTimer
from timers.core.strict import StrictModel
from timers.errors import InvalidInput
from timers.store.filters import PrefixPattern


def _checked_batch(value: object) -> Sequence[Any]:
    if isinstance(value, list) and len(value) <= BATCH_LIMIT:
        return value
    given = f"{len(value)} timers" if isinstance(value, list) else value
    raise InvalidInput.of("", given, f"a list of at most {BATCH_LIMIT} timers")


_Timers = Annotated[list[NewTimer], Field(max_length=BATCH_LIMIT)]


class Batch(StrictModel):
    """Up to 1,000 timers to arm. Each is checked on its own, so a bad one does not affect the others."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"timers": [shapes.NEW_TIMER_EXAMPLE]}]})

    timers: Annotated[Sequence[Any], PlainValidator(_checked_batch, json_schema_input_type=_Timers)]


def _checked_flag(value: object) -> bool:
    if value not in ("true", "false"):
        raise InvalidInput.of("", value, "true or false")
    return value == "true"


class CancelQuery(StrictModel):
    """The parameters of a cancel."""

    purge: Annotated[
        bool,
        PlainValidator(_checked_flag),
        WithJsonSchema({"type": "boolean", "description": "also remove the record", "examples": [True]}),
    ] = False


class PrefixQuery(StrictModel):
    """Which prefixes: all but the service's own, or those asked for."""

    prefix: PrefixPattern | None = None


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter, as OpenAPI describes it."""

    name: str
    where: Literal["path", "header"]
    description: str
    schema: Mapping[str, Any]
    example: str | int

    @property
    def required(self) -> bool:
        """Whether the parameter is required: those in the path are, all others are optional."""
        return self.where == "path"


PREFIX_IN_PATH: Final = Parameter("prefix", "path", "The timer's prefix.", shapes.PREFIX, "send-message")
ID_IN_PATH: Final = Parameter("id", "path", "The timer's id.", shapes.ID, "user-42")

IF_MATCH: Final = Parameter(
    "If-Match",
    "header",
    "Act only if the timer's ETag is one of these, else answer 412. `*` matches any.",
    {"type": "string"},
    '"3"',
)
IF_NONE_MATCH: Final = Parameter(
    "If-None-Match",
    "header",
    "Answer 304 without a body if the timer's ETag is one of these. `*` matches any.",
    {"type": "string"},
    '"3"',
)
TRACEPARENT: Final = Parameter(
    "traceparent",
    "header",
    "The W3C trace that the timer's runs are linked to.",
    {"type": "string"},
    "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
)

LAST_EVENT_ID: Final = "Last-Event-ID"
RESUME: Final = Parameter(
    LAST_EVENT_ID,
    "header",
    "The id of the last event that you read. The stream continues after it, as far as the pod remembers, and "
    "otherwise begins with `gap`.",
    {"type": "string"},
    "9f2c51d07be0a3c4",
)
