"""Compact JSON: values are kept on one line and read back unchanged; a payload that is not JSON is refused."""

import json
import math
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timers.core.fields import decode, encode
from timers.core.spec import encode_payload
from timers.errors import InvalidInput

KEYS: Final = st.text(max_size=10) | st.integers() | st.booleans()
VALUES: Final = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=4) | st.tuples(inner) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)


@given(VALUES)
def test_it_is_read_back_as_json_would_write_it(value: Any) -> None:
    text = encode_payload(value)
    assert text == encode(value)
    assert json.loads(text) == decode(text) == json.loads(json.dumps(value))
    assert "\n" not in text


def test_it_has_no_spaces_and_every_character_as_itself() -> None:
    assert encode({"é": ["“", 1.5, None]}) == '{"é":["“",1.5,null]}'


def test_a_record_keeps_what_is_no_number_in_json() -> None:
    assert encode([math.nan, math.inf, -math.inf]) == "[NaN,Infinity,-Infinity]"


LOOP: Final[list[Any]] = []
LOOP.append(LOOP)


def nested(levels: int) -> list[Any]:
    return [nested(levels - 1)] if levels else []


@pytest.mark.parametrize(
    "value",
    [math.nan, [math.inf], {1, 2}, object(), b"bytes", {"deep": [{"value": object()}]}, {(1, 2): 3}, "\ud800"],
)
def test_a_payload_that_is_no_json_is_refused(value: object) -> None:
    with pytest.raises(InvalidInput, match="a JSON value"):
        encode_payload(value)


@pytest.mark.parametrize("value", [LOOP, nested(255), nested(900)], ids=["loop", "255", "900"])
def test_a_payload_with_too_many_levels_is_refused(value: object) -> None:
    with pytest.raises(InvalidInput):
        encode_payload(value)


def test_a_payload_of_many_levels_is_kept() -> None:
    assert decode(encode_payload(nested(190))) == nested(190)
