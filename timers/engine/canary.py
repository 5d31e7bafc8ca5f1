"""Owns the proof that notifications arrive: a small key of the pod's own on each server, every few seconds, whose event
is timed. Every pod hears the events of all in one order, so they also tell when, in this order, other events came."""

import asyncio
import math
import time
from collections import Counter
from typing import Final

from timers.bare.keys import Heard
from timers.core.shapes import Delivery
from timers.engine.pod import Pod
from timers.engine.supervisor import repeat
from timers.errors import RedisRights
from timers.store import keys, notifications
from timers.store.cooperative import set_within
from timers.store.membership import DELIVERY_STATES
from timers.store.notifications import Part
from timers.store.servers.connections import Connections
from timers.store.store import Identity

LIFE_MS: Final = 50
LATE_SECONDS: Final = 0.5
STEPS: Final = 10
"""The wait for an event has so many parts. If the pod itself stands still, that takes one of them, however long: in the
others it reads what has come meanwhile. So it does not take its delivery for failed."""
AHEAD_MS: Final = 5_000
"""A canary that expired so long after now, by this pod's clock, is forged."""
COUNTED: Final = 500_000
"""Names whose expiries are counted after one canary. A server buffers no more for a slow pod."""


class Canary:
    """Arms the pod's canary key on one server, touches it when it is due, and measures how long its event takes."""

    def __init__(self, pod: Pod, part: Part, soon: asyncio.Event) -> None:
        """`soon` is set to have it judged at once."""
        self._pod, self.part, self.soon = pod, part, soon
        self._name, self._round = "", 0
        self._heard = asyncio.Event()
        self._failed = asyncio.Event()
        self.delivery: Delivery = "ok"
        """How notifications arrive at this pod."""
        self.lag_seconds = math.nan
        """From touching the newest canary to its event; infinite if the event never came."""
        self.subscribed = False
        """Whether this pod has a subscription. That it is gone is known at once and says nothing about how events will
        arrive over the next one."""
        self._since_ms, self._alone = 0, ""
        self._expiries = Counter[Identity]()

    def heard(self, name: str, at_ms: int) -> None:
        """A canary's event, of this pod or another, which expired at this time of the server's."""
        if name == self._name:
            self._heard.set()
        now_ms = self._pod.store.clock.now_ms()
        was_set_back = self._since_ms > now_ms + AHEAD_MS
        if at_ms <= now_ms + AHEAD_MS and (self._since_ms < at_ms or was_set_back):
            self._begin(at_ms, "")

    def resubscribed(self, at_ms: int) -> None:
        """A subscription was confirmed, which was asked for after the server's time `at_ms`: start judging again."""
        self.subscribed = True
        self._begin(at_ms, self._pod.name)
        self._name = ""  # its event may have been lost with the subscription before
        self._heard.set()
        self.soon.set()

    def _begin(self, since_ms: int, alone: str) -> None:
        """All that comes now is later than this. The time at which a pod reads the confirmation of a subscription, or
        touches a canary, would be too late, because it may stall before."""
        self._since_ms, self._alone = since_ms, alone
        self._expiries.clear()

    def count(self, identity: Identity) -> Heard:
        """A key expired: which of its expiries that is."""
        if identity in self._expiries or len(self._expiries) < COUNTED:
            self._expiries[identity] += 1
        return Heard(self._since_ms, self._alone, max(self._expiries[identity], 1))

    def forget(self) -> None:
        """It cannot be judged now, perhaps because the server takes no writes. That is told for what it is, and not as
        what was found before."""
        self.delivery, self.lag_seconds = "ok", math.nan

    async def next_failure(self) -> None:
        self._failed.clear()
        await self._failed.wait()

    def receives_events(self) -> bool:
        """Whether it makes sense to wait for an event."""
        return self.subscribed and self.delivery != "deaf"

    async def judge(self) -> None:
        """Find out how notifications arrive now. Raises Unavailable."""
        self._heard.clear()
        # A name for each round: an event of an earlier one, read late, says nothing about the events after it.
        self._round += 1
        connections = self._pod.store.connections
        name = self._name = notifications.canary_on(connections, self.part, f"{self._pod.name}:{self._round}")
        redis = connections.commands
        key = await self._set(name)
        # Redis expires keys strictly after the deadline, so a touch may come a moment too soon.
        await asyncio.sleep((LIFE_MS + 2) / 1000)
        touched = time.monotonic()
        while await notifications.touch_canary(redis, key):
            await asyncio.sleep(0.001)
            touched = time.monotonic()
        for _ in range(STEPS):
            if await set_within(self._heard, self._pod.options.deaf_seconds / STEPS):
                break
        else:
            self.delivery, self.lag_seconds = "deaf", math.inf
            self._failed.set()
            return
        if name != self._name:
            return
        self.lag_seconds = time.monotonic() - touched
        self.delivery = "late" if self.lag_seconds > LATE_SECONDS else "ok"

    async def _set(self, name: str) -> str:
        store = self._pod.store
        try:
            return await notifications.set_canary(store.connections.commands, name, LIFE_MS)
        except RedisRights as error:
            if error.command is None:
                raise
            # Without the round, so that the log tells it once.
            raise store.refusals.denied(f"{error.command.split()[0]} {keys.canary_key('*')}") from error


