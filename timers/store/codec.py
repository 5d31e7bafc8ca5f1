"""Owns the record's form in Redis: text that a script can take apart without decoding JSON, and the Timer behind it.

A record is lines: a head of ten fields, the wishes (JSON), the progress (JSON or nothing), the history, oldest first.
PROTOCOL.md gives the fields.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, overload

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

_DECODER: Final = json.JSONDecoder()


class CorruptRecord(ValueError):
    """A record that this version cannot read."""


def encode_wishes(wishes: Mapping[str, Any]) -> str:
    """One line of compact JSON."""
    return json.dumps(wishes, ensure_ascii=False, separators=(",", ":"))


def encode_progress(progress: Progress) -> str:
    """One line of compact JSON without what is still at its default; nothing if all is."""
    if progress is NO_PROGRESS:
        return ""
    fields = {
        "last_error": progress.last_error,
        "slot": progress.slot_ms,
        "anchor": progress.anchor_ms,
        "step": progress.step,
        "occurrences": progress.occurrences,
    }
    kept = {k: v for k, v in fields.items() if v}
    return json.dumps(kept, ensure_ascii=False, separators=(",", ":")) if kept else ""


def clean_note(note: str) -> str:
    """One line, bounded: what a history entry can hold."""
    if len(note) <= NOTE_LIMIT_CHARACTERS and note.isalnum():
        return note
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
            updated_ms=int(lines[-1].partition(" ")[0]) if lines else created_ms,
            wishes=_wishes(wishes),
            progress=_progress(progress) if progress else NO_PROGRESS,
            lease=lease,
            history=StoredHistory(created_ms, int(entries), lines),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptRecord(f"{prefix}:{timer_id} has an unreadable record: {error}") from error


class StoredHistory(Sequence[HistoryEntry]):
    """A history that is taken apart when somebody looks at it: most runs do not."""

    __slots__ = ("_created_ms", "_entries", "_lines", "_read")

    def __init__(self, created_ms: int, entries: int, lines: list[str]) -> None:
        self._created_ms, self._entries, self._lines = created_ms, entries, lines
        self._read: tuple[HistoryEntry, ...] | None = None

    def __len__(self) -> int:
        return len(self._lines) + 1

    @overload
    def __getitem__(self, index: int) -> HistoryEntry: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[HistoryEntry]: ...
    def __getitem__(self, index: int | slice) -> HistoryEntry | Sequence[HistoryEntry]:
        if self._read is None:
            self._read = (self._first(), *[_entry(line) for line in self._lines])
        return self._read[index]

    def _first(self) -> HistoryEntry:
        """The creation, or where that was dropped a marker that says so."""
        dropped = self._entries - len(self._lines)
        note = f"{dropped + 1} older entries dropped" if self._entries >= HISTORY_LIMIT else "created"
        return HistoryEntry(self._created_ms, Status.SCHEDULED, 0, None, note)


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


def _wishes(text: str) -> Any:
    """As `json.loads`, without its search for space around the value, which takes longer than the value itself."""
    wishes, end = _DECODER.raw_decode(text)
    if end != len(text):
        raise ValueError("something follows the wishes")
    return wishes


def _progress(text: str) -> Progress:
    fields = json.loads(text)
    return Progress(
        fields.get("last_error"),
        fields.get("slot"),
        fields.get("anchor"),
        fields.get("step", 0),
        fields.get("occurrences", 0),
    )
