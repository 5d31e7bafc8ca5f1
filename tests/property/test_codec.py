"""The record: any timer can be written to its text and read back, and any bad text raises the one expected error."""

import struct
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timers.core.fields import encode
from timers.core.model import ENGLISH, NO_PROGRESS, HistoryEntry, Lease, Progress, Status, Timer
from timers.core.outcome import NOTE_LIMIT_CHARACTERS
from timers.store import codec
from timers.store.identity import READS

NUMBERS = st.integers(min_value=0, max_value=2**53)
COUNTS = st.integers(min_value=0, max_value=2**32 - 1)
TIMES = st.integers(min_value=0, max_value=codec.LATEST_MS - 1)
TEXTS = st.text(max_size=40)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=10,
)
WISHES = st.fixed_dictionaries(
    {},
    optional={
        "payload": JSON,
        "tags": st.lists(TEXTS, max_size=3),
        "metadata": st.dictionaries(TEXTS, TEXTS, max_size=3),
        "missed": st.sampled_from(["skip", "latest", {"grace": "10m"}]),
        "timeout": st.sampled_from(["30s", 5, 0.5]),
        "retry": st.sampled_from([{"max_attempts": 3}, {"backoff": ["5s", "30s"]}]),
        "repeat": st.sampled_from([{"every": "1d"}, {"cron": "0 9 * * MON-FRI", "timezone": "Europe/Berlin"}]),
    },
)
PROGRESS = st.builds(
    Progress,
    last_error=st.none() | st.dictionaries(TEXTS, JSON, min_size=1, max_size=3),
    slot_ms=st.none() | NUMBERS.filter(bool),
    anchor_ms=st.none() | NUMBERS.filter(bool),
    step=NUMBERS,
    occurrences=NUMBERS,
)


def clean_text(text: str) -> str:
    """A text as it is kept in a history line."""
    return codec.encode_cause("", text).removeprefix(" ") or "-"


PODS = st.none() | st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,20}", fullmatch=True).filter(lambda pod: pod != "-")
NOTES = TEXTS.map(clean_text)
CHANGES = st.builds(
    HistoryEntry,
    at_ms=TIMES,
    status=st.sampled_from(list(codec.STATUSES.values())),
    attempt=NUMBERS,
    pod=PODS,
    cause=st.sampled_from(sorted(ENGLISH)),
    text=NOTES.filter(lambda text: text not in ENGLISH),
    lateness_ms=st.none() | st.integers(min_value=-(2**53), max_value=2**53),
    processor=st.none() | st.sampled_from(("log", "send-message")),
    claim_ms=st.none(),
    queue_ms=st.none(),
    run_ms=st.none(),
)
ENTRIES = CHANGES | st.tuples(CHANGES, st.none() | NUMBERS, NUMBERS, NUMBERS).map(
    lambda end: end[0]._replace(lateness_ms=None, claim_ms=end[1], queue_ms=end[2], run_ms=end[3])
)


def record_of(form: int, timer: Timer, history: list[HistoryEntry]) -> bytes:
    """The record, as the scripts write it."""
    letter, body = codec.LETTERS[timer.status], f"{encode(timer.spec)}\n{codec.encode_progress(timer.progress)}"
    lines = "\n".join([body, *map(_line, history)]).encode()
    counts = timer.attempt, timer.failures, timer.occurrence
    if form == 1:
        head = "1", letter, timer.version, timer.token, *counts, timer.due_ms, timer.created_ms, timer.version - 1
        return " ".join(map(str, head)).encode() + b"\n" + lines
    numbers = timer.version, *counts, timer.token, timer.created_ms, timer.due_ms
    return b"2 " + letter.encode() + struct.pack(">IIIIQQQ", *numbers) + lines


def _line(entry: HistoryEntry) -> str:
    known = "" if entry.claim_ms is None else entry.claim_ms
    took = "-" if entry.run_ms is None else f"{known}+{entry.queue_ms}+{entry.run_ms}"
    times = took if entry.lateness_ms is None else entry.lateness_ms
    parts = (entry.at_ms, codec.LETTERS[entry.status], entry.attempt, entry.pod or "-", times)
    said = codec.encode_cause(entry.cause, entry.text)
    return " ".join(map(str, (*parts, entry.processor or "-", said)))


@given(
    form=st.integers(min_value=1, max_value=READS),
    status=st.sampled_from(list(codec.STATUSES.values())),
    numbers=st.tuples(TIMES, NUMBERS, *[COUNTS] * 3, TIMES),
    spec=WISHES,
    progress=PROGRESS | st.just(NO_PROGRESS),
    history=st.lists(ENTRIES, max_size=5),
    lease=st.none() | st.builds(Lease, pod=st.just("pod-1"), expires_ms=NUMBERS),
)
def test_any_timer_survives_its_record(
    *,
    form: int,
    status: Status,
    numbers: tuple[int, int, int, int, int, int],
    spec: Mapping[str, Any],
    progress: Progress,
    history: list[HistoryEntry],
    lease: Lease | None,
) -> None:
    due_ms, token, attempt, failures, occurrence, created_ms = numbers
    created = HistoryEntry(created_ms, Status.SCHEDULED, 0, None, "created")
    timer = Timer(
        prefix="reminder",
        id="a:b",
        status=status,
        due_ms=due_ms,
        version=len(history) + 1,
        token=token,
        attempt=attempt,
        failures=failures,
        occurrence=occurrence,
        created_ms=created_ms,
        updated_ms=history[-1].at_ms if history else created_ms,
        spec=spec,
        progress=progress,
        lease=lease,
        history=(*reversed(history), created),
    )
    decoded = codec.decode("reminder", "a:b", record_of(form, timer, history), lease)
    assert decoded == timer


