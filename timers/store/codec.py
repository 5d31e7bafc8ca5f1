"""Owns the record's form in Redis: text that a script can take apart without decoding JSON, and the Timer that it
stands for.

A record is a head of numbers, the spec (JSON), the progress (JSON or nothing), and the history, oldest first.
PROTOCOL.md describes the fields.
"""

import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from typing import Any, Final, Literal, NamedTuple, overload

from timers.core.decide import Transition
from timers.core.durations import parse_ms, parse_time
from timers.core.fields import encode
from timers.core.model import NO_PROGRESS, HistoryEntry, Lease, Progress, Status, Timer
from timers.core.outcome import clean_note
from timers.core.policies import Repeat, RetryPolicy, check_missed
from timers.core.shapes import HISTORY_LIMIT, Durability
from timers.store.identity import READS

LETTERS: Final[Mapping[Status, str]] = {
    Status.SCHEDULED: "s",
    Status.RETRYING: "t",
    Status.RUNNING: "r",
    Status.COMPLETED: "c",
    Status.FAILED: "f",
    Status.UNHANDLED: "u",
    Status.CANCELLED: "x",
}
STATUSES: Final[Mapping[str, Status]] = {
    **{letter: status for status, letter in LETTERS.items() if status is not Status.RETRYING},
    "w": Status.SCHEDULED,
}
"""Of records: as LETTERS without `t`, plus `w`: scheduled, but not to be claimed before something else has happened."""

ARMED_BY: Final = "armed_by"
"""In a spec: the name of the API key that the timer was armed with."""

HEAD: Final = struct.Struct(">2scIIIIQQQ")
_TWO: Final = b"2 "
"""Of format 2: `2 `, the status's letter, version, attempt, failures, occurrence, token, creation and due time."""

JUMP: Final = 1000
"""By how much the version of a timer rises that is restored from the ledger: more than the changes of one timer that a
loss can have taken from the ledger too. As in lua/common.lua."""

LATEST_MS: Final = 10**13
"""The year 2286: no time has more digits. As in lua/common.lua."""

_PROGRESS: Final = {
    "last_error": "last_error",
    "slot": "slot_ms",
    "anchor": "anchor_ms",
    "step": "step",
    "occurrences": "occurrences",
    "first_due": "first_due_ms",
}
"""Names in a record's progress, without `result`, which may be any JSON, and the attributes that they stand for."""

_DECODER: Final = json.JSONDecoder()
_ENCODER: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))
_UNREADABLE: Final = (ValueError, KeyError, TypeError, AttributeError, RecursionError, struct.error)
_CHECKED: Final = frozenset(("retry", "repeat", "missed", "timeout"))


class CorruptRecord(ValueError):
    """A record that this version cannot read. `timer` holds what could be read, with the reason as its last error; None
    if not even the head could be."""

    def __init__(self, text: str, timer: Timer | None) -> None:
        super().__init__(text)
        self.timer = timer


def encode_progress(progress: Progress) -> str:
    """One line of compact JSON without default values; nothing if all values are defaults."""
    if progress is NO_PROGRESS:
        return ""
    fields = {name: getattr(progress, attribute) for name, attribute in _PROGRESS.items()}
    kept = {k: v for k, v in fields.items() if v}
    if progress.result is not None:
        kept["result"] = progress.result
    text = _ENCODER.encode(kept) if kept else ""
    # A processor's exception may contain half characters, which UTF-8 cannot encode.
    return text if text.isascii() else text.encode(errors="replace").decode()


def encode_since(progress: Progress) -> str:
    """Since when the attempts have failed, in epoch ms; empty if the last error does not say."""
    since = (progress.last_error or {}).get("since")
    return "" if since is None else str(parse_time(since, "since"))


def encode_cause(cause: str, text: str = "") -> str:
    """The end of a history line: the cause, and the text if it adds anything."""
    return cause if text in ("", cause) else f"{cause} {clean_note(text)}"


def encode_act(cause: str, by: str | None) -> str:
    """The end of the history line of what a caller did, and who it was. No pod writes such a cause, so no processor can
    pretend to be somebody."""
    return cause if by is None else f"{cause} {clean_note(by)}"


