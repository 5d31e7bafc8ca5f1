"""Owns the alarms of the fleet as they lie in Redis: noted by any pod, told once."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from timers.store import keys
from timers.store.scripts import Argument, reachable
from timers.store.store import Store


@dataclass(frozen=True, slots=True)
class Alarm:
    """An alarm. `what` is to be told by now: `began`, `goes on`, `ended`, or nothing; `number` is the number of that
    message, from 0. `newest` is what was last noted."""

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
        """There is something to tell, and so many more of each prefix."""
        pairs = [part for prefix, count in counts.items() for part in (prefix, count)]
        await self._store.run_at(keys.ALARMS_ROOT, "alarm", [kind, "note", json.dumps(newest), *pairs])

    async def look(self, kind: str, *, gather_ms: int, again_ms: int, calm_ms: int) -> Alarm | None:
        """The alarm, if there is one. It is told first after `gather_ms`, then every `again_ms` while there is more,
        and that it is over `calm_ms` after the newest. One that cannot be read is forgotten."""
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
        """It was told so, by whichever pod."""
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
