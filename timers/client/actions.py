"""Owns acting on many timers: all that pass a filter, page after page, or some that were chosen; a few at a time,
counting results. It can be stopped, and a cursor continues it. A timer that refuses stops nothing.

A replay finds the timers of a window of time, plans them at a pace and in order, and arms them again. The pace is in
the due times, so the service keeps it, not the caller. One that broke off can be repeated and continues: timers that
are armed again have left the window.
"""

import asyncio
import re
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import Annotated, Any, Final, Self, TypeVar, cast

from pydantic import AfterValidator, ConfigDict, PrivateAttr, StrictBool, WithJsonSchema

from timers.client.planning import REASONS, refusal
from timers.core import shapes
from timers.core.answers import ActionAnswer, RefusedTimer
from timers.core.decide import was_skipped
from timers.core.durations import format_time
from timers.core.fields import AnyDuration, StrictModel, Time, check_id, check_prefix, is_own
from timers.core.hooks import ids_of_calls
from timers.core.model import Status, Timer
from timers.core.policies import Rate
from timers.core.shapes import Action
from timers.core.spec import TimerChange, own_due_ms
from timers.errors import FieldError, InvalidInput, LedgerUnavailable, TimersError, Unavailable, shown
from timers.store.filters import Filter
from timers.store.listing import check_cursor, read_page, read_pages
from timers.store.store import Store

T = TypeVar("T")
R = TypeVar("R")

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

EXAMPLES: Final = 5
"""How many of the refused timers are named for each reason."""

Act = Callable[[Timer], Awaitable[Any]]
"""Acts on one timer as it was when it was found; raises one of `REASONS`."""


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
        reason = error.problem.slug
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
        return {
            "matched": self.matched,
            "done": self.done,
            "refused": dict(self.refused),
            "examples": self.examples,
            "next_cursor": self.next_cursor,
        }


Stop = Callable[[Counts], bool]
"""Whether to stop an action for now; asked after each page."""


def begun(cursor: str) -> tuple[int, str | None]:
    """When an action began, in server time, and the cursor of its next page, from the cursor that it returned. Raises
    InvalidInput."""
    since, _, page = cursor.partition(".")
    if not re.fullmatch(r"[0-9]{1,15}", since):
        raise InvalidInput.of("", cursor, "a next_cursor from an earlier action")
    return int(since), check_cursor(page)


def _checked_cursor(cursor: str) -> str:
    begun(cursor)
    return cursor


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

    _chosen: Sequence[tuple[str, str]] | None = PrivateAttr(default=None)

    def on(self, chosen: Sequence[tuple[str, str]]) -> Self:
        """The same on the timers with these prefixes and ids, whatever the filter says."""
        copy = self.model_copy()
        copy._chosen = chosen
        return copy

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
            errors += [FieldError(name, shown(value), rule) for name, value in (due or {"delay": None}).items()]
        changes = given.get("changes")
        if isinstance(changes, TimerChange):
            changes = changes.model_dump(exclude_unset=True)
        if (not changes) if action == "change" else changes is not None:
            rule = "the fields to change, as in a PATCH" if action == "change" else "no changes, which only change has"
            errors.append(FieldError("changes", shown(changes), rule))
        with suppress(InvalidInput):
            errors += _not_taken(action, Filter.parse(wanted))
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
        try:
            return change.model_copy(update={"delay": None, "due_at": own_due_ms(change, now_ms)})
        except InvalidInput as error:
            raise error if due else error.under("changes") from None


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


async def carry_out(
    store: Store, asked: BulkAction, since_ms: int, *, change: TimerChange | None, act: Act | None, stop: Stop
) -> Counts:
    """Act on the chosen timers, or page by page on all that pass, until the end or until told to stop; without `act`
    only count. It began at `since_ms`. Raises what `act` raises, except `REASONS`; if Redis or the ledger is away, the
    error says how many were done before."""
    counts = Counts()
    with _telling_how_many(lambda: counts.done):
        if asked._chosen is not None:
            await _act_on_chosen(store, asked._chosen, act, counts)
            return counts
        due_ms = change.due_at if change is not None and asked.action == "reschedule" else None
        wanted = asked.narrowed.at(since_ms)
        cursor = None if asked.cursor is None else begun(asked.cursor)[1]
        while True:
            page = await read_page(store, wanted, limit=PAGE, cursor=cursor)
            still = [timer for timer in page.items if timer.updated_ms <= since_ms and timer.due_ms != due_ms]
            await _act_on(still, act, counts)
            if page.next_cursor is None:
                return counts
            cursor = page.next_cursor
            if stop(counts):
                counts.next_cursor = f"{since_ms}.{cursor}"
                return counts


@contextmanager
def _telling_how_many(done: Callable[[], int]) -> Iterator[None]:
    try:
        yield
    except (Unavailable, LedgerUnavailable) as away:
        if number := done():
            were = "timer was" if number == 1 else "timers were"
            away.args = (f"{away}; {number} {were} done before that: repeat it for the others",)
        raise