def decode(prefix: str, timer_id: str, raw: bytes, lease: Lease | None = None) -> Timer:
    """The timer of a record. Raises CorruptRecord, also if the spec is no longer valid (a time zone can be abolished):
    what the policy must read after a run has to be known as unreadable before the run."""
    try:
        return _decoded(prefix, timer_id, raw, lease)
    except _UNREADABLE as error:
        reason = " ".join(f"unreadable record: {error}".split())
        raise CorruptRecord(reason, _salvaged(prefix, timer_id, raw, lease, reason)) from error


def readable(prefix: str, timer_id: str, raw: bytes, lease: Lease | None = None) -> Timer | None:
    """As `decode`, but for display: what can be read of an unreadable record; None if not even the head can be."""
    try:
        return decode(prefix, timer_id, raw, lease)
    except CorruptRecord as corrupt:
        return corrupt.timer


def _decoded(prefix: str, timer_id: str, raw: bytes, lease: Lease | None) -> Timer:
    status, version, attempt, failures, occurrence, token, created_ms, due_ms, spec, progress, history = _split(raw)
    updated_ms = int(history[history.rfind(b"\n") + 1 :].partition(b" ")[0]) if history else created_ms
    if updated_ms >= LATEST_MS:
        raise ValueError("a time in it is none")
    # By position, because keywords take twice as long, and every run decodes a record.
    return Timer(
        prefix,
        timer_id,
        STATUSES[status],
        due_ms,
        version,
        token,
        attempt,
        failures,
        occurrence,
        created_ms,
        updated_ms,
        _spec(spec.decode()),
        _progress(progress) if progress else NO_PROGRESS,
        lease,
        StoredHistory(created_ms, version, spec, history),
    )


class RecordParts(NamedTuple):
    """A record in its parts; `history` has the lines, oldest first. PROTOCOL.md describes the fields."""

    status: str
    version: int
    attempt: int
    failures: int
    occurrence: int
    token: int
    created_ms: int
    due_ms: int
    spec: bytes
    progress: bytes
    history: Sequence[bytes]


def taken_apart(raw: bytes) -> RecordParts:
    """The parts of a record of any format that this version reads. Does not look into its JSON. Raises ValueError."""
    parts = _split(raw)
    return RecordParts(*parts[:-1], tuple(parts[-1].split(b"\n")[1:]))


def _split(raw: bytes) -> tuple[str, int, int, int, int, int, int, int, bytes, bytes, bytes]:
    """As `taken_apart`, but the history is as it stands there, with a line break before each entry."""
    if raw.startswith(_TWO) and len(raw) >= HEAD.size:
        _, letter, version, attempt, failures, occurrence, token, created_ms, due_ms = HEAD.unpack_from(raw)
        status, body = letter.decode(), raw[HEAD.size :]
    else:
        head, _, body = raw.partition(b"\n")
        form, _, fields = head.decode().partition(" ")
        status, *numbers = fields.split(" ")
        if form != "1":
            raise ValueError(f"record format {form}, this service knows 1 to {READS}")
        if len(numbers) != 8:
            raise ValueError("not a record")
        version, token, attempt, failures, occurrence, due_ms, created_ms = map(int, numbers[:7])
    if status not in STATUSES or created_ms >= LATEST_MS or due_ms >= LATEST_MS:
        raise ValueError("not a record")
    spec, progress, *history = body.split(b"\n", 2)
    told = b"\n" + history[0] if history else b""
    return status, version, attempt, failures, occurrence, token, created_ms, due_ms, spec, progress, told


def put_together(parts: RecordParts) -> bytes:
    """The record of these parts. Raises ValueError for a number that it cannot hold."""
    status, version, attempt, failures, occurrence, token, created_ms, due_ms, spec, progress, history = parts
    try:
        head = HEAD.pack(_TWO, status.encode(), version, attempt, failures, occurrence, token, created_ms, due_ms)
    except struct.error as error:
        raise ValueError(f"a number in it is too large: {error}") from error
    return head + b"\n".join((spec, progress, *history))


def _ms(number: int) -> int:
    """A time in a record. More digits are not a time and could not be shown."""
    if number >= LATEST_MS:
        raise ValueError(f"{number} is no time")
    return number


def as_stored(timer: Timer) -> Timer:
    """The timer as it was claimed, whatever its processor has done to the payload that it was given."""
    stored = timer.history
    return timer._replace(spec=_spec(stored.spec.decode())) if isinstance(stored, StoredHistory) else timer


