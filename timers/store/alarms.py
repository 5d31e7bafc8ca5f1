"""Owns the fleet's alarms in Redis: any pod notes what is wrong, and each message is sent once.

The functions raise Unavailable.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from timers.core.durations import MAX_TIME_MS
from timers.core.fields import decode
from timers.store import keys
from timers.store.scripts import Argument, grouped, reachable, read
from timers.store.store import Store

TEXTS: Final[Mapping[str, tuple[str, str]]] = {
    "failed": ("{timers} failed", "over: {timers} failed"),
    "unhandled": ("{timers} unhandled: no live pod serves the prefix", "over: {timers} unhandled"),
    "retrying": ("timers keep failing and are tried again", "over: no timer keeps failing"),
    "overdue": ("timers wait that should run", "over: no timer waits that should run"),
    "deaf": ("notifications do not arrive, timers run later", "over: notifications arrive"),
    "lost": ("data was lost", "over: the loss of data was acknowledged"),
}
"""What each alarm says while it lasts, and at its end."""


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

    @property
    def text(self) -> str:
        """What it says."""
        timers = f"{self.count:,} timer{'' if self.count == 1 else 's'}"
        return TEXTS[self.kind][self.what == "ended"].format(timers=timers)


async def note(store: Store, kind: str, newest: Sequence[Mapping[str, Any]]) -> None:
    """Note that something is wrong now."""
    await store.run("alarm", keys.ALARMS_ROOT, [kind, "note", _lines(newest)])


async def count(
    store: Store, kind: str, newest: Sequence[Mapping[str, Any]], shard: int, entries: Iterable[tuple[bytes, str]]
) -> None:
    """As `note`, and count a timer for each entry of the shard's outbox, given as (id, prefix), oldest first. Two pods
    may count the same entries; each counts once."""
    parts = [part for entry in entries for part in entry]
    await store.run("alarm", keys.ALARMS_ROOT, [kind, "count", _lines(newest), shard, *parts])


async def active(store: Store) -> list[Alarm]:
    """All alarms that are not over, without those that cannot be read. Changes nothing."""
    names = [f"{keys.ALARMS_ROOT}{kind}" for kind in TEXTS]
    kept = await read(store.connections.commands, lambda asked: list(map(asked.hgetall, names)), {})
    found: list[Alarm] = []
    for kind, fields in zip(TEXTS, kept, strict=True):
        with suppress(ValueError):
            named = {keys.text(name): keys.text(value) for name, value in fields.items()}
            found += [_alarm(kind, "", named)] if named else []
    return found


async def poll(store: Store, kind: str, *, gather_ms: int, again_ms: int, calm_ms: int) -> Alarm | None:
    """The alarm, if there is one. The first message is due after `gather_ms`, the next ones every `again_ms` while
    there is more, the last `calm_ms` after the newest note. An alarm that cannot be read is forgotten."""
    what, flat = await store.run("alarm", keys.ALARMS_ROOT, [kind, "look", gather_ms, again_ms, calm_ms])
    fields = {keys.text(name): keys.text(value) for name, value in grouped(flat, 2)}
    try:
        return _alarm(kind, keys.text(what), fields) if fields else None
    except ValueError:
        with reachable():
            await store.connections.commands.delete(f"{keys.ALARMS_ROOT}{kind}")
        return None


async def forget(store: Store) -> None:
    """Forget all alarms, without a word that they are over."""
    with reachable():
        await store.connections.commands.delete(*(f"{keys.ALARMS_ROOT}{kind}" for kind in TEXTS))


async def sent(store: Store, alarm: Alarm, what: str) -> None:
    """The message was armed."""
    arguments: list[Argument] = [alarm.kind, "told", alarm.since_ms, alarm.number, what, alarm.noted_ms, alarm.count]
    await store.run("alarm", keys.ALARMS_ROOT, arguments)


def _lines(newest: Sequence[Mapping[str, Any]]) -> str:
    """A JSON list with a line for each item, because the script may not parse it."""
    return "[" + ",\n".join(map(json.dumps, newest)) + "]"


def _alarm(kind: str, what: str, fields: Mapping[str, str]) -> Alarm:
    since_ms, noted_ms, number, count = (int(fields.get(name, 0)) for name in ("since", "noted", "number", "count"))
    by_prefix = {name[3:]: int(n) for name, n in fields.items() if name.startswith("of ")}
    newest = decode(fields.get("newest", "[]"))
    if not isinstance(newest, list) or not all(isinstance(one, dict) for one in newest):
        raise ValueError("the newest are not a list of objects")
    if not (0 <= since_ms <= MAX_TIME_MS and 0 <= noted_ms <= MAX_TIME_MS):
        raise ValueError("a time that is none")
    return Alarm(kind, what, number, since_ms, noted_ms, count, by_prefix, newest)
