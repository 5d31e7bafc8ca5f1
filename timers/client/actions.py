"""Owns doing one thing to all timers that pass a filter: page after page, a few at a time, counting what came of it."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final

from timers.core.model import Status, Timer
from timers.errors import (
    EditLocked,
    InvalidInput,
    NotFound,
    NotScheduled,
    Refused,
    Running,
    VersionMismatch,
)
from timers.store.filters import Filter
from timers.store.listing import Listing

PAGE: Final = 256
"""Timers held in memory at a time."""

AT_ONCE: Final = 8
"""Calls under way at a time: a quarter of the connections, so that an action over a million timers holds up nobody."""

_WAITING: Final = (Status.RUNNING, Status.SCHEDULED)

TAKES: Final[Mapping[str, Sequence[Status]]] = MappingProxyType(
    {
        "cancel": _WAITING,
        "retry": (Status.FAILED, Status.UNHANDLED, Status.CANCELLED),
        "reschedule": _WAITING,
        "purge": tuple(Status),
    }
)
"""The statuses that an action looks at. A running timer is looked at to be counted among the refused."""

REASONS: Final[Mapping[type[Refused], str]] = MappingProxyType(
    {
        NotFound: "timer-not-found",
        Running: "running",
        NotScheduled: "not-scheduled",
        EditLocked: "edit-locked",
        VersionMismatch: "version-mismatch",
    }
)
"""Why a timer was refused, in the words of the problem types."""

Act = Callable[[Timer], Awaitable[Any]]
"""Does it to one timer, as it was when it was found; raises Refused."""

Skip = Callable[[Timer], bool]
"""Whether a timer that was found is to be left alone and not counted."""


@dataclass(slots=True)
class Counts:
    """What an action came to: how many timers `matched`, were `done`, and were `refused` by reason."""

    matched: int = 0
    done: int = 0
    refused: Counter[str] = field(default_factory=Counter)

    def to_json(self) -> dict[str, Any]:
        """The counts as the API shows them."""
        return {"matched": self.matched, "done": self.done, "refused": dict(self.refused)}


def check_action(action: object) -> str:
    """The action if there is such a one; else InvalidInput."""
    if isinstance(action, str) and action in TAKES:
        return action
    raise InvalidInput.of("action", action, "one of " + ", ".join(map(repr, TAKES)))


def statuses_of(action: str, wanted: Filter) -> Sequence[Status]:
    """The statuses to look at. Raises InvalidInput for an unknown action, one on everything, and one on a status that
    it does not take."""
    takes = TAKES[check_action(action)]
    if wanted.is_empty:
        raise InvalidInput.of("filter", {}, "at least one of prefix, status, tag, due_after and due_before")
    if wanted.status is None:
        return takes
    if wanted.status not in takes:
        accepted = " or ".join(status.value for status in takes)
        raise InvalidInput.of("filter.status", wanted.status.value, f"{accepted} for {action}")
    return (wanted.status,)


async def act_on_all(
    listing: Listing, wanted: Filter, statuses: Sequence[Status], *, skip: Skip, act: Act | None
) -> Counts:
    """Act on every timer of these statuses that passes, None to count only. `skip` tells those that have changed since
    the action began, by it or by others: else a timer that is retried and fails again would be found for ever. Raises
    Unavailable; what was done before stays, and repeating goes on from there."""
    counts = Counts()
    for status in statuses:
        async for timers in listing.pages(replace(wanted, status=status), limit=PAGE):
            await _act_on_some([timer for timer in timers if not skip(timer)], act, counts)
    return counts


async def _act_on_some(timers: Sequence[Timer], act: Act | None, counts: Counts) -> None:
    counts.matched += len(timers)
    if act is None:
        return
    room = asyncio.Semaphore(AT_ONCE)

    async def one(timer: Timer) -> None:
        async with room:
            try:
                await act(timer)
            except Refused as error:
                counts.refused[REASONS[type(error)]] += 1
            else:
                counts.done += 1

    results = await asyncio.gather(*map(one, timers), return_exceptions=True)
    if failed := [result for result in results if result is not None]:
        raise failed[0]
