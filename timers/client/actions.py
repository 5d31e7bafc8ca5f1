"""Owns acting on many timers: all that pass a filter, page after page, or some that were chosen; a few at a time,
counting results. It can be stopped, and a cursor continues it. A timer that refuses stops nothing."""

import asyncio
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Annotated, Any, Final, NamedTuple, Self, cast

from pydantic import AfterValidator, ConfigDict, StrictBool, WithJsonSchema

from timers.client.planning import due_of_change
from timers.core import shapes
from timers.core.answers import ActionAnswer, RefusedTimer
from timers.core.fields import AnyDuration, Time, is_own
from timers.core.hooks import ids_of_calls
from timers.core.keywords import Action
from timers.core.model import Status, Timer
from timers.core.spec import TimerChange
from timers.core.strict import StrictModel
from timers.errors import (
    EditLocked,
    FieldError,
    InvalidInput,
    NewerFormat,
    NotFound,
    NotScheduled,
    RedisRights,
    Refused,
    Running,
    TimersError,
    TooManyPending,
    Unavailable,
    VersionMismatch,
    shown,
)
from timers.store.filters import Filter
from timers.store.listing import check_cursor, read_page
from timers.store.store import Store

PAGE: Final = 100
"""Timers held in memory at a time. After each page the action checks whether to stop."""

AT_ONCE: Final = 8
"""Calls in progress at once: a quarter of the connections, so that an action over a million timers holds up nobody."""

CALLS_AT_ONCE: Final = 200
"""Of how many changes of a timer the calls are looked up at a time."""

_WAITING: Final = (Status.RUNNING, Status.SCHEDULED, Status.RETRYING)

TAKES: Final[Mapping[str, Sequence[Status]]] = MappingProxyType(
    {
        "cancel": _WAITING,
        "retry": (Status.FAILED, Status.UNHANDLED, Status.CANCELLED),
        "reschedule": _WAITING,
        "change": _WAITING,
        "purge": tuple(Status),
    }
)
"""The statuses that an action looks at. Running timers are included to be counted as refused."""

REASONS: Final[Mapping[type[TimersError], str]] = MappingProxyType(
    {
        InvalidInput: "invalid-input",
        TooManyPending: "too-many-pending",
        Refused: "refused",
        NotFound: "timer-not-found",
        Running: "running",
        NotScheduled: "not-scheduled",
        EditLocked: "edit-locked",
        VersionMismatch: "version-mismatch",
        RedisRights: "redis-rights",
        NewerFormat: "newer-format",
    }
)
"""Why a timer was refused, as a problem type. Every other error ends the action."""

EXAMPLES: Final = 5
"""How many of the refused timers are named for each reason."""

Act = Callable[[Timer], Awaitable[Any]]
"""Acts on one timer as it was when it was found; raises one of `REASONS`."""

Skip = Callable[[Timer], bool]
"""Whether to leave a found timer alone and not count it."""


@dataclass(slots=True)
class Counts:
    """The result of an action: how many timers `matched`, were `done`, and were `refused` by reason, with a few
    `examples` of each. `next_cursor` says where to continue; None at the end."""

    matched: int = 0
    done: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    next_cursor: str | None = None
    examples: dict[str, list[RefusedTimer]] = field(default_factory=dict)

    def refuse(self, prefix: str, id: str, error: TimersError) -> None:
        """Count a timer that was refused, and keep it as an example while there are few."""
        reason = next(REASONS[kind] for kind in type(error).__mro__ if kind in REASONS)
        self.refused[reason] += 1
        examples = self.examples.setdefault(reason, [])
        if len(examples) < EXAMPLES:
            examples.append({"prefix": prefix, "id": id, "detail": str(error)})

    def add(self, later: "Counts") -> None:
        """Add the counts of the call that continued where these ended."""
        self.matched += later.matched
        self.done += later.done
        self.refused += later.refused
        for reason, examples in later.examples.items():
            self.examples[reason] = [*self.examples.get(reason, ()), *examples][:EXAMPLES]
        self.next_cursor = later.next_cursor

    def to_json(self) -> ActionAnswer:
        """The counts as the API shows them."""
        return {
            "matched": self.matched,
            "done": self.done,
            "refused": dict(self.refused),
            "examples": self.examples,
            "next_cursor": self.next_cursor,
        }


Stop = Callable[[Counts], bool]
"""Whether to stop an action for now; asked after each page."""


class Begun(NamedTuple):
    """An action in progress: when it began, in server time, and the cursor of its next page."""

    since_ms: int
    page: str | None = None

    @classmethod
    def read(cls, cursor: str) -> Self:
        """Read the cursor that an action returned. Raises InvalidInput."""
        since, _, page = cursor.partition(".")
        if not re.fullmatch(r"[0-9]{1,15}", since):
            raise InvalidInput.of("", cursor, "a next_cursor from an earlier action")
        return cls(int(since), check_cursor(page))

    def __str__(self) -> str:
        return f"{self.since_ms}.{self.page}"


def _checked_cursor(cursor: str) -> str:
    return str(Begun.read(cursor))


