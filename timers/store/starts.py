"""Owns how many timers start: the next ones, how many in each hour to come, and how many did, by lateness, in buckets.

Past starts are counted in rings, for each minute of the last hour and each half hour of the last day. They
take a few KB in their own hash slot, so that a restarted pod still shows them.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache
from heapq import nsmallest
from typing import Final

from timers.core.answers import Lateness
from timers.core.model import Timer
from timers.store import codec, keys
from timers.store.filters import ALL, Filter
from timers.store.queries import OWN_QUEUES
from timers.store.scripts import Call, batched, grouped, read
from timers.store.store import Store

QUEUES_LIMIT: Final = 2000
"""Queues counted in a shard, those due first: there may be any number of prefixes."""

QUEUES_A_CALL: Final = 40
"""Queues that one script counts: at most a millisecond of the server's time."""

CALLS_AT_ONCE: Final = 10
"""In one round trip; the server takes others in between."""

PAGE_BYTES: Final = 256 * 1024
"""Bytes of records read from one queue: with larger records, fewer of the next timers are found."""


async def due_load(store: Store, *, step_ms: int, steps: int, wanted: Filter = ALL) -> tuple[Sequence[int], bool]:
    """How many timers are due in each step from now on, and whether that is all of them: false if there were too many
    queues to count. Bare keys that were not adopted are not counted. Raises Unavailable."""
    now_ms = await store.now_ms()
    by_shard = await _earliest_queues(store, now_ms + step_ms * steps, wanted)
    counts = [0] * steps
    for shard, queues in enumerate(by_shard):
        indexes = [f"due:{prefix}" for _, prefix in queues[:QUEUES_LIMIT]]
        asked: list[Call] = [
            (keys.root(shard), ["coming", step_ms, steps, *some]) for some in batched(indexes, QUEUES_A_CALL)
        ]
        for calls in batched(asked, CALLS_AT_ONCE):
            for _, found in await store.run_all("steps", calls):
                counts = [n + sum(found[step::steps]) for step, n in enumerate(counts)]
    return counts, all(len(queues) <= QUEUES_LIMIT for queues in by_shard)


async def next_timers(store: Store, most: int, wanted: Filter = ALL) -> list[Timer]:
    """The timers that are due first, over all queues of the prefixes that the filter covers. Raises Unavailable."""
    by_shard = await _earliest_queues(store, None, wanted, most + OWN_QUEUES if wanted.is_of_all else QUEUES_LIMIT)
    first = nsmallest(most, ((due, shard, prefix) for shard, queue in enumerate(by_shard) for due, prefix in queue))
    found: list[Timer] = []
    for _, shard, prefix in first:
        found += await first_timers(store, shard, prefix, most)
    return nsmallest(most, found, key=lambda timer: timer.due_ms)


async def first_timers(store: Store, shard: int, prefix: str, most: int) -> list[Timer]:
    """The timers of one queue that are due first. Raises Unavailable."""
    listed, _ = await store.run("list", shard, ["due", prefix, "-inf", "+inf", "", "", most, PAGE_BYTES])
    timers = (codec.readable(prefix, keys.text(name), raw) for name, _, raw in grouped(listed, 3) if raw)
    return [timer for timer in timers if timer is not None]


async def _earliest_queues(
    store: Store, before_ms: int | None, wanted: Filter, most: int = QUEUES_LIMIT
) -> list[list[tuple[float, str]]]:
    """The queues of each shard that are due first, with their due times; at most one more than are counted."""
    high = "+inf" if before_ms is None else f"({before_ms}"
    answers = await store.of_shards(
        lambda asked, root: asked.zrangebyscore(f"{root}heads", "-inf", high, 0, most + 1, withscores=True), []
    )
    covers = wanted.covering()
    return [[(due, keys.text(name)) for name, due in queues if covers(keys.text(name))] for (queues,) in answers]


