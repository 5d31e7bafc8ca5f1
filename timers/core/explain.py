"""Owns explaining a timer in words, from its record: why it was late, ran twice, or did not run. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from timers.core.decide import life, was_lost, was_skipped
from timers.core.durations import format_time, in_units
from timers.core.model import HistoryEntry, Status, Timer

PUNCTUAL_MS: Final = 100
"""Lateness that needs no explanation."""

_CAUSES: Final = {
    "event": "its expired event arrived",
    "late-look": "the pod responsible for its event did not claim it; another pod looked 50 ms later",
    "sweep": "its event did not arrive in time, or its prefix was paused then; the sweep of the due index found it",
    "sweep-start": "its pod had just started, and looked for everything that was due",
    "sweep-gap": "its pod had lost its subscription, or Redis refused its calls; it looked for everything that was due",
    "sweep-deaf": "Redis's notifications do not arrive at its pod; the sweep of the due index found it",
    "sweep-busy": "its pod knew that it was due, but had no room for another run until then",
    "room": "its queue was at its concurrency limit until another run ended",
    "rate": "its queue's rate limit did not allow it earlier",
    "rescue": "the previous run's lease had expired: its pod died, hung or could not reach Redis",
}


@dataclass(frozen=True, slots=True)
class Attempt:
    """One start and the entry after it: its end, the start of its rescue, or None while it runs.

    `waited_ms` is the time to the claim: from due, or from the entry before if that is later. A timer armed with a due
    time in the past was not late before it was armed, and a rescue follows the start before it.
    """

    start: HistoryEntry
    ended: HistoryEntry | None
    waited_ms: int

    @property
    def event_ms(self) -> int | None:
        """The first part of the wait: until the pod heard the event, or a sweep found the timer. None if unknown."""
        known_ms = None if self.ended is None else self.ended.claim_ms
        return None if known_ms is None else max(0, self.waited_ms - known_ms)

    @property
    def claim_ms(self) -> int | None:
        """The rest of the wait, until the claim. None for a rescue, which waits for a lease to expire."""
        return None if self.start.cause == "rescue" else self.waited_ms - (self.event_ms or 0)

    @property
    def queue_ms(self) -> int | None:
        """From the claim to the call of the processor. None if unknown."""
        return None if self.ended is None else self.ended.queue_ms

    @property
    def run_ms(self) -> int | None:
        """How long the processor ran, or until its run was taken for lost. None while it runs."""
        if self.ended is None:
            return None
        return self.ended.at_ms - self.start.at_ms if self.ended.run_ms is None else self.ended.run_ms


def attempts(history: Sequence[HistoryEntry]) -> list[Attempt]:
    """The starts in a timer's history, the oldest first."""
    found: list[Attempt] = []
    before_ms = 0
    entries = history[::-1]
    for entry, after in zip(entries, [*entries[1:], None], strict=True):
        if entry.status is Status.RUNNING:
            due_ms = entry.at_ms - (entry.lateness_ms or 0)
            found.append(Attempt(entry, after, max(0, entry.at_ms - max(due_ms, before_ms))))
        before_ms = before_ms if entry.cause == "changed" else entry.at_ms
    return found


def explain(timer: Timer, now_ms: int, *, obstacle: str = "", pause: Sequence[int] = ()) -> list[str]:
    """The timer's life, one line for each entry, oldest first, then answers to the questions that its record raises.

    `obstacle` is what keeps a due timer from being claimed, and `pause` when its prefix was last paused and resumed, as
    far as the caller knows.
    """
    ran = {id(attempt.ended): attempt for attempt in attempts(timer.history) if attempt.queue_ms is not None}
    lines = [_entry(entry, ran.get(id(entry))) for entry in reversed(timer.history)]
    return [*lines, *_answers(timer, now_ms, obstacle, pause)]


def _entry(entry: HistoryEntry, ran: Attempt | None) -> str:
    where = f" on {entry.pod}" if entry.pod else ""
    attempt = f", attempt {entry.attempt}" if entry.status is Status.RUNNING else ""
    who = entry.processor or entry.by
    by = f" by {who}" if who else ""
    cause = _CAUSES.get(entry.cause, entry.note)
    late = "" if entry.lateness_ms is None else f" ({entry.lateness_ms} ms after due)"
    timings = "" if ran is None else f" ({_split(ran)}, run {ran.run_ms} ms)"
    return f"{format_time(entry.at_ms)} {entry.status.value}{where}{attempt}{by}: {cause}{late}{timings}"


