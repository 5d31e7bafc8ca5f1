"""Owns the API keys that are valid now: those in the settings and those in Redis, without the revoked ones."""

from collections.abc import Mapping, Sequence
from typing import Final

from timers.access import ApiKey, KeyRing
from timers.api.fresh import Fresh
from timers.errors import InvalidInput
from timers.logs import get_logger
from timers.store.callers import REVOKED, Callers

FRESH_SECONDS: Final = 2.0
"""How long the keys read from Redis count. Every pod learns of a new or a revoked key within this time."""

_log = get_logger("timers.api")


class LiveKeys:
    """The valid keys, as this pod last saw them."""

    def __init__(self, callers: Callers, configured: Sequence[ApiKey], *, fresh_seconds: float = FRESH_SECONDS) -> None:
        self._callers, self._configured = callers, configured
        self.ring = Fresh(self._read, fresh_seconds)
        """The keys. Raises Unavailable: without Redis nobody knows whether a key is revoked."""
        self._kept = False
        self.closed = False
        """Whether Redis has ever held a key, even if all are revoked or gone by now."""

    async def _read(self) -> KeyRing:
        kept = await self._callers.entries()
        configured = [key for key in self._configured if kept.get(key.id) != REVOKED]
        if self._kept and not kept:
            _log.error("the API keys are gone from Redis; the API stays closed", to_do="timers keys make")
        self._kept, self.closed = bool(kept), await self._callers.closed()
        return KeyRing([*_parsed(kept), *configured])


def _parsed(kept: Mapping[str, str]) -> list[ApiKey]:
    """Parse the keys. An entry that cannot be read opens nothing and does not affect the others."""
    found: list[ApiKey] = []
    for key_id, entry in kept.items():
        try:
            if entry != REVOKED:
                found.append(ApiKey.parse(entry))
        except InvalidInput as error:
            _log.warning("a stored API key cannot be read", key=key_id, reason=str(error))
    return [key for key in found if key.id in kept]
