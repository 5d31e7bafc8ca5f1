"""Errors reach a caller in another process, such as that of a task queue or a pool, as they were raised."""

import copy
import pickle
from collections.abc import Callable
from typing import Final

import pytest

from timers import errors
from timers.core.outcome import Fail, Retry

_OF_THEIR_OWN: Final = (
    errors.InvalidInput.of("delay", "soon", "a duration").under("timer"),
    errors.RateLimited("the key may make 100/s", 500),
    errors.RedisRights("it may not SET", "SET log"),
    errors.Unavailable("away", nothing_done=True),
    Retry("not yet", after="1h", snooze=True),
    Fail("no such user"),
)
_MADE: Final = {type(each) for each in _OF_THEIR_OWN}
_OTHERS: Final = tuple(
    kind("a text")
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, errors.TimersError) and kind not in _MADE
)


def _sent(error: Exception) -> Exception:
    arrived: Exception = pickle.loads(pickle.dumps(error))  # noqa: S301 (its own)
    return arrived


@pytest.mark.parametrize("again", [_sent, copy.copy, copy.deepcopy])
@pytest.mark.parametrize("error", [*_OF_THEIR_OWN, *_OTHERS], ids=lambda error: type(error).__name__)
def test_an_error_says_the_same_in_another_process(error: Exception, again: Callable[[Exception], Exception]) -> None:
    arrived = again(error)
    assert (type(arrived), str(arrived), vars(arrived)) == (type(error), str(error), vars(error))
