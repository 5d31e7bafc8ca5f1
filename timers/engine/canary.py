"""Owns the proof that notifications arrive: a small key armed every few seconds, and how its event comes back."""

import asyncio
import math
import time
from enum import StrEnum
from typing import Final

from timers.store import server
from timers.store.store import Store
from timers.store.turns import set_within

EVERY_SECONDS: Final = 2.0
LIFE_MS: Final = 50
LATE_SECONDS: Final = 0.5
DEAF_SECONDS: Final = 3.0


class Hearing(StrEnum):
    """How notifications arrive at this pod."""

    OK = "ok"
    LATE = "late"
    DEAF = "deaf"


class Canary:
    """Arms the pod's canary, touches it when it is due, and judges how long its event takes."""

    name = "canary"

    def __init__(self, store: Store, pod: str) -> None:
        self._store, self._pod = store, pod
        self._heard = asyncio.Event()
        self._resubscribe = asyncio.Event()
        self._silent = asyncio.Event()
        self.hearing = Hearing.OK
        self.lag_seconds = math.nan
        """From touching the newest canary to its event; infinite where that never came."""
        self._subscribed = False
        self.heard_until_ms = 0
        """The server's time before which whatever was announced has been heard, or never will be: that of the newest
        subscription, or at which the newest canary that was heard cannot have expired yet. Not the time of the touch,
        before which a pod may stand still."""

    def heard(self, pod: str) -> None:
        """A canary's event arrived."""
        if pod == self._pod:
            self._heard.set()

    def resubscribed(self) -> None:
        """A subscription was confirmed; judge anew."""
        self._subscribed = True
        self.heard_until_ms = int(self._store.clock.now_ms())
        self._resubscribe.set()

    def unsubscribed(self) -> None:
        """The subscription is gone. That is known at once, and no judgement on how events arrive over the next one."""
        self._subscribed = False

    async def next_silence(self) -> None:
        """Until another canary is not heard."""
        self._silent.clear()
        await self._silent.wait()

    def is_deaf(self) -> bool:
        """Whether notifications do not arrive."""
        return self.hearing is Hearing.DEAF

    def can_hear(self) -> bool:
        """Whether an event may be waited for."""
        return self._subscribed and not self.is_deaf()

    async def run(self) -> None:
        """Judge again and again."""
        while True:
            await self._judge()
            await self._pause()

    async def _judge(self) -> None:
        self._heard.clear()
        redis = self._store.connections.commands
        expires_ms = int(self._store.clock.now_ms()) + LIFE_MS
        await server.set_canary(redis, self._pod, LIFE_MS)
        await asyncio.sleep(LIFE_MS / 1000)
        # Redis expires strictly after the deadline, so the first touch may come a moment too soon.
        touched = time.monotonic()
        while await server.touch_canary(redis, self._pod):
            await asyncio.sleep(0.001)
            touched = time.monotonic()
        if not await set_within(self._heard, DEAF_SECONDS):
            self.hearing, self.lag_seconds = Hearing.DEAF, math.inf
            self._silent.set()
            return
        self.heard_until_ms = max(self.heard_until_ms, expires_ms)
        self.lag_seconds = time.monotonic() - touched
        self.hearing = Hearing.LATE if self.lag_seconds > LATE_SECONDS else Hearing.OK

    async def _pause(self) -> None:
        """Until the next round; a fresh subscription ends it early."""
        self._resubscribe.clear()
        await set_within(self._resubscribe, EVERY_SECONDS)
