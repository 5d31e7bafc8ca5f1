"""Owns explaining a timer in words, from its record alone: why it was late, ran twice, or did not run. Pure."""

from collections.abc import Iterator, Sequence
from typing import Final

from timers.core.decide import was_skipped
from timers.core.durations import format_time
from timers.core.model import HistoryEntry, Status, Timer

PUNCTUAL_MS: Final = 100
"""Lateness that needs no explanation."""

_CAUSES: Final = {
    "event": "its expired event was heard",
    "late-look": "the pod whose event it was had not claimed it, another looked 50 ms later",
    "sweep": "no event was heard, or nobody had room; the sweep of the due index found it",
    "room": "its queue runs only so many at once, and a run before it had ended",
    "rate": "its queue's rate allowed it then",
    "rescue": "the lease of the run before had expired: its pod died, hung or could not reach Redis",
}


def explain(timer: Timer, now_ms: int) -> list[str]:
    """The timer's life, one line for each entry, then answers to the questions that its record raises."""
    lines = [_entry(entry) for entry in timer.history]
    return [*lines, *_answers(timer, now_ms)]


def _entry(entry: HistoryEntry) -> str:
    where = f" on {entry.pod}" if entry.pod else ""
    attempt = f", attempt {entry.attempt}" if entry.status is Status.RUNNING else ""
    by = f" by {entry.processor}" if entry.processor else ""
    cause = _CAUSES.get(entry.cause, entry.note)
    late = "" if entry.lateness_ms is None else f" ({entry.lateness_ms} ms after due)"
    return f"{format_time(entry.at_ms)} {entry.status.value}{where}{attempt}{by}: {cause}{late}"


def _answers(timer: Timer, now_ms: int) -> Iterator[str]:
    yield from _not_run(timer, now_ms)
    for entry in timer.history:
        if entry.lateness_ms is not None and entry.lateness_ms > PUNCTUAL_MS and entry.cause != "rescue":
            yield f"late by {entry.lateness_ms} ms at attempt {entry.attempt}: {_CAUSES.get(entry.cause, entry.note)}"
    yield from _started_again(timer.history)
    if timer.failures and timer.status in {Status.SCHEDULED, Status.RUNNING}:
        yield f"failed attempts: {timer.failures}; the last error: {_last_error(timer)}"


def _last_error(timer: Timer) -> str:
    """What failed last, and in which line of the processor's code."""
    error = timer.last_error or {}
    where = f" ({error['where']})" if "where" in error else ""
    return f"{error.get('reason', 'unknown')}{where}"


def _not_run(timer: Timer, now_ms: int) -> Iterator[str]:
    match timer.status:
        case Status.SCHEDULED if timer.due_ms > now_ms:
            yield f"not run yet: due in {timer.due_ms - now_ms} ms"
        case Status.SCHEDULED:
            yield (
                f"due for {now_ms - timer.due_ms} ms and not claimed: no pod with room serves {timer.prefix!r}, "
                "or the prefix is paused or at its limit"
            )
        case Status.UNHANDLED:
            ran = len(timer.history) > 1 and timer.history[-2].status is Status.RUNNING
            what = "its pod died in the run, and" if ran else "not run:"
            yield f"{what} no live pod served {timer.prefix!r}; start one and retry it"
        case Status.CANCELLED:
            yield "not run: it was cancelled"
        case Status.FAILED:
            yield f"given up after {timer.failures} failed attempts; the last error: {_last_error(timer)}"
        case Status.RUNNING:
            yield (
                f"running on {timer.lease.pod}" if timer.lease else "running, but its lease has expired; rescue follows"
            )
        case Status.COMPLETED if was_skipped(timer):
            yield f"not run: {timer.history[-1].note}"
        case Status.COMPLETED:
            return


def _started_again(history: Sequence[HistoryEntry]) -> Iterator[str]:
    """Why each start after the first of an occurrence: what happened between it and the start before."""
    since: list[str] = []
    for entry in history:
        if entry.status is not Status.RUNNING:
            since.append(entry.note)
            continue
        if entry.attempt > 1:
            why = [_CAUSES["rescue"]] if entry.cause == "rescue" else since
            yield f"started again, attempt {entry.attempt}: {'; '.join(why)}"
        since = []
