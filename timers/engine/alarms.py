"""Owns alarms: tells people, once for the whole fleet, that timers fail, wait or were lost, and when that is over."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from timers.client.fleet import read_overdue_ms
from timers.core.durations import format_time
from timers.core.hooks import page_of
from timers.engine.peers import Peers
from timers.engine.pod import Pod
from timers.store import alarms, outbox
from timers.store.alarms import TEXTS, Alarm
from timers.store.membership import Membership
from timers.store.outbox import Entry
from timers.store.queries import FAILING_MS, keep_failing
from timers.store.store import Arming

NEWEST: Final = 5
"""How many timers a message names."""

COUNTED: Final[Mapping[str, str]] = {"f": "failed", "u": "unhandled"}
"""Alarms that count timers, by the letters of their events."""


class AlarmTimes(NamedTuple):
    """When an alarm sends messages: first after `gather_ms`, then every `again_ms` while there is more. It is over
    `calm_ms` after the newest failure, or `over_ms` after the last look that saw its state. A timer that may run and
    has waited for longer than `overdue_ms` is an alarm; taking over a dead pod's runs takes less time. So is one that
    has failed for longer than `failing_ms` and is tried again."""

    gather_ms: int = 5_000
    again_ms: int = 3_600_000
    calm_ms: int = 600_000
    failing_ms: int = FAILING_MS
    over_ms: int = 60_000
    overdue_ms: int = 60_000
    look_ms: int = 5_000


TIMES: Final = AlarmTimes()


class FleetAlarms:
    """Counts the failures that come through the outboxes, looks for everything else, and arms the messages. Only the
    pod with rank 0 of shard 0 looks; if two pods believe that they have it, they arm the same messages."""

    name = "alarms"

    def __init__(self, pod: Pod, peers: Peers, times: AlarmTimes, *, public_url: str | None) -> None:
        self._pod, self._peers, self._times, self._public_url = pod, peers, times, public_url
        self.targets: Sequence[str] = ()
        """The prefixes of the timers that send messages, one for each target that any pod names."""

    async def count(self, shard: int, entries: Sequence[Entry]) -> None:
        """Count the timers in a shard's oldest entries that failed or became unhandled."""
        for letter, kind in COUNTED.items():
            found = [(e.id, e.timer) for e in entries if e.timer is not None and e.letter == letter]
            if found:
                newest = [
                    {
                        "prefix": timer.prefix,
                        "id": timer.id,
                        "note": timer.history[0].note,
                        "url": page_of(timer, self._public_url),
                    }
                    for _, timer in found[-NEWEST:]
                ]
                places = [(entry_id, timer.prefix) for entry_id, timer in found]
                await alarms.count(self._pod.store, kind, newest, shard, places)

    async def run(self) -> None:
        """Look regularly while there are targets."""
        while True:
            if self.targets and self._peers.rank(0) == 0:
                await self._look()
            await asyncio.sleep(self._times.look_ms / 1000)

    async def _look(self) -> None:
        """Note what is wrong now, and arm the messages that are due."""
        seen, times, store = await self._seen(), self._times, self._pod.store
        for kind in TEXTS:
            if kind in seen:
                await alarms.note(store, kind, [{"note": note} for note in seen[kind][:NEWEST]])
            calm_ms = times.calm_ms if kind in COUNTED.values() else times.over_ms
            alarm = await alarms.look(store, kind, gather_ms=times.gather_ms, again_ms=times.again_ms, calm_ms=calm_ms)
            if alarm is not None:
                await self._tell(alarm, is_seen=kind in seen)

    async def _tell(self, alarm: Alarm, *, is_seen: bool) -> None:
        """Arm the message that is due. A state that is over before its first message gets no message, and a state that
        is still seen is not reported as over."""
        if alarm.number == 0 and not is_seen and alarm.kind not in COUNTED.values():
            await alarms.told(self._pod.store, alarm, "ended")
        elif alarm.what and not (is_seen and alarm.what == "ended"):
            await outbox.arm(self._pod.store, [self._message(alarm, target) for target in self.targets])
            await alarms.told(self._pod.store, alarm, alarm.what)

    async def _seen(self) -> Mapping[str, Sequence[str]]:
        """What is wrong now: for each alarm, the notes about it."""
        store = self._pod.store
        waited_ms = await read_overdue_ms(store)
        overdue = [f"the oldest has waited {waited_ms // 1000} s"] if waited_ms > self._times.overdue_ms else []
        pods = (await Membership(store).read()).workers
        deaf = [f"pod {pod.pod}" for pod in pods if pod.hearing == "deaf"]
        lost = [str(loss) for loss in store.identity.losses.values()]
        failing = list((await keep_failing(store, for_ms=self._times.failing_ms)).values())
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
            "url": self._public_url,
        }
        return {"type": f"alarm.{alarm.kind}", "timestamp": format_time(alarm.noted_ms), "data": data}
