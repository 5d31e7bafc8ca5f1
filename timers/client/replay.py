"""Owns replaying a window of time: finds its timers, plans them at a pace and in order, and arms them again.

The pace is in the due times, so the service keeps it, not the caller. A replay that broke off can be repeated and
continues: timers that are armed again have left the window.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from timers.core.decide import was_skipped
from timers.core.durations import format_time
from timers.core.model import Progress, Status, Timer
from timers.errors import InvalidInput
from timers.processor import Rate
from timers.store.filters import Filter
from timers.store.listing import read_pages
from timers.store.store import Store

REPLAY_LIMIT: Final = 100_000
"""Timers in one replay at most: they are held in memory to be sorted."""

AT_ONCE: Final = 8
"""Calls in progress at once."""

_STATUSES: Final = (Status.FAILED, Status.UNHANDLED, Status.COMPLETED)


@dataclass(frozen=True, slots=True)
class Replayed:
    """A timer of the window as it was found, when it was due first, its progress if that must change, when it will run
    again, and the result of arming it (empty: nothing yet)."""

    prefix: str
    id: str
    status: Status
    version: int
    due_ms: int
    progress: Progress | None = None
    runs_ms: int = 0
    result: str = ""

    def to_json(self) -> dict[str, Any]:
        """As the command line shows it."""
        return {
            "prefix": self.prefix,
            "id": self.id,
            "status": self.status.value,
            "due_at": format_time(self.due_ms),
            "runs_at": format_time(self.runs_ms),
            "result": self.result,
        }


async def preview(store: Store, window: Filter, pace: Rate, *, completed: bool) -> list[Replayed]:
    """Timers that failed, went unhandled or were skipped and were due in the window, by due time, each with the time
    when it would run again; with `completed` also completed ones. Scheduled and running timers are left out because
    they run anyway, and so are cancelled ones. Raises InvalidInput for more than `REPLAY_LIMIT` timers."""
    found: list[Replayed] = []
    now_ms = await store.now_ms()
    async for timer in _finished(store, window.at(now_ms)):
        if timer.status is Status.COMPLETED and not completed and not was_skipped(timer):
            continue
        is_moved = timer.progress.first_due_ms is not None
        anew = replace(timer.progress, first_due_ms=None) if is_moved else None
        found.append(Replayed(timer.prefix, timer.id, timer.status, timer.version, timer.first_due_ms, anew))
        if len(found) > REPLAY_LIMIT:
            raise InvalidInput.of("to", None, f"a window with at most {REPLAY_LIMIT} timers to replay; narrow it")
    return _paced(found, now_ms, pace)


async def arm_again(
    store: Store, planned: Sequence[Replayed], show: Callable[[int], object] = lambda _done: None
) -> list[Replayed]:
    """Arm what `preview` found. Each gets a result: `armed`, or how it has changed since. `show` is called with the
    number done. Raises Unavailable; timers armed before stay."""
    results: list[Replayed] = []
    for start in range(0, len(planned), AT_ONCE):
        results += await asyncio.gather(*(_arm(store, each) for each in planned[start : start + AT_ONCE]))
        show(len(results))
    return results


async def _finished(store: Store, window: Filter) -> AsyncIterator[Timer]:
    """Finished timers whose occurrence was due in the window first: each retry has moved the due time since."""
    after_ms, before_ms = window.due_after or 0, window.due_before
    whenever = window.model_copy(update={"status": _STATUSES, "due_after": None, "due_before": None})
    async for timers in read_pages(store, whenever):
        for timer in timers:
            if after_ms <= timer.first_due_ms and (before_ms is None or timer.first_due_ms < before_ms):
                yield timer


def _paced(found: Iterable[Replayed], now_ms: int, pace: Rate) -> list[Replayed]:
    ordered = sorted(found, key=lambda each: (each.due_ms, each.prefix, each.id))
    return [replace(each, runs_ms=now_ms + n * pace.interval_us // 1000) for n, each in enumerate(ordered)]


async def _arm(store: Store, planned: Replayed) -> Replayed:
    answer = await store.rearm(
        planned.prefix,
        planned.id,
        due=f"@{planned.runs_ms}",
        version=planned.version,
        completed=True,
        cause="replayed",
        progress=planned.progress,
    )
    return replace(planned, result="armed" if answer.code == "changed" else _REASONS[answer.code])


_REASONS: Final = {
    "missing": "removed meanwhile",
    "version": "changed meanwhile",
    "newer": "written by a later version of the service",
    "rights": "the Redis user lacks the right to its keys",
}
