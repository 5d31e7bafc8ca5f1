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

SAMPLE_AGE_SECONDS: Final = 10.0
"""For how long a precise reading is preferred to newer, less precise ones: within this time, drift stays far below a
millisecond."""


class ServerClock:
    """The server's time in ms, estimated from answers that carry it.

    A reading taken between `sent` and `received` is uncertain by that round trip. The clock keeps the most precise
    recent reading. A reading that contradicts it replaces it at once, because the server's clock was changed. Source:
    the interval reasoning of Cristian's algorithm (F. Cristian, "Probabilistic clock synchronization", 1989).
    """

    def __init__(self, monotonic: Monotonic = time.monotonic) -> None:
        self._monotonic = monotonic
        self._offset_ms = 0.0
        self._error_ms = float("inf")
        self._read_at = float("-inf")

    def observe(self, server_ms: int, sent: float, received: float) -> None:
        """Take a reading: the server's ms (cut, not rounded) at some moment between two monotonic seconds."""
        middle_ms, error_ms = (sent + received) * 500, (received - sent) * 500 + 0.5
        offset_ms = server_ms + 0.5 - middle_ms
        contradicts = abs(offset_ms - self._offset_ms) > error_ms + self._error_ms
        aged = received - self._read_at > SAMPLE_AGE_SECONDS
        if error_ms <= self._error_ms or aged or contradicts:
            self._offset_ms, self._error_ms, self._read_at = offset_ms, error_ms, received

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
