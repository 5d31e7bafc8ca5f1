"""Owns reading a caller's JSON, and JSON as records hold it: one line, no spaces, any character as itself."""

import json
from collections.abc import Callable
from json import encoder as _encoder
from typing import Any

from pydantic_core import from_json

Encode = Callable[[Any], str]
"""From a JSON value to its text. TypeError or ValueError for what is none, RecursionError for too many levels."""


def decode(raw: bytes | str) -> Any:
    """The value: RFC 8259 without NaN, half characters and more than 200 levels. Raises ValueError.

    Of a name that comes twice the last value counts, as with nearly every reader of JSON. To refuse it takes a decoder
    that makes each object in Python, 5 µs a create instead of 1, and nothing reads a body before this service does.
    """
    return from_json(raw, allow_inf_nan=False)


def encode_with(*, allow_nan: bool) -> Encode:
    """An encoder, which takes `NaN` and the infinities or raises ValueError for them.

    `json.JSONEncoder.encode` sets CPython's encoder up anew at each call, which takes longer than a payload; here it is
    set up once. Where Python has none in C, `json.JSONEncoder` does it.
    """
    spelled = json.JSONEncoder(ensure_ascii=False, check_circular=False, allow_nan=allow_nan, separators=(",", ":"))
    make = getattr(_encoder, "c_make_encoder", None)
    if make is None:
        return spelled.encode
    no_markers = no_indent = None
    sort_keys = skip_keys = False
    chunks = make(
        no_markers, spelled.default, _encoder.encode_basestring, no_indent, ":", ",", sort_keys, skip_keys, allow_nan
    )
    return lambda value: "".join(chunks(value, 0))
