"""Owns the delivery of notifications: keeps a subscription alive at each server that has keys, has what it may have
missed looked for, and turns what it brings into marks. A notification costs O(1); handling it never awaits."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from timers.bare.watch import BareWatch
from timers.engine.canary import Canaries, Canary
from timers.engine.hooks import Hooks
from timers.engine.intake import LATER_SECONDS, Intake
from timers.engine.peers import Peers
from timers.engine.pod import Pod
from timers.engine.supervisor import Supervisor, repeat
from timers.engine.sweeper import Sweeper
from timers.errors import Unavailable
from timers.logs import get_logger
from timers.store.cooperative import cancelled, side_by_side
from timers.store.notifications import MOVED_SECONDS, Part, current_parts, ensure_notifications, listen, parts

REPLICAS_SECONDS: Final = 5.0
"""How often the flags of replicas are checked. One that is promoted announces nothing without them."""

STEADY_SECONDS: Final = 1.0
AGAIN_SECONDS: Final = 0.05
"""Pause before the next subscription if this one lasted for less than STEADY_SECONDS, so that a server that cuts every
subscription is not flooded. Otherwise the next one follows at once: bare keys that expire in between are lost."""

_log = get_logger("timers.listener")


class Subscription:
    """The subscription at one server. Its listener looks for what may have been missed."""

    def __init__(self, pod: Pod, canary: Canary, listener: "Listener") -> None:
        self._pod, self._canary, self._listener = pod, canary, listener
        self._gap_cause = listener.cause
        self.kept = Supervisor({f"listener of {canary.part.node.address}": self.run})
        """What keeps it alive if there are several."""
        self.flags = "not checked yet"
        """What is known of the server's notification flags."""
        self._confirmed_at = 0.0
        self._gap_at: float | None = None
        self._delivered = False
        self._old: asyncio.Task[None] | None = None
        self._handlers: Mapping[str, Callable[..., None]] = {
            **listener.handlers,
            "bare": partial(listener.bare_expired, canary),
            "canary": canary.heard,
            "subscribed": self._subscribed,
        }
        """What to do with each notification, by what it is."""

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
                self._listener.sweeper.sweep_everything(self._canary.part.shards, self._gap_cause)
            if time.monotonic() - self._confirmed_at < STEADY_SECONDS:
                await asyncio.sleep(AGAIN_SECONDS)

    async def _stay_subscribed(self) -> None:
        """Hold a subscription until it breaks; then raise Unavailable. If it brings nothing, open another one before it
        is closed: it may be held by a server that is no longer the master."""
        subscription = self._subscribe()
        try:
            await self._check_flags()
            while True:
                await self._failure(subscription)
                if not await self._check_flags():
                    _log.warning("notification flags unknown", said=self.flags)
                # What has brought something since the last failure is only slow: it may hold more.
                if not self._delivered and self._old is None:
                    self._old, self._gap_at = subscription, time.monotonic()
                    subscription = self._subscribe()
                self._delivered = False
                self._listener.missed(self._canary.part, self._gap_cause)
                self._canary.soon.set()
        finally:
            self._old, ended = None, [task for task in (subscription, self._old) if task is not None]
            await cancelled(ended)

    def _subscribe(self) -> asyncio.Task[None]:
        return asyncio.create_task(listen(self._canary.part, self.handle))

    async def _failure(self, subscription: asyncio.Task[None]) -> None:
        """Return once a canary's event failed to arrive. Raises Unavailable if the subscription breaks first."""
        failure = asyncio.create_task(self._canary.next_failure())
        try:
            await asyncio.wait({subscription, failure}, return_when=asyncio.FIRST_COMPLETED)
            if subscription.done():
                await subscription
        finally:
            failure.cancel()

    async def _check_flags(self) -> bool:
        """A restarted server has forgotten a CONFIG SET, and somebody may have turned the flags off. Returns whether
        they are on for sure."""
        is_on, self.flags = await ensure_notifications(self._canary.part.node.commands)
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
        self._listener.missed(self._canary.part, self._gap_cause)
        self._gap_cause = "sweep-gap"
        self._listener.confirmed()

    def handle(self, what: str, *said: Any) -> None:
        self._delivered = True
        self._handlers[what](*said)


