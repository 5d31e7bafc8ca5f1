"""Owns hearing: keeps a subscription alive and turns each notification into a mark. O(1) an event; awaits nothing."""

from collections.abc import Callable
from typing import assert_never

from timers.engine.announcer import Announcer
from timers.engine.canary import Canary
from timers.engine.intake import Intake
from timers.engine.observer import Observer
from timers.engine.peers import Peers
from timers.engine.sweeper import Sweeper
from timers.logs import get_logger
from timers.store import server
from timers.store.notifications import (
    BareExpired,
    CanaryExpired,
    Gap,
    LeaseExpired,
    Notification,
    Notifications,
    TriggerExpired,
    Wake,
)
from timers.store.store import Identity, Store

_log = get_logger("timers.listener")


class Listener:
    """Hears events. `serves(shard, prefix)` says whether this pod runs the queue."""

    name = "listener"

    def __init__(
        self,
        store: Store,
        intake: Intake,
        sweeper: Sweeper,
        peers: Peers,
        canary: Canary,
        announcer: Announcer,
        observer: Observer,
        serves: Callable[[int, str], bool],
    ) -> None:
        self._store, self._intake, self._sweeper = store, intake, sweeper
        self._peers, self._canary, self._announcer, self._observer = peers, canary, announcer, observer
        self._serves = serves
        self.flags = server.FlagCheck(None, "not asked yet")

    async def run(self) -> None:
        """One subscription's life. The flags are looked after first: a restarted server has forgotten a CONFIG SET."""
        self.flags = await server.ensure_notifications(self._store.connections.commands)
        if not self.flags.ok:
            _log.warning("notification flags unknown", said=self.flags.said)
        await Notifications(self._store.connections).stream(self.hear)

    def hear(self, notification: Notification) -> None:
        """Take one notification."""
        match notification:
            case TriggerExpired(shard, prefix, timer_id):
                self._trigger(shard, prefix, timer_id)
            case BareExpired(prefix, timer_id):
                self._bare((prefix, timer_id))
            case LeaseExpired(shard, prefix, timer_id):
                if self._serves(shard, prefix) and self._peers.mine(shard, prefix, timer_id):
                    self._intake.mark_orphan(shard, (prefix, timer_id))
            case Wake(shard, due_ms):
                self._sweeper.wake(shard, due_ms)
            case CanaryExpired(pod):
                self._canary.heard(pod)
            case Gap():
                _log.info("subscribed; looking at everything")
                self._observer.resubscribed()
                self._canary.resubscribed()
                self._sweeper.sweep_everything()
            case _:
                assert_never(notification)

    def _bare(self, identity: Identity) -> None:
        shard, prefix = self._store.shard_of(*identity), identity[0]
        if self._serves(shard, prefix):
            self._announcer.heard(identity, mine=self._peers.mine(shard, prefix, identity[1]))

    def _trigger(self, shard: int, prefix: str, timer_id: str) -> None:
        self._sweeper.heard(shard)
        if not self._serves(shard, prefix):
            return
        if self._peers.mine(shard, prefix, timer_id):
            self._intake.mark(shard, prefix)
        else:
            self._intake.mark_later(shard, prefix)
