"""Owns the parameters outside the body: name, place, what is accepted, and a value to try."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from timers.core import shapes
from timers.core.model import Status
from timers.store.listing import PAGE_LIMIT

_TIME: Final = {"type": "string", "format": "timer-time-text", "description": "RFC 3339 with an offset, or epoch ms"}


_CURSOR: Final = "WzEsInNlbmQtbWVzc2FnZSIsImR1ZSIsMCwiMTc5NTI5MTIwMDAwMCIsInVzZXItNDIiXQ"


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter outside the body, as OpenAPI describes it."""

    name: str
    where: Literal["path", "query", "header"]
    description: str
    schema: Mapping[str, Any]
    example: str | int

    @property
    def required(self) -> bool:
        """A part of the address is, the rest is a wish."""
        return self.where == "path"


PREFIX_IN_PATH: Final = Parameter("prefix", "path", "The timer's prefix.", shapes.PREFIX, "send-message")
ID_IN_PATH: Final = Parameter("id", "path", "The timer's id.", shapes.ID, "user-42")

PURGE: Final = Parameter("purge", "query", "Remove the record too.", {"type": "boolean", "default": False}, "true")
PREFIX: Final = Parameter("prefix", "query", "Only timers of this prefix.", shapes.PREFIX, "send-message")
STATUS: Final = Parameter(
    "status", "query", "Only timers of this status.", {"type": "string", "enum": [*Status]}, "scheduled"
)
TAG: Final = Parameter("tag", "query", "Only timers with this tag.", shapes.TAG, "vip")
DUE_AFTER: Final = Parameter("due_after", "query", "Only timers due then or later.", _TIME, "2026-11-21T20:00:00Z")
DUE_BEFORE: Final = Parameter("due_before", "query", "Only timers due earlier.", _TIME, "2026-11-28T20:00:00Z")
LIMIT: Final = Parameter(
    "limit",
    "query",
    "Timers on the page.",
    {"type": "integer", "minimum": 1, "maximum": PAGE_LIMIT, "default": 100},
    100,
)
CURSOR: Final = Parameter(
    "cursor",
    "query",
    "Where to go on: the `next_cursor` of the page before.",
    {"type": "string", "format": "timer-cursor"},
    _CURSOR,
)

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
