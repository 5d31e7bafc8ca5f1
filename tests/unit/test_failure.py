"""The text of a failed run: what it shows, and that neither a long text nor the exception's own code does harm."""

import tracemalloc
from collections.abc import Callable

import pytest

from timers.core.decide import DETAIL_LIMIT_CHARACTERS
from timers.core.outcome import Done, Failed, Rearm
from timers.engine.failure import FRAMES, failure
from timers.errors import InvalidInput
from timers.store import codec

HUGE = "line\n" * 2_000_000
"""10 MB."""


def raised(error: BaseException) -> BaseException:
    """The exception, raised and caught, so that it has a traceback."""
    with pytest.raises(type(error)) as caught:
        raise error
    return caught.value


def failed(error: BaseException) -> Failed:
    """The text that is kept of a raised exception."""
    return failure(raised(error))


def peak_bytes_of(error: BaseException) -> int:
    """The peak memory for making and cleaning the text of a failure."""
    tracemalloc.start()
    try:
        made = failed(error)
        codec.encode_cause("retry", f"{made.error}: {made.reason}")
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def chained(text: str) -> Exception:
    last = ValueError(text)
    for _ in range(50):
        following = ValueError(text)
        following.__cause__ = last
        last = following
    return last


@pytest.mark.parametrize(
    "error",
    [
        ValueError(HUGE),
        ExceptionGroup(HUGE, [ValueError(HUGE)] * 50),
        chained(HUGE),
        type("N" * 10_000_000, (Exception,), {})(HUGE),
    ],
    ids=["a message", "a group", "a chain", "a name"],
)
def test_a_message_of_10_mb_stopped_the_pod_for_seconds(error: BaseException) -> None:
    """This counts copied bytes, not time. A group and a name copy their own text once."""
    made = failed(error)
    assert max(map(len, (made.error, made.reason, made.detail))) <= DETAIL_LIMIT_CHARACTERS
    assert peak_bytes_of(error) < 2 * len(HUGE)


def test_a_note_is_cut_before_it_is_cleaned() -> None:
    tracemalloc.start()
    try:
        assert codec.encode_cause("completed", HUGE) == "completed " + "line " * 240
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


def test_causes_come_before_their_effects() -> None:
    cause, context = KeyError("the cause"), OSError("the context")
    error = ValueError("the error")
    error.__cause__ = cause
    cause.__context__ = context
    detail = failed(error).detail
    places = [detail.index(said) for said in ("OSError: the context", "KeyError: 'the cause'", "ValueError: the error")]
    assert places == sorted(places)


def test_a_suppressed_context_is_not_reported() -> None:
    error = ValueError("no such user")
    error.__context__, error.__suppress_context__ = KeyError("a secret"), True
    assert "a secret" not in failed(error).detail


def test_the_parts_of_a_group_are_reported() -> None:
    detail = failed(ExceptionGroup("two", [ValueError("one"), TypeError("other")])).detail
    assert "ValueError: one" in detail
    assert "TypeError: other" in detail


def test_a_deep_traceback_keeps_its_innermost_frames() -> None:
    def dive(depth: int) -> None:
        if depth == 0:
            raise ValueError("at the bottom")
        dive(depth - 1)

    with pytest.raises(ValueError, match="bottom") as caught:
        dive(5 * FRAMES)
    detail = failure(caught.value).detail
    assert detail.endswith("ValueError: at the bottom")
    assert detail.count("in dive") <= FRAMES


def test_an_exception_whose_causes_form_a_circle_is_shown() -> None:
    one, other = ValueError("one"), ValueError("other")
    one.__context__, other.__context__ = other, one
    assert failure(one).detail.endswith("ValueError: one")


@pytest.mark.parametrize("made", [lambda: Done(5), lambda: Rearm(after="20y")], ids=["Done", "Rearm"])  # type: ignore[arg-type]
def test_the_line_that_failed_is_the_processors_and_not_one_that_a_dataclass_made(made: Callable[[], object]) -> None:
    with pytest.raises(InvalidInput) as caught:
        made()
    assert failure(caught.value).where == f"{__file__}:{made.__code__.co_firstlineno} in <lambda>"
