"""Owns lifecycle hooks and alarms: tells the shards which changes to post, arms a timer for each call that an entry
asks for, and tells people, once for the whole fleet, that timers fail, wait or were lost, and when that is over.

An entry leaves the outbox only after its calls are armed, and the same entry always makes the same calls. So no call is
lost or doubled if a pod dies in between, or if two pods drain at once.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

from timers.client.fleet import read_fleet
from timers.core.durations import format_time
from timers.core.hooks import ALARM, Hook, call_of, page_of
from timers.engine.peers import Peers
from timers.engine.pod import Pod
from timers.logs import Reminders, get_logger
from timers.store import alarms, outbox
from timers.store.alarms import TEXTS, Alarm
from timers.store.cooperative import set_within
from timers.store.outbox import Asked, Entry, prefixes_of
from timers.store.queries import long_failing
from timers.store.store import Arming

LOOK_SECONDS: Final = 1.0
IDLE_SECONDS: Final = 30.0
"""The pause between two polls if nothing is posted; IDLE_SECONDS while no pod has hooks."""

BATCH: Final = 250
CALLS_LIMIT: Final = 10_000
"""Calls that wait for one target. Nothing is armed for further changes; they are only counted."""

STEP_MS: Final = 50
"""Calls about one timer that are armed together become due this far apart, so that each usually finds the last one
done."""

NEWEST: Final = 5
"""How many timers a message names."""

COUNTED: Final[Mapping[str, str]] = {"f": "failed", "u": "unhandled"}
"""Alarms that count timers, by the letters of their events."""

FAILURES: Final = (*COUNTED.values(), "retrying")
"""Alarms that last for a while after what was seen last: a timer is not retrying while its attempt runs."""

_log = get_logger("timers.hooks")


class Hooks:
    """Drains the outboxes of the shards where this pod has rank 0, whether or not it has hooks itself. For alarms, it
    counts the failures that come through them, looks for everything else, and arms the messages."""

    def __init__(self, pod: Pod, peers: Peers) -> None:
        self._pod, self._peers, self._options = pod, peers, pod.options
        self._mine = frozenset(map(str, pod.options.hooks))
        self._asked: Asked = frozenset()
        self._targets: Sequence[str] | None = None
        """The prefixes of the timers that send messages, one for each target that any pod names. None before the first
        look."""
        self._has_alarms = False
        """Whether some may be noted, though nobody is to be told any more."""
        self._doubtful: dict[int, Asked] = {}
        self._posted: set[int] = set()
        self._something = asyncio.Event()
        self._left_out: Counter[str] = Counter()
        self._reminders = Reminders()

    async def start(self) -> None:
        """Register this pod's hooks. From then on every shard posts what they ask for. Raises Unavailable."""
        if self._mine:
            await self._ask()
            for shard in range(self._pod.store.shards):
                await outbox.change_hooks(self._pod.store, shard, self._mine, ())

    async def run(self) -> None:
        """Look at all shards regularly, and at a shard as soon as its outbox is no longer empty."""
        while True:
            await self._ask()
            await self._poll(self._pod.shards)
            self._log_left_out()
            is_idle = not self._asked and not any(self._doubtful.values())
            look_at = time.monotonic() + (IDLE_SECONDS if is_idle else LOOK_SECONDS)
            while await set_within(self._something, max(look_at - time.monotonic(), 0)):
                self._something.clear()
                if is_idle or time.monotonic() >= look_at:
                    break
                shards, self._posted = self._posted, set()
                await self._poll([shard for shard in self._pod.shards if shard in shards])

    def posted(self, shard: int) -> None:
        """The shard's outbox was empty and has an entry now."""
        self._posted.add(shard)
        self._something.set()

    async def _ask(self) -> None:
        self._asked = await outbox.ask(self._pod.store, self._mine, forget_ms=self._options.forget_hooks_ms)
        targets = sorted(prefix for prefix in prefixes_of(self._asked) if prefix.startswith(ALARM))
        if targets != self._targets:
            self._targets, self._has_alarms = targets, True

    async def _poll(self, all_shards: Sequence[int]) -> None:
        """Look at the shards where this pod has rank 0."""
        shards = list(self._peers.led(all_shards))
        for shard, (known, waiting) in zip(shards, await outbox.lengths(self._pod.store, shards), strict=True):
            await self._set_hooks(shard, known)
            if waiting:
                await self._drain(shard, known | self._asked)

    async def _set_hooks(self, shard: int, known: Asked) -> None:
        """Make the hooks that a shard knows agree with those that pods ask for. Another pod may have added one since
        this pod asked, so a hook that nobody asks for is removed only if nobody asked for it at the last poll
        either."""
        too_much = known - self._asked
        taken_back = too_much & self._doubtful.get(shard, frozenset())
        self._doubtful[shard] = too_much
        if self._asked - known or taken_back:
            await outbox.change_hooks(self._pod.store, shard, self._asked - known, taken_back)

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
                await self._count_failed(shard, entries)
            unposted = await outbox.drop(self._pod.store, shard, entries)
            if unposted:
                self._pod.observer.count("unposted", by=unposted)
                _log.error("changes not reported: the outbox was full", shard=shard, count=unposted)

    def _log_left_out(self) -> None:
        if self._left_out and self._reminders.is_due("left out"):
            for target, count in self._left_out.items():
                _log.error("changes not reported: too many calls wait", prefix=target, count=count)
            self._left_out.clear()

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
                    self._pod.observer.count("unposted")
                    continue
                waiting[target] += 1
                place = places[target, entry.timer.key] = places.get((target, entry.timer.key), -1) + 1
                call_id, payload = call_of(entry.timer, entry.letter, those, self._options.public_url)
                if place == len(steps):
                    steps.append([])
                due, spec = f"+{place * STEP_MS}", {"payload": payload, "tags": list(entry.timer.tags)}
                steps[place].append(Arming(target, call_id, due, spec, if_exists="keep"))
        return steps

    async def _count_failed(self, shard: int, entries: Sequence[Entry]) -> None:
        """Count the timers in a shard's oldest entries that failed or became unhandled."""
        url = self._options.public_url
        for letter, kind in COUNTED.items():
            found = [(e.id, e.timer) for e in entries if e.timer is not None and e.letter == letter]
            if found:
                newest = [
                    {"prefix": t.prefix, "id": t.id, "note": t.history[0].note, "url": page_of(t, url)}
                    for _, t in found[-NEWEST:]
                ]
                places = [(entry_id, timer.prefix) for entry_id, timer in found]
                await alarms.count(self._pod.store, kind, newest, shard, places)

    async def check_alarms(self) -> None:
        """Note what is wrong now, and arm the messages that are due. If two pods believe that they have rank 0 of
        shard 0, they arm the same messages. Without targets there are no alarms, and what was noted is forgotten."""
        if self._peers.rank(0) != 0:
            return
        if not self._targets:
            if self._has_alarms:
                await alarms.forget(self._pod.store)
                self._has_alarms = False
            return
        seen, options, store = await self._seen(), self._options, self._pod.store
        for kind in TEXTS:
            if kind in seen:
                await alarms.note(store, kind, [{"note": note} for note in seen[kind][:NEWEST]])
            calm_ms = options.alarm_calm_ms if kind in FAILURES else options.alarm_over_ms
            gather_ms, again_ms = options.alarm_gather_ms, options.alarm_again_ms
            alarm = await alarms.poll(store, kind, gather_ms=gather_ms, again_ms=again_ms, calm_ms=calm_ms)
            if alarm is not None:
                await self._send(alarm, is_seen=kind in seen)

    async def _send(self, alarm: Alarm, *, is_seen: bool) -> None:
        """Arm the message that is due. A state that is over before its first message gets no message, and a state that
        is still seen is not reported as over."""
        if alarm.number == 0 and not is_seen and alarm.kind not in FAILURES:
            await alarms.sent(self._pod.store, alarm, "ended")
        elif alarm.what and not (is_seen and alarm.what == "ended"):
            await outbox.arm(self._pod.store, [self._message(alarm, target) for target in self._targets or ()])
            await alarms.sent(self._pod.store, alarm, alarm.what)

    async def _seen(self) -> Mapping[str, Sequence[str]]:
        """What is wrong now: for each alarm, the notes about it."""
        store = self._pod.store
        fleet = await read_fleet(store)
        options, waited_ms = self._options, fleet.overdue_ms("ready")
        overdue = [f"the oldest has waited {waited_ms // 1000} s"] if waited_ms > options.alarm_overdue_ms else []
        deaf = [f"pod {pod.pod}" for pod in fleet.roster.workers if pod.delivery == "deaf"]
        lost = [str(loss) for loss in store.identity.losses.values()]
        failing = list((await long_failing(store, for_ms=options.alarm_failing_ms)).values())
        seen = {"retrying": failing, "overdue": overdue, "deaf": deaf, "lost": lost}
        return {kind: notes for kind, notes in seen.items() if notes}

    def _message(self, alarm: Alarm, target: str) -> Arming:
        """The timer that sends the message. Its id follows from the alarm, so it is armed once."""
        name = f"{alarm.kind}-{alarm.since_ms}"
        payload: dict[str, Any] = {"body": self._body(alarm)}
        if alarm.number:
            payload["after"] = f"{name}-{alarm.number - 1}"
        return Arming(target, f"{name}-{alarm.number}", "+0", {"payload": payload}, if_exists="keep")

    def _body(self, alarm: Alarm) -> dict[str, Any]:
        data = {
            "alarm": alarm.kind,
            "state": alarm.what,
            "text": alarm.text,
            "since": format_time(alarm.since_ms),
            "count": alarm.count,
            "prefixes": alarm.by_prefix,
            "newest": alarm.newest,
            "url": self._options.public_url,
        }
        return {"type": f"alarm.{alarm.kind}", "timestamp": format_time(alarm.noted_ms), "data": data}


def _by_target(entry: Entry, hooks: Sequence[Hook]) -> Mapping[str, Sequence[Hook]]:
    """For each target that must hear of the entry, the hooks about the entry's timer."""
    found: dict[str, list[Hook]] = {}
    for hook in hooks:
        if entry.timer is not None and hook.covers(entry.timer.prefix):
            found.setdefault(hook.prefix, []).append(hook)
    return {target: those for target, those in found.items() if any(entry.letter in hook.letters for hook in those)}
