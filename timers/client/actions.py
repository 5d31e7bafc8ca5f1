"""Owns doing one thing to all timers that pass a filter: page after page, a few at a time, counting what came of it,
until it is stopped; a cursor goes on."""

import asyncio
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Self, cast

from timers.core.keywords import Action
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
from timers.store.listing import Listing, check_cursor

PAGE: Final = 100
"""Timers held in memory at a time, and done before one looks whether to stop."""

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
    """What an action came to: how many timers `matched`, were `done`, and were `refused` by reason. `next_cursor` says
    where to go on; None at the end."""

    matched: int = 0
    done: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    next_cursor: str | None = None

    def to_json(self) -> dict[str, Any]:
        """The counts as the API shows them."""
        counts = {"matched": self.matched, "done": self.done, "refused": dict(self.refused)}
        return {**counts, "next_cursor": self.next_cursor}


Stop = Callable[[Counts], bool]
"""Whether an action is to stop for now, asked after each page."""


class Begun(NamedTuple):
    """An action under way: when it began, by the server's clock, the place of the status it has come to among those it
    looks at, and the cursor of its next page of them."""

    since_ms: int
    status: int = 0
    page: str | None = None

    @classmethod
    def read(cls, cursor: str) -> Self:
        """From the cursor that an action answered. Raises InvalidInput."""
        since, _, rest = cursor.partition(".")
        status, _, page = rest.partition(".")
        if not re.fullmatch(r"[0-9]{1,15}", since) or not re.fullmatch(r"[0-5]", status):
            raise InvalidInput.of("cursor", cursor, "a next_cursor that an action has answered")
        check_cursor(page or None)
        return cls(int(since), int(status), page or None)

    def __str__(self) -> str:
        return f"{self.since_ms}.{self.status}.{self.page or ''}"


def check_action(action: object) -> Action:
    """The action if there is such a one; else InvalidInput."""
    if isinstance(action, str) and action in TAKES:
        return cast("Action", action)
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
    listing: Listing,
    wanted: Filter,
    statuses: Sequence[Status],
    begun: Begun,
    *,
    skip: Skip,
    act: Act | None,
    stop: Stop,
) -> Counts:
    """Act on every timer of these statuses that passes, None to count only, from where it has come to until `stop`.
    `skip` tells those that have changed since the action began, by it or by others: else a timer that is retried and
    fails again would be found for ever. Raises Unavailable; what was done before stays, and repeating goes on from
    there."""
    counts = Counts()
    while begun.status < len(statuses):
        some = replace(wanted, status=statuses[begun.status])
        page = await listing.page(some, limit=PAGE, cursor=begun.page)
        await _act_on_some([timer for timer in page.items if not skip(timer)], act, counts)
        begun = begun._replace(status=begun.status + (page.next_cursor is None), page=page.next_cursor)
        if begun.status < len(statuses) and stop(counts):
            counts.next_cursor = str(begun)
            break
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
