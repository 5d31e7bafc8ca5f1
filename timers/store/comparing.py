"""Owns what a comparison with the ledger reads of a shard: how new its timers are, and how many it has.

The functions raise Unavailable.
"""

from collections.abc import Collection, Mapping
from typing import NamedTuple

from timers.store import keys
from timers.store.following import BUCKETS, PAGE
from timers.store.scripts import reachable
from timers.store.store import Identity, Store

Age = tuple[int, int]
"""Creation (epoch ms) and version: what tells the newer of two states of a timer."""


class Totals(NamedTuple):
    """How many records a shard has, how many its counts say, how many of those are scheduled or run, and of how many
    timers a change is noted for the ledger."""

    records: int
    counted: int
    live: int
    noted: int


async def ages(
    store: Store, shard: int, identities: Collection[Identity], *, noted: bool = False
) -> dict[Identity, Age | None]:
    """How new these timers are; None for one that is not there. Leaves out those whose record cannot be read and,
    unless asked for, those of which the ledger has yet to learn a change."""
    found: dict[Identity, Age | None] = {}
    wanted = list(identities)
    for start in range(0, len(wanted), PAGE):
        some = wanted[start : start + PAGE]
        for identity, said in zip(some, await store.run("ages", shard, list(map(":".join, some))), strict=True):
            age, waits, _ = said.partition(b" noted")
            if age != b"-" and (noted or not waits):
                created, _, version = age.partition(b" ")
                found[identity] = (int(created), int(version)) if age else None
    return found


async def totals(store: Store, shard: int) -> Totals:
    """How many timers a shard has. Others may change some meanwhile."""
    ((counts, noted, *records),) = await store.of_shards(
        lambda asked, root: [
            asked.hgetall(f"{root}counts"),
            asked.hlen(f"{root}changed"),
            *(asked.hlen(f"{root}rec:{bucket:02x}") for bucket in range(BUCKETS)),
        ],
        {},
        *[0] * (BUCKETS + 1),
        shards=[shard],
    )
    by_status = [(field[:1], int(number)) for field, number in counts.items() if number.lstrip(b"-").isdigit()]
    live = sum(number for status, number in by_status if status in (b"s", b"r"))
    return Totals(sum(records), sum(number for _, number in by_status), live, noted)


async def note(store: Store, shard: int, changed: Mapping[Identity, Age]) -> None:
    """Have these timers copied to the ledger, except those of which a change is noted already."""
    with reachable():
        async with store.connections.commands.pipeline(transaction=False) as asked:
            for identity, (created_ms, version) in changed.items():
                asked.hsetnx(f"{keys.root(shard)}changed", ":".join(identity), f"{created_ms} {version}")
            await asked.execute()
