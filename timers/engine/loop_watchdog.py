"""Owns noticing a blocked event loop: a processor that computes or waits without `await` stops all but the leases.

A thread watches the loop's beat, because the loop cannot notice while it is blocked. It reports the timer and the place
in the code.
"""

import asyncio
import sys
import threading
import time
import traceback
from types import FrameType
from typing import Final

from timers.engine.observer import Observer
from timers.engine.runs import Runs
from timers.logs import get_logger

BEAT_SECONDS: Final = 0.25
BLOCKED_SECONDS: Final = 0.5
FRAMES_SHOWN: Final = 6

_log = get_logger("timers.loop_watchdog")


class LoopWatchdog:
    """Beats on the loop, watched from a thread."""

    name = "loop_watchdog"

    def __init__(self, runs: Runs, observer: Observer) -> None:
        self._runs, self._observer = runs, observer
        self._beat_at = time.monotonic()
        self._stopped = threading.Event()

    @property
    def still_seconds(self) -> float:
        """How long ago the loop turned."""
        return time.monotonic() - self._beat_at

    async def run(self) -> None:
        """Beat while the thread watches."""
        loop, thread_id = asyncio.get_running_loop(), threading.get_ident()
        self._beat_at = time.monotonic()
        self._stopped = threading.Event()
        watcher = threading.Thread(
            target=self._watch, args=(loop, thread_id, self._stopped), name="timers.loop_watchdog", daemon=True
        )
        watcher.start()
        try:
            while True:
                self._beat_at = time.monotonic()
                await asyncio.sleep(BEAT_SECONDS)
                self._take(time.monotonic() - self._beat_at)
        finally:
            self._stopped.set()

    def _take(self, since: float) -> None:
        self._observer.loop_late(max(0.0, since - BEAT_SECONDS))
        if since > BLOCKED_SECONDS:
            _log.error("event loop was blocked", seconds=round(since, 3))

    def _watch(self, loop: asyncio.AbstractEventLoop, thread_id: int, stopped: threading.Event) -> None:
        """Runs in the thread: report each blockade once, while it lasts."""
        reported = 0.0
        while not stopped.wait(BEAT_SECONDS):
            beat_at = self._beat_at
            if time.monotonic() - beat_at > BLOCKED_SECONDS and beat_at != reported:
                reported = beat_at
                self._report(loop, sys._current_frames().get(thread_id))

    def _report(self, loop: asyncio.AbstractEventLoop, frame: FrameType | None) -> None:
        current = asyncio.current_task(loop)
        timers = [run.timer.key for run in self._runs if run.coroutine is current and current is not None]
        where = [f"{f.filename}:{f.lineno} {f.name}" for f in traceback.extract_stack(frame)[-FRAMES_SHOWN:]]
        _log.error("event loop blocked", timer=timers[0] if timers else None, where=where)
