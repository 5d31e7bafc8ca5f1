"""Owns the JSON Schemas of what callers write: the rules of the models, in a form that other programs read.

A rule that JSON Schema cannot express is a custom `format`, explained beside it: `timer-duration`, `timer-time`, …
Rules between fields are in `x-rules`, because client generators cannot handle them. `x-name` makes a schema a
component, so that generators need not invent names; `x-ref` refers to a component.
"""

from typing import Any, Final, Literal, get_args

from timers.core.durations import MAX_MS, MAX_TIME_MS, NAMED_INTERVALS

Schema = dict[str, Any]

PREFIX_PATTERN: Final = r"[a-z0-9][a-z0-9_.-]{0,63}"
ID_PATTERN: Final = r"[A-Za-z0-9][A-Za-z0-9_.:@~+=-]{0,199}"
RESERVED_PREFIX: Final = "timers"
StatusName = Literal["scheduled", "retrying", "running", "completed", "failed", "unhandled", "cancelled"]
"""What lists and counts know: the statuses of a timer, and `retrying`."""

Action = Literal["cancel", "retry", "reschedule", "change", "purge"]
IfExists = Literal["error", "replace", "keep"]
BackoffFormula = Literal["exponential", "fixed"]
RepeatMode = Literal["fixed_rate", "fixed_delay"]
MissedRule = Literal["fire", "skip", "latest", "all"]
FOR_REPEATS: Final = ("latest", "all")
"""The missed policies that say what to do with several occurrences."""

Durability = Literal["fast", "fsync", "replicated", "ledger"]
"""What a create waits for: only Redis, its disk, its replicas, or the ledger."""

DURABILITY_SAID: Final = (
    "what the answer waits for: `fast`, Redis; `fsync`, its disk; `replicated`, its replicas; `ledger`, the SQL "
    "database; that of TIMERS_DURABILITY by default"
)
IF_EXISTS_SAID: Final = "if the timer exists: `error` answers 409, `replace` replaces it, `keep` answers with it"

Delivery = Literal["ok", "late", "deaf"]
"""Whether notifications arrive at a pod: in time, late, or not at all. The worst is last."""

RedisState = Literal["ok", "full", "partly away", "away"]
"""How a pod that is ready finds its Redis."""

HISTORY_LIMIT: Final = 50
"""How many history entries a record keeps. Older ones are dropped, and a marker takes the place of the oldest."""

LADDER_LIMIT: Final = HISTORY_LIMIT
"""How many steps a ladder may have: as many as the history can show."""


def named(name: str, schema: Schema) -> Schema:
    """The schema as a component of the document."""
    return {"x-name": name, **schema}


def choice(name: str, *values: str, said: str = "") -> Schema:
    """A component whose value is one of these words, and what is said of them."""
    return named(name, {"type": "string", "enum": [*values], **({"description": said} if said else {})})


def reference(name: str) -> Schema:
    return {"x-ref": name}


def _text(kind: str, description: str, *examples: str, **more: Any) -> Schema:
    """A text with a custom format."""
    shown = {"examples": [*examples]} if examples else {}
    return {"type": "string", "format": kind, "description": description, **shown, **more}


STATUS: Final = choice(
    "Status",
    *(status for status in get_args(StatusName) if status != "retrying"),
    said="`unhandled`: it was due, and no live pod served its prefix for a minute",
)
_LISTED: Final = choice("ListedStatus", *get_args(StatusName))
STATUSES: Final[Schema] = {
    "anyOf": [_LISTED, {"type": "array", "minItems": 1, "items": _LISTED}],
    "description": "one status, or a list of which the timer has one; `retrying` is `scheduled` after a failed attempt",
    "examples": ["scheduled", ["failed", "unhandled"]],
}

PAGE_LIMIT: Final = 1000
LIMIT: Final[Schema] = {
    "type": "integer",
    "minimum": 1,
    "maximum": PAGE_LIMIT,
    "description": "timers per page; 100 by default",
    "examples": [100],
}
CURSOR: Final = _text(
    "timer-cursor",
    "where to continue: the `next_cursor` of the previous page",
    "WzEsInNlbmQtbWVzc2FnZSIsImR1ZSIsMCwiMTc5NTI5MTIwMDAwMCIsInVzZXItNDIiXQ",
)
ACTION_CURSOR: Final = _text("timer-action-cursor", "where to continue: the `next_cursor` of the previous call")

