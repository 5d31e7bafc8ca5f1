"""Owns time: the Redis server's clock as a pod sees it, carried forward on the pod's monotonic clock.

A pod's wall clock is never used: it may be wrong, and it may jump.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Final

Monotonic = Callable[[], float]
"""A clock in seconds that never steps back, such as `time.monotonic`."""

Later = Callable[[float, Callable[[], object]], asyncio.Handle]
"""Schedules a call after some seconds, like the event loop's `call_later`."""

DRIFT: Final = 0.0001
"""By how much the two clocks may go apart: seconds a second. Disciplined clocks stay below half of this."""

LEAST_ERROR_MS: Final = 0.05
"""No estimate is taken to be better than this. One that is wrong by a rounding could not be corrected otherwise, and a
sweep that takes a timer for due before the server does would poll until the millisecond is over."""


class ServerClock:
    """The server's time in ms, estimated from answers that carry it.

    A reading of ms that was taken between `sent` and `received` bounds the offset of the two clocks on both sides: by a
    millisecond and the round trip. The clock keeps the intersection of all readings, which soon is far below a
    millisecond, and widens it as time passes. A reading that contradicts it replaces it at once, because the server's
    clock was changed. Source: K. Marzullo and S. Owicki, "Maintaining the time in a distributed system", 1983.
    """

    def __init__(self, monotonic: Monotonic = time.monotonic) -> None:
        self._monotonic = monotonic
        self._offset_ms = 0.0
        self._error_ms = float("inf")
        self._read_at = 0.0

    def observe(self, server_ms: int, sent: float, received: float) -> None:
        """Take a reading: the server's ms (cut, not rounded) at some moment between two monotonic seconds."""
        low_ms, high_ms = server_ms - received * 1000, server_ms + 1 - sent * 1000
        error_ms = self._error_ms + max(received - self._read_at, 0.0) * DRIFT * 1000
        if low_ms <= self._offset_ms + error_ms and high_ms >= self._offset_ms - error_ms:
            low_ms, high_ms = max(low_ms, self._offset_ms - error_ms), min(high_ms, self._offset_ms + error_ms)
        self._offset_ms, self._error_ms = (low_ms + high_ms) / 2, max((high_ms - low_ms) / 2, LEAST_ERROR_MS)
        self._read_at = received

    def like(self) -> "ServerClock":
        """The clock of another server that was not read yet: until then it is taken to be in step with this one."""
        clock = ServerClock(self._monotonic)
        clock._offset_ms = self._offset_ms
        return clock

    @property
    def known(self) -> bool:
        """False until the first reading."""
        return self._error_ms != float("inf")

    def now_ms(self) -> float:
        """The server's time now, in epoch ms."""
        return self._monotonic() * 1000 + self._offset_ms

    def seconds_until(self, at_ms: float) -> float:
        """Seconds from now to a server time; negative when it has passed."""
        return (at_ms - self.now_ms()) / 1000
