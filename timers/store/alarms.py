"""Owns the fleet's alarms in Redis: any pod notes what is wrong, and each message is sent once."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from timers.store import keys
from timers.store.scripts import Argument, reachable
from timers.store.store import Store


@dataclass(frozen=True, slots=True)
class Alarm:
    """An alarm. `what` is the message that is due (`began`, `goes on`, `ended`) or empty, and `number` its number, from
    0. `newest` is what was noted last."""

    kind: str
    what: str
    number: int
    since_ms: int
    noted_ms: int
    count: int
    by_prefix: Mapping[str, int]
    newest: Sequence[Mapping[str, Any]]


class Alarms:
    """The alarms of one db. Methods raise Unavailable."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def note(self, kind: str, newest: Sequence[Mapping[str, Any]], counts: Mapping[str, int]) -> None:
        """Note that something is wrong now; `counts` adds timers for each prefix."""
        pairs = [part for prefix, count in counts.items() for part in (prefix, count)]
        await self._store.run_at(keys.ALARMS_ROOT, "alarm", [kind, "note", json.dumps(newest), *pairs])

    async def look(self, kind: str, *, gather_ms: int, again_ms: int, calm_ms: int) -> Alarm | None:
        """The alarm, if there is one. The first message is due after `gather_ms`, the next ones every `again_ms` while
        there is more, the last `calm_ms` after the newest note. An alarm that cannot be read is forgotten."""
        arguments: list[Argument] = [kind, "look", gather_ms, again_ms, calm_ms]
        what, flat = await self._store.run_at(keys.ALARMS_ROOT, "alarm", arguments)
        fields = {keys.text(flat[i]): keys.text(flat[i + 1]) for i in range(0, len(flat), 2)}
        try:
            return _alarm(kind, keys.text(what), fields) if fields else None
        except ValueError:
            with reachable():
                await self._store.connections.commands.delete(f"{keys.ALARMS_ROOT}{kind}")
            return None

    async def told(self, alarm: Alarm, what: str) -> None:
        """The message was armed."""
        arguments: list[Argument] = [
            alarm.kind,
            "told",
            alarm.since_ms,
            alarm.number,
            what,
            alarm.noted_ms,
            alarm.count,
        ]
        await self._store.run_at(keys.ALARMS_ROOT, "alarm", arguments)


def _alarm(kind: str, what: str, fields: Mapping[str, str]) -> Alarm:
    since_ms, noted_ms, number, count = (int(fields.get(name, 0)) for name in ("since", "noted", "number", "count"))
    by_prefix = {name[3:]: int(n) for name, n in fields.items() if name.startswith("of ")}
    return Alarm(kind, what, number, since_ms, noted_ms, count, by_prefix, json.loads(fields.get("newest", "[]")))