@given(st.binary(max_size=200))
def test_any_bytes_are_a_record_or_corrupt(raw: bytes) -> None:
    with pytest.raises(codec.CorruptRecord, match="unreadable record"):
        codec.decode("reminder", "a", raw)
    assert codec.readable("reminder", "a", raw) is None


@given(
    head=st.sampled_from([b"1 r 7 6 5 4 3 2000 1000 0\n", b"2 r" + struct.pack(">IIIIQQQ", 7, 5, 4, 3, 6, 1000, 2000)]),
    body=st.binary(max_size=200),
)
def test_whatever_follows_a_head_the_head_can_be_read(head: bytes, body: bytes) -> None:
    timer = codec.readable("reminder", "a", head + body)
    assert timer is not None
    assert (timer.status, timer.version, timer.token, timer.attempt, timer.failures, timer.occurrence) == (
        Status.RUNNING, 7, 6, 5, 4, 3,
    )  # fmt: skip
    assert timer.to_json()["prefix"] == "reminder"


@given(st.text())
def test_a_clean_note_is_one_bounded_printable_line(text: str) -> None:
    note = clean_text(text)
    assert 0 < len(note) <= NOTE_LIMIT_CHARACTERS
    assert note.isprintable()
    assert clean_text(note).strip() == note.strip()
    note.encode()


@given(st.text(alphabet=st.characters(), max_size=50))
def test_the_words_of_an_error_can_always_be_encoded(text: str) -> None:
    encoded = codec.encode_progress(Progress(last_error={"reason": text}))
    assert "\n" not in encoded
    encoded.encode()


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"1 s 1 0 0 0 1 1000 1000 0",
        b"1 s 1 0 0 0 1 1000 1000 0\n{}",
        b"1 s 1 0 0 0 1 1000 1000\n{}\n",
        b"1 z 1 0 0 0 1 1000 1000 0\n{}\n",
        b"3 s 1 0 0 0 1 1000 1000 0\n{}\n",
        b"2 s" + bytes(39) + b"{}\n",
        b"2 z" + bytes(40) + b"{}\n",
        b"2 s" + bytes(32) + b"\xff" * 8 + b"{}\n",
        b"1 s x 0 0 0 1 1000 1000 0\n{}\n",
        b"1 s 1 0 0 0 1 1000 1000 0\n{}{}\n",
        b"1 s 1 0 0 0 1 1000 1000 0\nnull\n",
        b'1 s 1 0 0 0 1 1000 1000 0\n{"tags":{}}\n',
        b'1 s 1 0 0 0 1 1000 1000 0\n{"missed":7}\n',
        b"1 s 1 0 0 0 1 1000 1000 0\n{}\n[]",
        b'1 s 1 0 0 0 1 1000 1000 0\n{}\n{"step":"1"}',
        b"1 s 1 0 0 0 1 1000 1000 0\n{}\n\nx s 0 - - said",
        b"1 s 1 0 0 0 1 1000 1000 0\n" + b"[" * 100_000 + b"\n",
    ],
)
def test_corrupt_records(raw: bytes) -> None:
    with pytest.raises(codec.CorruptRecord) as caught:
        codec.decode("reminder", "a", raw)
    assert "\n" not in str(caught.value)


def test_a_newer_format_is_named() -> None:
    with pytest.raises(codec.CorruptRecord, match="format 3, this service knows 1 to 2"):
        codec.decode("reminder", "a", b"3 s 1 0 0 0 1 1000 1000 0\n{}\n")


def test_a_long_history_has_a_marker_in_the_oldest_place() -> None:
    lines = b"".join(b"\n%d s 0 - - change %d" % (i, i) for i in range(49))
    timer = codec.decode("reminder", "a", b"1 s 61 0 0 0 1 1000 5 60\n{}\n" + lines)
    assert (timer.history[-1].note, timer.history[-1].at_ms) == ("12 older entries dropped", 5)
    assert len(timer.history) == 50
    assert timer.history[:2] == timer.history[:-48]
    assert timer.updated_ms == 48


def test_nothing_but_what_differs_from_the_defaults_is_kept() -> None:
    assert codec.encode_progress(NO_PROGRESS) == codec.encode_progress(Progress()) == ""
    assert codec.encode_progress(Progress(slot_ms=5, step=0)) == '{"slot":5}'
    assert encode({"payload": "ä"}) == '{"payload":"ä"}'