PREFIX: Final[Schema] = {
    "type": "string",
    "pattern": f"^{PREFIX_PATTERN}$",
    "not": {"const": RESERVED_PREFIX},
    "examples": ["send-message-24h-after-signup"],
}
PREFIX_PATTERN_OR_GLOB: Final[Schema] = {
    "type": "string",
    "pattern": f"^{PREFIX_PATTERN}\\*?$",
    "not": {"enum": [RESERVED_PREFIX, f"{RESERVED_PREFIX}*"]},
    "description": "a prefix, or the beginning of prefixes followed by `*`",
    "examples": ["send-message", "login-*"],
}
ID: Final[Schema] = {"type": "string", "pattern": f"^{ID_PATTERN}$", "examples": ["user-42"]}

_SECONDS: Final = {"type": "number", "minimum": 0, "maximum": MAX_MS / 1000}
_SOME_SECONDS: Final = {"type": "number", "exclusiveMinimum": 0, "maximum": MAX_MS / 1000}


def _duration(name: str, kind: str, seconds: Schema, description: str) -> Schema:
    text = {"type": "string", "format": kind, "minLength": 1, "maxLength": 64}
    return named(name, {"anyOf": [text, seconds], "description": description, "examples": ["24h"]})


DURATION: Final = _duration(
    "Duration",
    "timer-duration",
    _SECONDS,
    "`250ms`, `90s`, `15m`, `24h`, `7d`, a number of seconds, or ISO 8601 (`PT24H`, `P1M`); at most 10 years",
)
TIMEOUT: Final = _duration("Timeout", "timer-timeout", _SOME_SECONDS, "a duration above zero; a month counts 30 days")
_NAMED: Final = choice("NamedInterval", *NAMED_INTERVALS)
INTERVAL: Final = _duration("Interval", "timer-interval", _SOME_SECONDS, "a named interval or a duration above zero")
INTERVAL["anyOf"].insert(0, _NAMED)


def _moment(name: str, kind: str, description: str, *examples: str) -> Schema:
    texts = {"type": "string", "format": kind}
    numbers = {"type": "integer", "minimum": 0, "maximum": MAX_TIME_MS}
    examples = ("2026-11-21T20:00:00.000Z", *examples)
    return named(name, {"anyOf": [texts, numbers], "description": description, "examples": [*examples]})


TIME: Final = _moment(
    "Time", "timer-time", "RFC 3339 with an offset, or epoch milliseconds; a due time is at most 10 years ahead"
)
BOUND: Final = _moment("Bound", "timer-bound", "a time, or a duration from now with its unit: `1h`, `-1d`", "1h", "-1d")
CRON: Final = _text(
    "timer-cron",
    "five cron fields, or `@hourly`, `@daily`, `@weekly`, `@monthly`, `@yearly`",
    "0 9 * * MON-FRI",
    maxLength=256,
)
ZONE: Final = _text("timer-zone", "an IANA time zone", "Europe/Berlin")
BACKOFF: Final[Schema] = {
    "x-name": "Backoff",
    "anyOf": [
        choice("BackoffFormula", *get_args(BackoffFormula)),
        {"type": "array", "minItems": 1, "maxItems": LADDER_LIMIT, "items": DURATION},
    ],
    "description": "a formula, or a ladder: a list of the waits before each try",
}
_GRACE: Final[Schema] = {
    "x-name": "Grace",
    "type": "object",
    "properties": {"grace": DURATION},
    "required": ["grace"],
    "additionalProperties": False,
}
MISSED: Final[Schema] = {
    "x-name": "Missed",
    "anyOf": [choice("MissedPolicy", *get_args(MissedRule)), _GRACE],
    "examples": ["fire"],
    "description": "what to do if the timer could not start within a second: `fire` it, `skip` it, or fire it if it is "
    "not later than `grace`; for repeats also `latest`, one run for all that were missed, which `fire` means there, "
    "and `all`, each of them, at most 1,000",
}
TAG: Final = named("Tag", _text("timer-tag", "printable characters", minLength=1, maxLength=64))
TAGS: Final[Schema] = {"type": "array", "maxItems": 16, "items": TAG, "examples": [["vip"]]}
ALL_OF_TAGS: Final[Schema] = {
    "anyOf": [TAG, {"type": "array", "minItems": 1, "maxItems": 16, "items": TAG}],
    "description": "one tag, or a list of tags that the timer must all have",
    "examples": ["vip", ["vip", "trial"]],
}
METADATA: Final[Schema] = {
    "type": "object",
    "maxProperties": 32,
    "propertyNames": {"minLength": 1, "maxLength": 64},
    "additionalProperties": {"type": "string", "maxLength": 512},
    "examples": [{"campaign": "autumn"}],
}

_ABSENT: Final[Schema] = {"type": "null"}
_LENGTH: Final[Schema] = {"type": ["string", "number"]}
_MOMENT: Final[Schema] = {"type": ["string", "integer"]}


