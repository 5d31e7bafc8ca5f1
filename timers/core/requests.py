"""Owns what a row of the ledger's inbox asks for: checked by who writes it, and again by the pod that carries it out,
because anybody may write rows."""

from collections.abc import Container, Mapping
from typing import Any, Final, Literal, NamedTuple, get_args

from timers.core.fields import check_callers_prefix, check_id, check_traceparent, decode, encode
from timers.core.spec import NewTimer, TimerChange
from timers.errors import FieldError, InvalidInput, both, shown

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
        _refuse(fields, fields.keys())
        return Request(action)
    if action == "reschedule":
        _refuse(fields, fields.keys() - _DUE)
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
    _refuse(fields, fields.keys() & {"prefix", "id"})
    given = {"prefix": prefix, "id": id, **fields}
    trace = given.pop("traceparent", None)
    traceparent, new = both(lambda: trace if trace is None else check_traceparent(trace), lambda: NewTimer.parse(given))
    if new.id is None:
        raise InvalidInput.of("id", None, "an id")
    return Request("create", new, traceparent=traceparent)


def _refuse(fields: Mapping[str, Any], names: Container[str]) -> None:
    unknown = [name for name in fields if name in names]
    if unknown:
        raise InvalidInput([FieldError(name, shown(fields[name]), "a known field") for name in unknown])