class Canaries:
    """By server, one for each whose notifications this pod should hear. What is said of all is said of the worst."""

    def __init__(self, pod: Pod) -> None:
        self._pod, self.soon = pod, asyncio.Event()
        """`soon` is set to have all judged at once."""
        self.by_node = dict[Connections, Canary]()

    def add(self, part: Part) -> Canary:
        """Begin to judge a server."""
        canary = self.by_node[part.node] = Canary(self._pod, part, self.soon)
        return canary

    def remove(self, part: Part) -> None:
        """Stop judging a server that has no such part any more."""
        del self.by_node[part.node]

    async def run(self) -> None:
        await repeat(self._judge_all, self._pod.options.canary_every_seconds, self.soon)

    async def _judge_all(self) -> None:
        """One server that is away does not hold up what the others say."""
        canaries = [*self.by_node.values()]
        judged = await asyncio.gather(*(each.judge() for each in canaries), return_exceptions=True)
        for canary, error in zip(canaries, judged, strict=True):
            if error is not None:
                canary.forget()
        for error in filter(None, judged):
            raise error

    @property
    def delivery(self) -> Delivery:
        """How notifications arrive at this pod."""
        return max((each.delivery for each in self._within_reach()), key=DELIVERY_STATES.index, default="ok")

    @property
    def lag_seconds(self) -> float:
        """How long the newest canary's event took; infinite if it never came, NaN before the first."""
        known = [each.lag_seconds for each in self._within_reach() if not math.isnan(each.lag_seconds)]
        return max(known, default=math.nan)

    @property
    def unheard(self) -> list[str]:
        """The servers that this pod has no subscription at, or what stands for the one of a db."""
        if self._pod.store.connections.is_spread and self.by_node:
            return [each.part.node.address for each in self._within_reach() if not each.subscribed]
        return [] if any(each.subscribed for each in self.by_node.values()) else ["the server"]

    def _within_reach(self) -> list[Canary]:
        """Without those of servers that are away while others are not: they have nothing to tell, and what they told
        last may be that a canary's event went with them. One shard is enough: that a server hangs shows shard by shard,
        over many seconds."""
        away = self._pod.away.shards.keys() if self._pod.away.is_partial else ()
        return [each for each in self.by_node.values() if each.part.shards.isdisjoint(away)]

    def of_shard(self, shard: int) -> Canary | None:
        """That of the server that has the shard now; None until this pod has subscribed there for it."""
        canary = self.by_node.get(self._pod.store.connections.node_of(keys.root(shard)))
        return canary if canary is not None and shard in canary.part.shards else None

    def receives_events(self, shard: int) -> bool:
        """Whether it makes sense to wait for an event of a shard."""
        canary = self.of_shard(shard)
        return canary is not None and canary.receives_events()
