"""Owns reading JSON without ambiguity: RFC 8259, and nothing in it that programs read differently."""

import json
import math
from collections import Counter
from typing import Any, Final

from timers.errors import FieldError, InvalidInput, shown

DEPTH_LIMIT: Final = 64
"""Levels of arrays and objects: far below where reading the record back would run out of stack."""

DIGITS_LIMIT: Final = 4300
"""Digits of an integer: as many as Python reads, and writes again, in bounded time."""


def parse(raw: bytes) -> Any:
    """The value. ValueError where it is not JSON; InvalidInput for JSON that programs read differently: a name given
    twice, half a character, too many levels."""
    try:
        value = _decoded(raw.decode())
    except RecursionError:
        raise _too_deep() from None
    if isinstance(value, dict | list) and raw.count(b"[") + raw.count(b"{") > DEPTH_LIMIT:
        _check_depth(value, DEPTH_LIMIT)
    if b"\\u" in raw:  # UTF-8 holds no half characters, so only an escape can bring one in
        _check_texts(value, "")
    return value


def _decoded(text: str) -> Any:
    """As the decoder's `decode`, without its search for space around the value, which takes longer than a short one."""
    if text[:1] in _OPENING:
        value, end = _DECODER.raw_decode(text)
        if not text[end:].strip(_SPACE):
            return value
    return _DECODER.decode(text)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        counts = Counter(name for name, _ in pairs)
        raise InvalidInput([given_twice(name) for name, count in counts.items() if count > 1])
    return found


def given_twice(name: str) -> FieldError:
    """The mistake of a name that comes more than once."""
    return FieldError(name, "a name given twice", "each name once")


def _constant(name: str) -> float:
    raise ValueError(f"{name} is not a JSON number")


def _integer(text: str) -> int:
    if len(text.lstrip("-")) > DIGITS_LIMIT:
        raise ValueError(f"the number {shown(text)} has more than {DIGITS_LIMIT} digits")
    return int(text)


def _float(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"the number {shown(text)} is out of range")
    return number


def _check_depth(value: Any, levels: int) -> None:
    if levels == 0:
        raise _too_deep()
    for inner in value.values() if type(value) is dict else value:
        if type(inner) is dict or type(inner) is list:
            _check_depth(inner, levels - 1)


def _check_texts(value: Any, path: str) -> None:
    """Refuses text that is no Unicode: JSON can write half of a surrogate pair."""
    if isinstance(value, str):
        _check_text(value, path)
    elif isinstance(value, dict | list):
        for name, inner in value.items() if isinstance(value, dict) else enumerate(value):
            _check_text(str(name), path)
            _check_texts(inner, f"{path}.{name}" if path else str(name))


def _check_text(text: str, path: str) -> None:
    if not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text):
        raise InvalidInput.of(path, text, "whole Unicode characters; a surrogate without its other half is none")


def _too_deep() -> InvalidInput:
    return InvalidInput.of("", "deeper nesting", f"JSON with at most {DEPTH_LIMIT} levels of arrays and objects")


_OPENING: Final = ("{", "[")
_SPACE: Final = " \t\n\r"

_DECODER: Final = json.JSONDecoder(
    object_pairs_hook=_object, parse_constant=_constant, parse_float=_float, parse_int=_integer
)
