"""Owns the subscription to one server's notifications: keeps it alive, and has what it may have missed looked for."""

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from timers.engine.canary import Canary
from timers.engine.pod import Pod
from timers.errors import Unavailable
from timers.logs import get_logger
from timers.store import notifications
from timers.store.notifications import listen

STEADY_SECONDS: Final = 1.0
AGAIN_SECONDS: Final = 0.05
"""Pause before the next subscription if this one lasted for less than STEADY_SECONDS, so that a server that cuts every
subscription is not flooded. Otherwise the next one follows at once: bare keys that expire in between are lost."""

_log = get_logger("timers.listener")

Handlers = Mapping[str, Callable[..., None]]
"""What to do with each notification, by what it is."""


class Subscription:
    def __init__(
        self,
        pod: Pod,
        canary: Canary,
        handlers: Handlers,
        *,
        sweep: Callable[[str], None],
        missed: Callable[[str], None],
        confirmed: Callable[[], None],
        cause: str,
    ) -> None:
        """`sweep` is called once events cannot be heard, `missed` once some may have been lost, both with why: `cause`
        before this has been `confirmed` for the first time."""
        self._pod, self._canary, self._gap_cause = pod, canary, cause
        self._sweep, self._missed, self._confirmed = sweep, missed, confirmed
        self.flags = "not checked yet"
        """What is known of the server's notification flags."""
        self._confirmed_at = 0.0
        self._gap_at: float | None = None
        self._delivered = False
        self._old: asyncio.Task[None] | None = None
        self._handlers: Handlers = {**handlers, "canary": canary.heard, "subscribed": self._subscribed}

    async def run(self) -> None:
        """Subscribe again and again, as long as each subscription is confirmed before it breaks. In between, the sweep
        is told to claim without waiting for events."""
        while True:
            self._confirmed_at = 0.0
            try:
                await self._stay_subscribed()
            except Unavailable as error:
                if not self._confirmed_at:
                    raise
                _log.warning("subscription lost", reason=str(error))
            finally:
                self._gap_at = self._gap_at or time.monotonic()
                self._canary.subscribed = False
                self._sweep(self._gap_cause)
            if time.monotonic() - self._confirmed_at < STEADY_SECONDS:
                await asyncio.sleep(AGAIN_SECONDS)

    async def _stay_subscribed(self) -> None:
        """Hold a subscription until it breaks; then raise Unavailable. If it brings nothing, open another one before it
        is closed: it may be held by a server that is no longer the master."""
        subscription = self._subscribe()
        try:
            await self._check_flags()
            while await self._fails(subscription):
                if not await self._check_flags():
                    _log.warning("notification flags unknown", said=self.flags)
                # What has brought something since the last failure is only slow: it may hold more.
                if not self._delivered and self._old is None:
                    self._old, self._gap_at = subscription, time.monotonic()
                    subscription = self._subscribe()
                self._delivered = False
                self._missed(self._gap_cause)
                self._canary.judge_soon()
        finally:
            self._old, ended = None, [task for task in (subscription, self._old) if task is not None]
            for task in ended:
                task.cancel()
            await asyncio.gather(*ended, return_exceptions=True)

    def _subscribe(self) -> asyncio.Task[None]:
        return asyncio.create_task(listen(self._canary.part, self.handle))

    async def _fails(self, subscription: asyncio.Task[None]) -> bool:
        """Return once a canary's event failed to arrive. Raises Unavailable if the subscription breaks first."""
        failure = asyncio.create_task(self._canary.next_failure())
        try:
            await asyncio.wait({subscription, failure}, return_when=asyncio.FIRST_COMPLETED)
            if subscription.done():
                await subscription
            return True
        finally:
            failure.cancel()

    async def _check_flags(self) -> bool:
        """A restarted server has forgotten a CONFIG SET, and somebody may have turned the flags off. Returns whether
        they are on for sure."""
        is_on, self.flags = await notifications.ensure_notifications(self._canary.part.node.commands)
        return is_on

    def _subscribed(self, at_ms: int) -> None:
        _log.info("subscribed; looking at all queues")
        self._confirmed_at = time.monotonic()
        gap_seconds = 0.0 if self._gap_at is None else self._confirmed_at - self._gap_at
        self._gap_at = None
        if self._old is not None:
            self._old.cancel()
            self._old = None
        self._pod.observer.count("subscriptions")
        self._pod.observer.count("subscription_gap_seconds", by=gap_seconds)
        self._canary.resubscribed(at_ms)
        self._missed(self._gap_cause)
        self._gap_cause = "sweep-gap"
        self._confirmed()

    def handle(self, what: str, *said: Any) -> None:
        self._delivered = True
        self._handlers[what](*said)