async def _act_on_chosen(store: Store, chosen: Sequence[tuple[str, str]], act: Act | None, counts: Counts) -> None:
    found = await store.get([(check_prefix(prefix), check_id(id)) for prefix, id in chosen])
    for (prefix, id), timer in zip(chosen, found, strict=True):
        if timer is None:
            counts.matched += 1
            counts.refuse(prefix, id, refusal("missing", prefix, id, None))
    await _act_on([timer for timer in found if timer is not None], act, counts)


async def _act_on(timers: Sequence[Timer], act: Act | None, counts: Counts) -> None:
    """Act on these timers, without `act` only count them."""
    counts.matched += len(timers)
    if act is None:
        return

    async def one(timer: Timer) -> None:
        try:
            await act(timer)
        except REASONS as error:
            counts.refuse(timer.prefix, timer.id, error)
        else:
            counts.done += 1

    for failed in await _bounded_gather(one, timers):
        if isinstance(failed, Unavailable):
            failed.nothing_done = failed.nothing_done and not counts.done
        if isinstance(failed, BaseException):
            raise failed


async def _bounded_gather(call: Callable[[T], Awaitable[R]], several: Iterable[T]) -> list[R | BaseException]:
    """The results or errors, in order."""
    room = asyncio.Semaphore(AT_ONCE)

    async def one(each: T) -> R:
        async with room:
            return await call(each)

    return await asyncio.gather(*map(one, several), return_exceptions=True)


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


REPLAY_LIMIT: Final = 100_000
"""Timers in one replay at most: they are held in memory to be sorted."""

_REPLAYED: Final = (Status.FAILED, Status.UNHANDLED, Status.COMPLETED)


@dataclass(frozen=True, slots=True)
class Replayed:
    """A timer of the window as it was found, when it will run again, and the result of arming it (empty: nothing
    yet)."""

    timer: Timer
    runs_ms: int
    result: str = ""

    def to_json(self) -> dict[str, Any]:
        return {
            "prefix": self.timer.prefix,
            "id": self.timer.id,
            "status": self.timer.status.value,
            "due_at": format_time(self.timer.first_due_ms),
            "runs_at": format_time(self.runs_ms),
            "result": self.result,
        }


async def preview(store: Store, window: Filter, pace: Rate, *, completed: bool) -> list[Replayed]:
    """Timers that failed, went unhandled or were skipped and were due in the window, by due time, each with the time
    when it would run again; with `completed` also completed ones. Scheduled and running timers are left out because
    they run anyway, and so are cancelled ones. Raises InvalidInput for more than `REPLAY_LIMIT` timers."""
    found: list[Timer] = []
    now_ms = await store.now_ms()
    async for timer in _finished(store, window.at(now_ms)):
        if timer.status is Status.COMPLETED and not completed and not was_skipped(timer):
            continue
        found.append(timer._replace(spec={}, history=()))
        if len(found) > REPLAY_LIMIT:
            raise InvalidInput.of("to", None, f"a window with at most {REPLAY_LIMIT} timers to replay; narrow it")
    found.sort(key=lambda timer: (timer.first_due_ms, timer.prefix, timer.id))
    return [Replayed(timer, now_ms + n * pace.interval_us // 1000) for n, timer in enumerate(found)]


async def arm_again(
    store: Store, planned: Sequence[Replayed], show: Callable[[int], object] = lambda _done: None
) -> list[Replayed]:
    """Arm what `preview` found. Each gets a result: `armed`, or how it has changed since. `show` is called with the
    number done. Raises Unavailable, which says how many were armed before; they stay."""
    results: list[Replayed] = []
    with _telling_how_many(lambda: sum(each.result == "armed" for each in results)):
        for start in range(0, len(planned), PAGE):
            for result in await _bounded_gather(partial(_arm_again, store), planned[start : start + PAGE]):
                if isinstance(result, BaseException):
                    raise result
                results.append(result)
            show(len(results))
    return results


async def _finished(store: Store, window: Filter) -> AsyncIterator[Timer]:
    """Finished timers whose occurrence was due in the window first: each retry has moved the due time since."""
    after_ms, before_ms = window.due_after or 0, window.due_before
    whenever = window.model_copy(update={"status": _REPLAYED, "due_after": None, "due_before": None})
    async for timers in read_pages(store, whenever):
        for timer in timers:
            if after_ms <= timer.first_due_ms and (before_ms is None or timer.first_due_ms < before_ms):
                yield timer


async def _arm_again(store: Store, planned: Replayed) -> Replayed:
    timer = planned.timer
    answer = await store.rearm(
        timer.prefix,
        timer.id,
        due=f"@{planned.runs_ms}",
        version=timer.version,
        completed=True,
        cause="replayed",
        progress=None if timer.progress.first_due_ms is None else replace(timer.progress, first_due_ms=None),
    )
    return replace(planned, result="armed" if answer.code == "changed" else _NOT_ARMED[answer.code])


_NOT_ARMED: Final = {
    "missing": "removed meanwhile",
    "version": "changed meanwhile",
    "newer": "written by a later version of the service",
    "rights": "the Redis user lacks the right to its keys",
}
