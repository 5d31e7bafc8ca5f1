"""How tests wait for other processes, and how long they try to connect: up to a deadline that fails the test."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

T = TypeVar("T")

DEADLINE_SECONDS: Final = 100.0
"""Only a failing test waits this long. Beside other work a test may get a hundredth of a core."""

_LOOK_SECONDS: Final = 0.01


async def eventually(look: Callable[[], Awaitable[T | None]], what: str, *, seconds: float = DEADLINE_SECONDS) -> T:
    """Returns the first true result of `look`. Fails the test after the deadline, saying that `what` did not happen."""
    try:
        async with asyncio.timeout(seconds):
            while not (answer := await look()):  # noqa: ASYNC110 (another process sets no event here)
                await asyncio.sleep(_LOOK_SECONDS)
    except TimeoutError:
        raise AssertionError(f"not within {seconds:g} seconds: {what}") from None
    return answer


def patient(url: str) -> str:
    """The URL of a server, with a whole test's time to connect. Beside other work both may stand still for seconds."""
    return f"{url}{'&' if '?' in url else '?'}socket_connect_timeout={DEADLINE_SECONDS}"
