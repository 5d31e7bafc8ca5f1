"""Compact JSON: what `json` itself would write, with and without its encoder in C, and nothing that is no JSON."""

import json
import math
from json import encoder as json_encoder
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timers.core.compactjson import Encode, encode_with

KEYS: Final = st.text(max_size=10) | st.integers() | st.booleans() | st.none()
VALUES: Final = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=4) | st.tuples(inner) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)


def without_c(*, allow_nan: bool) -> Encode:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_encoder, "c_make_encoder", None)
        return encode_with(allow_nan=allow_nan)


STRICT: Final = (encode_with(allow_nan=False), without_c(allow_nan=False))


@given(VALUES)
def test_it_writes_what_json_writes(value: Any) -> None:
    expected = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    assert [encode(value) for encode in STRICT] == [expected, expected]


@pytest.mark.parametrize("encode", STRICT)
@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_in_json_is_refused_where_it_is_told_to(encode: Encode, number: float) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        encode({"value": [number]})


def test_and_written_as_json_does_where_not() -> None:
    numbers = [math.nan, math.inf, -math.inf]
    for encode in (encode_with(allow_nan=True), without_c(allow_nan=True)):
        assert encode(numbers) == "[NaN,Infinity,-Infinity]"


@pytest.mark.parametrize("encode", STRICT)
def test_what_is_no_json_is_refused(encode: Encode) -> None:
    for value in ({1, 2}, object(), b"bytes", {"deep": [{"value": object()}]}):
        with pytest.raises(TypeError, match="not JSON serializable"):
            encode(value)
    with pytest.raises(TypeError, match="keys must be"):
        encode({(1, 2): 3})


@pytest.mark.parametrize("encode", STRICT)
def test_a_value_within_itself_has_too_many_levels(encode: Encode) -> None:
    value: list[Any] = []
    value.append(value)
    with pytest.raises(RecursionError):
        encode(value)