def _split(attempt: Attempt) -> str:
    """The parts of an attempt's lateness."""
    parts = {"event": attempt.event_ms, "claim": attempt.claim_ms, "queue": attempt.queue_ms}
    return ", ".join(f"{name} {ms} ms" for name, ms in parts.items() if ms is not None)


def _answers(timer: Timer, now_ms: int, obstacle: str, pause: Sequence[int]) -> Iterator[str]:
    yield from _not_run(timer, now_ms, obstacle)
    for attempt in attempts(timer.history):
        yield from _late(attempt, pause)
    yield from _started_again(timer.history)
    if timer.failures and timer.status in {Status.SCHEDULED, Status.RUNNING}:
        yield f"failed attempts: {timer.failures}; the last error: {_last_error(timer)}"


def _late(attempt: Attempt, pause: Sequence[int]) -> Iterator[str]:
    start, queue_ms = attempt.start, attempt.queue_ms or 0
    late_ms = attempt.waited_ms + queue_ms
    if late_ms <= PUNCTUAL_MS or start.cause == "rescue":
        return
    whys = []
    if len(pause) == 2 and start.at_ms - attempt.waited_ms < pause[1] <= start.at_ms:
        whys.append(f"its prefix was paused from {format_time(pause[0])} to {format_time(pause[1])}")
    elif attempt.event_ms is not None and attempt.event_ms <= PUNCTUAL_MS < attempt.waited_ms:
        whys.append(_CAUSES["sweep-busy"])  # whatever made the pod ask in the end
    elif attempt.waited_ms > PUNCTUAL_MS:
        whys.append(_CAUSES.get(start.cause, start.note))
    if queue_ms > PUNCTUAL_MS:
        whys.append(f"its pod {start.pod} was busy, and called the processor {in_units(queue_ms)} after the claim")
    split = f" ({_split(attempt)})" if attempt.queue_ms is not None else ""
    yield f"late by {in_units(late_ms)} at attempt {start.attempt}: {'; '.join(whys) or 'all parts together'}{split}"


def _last_error(timer: Timer) -> str:
    """What failed last: a run whose pod was lost, or what a processor said, and in which line of its code."""
    error = timer.last_error or {}
    for lost, after in zip(timer.history[1:], timer.history, strict=False):
        is_lost = lost.status is Status.RUNNING and after.cause in ("rescue", "lost-unserved")
        if is_lost and format_time(lost.at_ms) > str(error.get("at", "")):
            return f"its pod {lost.pod} died or lost the lease during attempt {lost.attempt}"
    where = f" ({error['where']})" if "where" in error else ""
    return f"{error.get('reason', 'not in the record any more')}{where}"


def _not_run(timer: Timer, now_ms: int, obstacle: str) -> Iterator[str]:
    match timer.status:
        case Status.SCHEDULED if timer.due_ms > now_ms:
            yield f"not run yet: due in {in_units(timer.due_ms - now_ms)}"
        case Status.SCHEDULED:
            why = obstacle or f"no pod with room serves {timer.prefix!r}, or the prefix is paused or at its limit"
            yield f"due for {in_units(now_ms - timer.due_ms)} and not claimed: {why}"
        case Status.UNHANDLED:
            what = "its pod died during the run, and" if was_lost(timer) else "not run:"
            yield f"{what} no live pod served {timer.prefix!r}; start one and retry it"
        case Status.CANCELLED:
            yield "not run: it was cancelled"
        case Status.FAILED:
            times = "1 failed attempt" if timer.failures == 1 else f"{timer.failures} failed attempts"
            yield f"given up after {times}; the last error: {_last_error(timer)}"
        case Status.RUNNING:
            yield (
                f"running on {timer.lease.pod}"
                if timer.lease
                else "running, but its lease has expired; another pod will rescue it"
            )
        case Status.COMPLETED if was_skipped(timer):
            yield f"not run: {next(life(timer)).note}"


def _started_again(history: Sequence[HistoryEntry]) -> Iterator[str]:
    """Why each start after the first of an occurrence: what happened between it and the start before."""
    since: list[str] = []
    for entry in reversed(history):
        if entry.status is not Status.RUNNING:
            since.append(entry.note)
            continue
        if entry.attempt > 1:
            why = [_CAUSES["rescue"]] if entry.cause == "rescue" else since
            yield f"started again, attempt {entry.attempt}: {'; '.join(why)}"
        since = []
