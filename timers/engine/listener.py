"""Owns the delivery of notifications: keeps a subscription alive, and turns what it brings into marks. A notification
costs O(1); handling it never awaits."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from timers.bare.watch import BareWatch
from timers.engine.canary import Canary
from timers.engine.hooks import Hooks
from timers.engine.intake import LATER_SECONDS, Intake
from timers.engine.peers import Peers
from timers.engine.pod import Pod
from timers.engine.sweeper import Sweeper
from timers.errors import Unavailable
from timers.logs import get_logger
from timers.store import notifications
from timers.store.notifications import listen

STEADY_SECONDS: Final = 1.0
AGAIN_SECONDS: Final = 0.05
"""Pause before the next subscription if this one lasted for less than STEADY_SECONDS, so that a server that cuts every
subscription is not flooded. Otherwise the next one follows at once: bare keys that expire in between are lost."""

_log = get_logger("timers.listener")


class Listener:
    def __init__(
        self,
        pod: Pod,
        intake: Intake,
        sweeper: Sweeper,
        *,
        peers: Peers,
        canary: Canary,
        hooks: Hooks,
        bare: BareWatch | None,
    ) -> None:
        self._pod, self._intake, self._sweeper = pod, intake, sweeper
        self._peers, self._canary, self._hooks, self._bare = peers, canary, hooks, bare
        self.flags = "not checked yet"
        """What is known of the server's notification flags."""
        self._confirmed_at = 0.0
        self._gap_at: float | None = None
        self._gap_cause = "sweep-start"
        self._delivered = False
        self._old: asyncio.Task[None] | None = None
        self._handlers: Mapping[str, Callable[..., None]] = {
            "triggers": self._triggers,
            "bare": self._bare_expired,
            "lease": self._lease_expired,
            "wake": sweeper.wake,
            "posted": hooks.posted,
            "pods": peers.beat_soon,
            "canary": canary.heard,
            "subscribed": self._subscribed,
        }

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
                self._sweeper.sweep_everything(self._gap_cause)
            if time.monotonic() - self._confirmed_at < STEADY_SECONDS:
                await asyncio.sleep(AGAIN_SECONDS)

    async def _stay_subscribed(self) -> None:
        """Hold a subscription until it breaks; then raise Unavailable. If it brings nothing, open another one before it
        is closed: it may be held by a server that is no longer the master."""
        subscription = self._subscribe()
        try:
            await self._check_flags()
            while await self._fails(subscription):
                await self._check_flags()
                # What has brought something since the last failure is only slow: it may hold more.
                if not self._delivered and self._old is None:
                    self._old, self._gap_at = subscription, time.monotonic()
                    subscription = self._subscribe()
                self._delivered = False
                self._after_gap()
                self._canary.judge_soon()
        finally:
            self._old, ended = None, [task for task in (subscription, self._old) if task is not None]
            for task in ended:
                task.cancel()
            await asyncio.gather(*ended, return_exceptions=True)

    def _subscribe(self) -> asyncio.Task[None]:
        return asyncio.create_task(listen(self._pod.store.connections, self.handle))

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

    async def _check_flags(self) -> None:
        """A restarted server has forgotten a CONFIG SET, and somebody may have turned the flags off."""
        is_on, self.flags = await notifications.ensure_notifications(self._pod.store.connections.commands)
        if not is_on:
            _log.warning("notification flags unknown", said=self.flags)

    def _after_gap(self) -> None:
        """Expiries may have been missed: look for everything that is due, and for bare keys."""
        self._sweeper.sweep_everything(self._gap_cause)
        if self._bare is not None:
            self._bare.scan_now()

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
        self._after_gap()
        self._gap_cause = "sweep-gap"
        self._peers.beat_soon()

    def handle(self, what: str, *said: Any) -> None:
        self._delivered = True
        self._handlers[what](*said)

    def _bare_expired(self, prefix: str, timer_id: str) -> None:
        """Also announce a key for a processor whose pods are gone: its timer is due and waits for them."""
        shard = self._pod.store.shard_of(prefix, timer_id)
        is_unserved = self._peers.owner(prefix) is not None and not self._peers.serve(shard, prefix)
        is_ours = self._pod.serves(shard, prefix) or (is_unserved and shard in self._pod.shards)
        if self._bare is not None and is_ours:
            mine = self._peers.is_mine(shard, prefix, timer_id)
            self._bare.heard((prefix, timer_id), self._canary.heard_until_ms, mine=mine)

    def _lease_expired(self, shard: int, prefix: str, timer_id: str) -> None:
        if self._pod.serves(shard, prefix):
            if self._peers.is_mine(shard, prefix, timer_id):
                self._intake.mark_orphan(shard, (prefix, timer_id))
            else:  # the pod whose event this is may be the dead one
                self._sweeper.wake(shard, 0)

    def _triggers(self, shard: int, prefix: str, ids: Sequence[bytes]) -> None:
        self._sweeper.heard(shard)
        if not self._pod.serves(shard, prefix):
            return
        mine = self._peers.count_mine(shard, prefix, ids)
        if mine:
            self._intake.mark(shard, prefix, mine)
        if mine < len(ids):
            self._intake.mark_after(shard, prefix, LATER_SECONDS, "late-look")
