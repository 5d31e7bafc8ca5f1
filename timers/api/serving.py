"""Owns the question whether anybody serves a prefix: this process's own processors, or those of a live pod."""

import asyncio
import time
from collections.abc import Sequence
from typing import Final

from timers.client.fleet import live_workers, serves
from timers.errors import FieldError, NoProcessor, shown
from timers.processor import Registry
from timers.store.store import PodSign, Store

FRESH_SECONDS: Final = 1.0
"""How long the list of pods is believed: as long as a pod takes between two signs of life."""


def require_served(prefix: str, workers: Sequence[PodSign], own: Sequence[str] = ()) -> None:
    """Raises NoProcessor where none of the pods runs timers of the prefix. `own` are prefixes known beside theirs."""
    if not any(serves(worker.info, prefix) for worker in workers):
        known = sorted({*own, *(name for worker in workers for name in worker.info.get("serves", ()))})
        rule = f"a prefix that a processor serves ({', '.join(known) or 'there is none'})"
        raise NoProcessor(FieldError("prefix", shown(prefix), rule))


class Serving:
    """Who serves what, as this pod last saw it."""

    def __init__(self, store: Store, registry: Registry) -> None:
        self._store, self._registry = store, registry
        self._workers: list[PodSign] = []
        self._asked_at = float("-inf")
        self._asking = asyncio.Lock()

    async def require(self, prefix: str) -> None:
        """Raises NoProcessor for a prefix that neither this process nor a live pod serves; Unavailable."""
        if self._registry.match(prefix) is None:
            require_served(prefix, await self._live(), self._registry.declared)

    async def _live(self) -> list[PodSign]:
        """The live workers, asked at most once in `FRESH_SECONDS`."""
        async with self._asking:
            if time.monotonic() - self._asked_at > FRESH_SECONDS:
                self._workers, self._asked_at = await live_workers(self._store), time.monotonic()
        return self._workers
