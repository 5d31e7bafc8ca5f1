"""Owns lifecycle hooks: tells the shards which changes to post, and arms a timer for each call that an entry asks for.

An entry leaves the outbox only after its calls are armed, and the same entry always makes the same calls. So no call is
lost or doubled if a pod dies in between, or if two pods drain at once.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import Final

from timers.core.hooks import ALARM, Hook, call_of
from timers.engine.alarms import FleetAlarms
from timers.engine.peers import Peers
from timers.engine.pod import Pod
from timers.logs import get_logger
from timers.store import outbox
from timers.store.outbox import Asked, Entry, prefixes_of
from timers.store.store import Arming

FORGET_MS: Final = 600_000
"""A hook that no pod has asked for in this time is taken back. A deploy and a restart of the fleet take less."""

LOOK_SECONDS: Final = 1.0
IDLE_SECONDS: Final = 30.0
"""The pause between two looks if nothing is posted; IDLE_SECONDS while no pod has hooks."""

BATCH: Final = 250
CALLS_LIMIT: Final = 10_000
"""Calls that wait for one target. Nothing is armed for further changes; they are only counted."""

TELL_SECONDS: Final = 60.0
"""How often the log says that."""

STEP_MS: Final = 50
"""Calls about one timer that are armed together become due this far apart, so that each usually finds the last one
done."""

_log = get_logger("timers.hooks")


class Hooks:
    """Drains the outboxes of the shards where this pod has rank 0, whether or not it has hooks itself."""

    name = "hooks"

    def __init__(
        self,
        pod: Pod,
        peers: Peers,
        hooks: Collection[Hook],
        alarms: FleetAlarms,
        *,
        public_url: str | None = None,
        forget_ms: int = FORGET_MS,
    ) -> None:
        self._pod, self._peers, self._public_url, self._forget_ms = pod, peers, public_url, forget_ms
        self._alarms = alarms
        self._mine = frozenset(map(str, hooks))
        self._asked: Asked = frozenset()
        self._doubtful: dict[int, Asked] = {}
        self._posted: set[int] = set()
        self._something = asyncio.Event()
        self._left_out: Counter[str] = Counter()
        self._tell_at = 0.0

    async def start(self) -> None:
        """Register this pod's hooks. From then on every shard posts what they ask for. Raises Unavailable."""
        if self._mine:
            await self._ask()
            for shard in range(self._pod.store.shards):
                await outbox.tell(self._pod.store, shard, self._mine, ())

    async def run(self) -> None:
        """Look at all shards regularly, and at a shard as soon as its outbox is no longer empty."""
        while True:
            await self._ask()
            await self._look(self._pod.shards)
            self._tell_of_left_out()
            is_idle = not self._asked and not any(self._doubtful.values())
            look_at = time.monotonic() + (IDLE_SECONDS if is_idle else LOOK_SECONDS)
            while await self._something_before(look_at) and not is_idle:
                shards, self._posted = self._posted, set()
                await self._look([shard for shard in self._pod.shards if shard in shards])

    def posted(self, shard: int) -> None:
        """The shard's outbox was empty and has an entry now."""
        self._posted.add(shard)
        self._something.set()

    async def _ask(self) -> None:
        self._asked = await outbox.ask(self._pod.store, self._mine, forget_ms=self._forget_ms)
        self._alarms.targets = sorted(prefix for prefix in prefixes_of(self._asked) if prefix.startswith(ALARM))

    async def _something_before(self, look_at: float) -> bool:
        """Wait until something is posted. False once it is time to look at everything."""
        with suppress(TimeoutError):
            async with asyncio.timeout(max(look_at - time.monotonic(), 0)):
                await self._something.wait()
                self._something.clear()
        return time.monotonic() < look_at

    async def _look(self, all_shards: Sequence[int]) -> None:
        """Look at the shards where this pod has rank 0."""
        shards = list(self._peers.led(all_shards))
        for shard, (known, waiting) in zip(shards, await outbox.look(self._pod.store, shards), strict=True):
            await self._set_hooks(shard, known)
            if waiting:
                await self._drain(shard, known | self._asked)

    async def _set_hooks(self, shard: int, known: Asked) -> None:
        """Make the hooks that a shard knows agree with those that pods ask for. Another pod may have added one since
        this pod asked, so a hook that nobody asks for is removed only if nobody asked for it at the last look
        either."""
        too_much = known - self._asked
        taken_back = too_much & self._doubtful.get(shard, frozenset())
        self._doubtful[shard] = too_much
        if self._asked - known or taken_back:
            await outbox.tell(self._pod.store, shard, self._asked - known, taken_back)

    async def _drain(self, shard: int, asked: Asked) -> None:
        """Arm the calls of all entries, batch after batch. Calls about one timer are armed one after the other, because
        each looks for the one before it."""
        hooks = [hook for line in asked if (hook := Hook.parse(line)) is not None]
        targets = sorted({hook.prefix for hook in hooks if not hook.prefix.startswith(ALARM)})
        while entries := await outbox.first(self._pod.store, shard, BATCH):
            waiting = await outbox.armed(self._pod.store, targets) if targets else {}
            for armings in self._steps(entries, hooks, waiting):
                await outbox.arm(self._pod.store, armings)
            if any(hook.prefix.startswith(ALARM) for hook in hooks):
                await self._alarms.count(shard, entries)
            unposted = await outbox.drop(self._pod.store, shard, entries)
            if unposted:
                self._pod.observer.unposted(unposted)
                _log.error("changes not reported: the outbox was full", shard=shard, count=unposted)

    def _tell_of_left_out(self) -> None:
        if self._left_out and time.monotonic() >= self._tell_at:
            for target, count in self._left_out.items():
                _log.error("changes not reported: too many calls wait", prefix=target, count=count)
            self._left_out.clear()
            self._tell_at = time.monotonic() + TELL_SECONDS

    def _steps(self, entries: Sequence[Entry], hooks: Sequence[Hook], waiting: dict[str, int]) -> list[list[Arming]]:
        """The calls, in groups that may be armed together. `waiting` calls are armed already, by target."""
        steps: list[list[Arming]] = []
        places: dict[tuple[str, str], int] = {}
        for entry in entries:
            for target, those in _by_target(entry, hooks).items():
                if entry.timer is None or target.startswith(ALARM):
                    continue
                if waiting[target] >= CALLS_LIMIT:
                    self._left_out[target] += 1
                    self._pod.observer.unposted(1)
                    continue
                waiting[target] += 1
                place = places[target, entry.timer.key] = places.get((target, entry.timer.key), -1) + 1
                call_id, payload = call_of(entry.timer, entry.letter, those, self._public_url)
                if place == len(steps):
                    steps.append([])
                due, spec = f"+{place * STEP_MS}", {"payload": payload, "tags": list(entry.timer.tags)}
                steps[place].append(Arming(target, call_id, due, spec, if_exists="keep"))
        return steps


def _by_target(entry: Entry, hooks: Sequence[Hook]) -> Mapping[str, Sequence[Hook]]:
    """For each target that must hear of the entry, the hooks about the entry's timer."""
    found: dict[str, list[Hook]] = {}
    for hook in hooks:
        if entry.timer is not None and hook.hears(entry.timer.prefix):
            found.setdefault(hook.prefix, []).append(hook)
    return {target: those for target, those in found.items() if any(entry.letter in hook.letters for hook in those)}
