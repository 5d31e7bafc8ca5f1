"""Owns making the ids of timers to which their callers give none."""

import os
import string
import time
from typing import Final

_DIGITS: Final = string.digits + string.ascii_uppercase + string.ascii_lowercase
_PAIRS: Final = [first + second for first in _DIGITS for second in _DIGITS]
"""The numbers below 62² in base 62. The digits are in the order of their bytes, so that texts sort as their numbers."""


_RANDOM_BITS: Final = 80
_STEP: Final = (1 << 64) - 1
"""How far at most an id lies behind the one before it in the same ms: nobody can guess it, and thousands fit."""

_AHEAD: Final = 1000 << _RANDOM_BITS
"""How far ids may be ahead of the clock: a second, for a clock that is put back a little."""


class _Maker:
    def __init__(self) -> None:
        self._last = 0

    def new_id(self) -> str:
        """22 characters: the Unix ms, then 80 random bits, as in a ULID, but in base 62. So ids sort by the millisecond
        of their creation, those of one process in the order in which it made them, and take 14 bytes less than a UUID
        in each key and index."""
        value = (time.time_ns() // 1_000_000 << _RANDOM_BITS) | int.from_bytes(os.urandom(10), "big")
        if value <= self._last < value + _AHEAD:
            value = self._last + 1 + (value & _STEP)
        self._last = value
        pairs: list[str] = []
        for _ in range(11):
            value, pair = divmod(value, len(_PAIRS))
            pairs.append(_PAIRS[pair])
        return "".join(reversed(pairs))


new_id: Final = _Maker().new_id
