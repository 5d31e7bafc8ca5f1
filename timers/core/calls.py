"""Owns the calls that a processor can make on other timers, with typed keyword arguments: awaited, or blocking in a
thread."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Unpack, overload

from timers.core.keywords import After, At, ByCron, ByLadder
from timers.core.model import Timer


class Timers(ABC):
    """What an async processor can do with other timers; `timers.TimerClient` can do more. Every method raises
    Unavailable while Redis is down, InvalidInput for bad values, and a Refused if the timer's state forbids the
    call."""

    @overload
    async def create(self, prefix: str, id: str | None = None, **fields: Unpack[After]) -> Timer: ...
    @overload
    async def create(self, prefix: str, id: str | None = None, **fields: Unpack[At]) -> Timer: ...
    @overload
    async def create(self, prefix: str, id: str | None = None, **fields: Unpack[ByCron]) -> Timer: ...
    @overload
    async def create(self, prefix: str, id: str | None = None, **fields: Unpack[ByLadder]) -> Timer: ...
    async def create(self, prefix: str, id: str | None = None, **fields: Any) -> Timer:
        """Arm a timer, and return the timer that exists now. The keyword arguments are the fields of `POST /v1/timers`,
        and `traceparent`, the W3C trace that its runs are linked to. Without an id the service makes one."""
        return await self._create(prefix, id, fields)

    @abstractmethod
    async def _create(self, prefix: str, id: str | None, fields: Mapping[str, Any]) -> Timer: ...

    @abstractmethod
    async def get(self, prefix: str, id: str) -> Timer:
        """Return the timer. Raises NotFound."""

    @abstractmethod
    async def cancel(self, prefix: str, id: str, *, version: int | None = None, purge: bool = False) -> Timer:
        """Cancel a scheduled timer: it never starts after that. `purge` also removes the record, even of a finished
        timer. Raises NotFound, Running, EditLocked, NotScheduled, VersionMismatch."""


class BlockingTimers(ABC):
    """What a plain processor can do with other timers; `timers.BlockingTimerClient` can do more. Each method waits for
    its result and raises the errors of its twin in `Timers`; in a plain processor it also raises RunOver once its run
    is over."""

    @overload
    def create(self, prefix: str, id: str | None = None, **fields: Unpack[After]) -> Timer: ...
    @overload
    def create(self, prefix: str, id: str | None = None, **fields: Unpack[At]) -> Timer: ...
    @overload
    def create(self, prefix: str, id: str | None = None, **fields: Unpack[ByCron]) -> Timer: ...
    @overload
    def create(self, prefix: str, id: str | None = None, **fields: Unpack[ByLadder]) -> Timer: ...
    def create(self, prefix: str, id: str | None = None, **fields: Any) -> Timer:
        """As `Timers.create`."""
        return self._create(prefix, id, fields)

    @abstractmethod
    def _create(self, prefix: str, id: str | None, fields: Mapping[str, Any]) -> Timer: ...

    @abstractmethod
    def get(self, prefix: str, id: str) -> Timer:
        """As `Timers.get`."""

    @abstractmethod
    def cancel(self, prefix: str, id: str, *, version: int | None = None, purge: bool = False) -> Timer:
        """As `Timers.cancel`."""
