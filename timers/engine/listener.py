"""Owns the delivery of notifications: keeps a subscription at each server that has keys, and turns what they bring into
marks. A notification costs O(1); handling it never awaits."""

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Final

from timers.bare.watch import BareWatch
from timers.engine.canary import Canaries, Canary
from timers.engine.hooks import Hooks
from timers.engine.intake import LATER_SECONDS, Intake
from timers.engine.peers import Peers
from timers.engine.pod import Pod
from timers.engine.subscription import Handlers, Subscription
from timers.engine.supervisor import Supervisor, repeat
from timers.engine.sweeper import Sweeper
from timers.errors import Unavailable
from timers.logs import get_logger
from timers.store.cooperative import side_by_side
from timers.store.notifications import ensure_notifications
from timers.store.parts import MOVED_SECONDS, Part, current_parts, is_spread, parts

REPLICAS_SECONDS: Final = 5.0
"""How often the flags of replicas are checked. One that is promoted announces nothing without them."""

_log = get_logger("timers.listener")


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
        self._pod, self._intake, self._sweeper = pod, intake, sweeper
        self._peers, self._canaries, self._bare = peers, canaries, bare
        self._subscriptions: dict[Part, Subscription] = {}
        self._cause = "sweep-start"
        self._handlers: Handlers = {
            "triggers": self._triggers,
            "lease": self._lease_expired,
            "wake": sweeper.wake,
            "posted": hooks.posted,
            "pods": peers.beat_soon,
        }

    @property
    def flags(self) -> str:
        """What is known of the servers' notification flags."""
        return "; ".join(dict.fromkeys(each.flags for each in self._subscriptions.values())) or "not checked yet"

    async def run(self) -> None:
        """Stay subscribed at the one server of the db, or at all primaries of a cluster."""
        connections = self._pod.store.connections
        if is_spread(connections):
            listening = self._follow()
        else:
            (whole,) = parts(connections, self._pod.store.shards)
            listening = self._subscription(whole).run()
        await side_by_side([listening, repeat(self._check_replicas, REPLICAS_SECONDS)])

    async def _follow(self) -> None:
        """Hold a subscription for each part of the db where that lies now. A server that is no primary any more keeps
        its subscribers, so what is held is compared with what there is."""
        held = dict[Part, Supervisor]()
        try:
            while True:
                found = await self._found(list(self._subscriptions))
                for part in [part for part in self._subscriptions if part not in found]:
                    if part in held:
                        await held.pop(part).stop()
                    self._drop(part)
                for part in found:
                    if part not in held:
                        held[part] = Supervisor({f"listener of {part.node.address}": self._subscription(part).run})
                        held[part].start()
                await asyncio.sleep(MOVED_SECONDS)
        finally:
            await asyncio.gather(*(each.stop() for each in held.values()))

    async def _found(self, known: list[Part]) -> list[Part]:
        """The parts as they are now; while no server says so, those that were known."""
        try:
            return await current_parts(self._pod.store.connections, self._pod.store.shards)
        except Unavailable:
            if not known:
                raise
            return known

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
            canary = self._canaries.add(part)
            made = self._subscriptions[part] = Subscription(
                self._pod,
                canary,
                {**self._handlers, "bare": partial(self._bare_expired, canary)},
                sweep=partial(self._sweeper.sweep_everything, part.shards),
                missed=partial(self._missed, part),
                confirmed=self._confirmed,
                cause=self._cause,
            )
        return made

    def _drop(self, part: Part) -> None:
        del self._subscriptions[part]
        self._canaries.remove(part)

    def _missed(self, part: Part, cause: str) -> None:
        """Expiries may have been missed: look for everything that is due there, and for bare keys."""
        self._sweeper.sweep_everything(part.shards, cause)
        if self._bare is not None:
            self._bare.scan_now()

    def _confirmed(self) -> None:
        self._cause = "sweep-gap"
        self._peers.beat_soon()

    def _bare_expired(self, canary: Canary, prefix: str, timer_id: str) -> None:
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
