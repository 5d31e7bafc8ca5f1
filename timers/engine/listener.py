"""Owns hearing: keeps a subscription alive and turns notifications into marks. O(1) an event; never awaits."""

import asyncio
import time
from collections.abc import Sequence
from typing import Final, assert_never

from timers.bare.expired import ExpiredKeys
from timers.engine.canary import Canary
from timers.engine.hooks import Hooks
from timers.engine.intake import Intake
from timers.engine.peers import Peers
from timers.engine.pod import Pod
from timers.engine.sweeper import Sweeper
from timers.errors import Unavailable
from timers.logs import get_logger
from timers.store import server
from timers.store.notifications import (
    BareExpired,
    CanaryExpired,
    LeaseExpired,
    Notification,
    PodsChanged,
    Posted,
    Subscribed,
    TriggersExpired,
    Wake,
    hear,
)
from timers.store.store import Identity

STEADY_SECONDS: Final = 1.0
AGAIN_SECONDS: Final = 0.05
"""Pause before the next subscription if this one lasted for less than STEADY_SECONDS, so that a server that cuts every
subscription is not flooded. Otherwise the next one follows at once: bare keys that expire in between are lost."""

_log = get_logger("timers.listener")


class Listener:
    """Hears events."""

    name = "listener"

    def __init__(
        self,
        pod: Pod,
        intake: Intake,
        sweeper: Sweeper,
        *,
        peers: Peers,
        canary: Canary,
        hooks: Hooks,
        expired_keys: ExpiredKeys | None,
    ) -> None:
        self._pod, self._intake, self._sweeper = pod, intake, sweeper
        self._peers, self._canary, self._hooks, self._expired_keys = peers, canary, hooks, expired_keys
        self.flags = "not checked yet"
        """What is known of the server's notification flags."""
        self._confirmed_at = 0.0
        self._gap_at: float | None = None
        self._gap_cause = "sweep-start"
        self._brought = False
        self._old: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Subscribe again and again, as long as each subscription is confirmed before it breaks. In between, the sweep
        is told to claim without waiting for events."""
        while True:
            self._confirmed_at = 0.0
            try:
                await self._hold()
            except Unavailable as error:
                if not self._confirmed_at:
                    raise
                _log.warning("subscription lost", reason=str(error))
            finally:
                self._gap_at = self._gap_at or time.monotonic()
                self._canary.unsubscribed()
                self._sweeper.sweep_everything(self._gap_cause)
            if time.monotonic() - self._confirmed_at < STEADY_SECONDS:
                await asyncio.sleep(AGAIN_SECONDS)

    async def _hold(self) -> None:
        """Hold a subscription until it breaks; then raise Unavailable. If it brings nothing, open another one before it
        is closed: it may be held by a server that is no longer the master."""
        hearing = self._subscribe()
        try:
            await self._check_flags()
            while await self._is_silent(hearing):
                await self._check_flags()
                # What has brought something since the last silence is only slow: it may hold more.
                if not self._brought and self._old is None:
                    self._old, self._gap_at = hearing, time.monotonic()
                    hearing = self._subscribe()
                self._brought = False
                self._missed()
                self._canary.judge_soon()
        finally:
            self._old, ended = None, [task for task in (hearing, self._old) if task is not None]
            for task in ended:
                task.cancel()
            await asyncio.gather(*ended, return_exceptions=True)

    def _subscribe(self) -> asyncio.Task[None]:
        return asyncio.create_task(hear(self._pod.store.connections, self.hear))

    async def _is_silent(self, hearing: asyncio.Task[None]) -> bool:
        """Return once a canary's event failed to arrive. Raises Unavailable if the subscription breaks first."""
        silence = asyncio.create_task(self._canary.next_silence())
        try:
            await asyncio.wait({hearing, silence}, return_when=asyncio.FIRST_COMPLETED)
            if hearing.done():
                await hearing
            return True
        finally:
            silence.cancel()

    async def _check_flags(self) -> None:
        """A restarted server has forgotten a CONFIG SET, and somebody may have turned the flags off."""
        is_on, self.flags = await server.ensure_notifications(self._pod.store.connections.commands)
        if not is_on:
            _log.warning("notification flags unknown", said=self.flags)

    def _missed(self) -> None:
        """Expiries may have been missed: look for everything that is due, and for bare keys."""
        self._sweeper.sweep_everything(self._gap_cause)
        if self._expired_keys is not None:
            self._expired_keys.missed()

    def _subscribed(self, at_ms: int) -> None:
        _log.info("subscribed; looking at all queues")
        self._confirmed_at = time.monotonic()
        gap_seconds = 0.0 if self._gap_at is None else self._confirmed_at - self._gap_at
        self._gap_at = None
        if self._old is not None:
            self._old.cancel()
            self._old = None
        self._pod.observer.resubscribed(gap_seconds)
        self._canary.resubscribed(at_ms)
        self._missed()
        self._gap_cause = "sweep-gap"
        self._peers.beat_soon()

    def hear(self, notification: Notification) -> None:
        """Handle one notification."""
        self._brought = True
        match notification:
            case TriggersExpired(shard, prefix, ids):
                self._triggers(shard, prefix, ids)
            case BareExpired(prefix, timer_id):
                self._bare((prefix, timer_id))
            case LeaseExpired(shard, prefix, timer_id):
                self._lease(shard, (prefix, timer_id))
            case Wake(shard, due_ms):
                self._sweeper.wake(shard, due_ms)
            case Posted(shard):
                self._hooks.posted(shard)
            case PodsChanged():
                self._peers.beat_soon()
            case CanaryExpired(name):
                self._canary.heard(name)
            case Subscribed(at_ms):
                self._subscribed(at_ms)
            case _:
                assert_never(notification)

    def _bare(self, identity: Identity) -> None:
        """Also announce a key for a processor whose pods are gone: its timer is due and waits for them."""
        shard, prefix = self._pod.store.shard_of(*identity), identity[0]
        is_away = self._peers.owner(prefix) is not None and not self._peers.serve(shard, prefix)
        is_ours = self._pod.serves(shard, prefix) or (is_away and shard in self._pod.shards)
        if self._expired_keys is not None and is_ours:
            mine = self._peers.mine(shard, prefix, identity[1])
            self._expired_keys.heard(identity, self._canary.heard_until_ms, mine=mine)

    def _lease(self, shard: int, run: Identity) -> None:
        if self._pod.serves(shard, run[0]):
            if self._peers.mine(shard, *run):
                self._intake.mark_orphan(shard, run)
            else:  # the pod whose event this is may be the dead one
                self._sweeper.wake(shard, 0)

    def _triggers(self, shard: int, prefix: str, ids: Sequence[bytes]) -> None:
        self._sweeper.heard(shard)
        if not self._pod.serves(shard, prefix):
            return
        mine = self._peers.share(shard, prefix, ids)
        if mine:
            self._intake.mark(shard, prefix, mine)
        if mine < len(ids):
            self._intake.mark_later(shard, prefix)