RINGS: Final[Mapping[str, tuple[int, int]]] = {"hour": (60, 60_000), "day": (48, 1_800_000)}
"""By name: the number of slots, and the ms in each; as in fired.lua."""


Ring = Mapping[int, Mapping[int, int]]
"""The starts of each slot by bucket of lateness: beginning of the slot (ms) → bucket → number."""


RETRIED: Final = 0
FAILED: Final = 1
"""What the rings of failed attempts have instead of buckets of lateness: another attempt follows, or none."""


async def add_starts(store: Store, counts: Mapping[int, int], root: str = keys.FIRED_ROOT) -> None:
    """Add the newest starts, by bucket, to the rings, or failed attempts to theirs. Raises Unavailable."""
    flat = [part for bucket, n in counts.items() for part in (bucket, n)]
    await store.run("fired", root, flat)


async def past_starts(store: Store, root: str = keys.FIRED_ROOT) -> dict[str, Ring]:
    """The rings by name, oldest slot first. The newest slot is the current one. Raises Unavailable."""
    now_ms = await store.now_ms()
    names = [f"{root}{ring}" for ring in RINGS]
    held = await read(store.connections.commands, lambda asked: list(map(asked.hgetall, names)), {})
    return {name: _slots(now_ms, *RINGS[name], list(ring.values())) for name, ring in zip(RINGS, held, strict=True)}


def _slots(now_ms: int, slots: int, width_ms: int, values: Sequence[bytes]) -> Ring:
    """The ring's slots up to now; older or unreadable slots count as empty."""
    newest = now_ms // width_ms
    known = dict(slot for value in values if (slot := _parsed(value)) is not None)
    return {number * width_ms: known.get(number, {}) for number in range(newest - slots + 1, newest + 1)}


def _parsed(value: bytes) -> tuple[int, dict[int, int]] | None:
    try:
        number, *pairs = value.decode().split()
        slot, counts = int(number), {int(bucket): int(n) for bucket, n in (pair.split(":") for pair in pairs)}
    except ValueError:
        return None
    are_ours = all(0 <= bucket <= LARGEST_BUCKET and 0 <= n < 2**53 for bucket, n in counts.items())
    return (slot, counts) if are_ours else None


def total(ring: Ring) -> Counter[int]:
    """The sum of the slots."""
    return sum(map(Counter, ring.values()), Counter[int]())


LARGEST_BUCKET: Final = 1000
"""Far above the bucket of ten years."""

STEPS_PER_OCTAVE: Final = 4
"""Resolution of the lateness histogram: each doubling has four equal steps, so a bucket is at most 25 % wide."""


@lru_cache(maxsize=4096)
def bucket_of(lateness_ms: int) -> int:
    """The histogram bucket of a lateness: 0 for none, then four for each doubling."""
    if lateness_ms <= 0:
        return 0
    octave = lateness_ms.bit_length() - 1
    step = (lateness_ms - (1 << octave)) * STEPS_PER_OCTAVE >> octave
    return 1 + octave * STEPS_PER_OCTAVE + step


def bucket_ms(bucket: int) -> int:
    """The largest lateness in a bucket, in ms."""
    if bucket == 0:
        return 0
    octave, step = divmod(bucket - 1, STEPS_PER_OCTAVE)
    return -((-(1 << octave) * (STEPS_PER_OCTAVE + step + 1)) // STEPS_PER_OCTAVE) - 1


def quantiles_ms(counts: Mapping[int, int]) -> Lateness:
    """`p50`, `p99` and `max` of counts by bucket, each as the upper end of its bucket; None without any starts."""
    total, seen = sum(counts.values()), 0
    found: Lateness = {"p50": None, "p99": None, "max": None}
    for bucket in sorted(counts):
        seen += counts[bucket]
        if found["p50"] is None and seen * 100 >= total * 50:
            found["p50"] = bucket_ms(bucket)
        if found["p99"] is None and seen * 100 >= total * 99:
            found["p99"] = bucket_ms(bucket)
        found["max"] = bucket_ms(bucket)
    return found
