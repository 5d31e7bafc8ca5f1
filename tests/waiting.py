"""How tests wait for other processes, and how long they try to connect: up to a deadline that fails the test."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

T = TypeVar("T")

DEADLINE_SECONDS: Final = 100.0
"""Only a failing test waits this long. Beside other work a test may get a hundredth of a core."""

_LOOK_SECONDS: Final = 0.01

_REST: Final = 3.0
"""How much longer than a look is the time to the next, so that what is waited for gets the cores."""


async def eventually(look: Callable[[], Awaitable[T | None]], what: str, *, seconds: float = DEADLINE_SECONDS) -> T:
    """Returns the first true result of `look`. Fails the test after the deadline, saying that `what` did not happen."""
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(seconds):
            began = loop.time()
            while not (answer := await look()):
                await asyncio.sleep(max(_LOOK_SECONDS, _REST * (loop.time() - began)))
                began = loop.time()
    except TimeoutError:
        raise AssertionError(f"not within {seconds:g} seconds: {what}") from None
    return answer


def patient(url: str) -> str:
    """The URL of a server, with a whole test's time to connect. Beside other work both may stand still for seconds."""
    return f"{url}{'&' if '?' in url else '?'}socket_connect_timeout={DEADLINE_SECONDS}"
