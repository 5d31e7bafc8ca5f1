"""Owns the rings of past starts, counted by lateness: for each minute of the last hour and each half hour of the last
day. They take a few KB in a hash slot of their own, so that a restarted pod still shows them."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from timers.store import keys
from timers.store.scripts import read
from timers.store.store import Store

RINGS: Final[Mapping[str, tuple[int, int]]] = {"hour": (60, 60_000), "day": (48, 1_800_000)}
"""By name: the number of slots, and the ms in each; as in fired.lua."""


@dataclass(frozen=True, slots=True)
class Slot:
    """Starts from `at_ms` until the next slot, by lateness bucket."""

    at_ms: int
    counts: Mapping[int, int]


class FiredRing:
    """The rings of one db. Methods raise Unavailable."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def add(self, counts: Mapping[int, int]) -> None:
        """Add the newest starts, by bucket."""
        flat = [part for bucket, n in counts.items() for part in (bucket, n)]
        await self._store.run_at(keys.FIRED_ROOT, "fired", flat)

    async def read(self) -> dict[str, list[Slot]]:
        """The rings by name, oldest slot first. The newest slot is the current one."""
        now_ms = await self._store.now_ms()
        async with self._store.connections.commands.pipeline(transaction=False) as asked:
            for ring in RINGS:
                asked.hvals(f"{keys.FIRED_ROOT}{ring}")
            held: list[list[bytes]] = await read(asked, [])
        return {name: _slots(now_ms, *RINGS[name], values) for name, values in zip(RINGS, held, strict=True)}


def _slots(now_ms: int, slots: int, width_ms: int, values: Sequence[bytes]) -> list[Slot]:
    """The ring's slots up to now; older or unreadable slots count as empty."""
    newest = now_ms // width_ms
    known = dict(slot for value in values if (slot := _parsed(value)) is not None)
    return [Slot(number * width_ms, known.get(number, {})) for number in range(newest - slots + 1, newest + 1)]


def _parsed(value: bytes) -> tuple[int, dict[int, int]] | None:
    try:
        number, *pairs = value.decode().split()
        counts = (pair.split(":") for pair in pairs)
        return int(number), {int(bucket): int(n) for bucket, n in counts}
    except ValueError:
        return None


def total(slots: Sequence[Slot]) -> Counter[int]:
    """The sum of the slots."""
    together: Counter[int] = Counter()
    for slot in slots:
        together.update(slot.counts)
    return together
