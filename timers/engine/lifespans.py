"""Owns what a pod's processors hold open: enters it once before the first claim and leaves it after the last run."""

import asyncio
from collections.abc import Iterable
from contextlib import AsyncExitStack
from typing import Any

from timers.errors import ConfigurationError
from timers.logs import get_logger
from timers.processor import Lifespan, Processor

_log = get_logger("timers.lifespans")


class Lifespans:
    """The lifespans of these processors. Several processors may share one, which is entered once."""

    def __init__(self, processors: Iterable[Processor]) -> None:
        self._owners = {p.lifespan: p for p in processors if p.lifespan is not None}
        self._states: dict[Lifespan[Any], Any] = {}
        self._opened, self._closing = asyncio.Event(), asyncio.Event()
        self._holding: asyncio.Task[None] | None = None

    def state_of(self, processor: Processor) -> Any:
        """What the processor's lifespan yielded; None if it has none."""
        return None if processor.lifespan is None else self._states[processor.lifespan]

    async def open(self) -> None:
        """Enter all. If one fails, leave the others and raise ConfigurationError with the processor's name."""
        self._holding = asyncio.create_task(self._hold(), name="timers.lifespans")
        opened = asyncio.create_task(self._opened.wait())
        try:
            await asyncio.wait({self._holding, opened}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            opened.cancel()
        if self._holding.done():
            failed, self._holding = self._holding, None
            await failed

    async def close(self) -> None:
        """Leave all, the newest first. Failures are logged. Does nothing if none is open."""
        self._closing.set()
        if self._holding is None:
            return
        try:
            await self._holding
        except Exception as error:  # noqa: BLE001 (a processor's own code; the pod ends all the same)
            _log.error("the lifespan of a processor could not be closed", exc_info=error)

    async def _hold(self) -> None:
        """Runs in its own task, because a context may have to be left in the task that entered it."""
        async with AsyncExitStack() as stack:
            for lifespan, owner in self._owners.items():
                try:
                    self._states[lifespan] = await stack.enter_async_context(lifespan())
                except ConfigurationError:
                    raise
                except Exception as error:
                    raise ConfigurationError(
                        f"the lifespan of the processor {owner.origin} failed: {type(error).__name__}: {error}"
                    ) from error
            self._opened.set()
            await self._closing.wait()