class Listener:
    def __init__(
        self,
        pod: Pod,
        intake: Intake,
        sweeper: Sweeper,
        *,
        peers: Peers,
        canaries: Canaries,
        hooks: Hooks,
        bare: BareWatch | None,
    ) -> None:
        self._pod, self._intake, self.sweeper = pod, intake, sweeper
        self._peers, self._canaries, self._bare = peers, canaries, bare
        self._subscriptions: dict[Part, Subscription] = {}
        self.cause = "sweep-start"
        """Why a new subscription looks for everything that is due."""
        self.handlers: Mapping[str, Callable[..., None]] = {
            "triggers": self._triggers,
            "lease": self._lease_expired,
            "wake": sweeper.wake,
            "posted": hooks.posted,
            "pods": peers.hear_news,
        }

    @property
    def flags(self) -> str:
        """What is known of the servers' notification flags."""
        return "; ".join(dict.fromkeys(each.flags for each in self._subscriptions.values())) or "not checked yet"

    async def run(self) -> None:
        """Stay subscribed at the one server of the db, or at all primaries of a cluster."""
        connections = self._pod.store.connections
        if connections.is_spread:
            listening = self._follow()
        else:
            (whole,) = parts(connections, self._pod.store.shards)
            listening = self._subscription(whole).run()
        await side_by_side([listening, repeat(self._check_replicas, REPLICAS_SECONDS)])

    async def _follow(self) -> None:
        """Keep a subscription for each part of the db where that lies now. A server that is no primary any more keeps
        its subscribers, so what is held is compared with what there is."""
        try:
            while True:
                found = await self._found()
                for part in [part for part in self._subscriptions if part not in found]:
                    await self._subscriptions[part].kept.stop()
                    del self._subscriptions[part]
                    self._canaries.remove(part)
                for part in found:
                    self._subscription(part).kept.start()
                await asyncio.sleep(MOVED_SECONDS)
        finally:
            await asyncio.gather(*(each.kept.stop() for each in self._subscriptions.values()))

    async def _found(self) -> list[Part]:
        """The parts as they are now; while no server says so, those that were known."""
        try:
            return await current_parts(self._pod.store.connections, self._pod.store.shards)
        except Unavailable:
            if not self._subscriptions:
                raise
            return list(self._subscriptions)

    async def _check_replicas(self) -> None:
        """A replica that was restarted has forgotten a CONFIG SET."""
        for replica in self._pod.store.connections.replicas:
            try:
                is_on, said = await ensure_notifications(replica.commands)
            except Unavailable:
                continue
            if is_on and said.startswith("added"):
                _log.info("notification flags of a replica set", node=replica.address, said=said)

    def _subscription(self, part: Part) -> Subscription:
        made = self._subscriptions.get(part)
        if made is None:
            made = self._subscriptions[part] = Subscription(self._pod, self._canaries.add(part), self)
        return made

    def missed(self, part: Part, cause: str) -> None:
        """Expiries may have been missed: look for everything that is due there, and for bare keys."""
        self.sweeper.sweep_everything(part.shards, cause)
        if self._bare is not None:
            self._bare.scan_now()

    def confirmed(self) -> None:
        """A subscription was confirmed: this may be another server, or the same without its newest data."""
        self.cause = "sweep-gap"
        self._peers.beat_soon()

    def bare_expired(self, canary: Canary, prefix: str, timer_id: str) -> None:
        """Also announce a key for a processor whose pods are gone: its timer is due and waits for them."""
        shard = self._pod.store.shard_of(prefix, timer_id)
        is_unserved = self._peers.owner(prefix) is not None and not self._peers.serve(shard, prefix)
        is_ours = self._pod.serves(shard, prefix) or (is_unserved and shard in self._pod.shards)
        if self._bare is not None and is_ours:
            mine = self._peers.is_mine(shard, prefix, timer_id)
            self._bare.heard((prefix, timer_id), canary.count((prefix, timer_id)), mine=mine)

    def _lease_expired(self, shard: int, prefix: str, timer_id: str) -> None:
        if self._pod.serves(shard, prefix):
            if self._peers.is_mine(shard, prefix, timer_id):
                self._intake.mark_orphan(shard, (prefix, timer_id))
            else:  # the pod whose event this is may be the dead one
                self.sweeper.wake(shard, 0)

    def _triggers(self, shard: int, prefix: str, ids: Sequence[bytes]) -> None:
        self.sweeper.heard(shard)
        if not self._pod.serves(shard, prefix):
            return
        mine = self._peers.count_mine(shard, prefix, ids)
        if mine:
            self._intake.mark(shard, prefix, mine)
        if mine < len(ids):
            self._intake.mark_after(shard, prefix, LATER_SECONDS, "late-look")
