"""Owns what this process was refused: what its Redis user may not do, and the timers of a newer format that it has met.
Both are said as errors, and told to the other pods."""

import time
from collections.abc import Mapping
from typing import Final, Generic, TypeVar

from timers.core.shapes import RESERVED_PREFIX
from timers.errors import NewerFormat, RedisRights
from timers.store.identity import READS, format_of

TRY_AGAIN_SECONDS: Final = 5.0
"""How long a pod claims nothing of a prefix after its user was refused. Once it has the right, timers run that soon."""

TOLD: Final = 20
"""The most refusals of a kind that a pod tells of."""

_REMEMBERED: Final = 1000

What = TypeVar("What")


class _Recent(Generic[What]):
    """The newest refusals by name, with what there is to tell."""

    told_seconds: float
    """How long a refusal counts. While timers wait, each try renews it."""

    def __init__(self) -> None:
        self._met = dict[str, tuple[float, What]]()

    def _meet(self, name: str, what: What) -> None:
        if len(self._met) >= _REMEMBERED:
            self._met.clear()  # callers can make up prefixes without end
        self._met.pop(name, None)
        self._met[name] = time.monotonic(), what

    def told(self) -> Mapping[str, What]:
        """What was met of late, the newest TOLD of it."""
        since = time.monotonic() - self.told_seconds
        return {name: what for name, (at, what) in list(self._met.items())[-TOLD:] if at > since}


class Rights(_Recent[str]):
    """What one user was refused, a sentence for each prefix."""

    told_seconds = 15.0

    def __init__(self, user: str) -> None:
        super().__init__()
        self._user = user

    def refused(self, command: str) -> RedisRights:
        """Take note of a refused command, given with its key (`SET log:{0}:x`). Returns the error that says so."""
        name, key = command.split(" ", 1)
        prefix = key.partition(":")[0]
        pattern = f"~{prefix}:*" if prefix == RESERVED_PREFIX else f"~{prefix}*"
        said = f"the Redis user {self._user!r} may not {name} {key}: its ACL needs +{name.lower()} and {pattern}"
        self._meet(prefix, said)
        return RedisRights(said)

    def waits(self, prefix: str) -> bool:
        """Whether to leave the prefix alone for now, because its timers were refused a moment ago."""
        met = self._met.get(prefix)
        return met is not None and time.monotonic() - met[0] < TRY_AGAIN_SECONDS


class Newer(_Recent[int]):
    """The formats of the timers that only a later version reads."""

    told_seconds = 60.0

    def met(self, timer: str, raw: bytes) -> NewerFormat:
        """Take note of such a timer, given with its record. Returns the error that says so."""
        self._meet(timer, format_of(raw))
        return NewerFormat(
            f"timer {timer} is kept in record format {format_of(raw)}, and this process reads formats up to {READS}; "
            "ask a pod of the version that wrote it, or upgrade this one"
        )
