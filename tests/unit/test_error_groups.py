"""Which errors of the Failed page belong together."""

import pytest

from timers.store.queries import GROUP_LIMIT_CHARACTERS, error_group


@pytest.mark.parametrize(
    ("reason", "group"),
    [
        ("no user 42 in shop 7", "no user # in shop #"),
        ("order 8f14e45f-ceea-467f-ab9c-0a1b2c3d4e5f  is\nclosed", "order # is closed"),
        ("no order 0QdV8tKZ3yBnRm1sUxW5pL, 0QdV8tKZ3yBnRm1sUxW5pL7", "no order #, 0QdV8tKZ3yBnRm1sUxW5pL7"),
        ("commit 0a1b2cdeF, face, g7, x1y", "commit #, face, g7, x1y"),
    ],
)
def test_numbers_and_hashes_do_not_tell_errors_apart(reason: str, group: str) -> None:
    assert error_group({"type": "Fail", "reason": reason}) == f"Fail: {group}"


@pytest.mark.parametrize("text", ["1" * 1_000_000 + "g", "a1" * 500_000 + "_", "1" * 500_000 + "g " * 250_000])
def test_no_reason_keeps_the_failed_page_busy(text: str) -> None:
    """Looking for words of hex digits took time with the square of their length: 0.7 s for each timer."""
    assert len(error_group({"type": "Fail", "reason": text})) <= GROUP_LIMIT_CHARACTERS
