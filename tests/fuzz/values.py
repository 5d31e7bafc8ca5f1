"""What schemathesis cannot know: values of our own formats, and how programs write numbers.

Schemathesis imports this by the name in SCHEMATHESIS_HOOKS.
"""

import json
from base64 import b64encode
from typing import Any

import schemathesis
from hypothesis import strategies as st

from timers.core.durations import MAX_TIME_MS

IN_REACH_MS = 2_000_000_000_000
"""In 2033."""

_numbers = st.integers(1, 300)
_clock = st.builds("{}{}".format, _numbers, st.sampled_from(["ms", "s", "m", "h", "d", "w"])) | st.builds(
    "PT{}{}".format, _numbers, st.sampled_from("HMS")
)
_lengths = _clock | st.builds("P{}{}".format, st.integers(1, 100), st.sampled_from("DWM"))
_times = st.builds(
    "20{:02}-{:02}-{:02}T{:02}:{:02}:00{}".format,
    st.integers(0, 35),
    st.integers(1, 12),
    st.integers(1, 28),
    st.integers(0, 23),
    st.integers(0, 59),
    st.sampled_from(["Z", ".5Z", "+01:00", "-08:00"]),
)
_crons = st.builds(
    "{} {} * {} {}".format,
    st.integers(0, 59) | st.sampled_from(["*", "*/7", "0-30"]),
    st.integers(0, 23) | st.just("*"),
    st.integers(1, 12) | st.sampled_from(["*", "JAN"]),
    st.integers(0, 6) | st.sampled_from(["*", "MON-FRI"]),
) | st.sampled_from(["@hourly", "@daily", "@weekly", "@monthly", "@yearly"])

_cursors = st.builds(
    lambda place, prefix, index, score: b64encode(json.dumps([place, prefix, index, 0, score, "x"]).encode()).decode(),
    st.integers(0, 5),
    st.sampled_from(["a", "send-message"]),
    st.sampled_from(["due", "f", "leases"]),
    st.integers(0, 10**14).map(str),
).map(lambda text: text.rstrip("=").translate(str.maketrans("+/", "-_")))

for name, values in {
    "timer-duration": _lengths,
    "timer-interval": _lengths,
    "timer-timeout": _lengths,
    "timer-time": _times,
    "timer-bound": _times | st.builds("{}{}".format, st.sampled_from(["", "-"]), _lengths),
    "timer-cron": _crons,
    "timer-cursor": _cursors,
    "timer-action-cursor": st.builds("{}.{}".format, st.integers(0, 2_000_000_000_000), _cursors),
    "timer-zone": st.sampled_from(["UTC", "Europe/Berlin", "America/New_York", "Pacific/Apia"]),
    "timer-tag": st.text(st.characters(categories=["L", "N", "P", "S"]), min_size=1, max_size=64),
}.items():
    schemathesis.openapi.format(name, values)


@schemathesis.serializer("application/x-ndjson")
def as_lines(_context: schemathesis.SerializationContext, value: Any) -> bytes:
    """A text unchanged, a list with one item per line, anything else as one line."""
    if isinstance(value, str):
        return value.encode(errors="replace")
    return "\n".join(json.dumps(line) for line in (value if isinstance(value, list) else [value])).encode()


@schemathesis.hook
def before_call(_context: schemathesis.HookContext, case: "schemathesis.Case[Any]", _options: dict[str, Any]) -> None:
    """Make bodies realistic in ways that no schema can express: write integers as 2 and not 2.0, keep due times
    near now, and let repeats end after them. This is done just before the call because `map_body` does not see
    all bodies."""
    body: Any = _plain(case.body)
    due_at = body.get("due_at") if isinstance(body, dict) else None
    if isinstance(due_at, int) and IN_REACH_MS < due_at <= MAX_TIME_MS:
        body = {**body, "due_at": due_at % IN_REACH_MS}
    repeat = body.get("repeat") if isinstance(body, dict) else None
    if isinstance(repeat, dict) and "until" in repeat:
        body = {**body, "repeat": {**repeat, "until": _later(repeat["until"])}}
    if isinstance(body, dict) and body.get("durability") in ("fsync", "replicated", "ledger"):  # these runs have none
        body = {**body, "durability": "fast"}
    if repr(body) != repr(case.body):  # 2 and 2.0 are equal, and a body that is set is checked again
        case.body = body


def _later(until: Any) -> Any:
    """A time in the same form, but after 2100, which is later than any due time of these runs."""
    if isinstance(until, str) and until.startswith("20"):
        return f"21{until[2:]}"
    if isinstance(until, int) and not isinstance(until, bool) and 0 <= until <= MAX_TIME_MS:
        return MAX_TIME_MS - until % IN_REACH_MS
    return until


def _plain(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    if isinstance(value, dict):
        return {name: _plain(inner) for name, inner in value.items()}
    return [_plain(inner) for inner in value] if isinstance(value, list) else value