def _only(**properties: Schema) -> Schema:
    """Requires the named properties to match these schemas; a property that is `_ABSENT` may be left out."""
    return {"required": [name for name, schema in properties.items() if schema != _ABSENT], "properties": properties}


def _rules(*examples: Schema, **rules: Any) -> Schema:
    """Rules between the fields of a model, and examples of the model."""
    return {"x-rules": rules, **({"examples": [*examples]} if examples else {})}


RESULT: Final[Schema] = {"description": "any JSON, at most 4 KiB encoded", "examples": [{"charged": 5}]}
PAYLOAD: Final[Schema] = {"description": "any JSON, at most 64 KiB encoded", "examples": [{"email": "ada@example.org"}]}

LADDER_HAS_ITS_MAXIMUM: Final = _rules(
    anyOf=[{"properties": {"backoff": {"type": "string"}}}, {"properties": {"max_attempts": False}}]
)
"""`max_attempts` is allowed only if `backoff` is a formula."""

EVERY_OR_CRON: Final = _rules(oneOf=[_only(every=_LENGTH, cron=_ABSENT), _only(cron={"type": "string"}, every=_ABSENT)])
TAGS_OR_NONE: Final[Schema] = {"anyOf": [TAGS, _ABSENT]}
METADATA_OR_NONE: Final[Schema] = {"anyOf": [METADATA, _ABSENT]}

ONE_DUE_TIME: Final[Schema] = {
    "anyOf": [
        _only(delay=_LENGTH, due_at=_ABSENT),
        _only(due_at=_MOMENT, delay=_ABSENT),
        _only(retry={"type": "object", **_only(backoff={"type": "array"})}, delay=_ABSENT, due_at=_ABSENT),
        _only(repeat={"type": "object", **_only(cron={"type": "string"})}, delay=_ABSENT, due_at=_ABSENT),
    ]
}
"""Exactly one of delay and due_at, or neither with a ladder or a cron."""

LATEST_AND_ALL_ARE_FOR_REPEATS: Final[Schema] = {
    "anyOf": [{"properties": {"missed": {"not": {"enum": [*FOR_REPEATS]}}}}, _only(repeat={"type": "object"})]
}

WISHES_EXAMPLE: Final[Schema] = {"delay": "24h", "payload": {"email": "ada@example.org"}, "tags": ["vip"]}
NEW_TIMER_EXAMPLE: Final[Schema] = {"prefix": "send-message", "id": "user-42", **WISHES_EXAMPLE}

_OF_A_TIMER: Final = [ONE_DUE_TIME, LATEST_AND_ALL_ARE_FOR_REPEATS]
ALL_OF_PUT_TIMER: Final = _rules(WISHES_EXAMPLE, allOf=_OF_A_TIMER)
ALL_OF_NEW_TIMER: Final = _rules(NEW_TIMER_EXAMPLE, allOf=_OF_A_TIMER)
ALL_OF_CHANGE: Final = _rules(
    {"delay": "48h"}, anyOf=[{"properties": {"delay": False}}, {"properties": {"due_at": False}}], minProperties=1
)

_CONDITIONS: Final = ("prefix", "status", "tag", "due_after", "due_before")
_SOME_FILTER: Final[Schema] = {
    "anyOf": [{"required": [name], "properties": {name: {"not": _ABSENT}}} for name in _CONDITIONS]
}


def _action(name: str, *statuses: str, **more: Schema) -> Schema:
    """The rule for one action: the statuses that its filter may name, and whether it has a due time or changes."""
    one: Schema = {"enum": [*statuses, None]}
    status = {"anyOf": [one, {"type": "array", "items": one}]} if statuses else {}
    wanted = {"properties": {"status": status}, **_SOME_FILTER}
    absent = {"delay": _ABSENT, "due_at": _ABSENT, "changes": _ABSENT}
    return _only(action={"const": name}, filter=wanted, **{**absent, **more})


_WAITING: Final = ("scheduled", "retrying", "running")

ALL_OF_ACTION: Final = _rules(
    {"action": "cancel", "filter": {"prefix": "send-message", "tag": "vip"}, "dry_run": True},
    oneOf=[
        _action("cancel", *_WAITING),
        _action("retry", "failed", "unhandled", "cancelled"),
        _action("purge"),
        _action("reschedule", *_WAITING, delay=_LENGTH),
        _action("reschedule", *_WAITING, due_at=_MOMENT),
        _action("change", *_WAITING, changes={"type": "object", "minProperties": 1}),
    ],
)
"""Which statuses each action takes. Only `reschedule` has a due time, and it needs exactly one. Only `change` has
changes."""