def encode_end(timer: Timer, after: Transition, *, pod: str, timings: str, form: int) -> bytes:
    """What `settle` receives of the end of a run: a line of who, since when it fails, and the newest history entry, but
    for its time, which the server knows; then the record without that entry. `timer` is as it was claimed."""
    stored = timer.history
    if not isinstance(stored, StoredHistory):
        raise TypeError(f"{timer.key} was not read from a record")
    # If the claim started nothing, its attempt is taken back. The next occurrence counts anew, but the entry belongs to
    # this one.
    status, due_ms, attempt, failures, occurrence, progress, cause, changed = after
    attempted = attempt if occurrence == timer.occurrence else timer.attempt
    letter, version = LETTERS[status], timer.version + 1
    since = encode_since(progress) if failures else ""
    if form == 1:
        numbers = (version, timer.token, attempt, failures, occurrence, due_ms, timer.created_ms)
        head = f"1 {letter} {' '.join(map(str, numbers))} {version - 1}\n".encode()
    else:
        counts = (version, attempt, failures, occurrence)
        head = HEAD.pack(_TWO, letter.encode(), *counts, timer.token, timer.created_ms, due_ms)
    entry = f"{letter} {attempted} {pod} {timings} - {encode_cause(*cause)}"
    line = f"{timer.prefix} {timer.id} {since or '-'} {entry}\n".encode()
    spec = stored.spec if changed is None else encode(changed).encode()
    begun = b"" if progress is NO_PROGRESS else encode_progress(progress).encode()
    return b"".join((line, head, spec, b"\n", begun, stored.latest(version - 1)))


def new_record(
    prefix: str,
    timer_id: str,
    due_ms: int,
    created_ms: int,
    *,
    spec: Mapping[str, Any],
    progress: Progress,
    durability: Durability | Literal[""] = "",
) -> Timer:
    """The timer of the record that `arm` makes for a free identity: what `decode` would read from it. Its version and
    occurrence are 1; its token, attempt and failures are 0."""
    begun = encode({ARMED_BY: spec[ARMED_BY]}).encode() if ARMED_BY in spec else b"{}"
    at, history, status = created_ms, StoredHistory(created_ms, 1, begun), Status.SCHEDULED
    return Timer(
        prefix, timer_id, status, due_ms, 1, 0, 0, 0, 1, at, at, spec, progress, None, history, True, durability
    )


def _salvaged(prefix: str, timer_id: str, raw: bytes, lease: Lease | None, reason: str) -> Timer | None:
    """The timer from a record's head, with its payload and progress as far as they can be read. It keeps the rest as it
    is."""
    error = encode_progress(Progress(last_error={"type": "CorruptRecord", "reason": reason, "detail": ""}))
    size = HEAD.size if raw.startswith(_TWO) else raw.find(b"\n") + 1
    try:
        timer = _decoded(prefix, timer_id, raw[:size] + f"{{}}\n{error}".encode(), lease)
    except _UNREADABLE:
        return None
    *_, spec, begun, history = _split(raw if b"\n" in raw[size:] else raw + b"\n")
    with suppress(*_UNREADABLE):
        timer = timer._replace(progress=replace(_progress(begun), last_error=timer.last_error))
    timer = timer._replace(history=StoredHistory(timer.created_ms, timer.version, spec, history))
    return timer._replace(spec={name: value for name, value in spec_of(timer).items() if name == "payload"})


def spec_of(timer: Timer) -> Mapping[str, Any]:
    """What a change of the timer is applied to: its spec, with what its record has that is no longer valid."""
    if isinstance(timer.history, StoredHistory):
        with suppress(*_UNREADABLE):
            return {**json.loads(timer.history.spec), **timer.spec}
    return timer.spec


