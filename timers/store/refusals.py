"""Owns what this process was refused: what its Redis user may not do, and the timers of a newer format that it has met.
Both are said as errors, and told to the other pods."""

import time
from collections.abc import Mapping
from typing import Final, TypeVar

from timers.core.shapes import RESERVED_PREFIX
from timers.errors import NewerFormat, RedisRights
from timers.store.identity import READS, format_of

TRY_AGAIN_SECONDS: Final = 5.0
"""How long a pod claims nothing of a prefix after its user was refused. Once it has the right, timers run that soon."""

TOLD: Final = 20
"""The most refusals of a kind that a pod tells of."""

_REMEMBERED: Final = 1000

T = TypeVar("T")

_Met = dict[str, tuple[float, T]]
"""What was met by name, oldest first, with when."""


class Refusals:
    """What one user was refused of late, and the timers of a newer format that were met."""

    def __init__(self, user: str) -> None:
        self._user = user
        self._lacks: _Met[str] = {}
        self._newer: _Met[int] = {}
        self.sign = ""
        """Why Redis did not take this pod's newest sign of life; empty if it did."""

    def denied(self, command: str) -> RedisRights:
        """Take note of a refused command, given with its key (`SET log:{0}:x`). Returns the error that says so."""
        name, key = command.split(" ", 1)
        prefix = key.partition(":")[0]
        pattern = f"~{prefix}:*" if prefix == RESERVED_PREFIX else f"~{prefix}*"
        said = f"the Redis user {self._user!r} may not {name} {key}: its ACL needs +{name.lower()} and {pattern}"
        _meet(self._lacks, prefix, said)
        return RedisRights(said)

    def met_newer(self, timer: str, raw: bytes) -> NewerFormat:
        """Take note of a timer that only a later version reads, given with its record. Returns the error that says
        so."""
        _meet(self._newer, timer, format_of(raw))
        return NewerFormat(
            f"timer {timer} is kept in record format {format_of(raw)}, and this process reads formats up to {READS}; "
            "ask a pod of the version that wrote it, or upgrade this one"
        )

    def waits(self, prefix: str) -> bool:
        """Whether to leave the prefix alone for now, because its timers were refused a moment ago."""
        met = self._lacks.get(prefix)
        return met is not None and time.monotonic() - met[0] < TRY_AGAIN_SECONDS

    @property
    def waiting(self) -> list[str]:
        """The prefixes to leave alone for now."""
        return list(filter(self.waits, list(self._lacks)))

    @property
    def lacks(self) -> Mapping[str, str]:
        """What the user was refused, a sentence for each prefix. While timers wait, each try renews it."""
        return _recent(self._lacks, 15.0)

    @property
    def newer(self) -> Mapping[str, int]:
        """The formats of the timers that only a later version reads."""
        return _recent(self._newer, 60.0)


def _meet(met: _Met[T], name: str, what: T) -> None:
    if len(met) >= _REMEMBERED:
        met.clear()  # callers can make up prefixes without end
    met.pop(name, None)
    met[name] = time.monotonic(), what


def _recent(met: _Met[T], seconds: float) -> Mapping[str, T]:
    """What was met of late, the newest TOLD of it."""
    since = time.monotonic() - seconds
    return {name: what for name, (at, what) in list(met.items())[-TOLD:] if at > since}
