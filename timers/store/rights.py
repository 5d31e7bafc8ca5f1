"""Owns what the Redis user of this process may not do: how that is said and told to the other pods."""

import time
from collections.abc import Mapping
from typing import Final

from timers.core.shapes import RESERVED_PREFIX
from timers.errors import RedisRights

TRY_AGAIN_SECONDS: Final = 5.0
"""How long a pod claims nothing of a prefix after its user was refused. Once it has the right, timers run that soon."""

TOLD_SECONDS: Final = 15.0
"""How long a refusal counts. While timers wait, each try renews it."""

TOLD: Final = 20
"""The most prefixes that a pod tells of."""

_REMEMBERED: Final = 1000


class Rights:
    """What one user was refused, by prefix."""

    def __init__(self, user: str) -> None:
        self._user = user
        self._refused: dict[str, tuple[float, str]] = {}

    def refused(self, command: str) -> RedisRights:
        """Take note of a refused command, given with its key (`SET log:{0}:x`). Returns the error that says so."""
        name, key = command.split(" ", 1)
        prefix, now = key.partition(":")[0], time.monotonic()
        pattern = f"~{prefix}:*" if prefix == RESERVED_PREFIX else f"~{prefix}*"
        said = f"the Redis user {self._user!r} may not {name} {key}: its ACL needs +{name.lower()} and {pattern}"
        if len(self._refused) >= _REMEMBERED:
            self._refused.clear()  # callers can make up prefixes without end
        self._refused.pop(prefix, None)
        self._refused[prefix] = now, said
        return RedisRights(said)

    def waits(self, prefix: str) -> bool:
        """Whether to leave the prefix alone for now, because its timers were refused a moment ago."""
        at = self._refused.get(prefix)
        return at is not None and time.monotonic() - at[0] < TRY_AGAIN_SECONDS

    def lacking(self) -> Mapping[str, str]:
        """What was refused within the last TOLD_SECONDS, as a sentence for each prefix; at most TOLD prefixes."""
        since = time.monotonic() - TOLD_SECONDS
        return {prefix: said for prefix, (at, said) in list(self._refused.items())[-TOLD:] if at > since}
