"""Owns what a limited prefix may start in the whole fleet: permits, which end with the lease, and the rate of starts.

Each such prefix has its own hash slot. A pod reserves before it claims, gives back at once what it did not use,
extends the permits of its runs like their leases, and releases them once their ends are written.
"""

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Final

from timers.core.policies import Limits
from timers.store import keys
from timers.store.queries import added_up
from timers.store.scripts import Argument, Call, batched, read
from timers.store.servers.connections import Scripts
from timers.store.store import Store

BATCH: Final = 500
"""Permits that one script call keeps or releases."""

Permit = tuple[str, str]
"""(prefix, name)."""


@dataclass(frozen=True, slots=True)
class Reservation:
    """Up to `count` starts of a prefix, and how long its rate forbids the next. There are permits only if its
    concurrency is limited."""

    prefix: str
    limits: Limits
    count: int
    wait_ms: int
    permits: tuple[Permit, ...]


class Permits:
    """The permits of one db. Each method takes one round trip, and raises Unavailable while Redis is down; permits in
    doubt end with the lease."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._kept: Future[None] | None = None

    async def reserve(
        self, wanted: Mapping[str, tuple[Limits, int]], *, pod: str, lease_ms: int
    ) -> dict[str, Reservation]:
        """By prefix, reserve as many starts as the limits allow, at most the number."""
        calls: list[Call] = []
        for prefix, (limits, most) in wanted.items():
            interval_us, burst = (limits.rate.interval_us, limits.rate.burst) if limits.rate else (0, 1)
            arguments: list[Argument] = [pod, lease_ms, limits.concurrency or 0, interval_us, burst, most]
            calls.append((keys.limits_root(prefix), arguments))
        return {
            prefix: Reservation(prefix, limits, count, wait_ms, tuple((prefix, name.decode()) for name in names))
            for (prefix, (limits, _)), (_, count, wait_ms, names) in zip(
                wanted.items(), await self._store.run_all("reserve", calls), strict=True
            )
        }

    async def give_back(self, ended: Iterable[tuple[Reservation, int]]) -> None:
        """Give back what is left of each reservation after so many starts."""
        calls: list[Call] = []
        for reserved, used in ended:
            if unused := reserved.count - used:
                off_us = reserved.limits.rate.interval_us * unused if reserved.limits.rate else 0
                names = [name for _, name in reserved.permits[used:]]
                calls.append((keys.limits_root(reserved.prefix), [off_us, *names]))
        await self._store.run_all("release", calls)

    async def release(self, permits: Iterable[Permit]) -> None:
        """Release the permits of runs that have ended. A `keep` that began before they ended would bring them back, so
        its end is waited for. May be repeated."""
        if self._kept is not None:
            await asyncio.wrap_future(self._kept)
        await self._store.run_all("release", list(_calls(permits, 0)))

    async def keep(self, permits: Iterable[Permit], keep_ms: int, via: Scripts | None = None) -> None:
        """Extend the permits of continuing runs; may be called on an event loop of its own. `permits` is read only now,
        and must leave out runs that have ended."""
        kept = self._kept = Future()
        kept.set_running_or_notify_cancel()  # so that nobody who waits for it can cancel it
        try:
            await self._store.run_all("keep", list(_calls(permits, keep_ms)), via)
        finally:
            kept.set_result(None)

    async def in_use(self, prefix: str) -> int:
        """How many permits of a prefix are held. Changes nothing."""
        name, now_ms = f"{keys.limits_root(prefix)}permits", self._store.clock.now_ms()
        (held,) = await read(self._store.connections.commands, lambda asked: asked.zcount(name, now_ms, "+inf"), 0)
        return int(held)

    async def running(self, prefix: str) -> int:
        """How many timers of a prefix run, in all shards. Changes nothing."""
        return (await added_up(self._store, [f"r {prefix}"]))[0]

    async def next_shards(self, prefixes: Sequence[str]) -> dict[str, int | None]:
        """For the holder of the only permit of each prefix: the shard with its earliest timer. None if there is none,
        or if one still runs: its pod is dead or stalled, and it must be rescued first."""
        if not prefixes:
            return {}
        told = await self._store.of_shards(
            lambda asked, root: [
                asked.hget(f"{root}counts", f"r {prefix}").zrange(f"{root}due:{prefix}", 0, 0, withscores=True)
                for prefix in prefixes
            ],
            *(None, []),
        )
        places = enumerate(prefixes)
        return {prefix: _first([each[2 * place : 2 * place + 2] for each in told]) for place, prefix in places}


def _first(found: Sequence[Sequence[Any]]) -> int | None:
    """The shard with the earliest timer of a queue, from how many run and the first due timer of each shard."""
    due = [(head[0][1], shard) for shard, (_, head) in enumerate(found) if head]
    return min(due)[1] if due and not any(keys.number(n) for n, _ in found) else None


def _calls(permits: Iterable[Permit], number: int) -> Iterator[Call]:
    by_prefix: defaultdict[str, list[str]] = defaultdict(list)
    for prefix, name in permits:
        by_prefix[prefix].append(name)
    for prefix, names in by_prefix.items():
        for some in batched(names, BATCH):
            yield keys.limits_root(prefix), [number, *some]