class BulkAction(StrictModel):
    """What to do with all timers that pass; with `dry_run` only count them. Only `reschedule` has a due time, and only
    `change` has `changes`. `cursor` is the `next_cursor` of the call before, all else as in that call."""

    model_config = ConfigDict(json_schema_extra=shapes.ALL_OF_ACTION)

    action: Action
    filter: Filter
    dry_run: StrictBool = False
    delay: AnyDuration | None = None
    due_at: Time | None = None
    changes: TimerChange | None = None
    cursor: Annotated[str, AfterValidator(_checked_cursor), WithJsonSchema(shapes.ACTION_CURSOR)] | None = None

    @classmethod
    def _contradictions(cls, given: Mapping[str, Any]) -> list[FieldError]:
        action, wanted = given.get("action"), given.get("filter")
        errors: list[FieldError] = []
        if not isinstance(action, str) or action not in TAKES:
            return errors
        due = {name: given[name] for name in ("delay", "due_at") if given.get(name) is not None}
        if len(due) != (action == "reschedule"):
            one = action == "reschedule"
            rule = "exactly one of delay and due_at" if one else "no due time, which only reschedule has"
            errors.append(FieldError("delay", shown(due or None), rule))
        changes = given.get("changes")
        is_some = bool(changes.model_fields_set if isinstance(changes, TimerChange) else changes)
        if (not is_some) if action == "change" else changes is not None:
            rule = "the fields to change, as in a PATCH" if action == "change" else "no changes, which only change has"
            errors.append(FieldError("changes", shown(changes), rule))
        with suppress(InvalidInput):
            errors += _not_taken(action, wanted if isinstance(wanted, Filter) else Filter.parse(wanted))
        return errors

    @property
    def narrowed(self) -> Filter:
        """The filter with the statuses that the action looks at."""
        return self.filter.model_copy(update={"status": self.filter.status or tuple(TAKES[self.action])})

    def change_from(self, now_ms: float) -> TimerChange | None:
        """What `change` and `reschedule` change, with the same due time for all; None for other actions."""
        due = {name: value for name in ("delay", "due_at") if (value := getattr(self, name)) is not None}
        change = TimerChange.parse(due) if due else self.changes
        if change is None or not change.moves_due:
            return change
        return change.model_copy(update={"delay": None, "due_at": due_of_change(change, now_ms)})


def _not_taken(action: str, wanted: Filter) -> Iterator[FieldError]:
    """A filter on everything, and a status that the action does not take."""
    takes = TAKES[action]
    if wanted.is_empty:
        yield FieldError("filter", shown({}), f"at least one of {', '.join(Filter.model_fields)}")
    if foreign := [status.value for status in wanted.status or () if status not in takes]:
        yield FieldError("filter.status", shown(",".join(foreign)), f"{' or '.join(takes)} for {action}")


def check_action(action: object) -> Action:
    """The action, if it exists; else InvalidInput."""
    if isinstance(action, str) and action in TAKES:
        return cast("Action", action)
    raise InvalidInput.of("action", action, "one of " + ", ".join(map(repr, TAKES)))


async def act_on_all(store: Store, wanted: Filter, begun: Begun, *, skip: Skip, act: Act | None, stop: Stop) -> Counts:
    """Continue until the end or until told to stop; without `act` only count. Raises what `act` raises, except
    `REASONS`."""
    counts = Counts()
    while True:
        page = await read_page(store, wanted, limit=PAGE, cursor=begun.page)
        await act_on_some([timer for timer in page.items if not skip(timer)], act, counts)
        if page.next_cursor is None:
            return counts
        begun = begun._replace(page=page.next_cursor)
        if stop(counts):
            counts.next_cursor = str(begun)
            return counts


async def act_on_some(timers: Sequence[Timer], act: Act | None, counts: Counts) -> None:
    """Act on these timers, without `act` only count them. Raises as `act_on_all`."""
    counts.matched += len(timers)
    if act is None:
        return
    room = asyncio.Semaphore(AT_ONCE)

    async def one(timer: Timer) -> None:
        async with room:
            try:
                await act(timer)
            except tuple(REASONS) as error:
                counts.refuse(timer.prefix, timer.id, error)
            else:
                counts.done += 1

    results = await asyncio.gather(*map(one, timers), return_exceptions=True)
    for failed in results:
        if isinstance(failed, Unavailable):
            failed.nothing_done = failed.nothing_done and not counts.done
        if failed is not None:
            raise failed


async def purge_calls(store: Store, timer: Timer, prefixes: Sequence[str]) -> str | None:
    """Remove the calls of hooks about a timer that was purged, which may carry its payload. Returns the key of one that
    is running, which cannot be removed."""
    running, ids = None, ids_of_calls(timer) if prefixes and not is_own(timer.prefix) else ()
    for start in range(0, len(ids), CALLS_AT_ONCE):
        calls = [(prefix, id) for id in ids[start : start + CALLS_AT_ONCE] for prefix in prefixes]
        for call in filter(None, await store.get(calls)):
            answer = await store.cancel(call.prefix, call.id, purge=True)
            running = call.key if answer.code == "running" else running
    return running
