"""Owns the proof that notifications arrive: a small key of the pod's own, every few seconds, whose event is timed."""

import asyncio
import math
import time
from typing import Final, Literal

from timers.engine.pod import Pod
from timers.engine.supervisor import repeat
from timers.store import notifications
from timers.store.cooperative import set_within

LIFE_MS: Final = 50
LATE_SECONDS: Final = 0.5
STEPS: Final = 10
"""The wait for an event has so many parts. If the pod itself stands still, that takes one of them, however long: in the
others it reads what has come meanwhile. So it does not take its delivery for failed."""


class Canary:
    """Arms the pod's canary key, touches it when it is due, and measures how long its event takes."""

    def __init__(self, pod: Pod, *, life_ms: int = LIFE_MS, late_seconds: float = LATE_SECONDS) -> None:
        self._pod, self._round, self._life_ms, self._late_seconds = pod, 0, life_ms, late_seconds
        self._heard = asyncio.Event()
        self._soon = asyncio.Event()
        self._failed = asyncio.Event()
        self.delivery: Literal["ok", "late", "deaf"] = "ok"
        """How notifications arrive at this pod."""
        self.lag_seconds = math.nan
        """From touching the newest canary to its event; infinite if the event never came."""
        self.subscribed = False
        """Whether this pod has a subscription. That it is gone is known at once and says nothing about how events will
        arrive over the next one."""
        self.heard_until_ms = 0
        """Server time up to which this pod has heard everything it will ever hear: from just before it asked for the
        newest subscription, or the time at which the newest canary it heard expired. The time at which it reads the
        confirmation or touches the canary would be too late, because a pod may stall before."""

    @property
    def _name(self) -> str:
        """A name for each round: an event of an earlier one, read late, says nothing about the events after it."""
        return f"{self._pod.name}:{self._round}"

    def heard(self, name: str) -> None:
        if name == self._name:
            self._heard.set()

    def resubscribed(self, at_ms: int) -> None:
        """A subscription was confirmed, which was asked for after the server's time `at_ms`: start judging again."""
        self.subscribed = True
        self.heard_until_ms = at_ms
        self.judge_soon()

    def judge_soon(self) -> None:
        self._soon.set()

    async def next_failure(self) -> None:
        self._failed.clear()
        await self._failed.wait()

    def delivery_failed(self) -> bool:
        return self.delivery == "deaf"

    def receives_events(self) -> bool:
        """Whether it makes sense to wait for an event."""
        return self.subscribed and not self.delivery_failed()

    async def run(self) -> None:
        await repeat(self._judge, self._pod.options.canary_every_seconds, self._soon)

    async def _judge(self) -> None:
        self._heard.clear()
        self._round += 1
        redis = self._pod.store.connections.commands
        expires_ms = await notifications.set_canary(redis, self._name, self._life_ms)
        # Redis expires keys strictly after the deadline, so a touch may come a moment too soon.
        await asyncio.sleep((self._life_ms + 2) / 1000)
        touched = time.monotonic()
        while await notifications.touch_canary(redis, self._name):
            await asyncio.sleep(0.001)
            touched = time.monotonic()
        for _ in range(STEPS):
            if await set_within(self._heard, self._pod.options.deaf_seconds / STEPS):
                break
        else:
            self.delivery, self.lag_seconds = "deaf", math.inf
            self._failed.set()
            return
        self.heard_until_ms = max(self.heard_until_ms, expires_ms)
        self.lag_seconds = time.monotonic() - touched
        self.delivery = "late" if self.lag_seconds > self._late_seconds else "ok"
