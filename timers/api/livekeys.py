"""Owns the API keys that are valid now: those in the settings and those in Redis, without the revoked ones."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Final

from timers.access import ApiKey, KeyRing
from timers.errors import InvalidInput
from timers.logs import get_logger
from timers.store.callers import REVOKED, Callers

FRESH_SECONDS: Final = 2.0
"""How long the keys read from Redis count. Every pod learns of a new or a revoked key within this time."""

_log = get_logger("timers.api")


class LiveKeys:
    """The valid keys, as this pod last saw them."""

    def __init__(self, callers: Callers, configured: Sequence[ApiKey], *, fresh_seconds: float = FRESH_SECONDS) -> None:
        self._callers, self._configured, self._fresh_seconds = callers, configured, fresh_seconds
        self._reading: asyncio.Task[None] | None = None
        self._read_at = float("-inf")
        self._ring = KeyRing(())
        self._kept = False
        self.closed = False
        """Whether Redis has ever held a key, even if all are revoked or gone by now."""

    @property
    def known(self) -> bool:
        """Whether the keys have ever been read."""
        return self._read_at > float("-inf")

    @property
    def last(self) -> KeyRing:
        """The keys as they were last read."""
        return self._ring

    async def current(self) -> KeyRing:
        """The keys, read again if they are no longer fresh. Raises Unavailable: without Redis nobody knows whether a
        key is revoked."""
        if time.monotonic() - self._read_at > self._fresh_seconds:
            if self._reading is None or self._reading.done():
                self._reading = asyncio.create_task(self._read())
                self._reading.add_done_callback(_take_error)
            # All callers that wait share one reading. It continues even if the caller that began it is cancelled.
            await asyncio.shield(self._reading)
        return self._ring

    async def _read(self) -> None:
        asked_at = time.monotonic()
        kept = await self._callers.entries()
        configured = [key for key in self._configured if kept.get(key.id) != REVOKED]
        self._ring = KeyRing([*_parsed(kept), *configured])
        if self._kept and not kept:
            _log.error("the API keys are gone from Redis; the API stays closed", to_do="timers keys make")
        self._kept, self.closed, self._read_at = bool(kept), await self._callers.closed(), asked_at


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


def _take_error(reading: asyncio.Task[None]) -> None:
    """Take note of an error that nobody waits for any more, so that asyncio does not complain."""
    if not reading.cancelled():
        reading.exception()
