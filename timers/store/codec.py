"""Owns the record's form in Redis: text that a script can take apart without decoding JSON, and the Timer it stands for.

A record is lines: a head of ten fields, the wishes (JSON), the progress (JSON or nothing), the history, oldest first.
PROTOCOL.md gives the fields.
"""

import json
from collections.abc import Mapping
from typing import Any, Final

from timers.model import HISTORY_LIMIT, NO_PROGRESS, HistoryEntry, Lease, Progress, Status, Timer

LETTERS: Final[Mapping[Status, str]] = {
    Status.SCHEDULED: "s",
    Status.RUNNING: "r",
    Status.COMPLETED: "c",
    Status.FAILED: "f",
    Status.UNHANDLED: "u",
    Status.CANCELLED: "x",
}
STATUSES: Final[Mapping[str, Status]] = {letter: status for status, letter in LETTERS.items()}

NOTE_LIMIT_CHARACTERS: Final = 200


class CorruptRecord(ValueError):
    """A record that this version cannot read."""


def encode_wishes(wishes: Mapping[str, Any]) -> str:
    """One line of compact JSON."""
    return json.dumps(wishes, ensure_ascii=False, separators=(",", ":"))


def encode_progress(progress: Progress) -> str:
    """One line of compact JSON without what is still at its default; nothing if all is."""
    if progress == NO_PROGRESS:
        return ""
    fields = {
        "last_error": progress.last_error,
        "slot": progress.slot_ms,
        "anchor": progress.anchor_ms,
        "step": progress.step,
        "occurrences": progress.occurrences,
    }
    return json.dumps({k: v for k, v in fields.items() if v}, ensure_ascii=False, separators=(",", ":"))


def clean_note(note: str) -> str:
    """One line, bounded: what a history entry can hold."""
    return " ".join(note.split())[:NOTE_LIMIT_CHARACTERS] or "-"


def decode(prefix: str, timer_id: str, raw: bytes, lease: Lease | None = None) -> Timer:
    """The timer of a record. Raises CorruptRecord."""
    try:
        head, wishes, rest = raw.decode().split("\n", 2)
        progress, *lines = rest.split("\n")
        form, status, version, token, attempt, failures, occurrence, due, created, entries = head.split(" ")
        if form != "1":
            raise CorruptRecord(f"record format {form}, this service knows 1")
        created_ms = int(created)
        history = _history(created_ms, int(entries), lines)
        return Timer(
            prefix=prefix,
            id=timer_id,
            status=STATUSES[status],
            due_ms=int(due),
            version=int(version),
            token=int(token),
            attempt=int(attempt),
            failures=int(failures),
            occurrence=int(occurrence),
            created_ms=created_ms,
            updated_ms=history[-1].at_ms,
            wishes=json.loads(wishes),
            progress=_progress(progress) if progress else NO_PROGRESS,
            lease=lease,
            history=history,
        )
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptRecord(f"{prefix}:{timer_id} has an unreadable record: {error}") from error


def _history(created_ms: int, entries: int, lines: list[str]) -> tuple[HistoryEntry, ...]:
    dropped = entries - len(lines)
    note = f"{dropped + 1} older entries dropped" if entries >= HISTORY_LIMIT else "created"
    first = HistoryEntry(created_ms, Status.SCHEDULED, 0, None, note)
    return (first, *[_entry(line) for line in lines])


def _entry(line: str) -> HistoryEntry:
    at, status, attempt, pod, lateness, note = line.split(" ", 5)
    return HistoryEntry(
        int(at),
        STATUSES[status],
        int(attempt),
        None if pod == "-" else pod,
        note,
        None if lateness == "-" else int(lateness),
    )


def _progress(text: str) -> Progress:
    fields = json.loads(text)
    return Progress(
        fields.get("last_error"),
        fields.get("slot"),
        fields.get("anchor"),
        fields.get("step", 0),
        fields.get("occurrences", 0),
    )
