"""Reading JSON: what `json` reads, with JSON's own space around it and nothing else."""

import json
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timers.api.strictjson import parse

VALUES: Final = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)
SPACE: Final = st.text(" \t\n\r", max_size=3)


def encoded(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False).encode(errors="replace").decode()


@given(VALUES, SPACE, SPACE)
def test_it_reads_what_json_reads(value: Any, before: str, after: str) -> None:
    text = before + encoded(value) + after
    assert parse(text.encode()) == json.loads(text)


@given(VALUES, st.text(min_size=1, max_size=3).map(encoded) | st.sampled_from(["\v", "\f", "\0", "\u00a0", "}", "1"]))
def test_whatever_comes_after_it_is_no_json(value: Any, rest: str) -> None:
    for text in (f"{{}}{rest}", f"{encoded(value)} {rest}", f"{rest} {{}}"):
        with pytest.raises(ValueError, match=r"."):
            json.loads(text)
        with pytest.raises(ValueError, match=r"."):
            parse(text.encode())
