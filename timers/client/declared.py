"""Owns whether a timer may be armed for a prefix: a processor must have been declared for it, on a live pod or not."""

import asyncio
import time
from collections.abc import Iterable
from typing import Final

from timers.client.coverage import few
from timers.errors import FieldError, NoProcessor, shown
from timers.store.membership import Membership, Roster
from timers.store.store import Store

FRESH_SECONDS: Final = 1.0
"""How long the declarations that were read are used: as long as a pod takes between two signs of life. So they cost one
small call a second, not one for each create."""


class Declared:
    """The declared prefixes as one client last read them."""

    def __init__(self, store: Store, *, fresh_seconds: float = FRESH_SECONDS) -> None:
        self._membership, self._fresh_seconds = Membership(store), fresh_seconds
        self._roster = Roster()
        self._read_at = float("-inf")
        self._reading = asyncio.Lock()

    async def refusals(self, prefixes: Iterable[str]) -> dict[str, NoProcessor]:
        """An error for each prefix that no processor was ever declared for. Reads the declarations again before it
        returns an error. Raises Unavailable."""
        asked_at = time.monotonic()
        await self._read_since(asked_at - self._fresh_seconds)
        missing = self._missing(prefixes)
        if missing:
            await self._read_since(asked_at)
        return {prefix: self._refusal(prefix) for prefix in self._missing(missing)}

    async def owner(self, prefix: str) -> str | None:
        """The processor that owns timers of the prefix, as of the last second. Raises Unavailable."""
        await self._read_since(time.monotonic() - self._fresh_seconds)
        return self._roster.owner(prefix)

    def _missing(self, prefixes: Iterable[str]) -> list[str]:
        return [prefix for prefix in prefixes if self._roster.owner(prefix) is None]

    def _refusal(self, prefix: str) -> NoProcessor:
        known = few(sorted(self._roster.declared)) or "none was ever declared"
        return NoProcessor(FieldError("prefix", shown(prefix), f"a prefix that a processor serves ({known})"))

    async def _read_since(self, at: float) -> None:
        """Read, unless somebody began to read at that time or later; callers who wait for the same read share it."""
        if self._read_at >= at:
            return
        async with self._reading:
            if self._read_at < at:
                began = time.monotonic()
                self._roster = await self._membership.declared(self._roster)
                self._read_at = began
