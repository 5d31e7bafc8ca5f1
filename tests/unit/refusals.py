"""What a parser says when it refuses a value."""

from collections.abc import Callable

import pytest

from timers.errors import FieldError, InvalidInput


def refusal(read: Callable[[], object]) -> FieldError:
    """The single error that `read` raises."""
    with pytest.raises(InvalidInput) as caught:
        read()
    (error,) = caught.value.errors
    return error
