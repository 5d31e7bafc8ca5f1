"""Owns the parameters in addresses and headers: name, place, what is accepted, and a value to try."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from timers.core import shapes


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
        """A part of the address is, the rest is a wish."""
        return self.where == "path"


PREFIX_IN_PATH: Final = Parameter("prefix", "path", "The timer's prefix.", shapes.PREFIX, "send-message")
ID_IN_PATH: Final = Parameter("id", "path", "The timer's id.", shapes.ID, "user-42")

IF_MATCH: Final = Parameter(
    "If-Match",
    "header",
    "Only if the timer's ETag is one of these; else 412. `*` is any.",
    {"type": "string"},
    '"3"',
)
IF_NONE_MATCH: Final = Parameter(
    "If-None-Match",
    "header",
    "304 without a body if the timer's ETag is one of these. `*` is any.",
    {"type": "string"},
    '"3"',
)
TRACEPARENT: Final = Parameter(
    "traceparent",
    "header",
    "The W3C trace that the run continues.",
    {"type": "string"},
    "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
)
