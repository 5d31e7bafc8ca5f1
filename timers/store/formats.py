"""Owns which formats of records there are, and when a newer one may be written.

A version reads its newest format and all older ones. It writes a newer one only once no pod works on the db that cannot
read it, because such a pod would be blind to these timers. PROTOCOL.md, section "Formats", tells how pods agree.
"""

import re
import time
from collections.abc import Mapping
from typing import Final

from timers.errors import NewerFormat

READS: Final = 2
"""The newest format that this version reads; as in lua/common.lua."""

RAISE_AFTER_SECONDS: Final = 600.0
"""How long all live pods must have read a format before one raises the db to it: time to upgrade the programs that are
no pods, and to go back to the earlier version."""

GRACE_MS: Final = 10_000
"""How long after the db was raised records are still written as before. A pod that started meanwhile and cannot read
the new format notices at its next sign of life, and ends."""

TOLD_SECONDS: Final = 60.0
"""How long a pod tells of a timer that it has met and cannot read. While the timer is due, each look renews it."""

TOLD: Final = 20
"""The most such timers that a pod tells of."""

_REMEMBERED: Final = 1000

_NEWER: Final = re.compile(rb"(\d\d?) ")


def format_of(raw: bytes) -> int:
    """The format of a record that may be newer than what this version reads; 0 if it says none."""
    found = _NEWER.match(raw)
    return int(found[1]) if found else 0


def is_newer(raw: bytes) -> bool:
    """Whether the record has a format that only a later version reads."""
    return format_of(raw) > READS


class Newer:
    """The timers of a newer format that this process has met."""

    def __init__(self) -> None:
        self._met = dict[str, tuple[float, int]]()

    def met(self, timer: str, raw: bytes) -> NewerFormat:
        """Take note of such a timer, given with its record. Returns the error that says so."""
        if len(self._met) >= _REMEMBERED:
            self._met.clear()
        self._met.pop(timer, None)
        self._met[timer] = time.monotonic(), format_of(raw)
        return NewerFormat(
            f"timer {timer} is kept in record format {format_of(raw)}, and this process reads formats up to {READS}; "
            "ask a pod of the version that wrote it, or upgrade this one"
        )

    def told(self) -> Mapping[str, int]:
        """The formats of the timers met within the last TOLD_SECONDS, the newest TOLD of them."""
        since = time.monotonic() - TOLD_SECONDS
        return {timer: form for timer, (at, form) in list(self._met.items())[-TOLD:] if at > since}
