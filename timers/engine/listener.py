"""Owns hearing: keeps a subscription alive and turns each notification into a mark. O(1) an event; never awaits."""

import asyncio
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
    Posted,
    Subscribed,
    TriggerExpired,
    Wake,
    hear,
)
from timers.store.store import Identity

AGAIN_SECONDS: Final = 0.05
"""Pause between a subscription that worked and the next, so that a server that cuts every subscription is not
flooded."""

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
        self._confirmed = False

    async def run(self) -> None:
        """Subscribe again and again, as long as each subscription is confirmed before it breaks. In between, the sweep
        is told to claim without waiting for events."""
        while True:
            self._confirmed = False
            try:
                await self._subscribe()
            except Unavailable as error:
                if not self._confirmed:
                    raise
                _log.warning("subscription lost", reason=str(error))
            finally:
                self._canary.unsubscribed()
                self._sweeper.sweep_everything()
            await asyncio.sleep(AGAIN_SECONDS)

    async def _subscribe(self) -> None:
        """Hold one subscription. Check the flags first: a restarted server has forgotten a CONFIG SET."""
        is_on, self.flags = await server.ensure_notifications(self._pod.store.connections.commands)
        if not is_on:
            _log.warning("notification flags unknown", said=self.flags)
        await self._hear_until_deaf()

    async def _hear_until_deaf(self) -> None:
        """Give up a subscription that brings no events: somebody may have turned the flags off."""
        hearing = asyncio.create_task(hear(self._pod.store.connections, self.hear))
        silence = asyncio.create_task(self._canary.next_silence())
        try:
            done, _ = await asyncio.wait({hearing, silence}, return_when=asyncio.FIRST_COMPLETED)
            if hearing in done:
                return await hearing
            raise Unavailable("notifications do not arrive")
        finally:
            hearing.cancel()
            silence.cancel()
            await asyncio.gather(hearing, silence, return_exceptions=True)

    def hear(self, notification: Notification) -> None:
        """Handle one notification."""
        match notification:
            case TriggerExpired(shard, prefix, timer_id):
                self._trigger(shard, prefix, timer_id)
            case BareExpired(prefix, timer_id):
                self._bare((prefix, timer_id))
            case LeaseExpired(shard, prefix, timer_id):
                if self._pod.serves(shard, prefix) and self._peers.mine(shard, prefix, timer_id):
                    self._intake.mark_orphan(shard, (prefix, timer_id))
            case Wake(shard, due_ms):
                self._sweeper.wake(shard, due_ms)
            case Posted(shard):
                self._hooks.posted(shard)
            case CanaryExpired(name):
                self._canary.heard(name)
            case Subscribed(at_ms):
                _log.info("subscribed; looking at all queues")
                self._confirmed = True
                self._pod.observer.resubscribed()
                self._canary.resubscribed(at_ms)
                self._sweeper.sweep_everything()
                self._peers.beat_soon()
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

    def _trigger(self, shard: int, prefix: str, timer_id: str) -> None:
        self._sweeper.heard(shard)
        if not self._pod.serves(shard, prefix):
            return
        if self._peers.mine(shard, prefix, timer_id):
            self._intake.mark(shard, prefix)
        else:
            self._intake.mark_later(shard, prefix)
