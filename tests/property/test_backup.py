"""Any record comes out of its line in an export as it was."""

from hypothesis import given
from hypothesis import strategies as st

from timers.client.backup import line_of, record_of
from timers.core.fields import decode, encode
from timers.store.codec import RecordParts, put_together, taken_apart
from timers.store.restoring import Restored

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)
OBJECTS = st.dictionaries(st.text(), JSON, max_size=4).map(lambda found: encode(found).encode())
TEXTS = st.text(min_size=1, max_size=40).map(lambda text: text.encode(errors="replace")) | st.binary(
    min_size=1, max_size=40
)
ODD = TEXTS.map(lambda text: text.replace(b"\n", b" "))
"""What no version writes there."""
ENTRIES = st.from_regex(r"[0-9]{13} [srcfux] [0-9]{1,3} (-|pod) (-|[0-9]+) - [a-z-]{1,9}( \w{1,20})?", fullmatch=True)
COUNTS, TIMES = st.integers(1, 2**32 - 1), st.integers(0, 10**13 - 1)

RECORDS = st.builds(
    RecordParts,
    status=st.sampled_from("scfux"),
    version=COUNTS,
    attempt=COUNTS,
    failures=COUNTS,
    occurrence=COUNTS,
    token=st.integers(0, 2**53 - 1),
    created_ms=TIMES,
    due_ms=TIMES,
    spec=st.one_of(OBJECTS, OBJECTS, ODD),
    progress=st.just(b"") | OBJECTS | ODD,
    history=st.lists(ENTRIES.map(str.encode) | ODD, max_size=49).map(tuple),
)


@given(RECORDS)
def test_a_line_holds_the_whole_record(parts: RecordParts) -> None:
    record = put_together(parts)
    assert taken_apart(record) == parts
    line = line_of("log:a", record)
    assert line is not None
    assert "\n" not in line
    assert record_of(decode(line)) == Restored.of("log", "a", parts)