class StoredHistory(Sequence[HistoryEntry]):
    """A history, newest first, that is parsed when somebody reads it: most runs do not. Keeps the text that the record
    had: its spec, and the entries, each after a line break."""

    __slots__ = ("_created_ms", "_read", "_text", "_version", "spec")

    def __init__(self, created_ms: int, version: int, spec: bytes = b"{}", text: bytes = b"") -> None:
        self._created_ms, self._version, self.spec, self._text = created_ms, version, spec, text
        self._read: tuple[HistoryEntry, ...] | None = None

    def latest(self, entries: int) -> bytes:
        """The text with room for one more entry; the record then stands for so many changes."""
        if entries < HISTORY_LIMIT or (entries > JUMP and len(self) < HISTORY_LIMIT):
            return self._text
        dropped = self._text.find(b"\n", 1)
        return self._text[dropped:] if dropped > 0 else b""

    def __len__(self) -> int:
        return self._text.count(b"\n") + 1

    def __iter__(self) -> Iterator[HistoryEntry]:
        return iter(self._parsed_line())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash(tuple(self))

    @overload
    def __getitem__(self, index: int) -> HistoryEntry: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[HistoryEntry]: ...
    def __getitem__(self, index: int | slice) -> HistoryEntry | Sequence[HistoryEntry]:
        return self._parsed_line()[index]

    def _parsed_line(self) -> tuple[HistoryEntry, ...]:
        if self._read is None:
            self._read = (*map(self._entry, reversed(self._text.split(b"\n")[1:])), self._first())
        return self._read

    def _first(self) -> HistoryEntry:
        """The creation, or the marker for older entries that were dropped."""
        jumps = self._text.count(b" restored") * JUMP if self._version > JUMP else 0
        if self._version - jumps > HISTORY_LIMIT:
            dropped = self._version - jumps - len(self) + 1
            return HistoryEntry(self._created_ms, Status.SCHEDULED, 0, None, "dropped", str(dropped))
        by = self._armed_by() if ARMED_BY.encode() in self.spec else ""
        return HistoryEntry(self._created_ms, Status.SCHEDULED, 0, None, "created", by)

    def _armed_by(self) -> str:
        """Who created the timer; empty if nobody knows, or if somebody has replaced it, whom the spec names then."""
        try:
            return "" if b" replaced" in self._text else str(json.loads(self.spec).get(ARMED_BY, ""))
        except _UNREADABLE:
            return ""

    def _entry(self, line: bytes) -> HistoryEntry:
        """History is for people: an entry that cannot be read says so and stops nothing."""
        try:
            at, status, attempt, pod, times, processor, said = line.decode().split(" ", 6)
            cause, _, text = said.partition(" ")
            late_ms, *timings = [None] if times == "-" else [int(ms) if ms else None for ms in times.split("+")]
            claim_ms, queue_ms, run_ms = (late_ms, *timings) if timings else (None, None, None)
            return HistoryEntry(
                _ms(int(at)),
                STATUSES[status],
                int(attempt),
                None if pod == "-" else pod,
                cause,
                text,
                None if timings else late_ms,
                None if processor == "-" else processor,
                claim_ms,
                queue_ms,
                run_ms,
            )
        except (ValueError, KeyError):
            return HistoryEntry(self._created_ms, Status.SCHEDULED, 0, None, "unreadable entry")


def _spec(text: str) -> dict[str, Any]:
    """As `json.loads`, without the search for white space around the value, which takes longer than the value
    itself."""
    spec, end = _DECODER.raw_decode(text)
    if end != len(text) or not isinstance(spec, dict):
        raise ValueError("the spec are not one object")
    if not isinstance(spec.get("tags", []), list):
        raise TypeError("the tags are not a list")
    if not _CHECKED.isdisjoint(spec):
        _check_policy(json.dumps({name: spec[name] for name in _CHECKED if name in spec}, sort_keys=True))
    return spec


@lru_cache(maxsize=4096)
def _check_policy(text: str) -> None:
    """Raises ValueError unless the policy can read this spec. Cached, because thousands of timers share a few
    policies."""
    spec = json.loads(text)
    if "retry" in spec:
        RetryPolicy.model_validate(spec["retry"])
    if "repeat" in spec:
        Repeat.model_validate(spec["repeat"])
    if "timeout" in spec:
        parse_ms(spec["timeout"], "timeout")
    check_missed(spec.get("missed", "fire"))


def _progress(text: bytes) -> Progress:
    fields = json.loads(text)
    kept = {attribute: fields[name] for name, attribute in _PROGRESS.items() if name in fields}
    if not all(isinstance(value, int) for name, value in kept.items() if name != "last_error"):
        raise TypeError(f"progress with {kept}")
    return Progress(**kept, result=fields.get("result"))
