"""Owns what is due soon: the next timers, and how many in each hour to come. Changes nothing."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import nsmallest
from typing import Final

from timers.core.model import Timer
from timers.store import codec, keys
from timers.store.scripts import Argument, Call, read
from timers.store.store import Store

QUEUES_LIMIT: Final = 2000
"""Queues counted in a shard, those due first: there may be any number of prefixes."""

QUEUES_A_CALL: Final = 40
"""Queues that one script counts: at most a millisecond of the server's time."""

CALLS_AT_ONCE: Final = 10
"""In one round trip; the server takes others in between."""

PAGE_BYTES: Final = 256 * 1024
"""Bytes of records read from one queue: with larger records, fewer of the next timers are found."""

Visible = Callable[[str], bool] | None
"""Whether a prefix may be seen; None allows all."""


@dataclass(frozen=True, slots=True)
class Load:
    """Timers due in each step from now on; `is_whole` is false if there were too many queues to count."""

    counts: Sequence[int]
    is_whole: bool


async def due_load(store: Store, *, step_ms: int, steps: int, visible: Visible = None) -> Load:
    """How many timers are due in each step from now on. Bare keys that were not adopted are not counted. Raises
    Unavailable."""
    now_ms = await store.now_ms()
    heads = await _heads(store, now_ms + step_ms * steps, visible)
    counts = [0] * steps
    for shard, queues in enumerate(heads):
        batches = _batches([prefix for _, prefix in queues[:QUEUES_LIMIT]])
        for start in range(0, len(batches), CALLS_AT_ONCE):
            some = batches[start : start + CALLS_AT_ONCE]
            calls: list[Call] = [(keys.root(shard), [step_ms, steps, *prefixes]) for prefixes in some]
            for _, found in await store.run_all("coming", calls):
                counts = [a + int(b) for a, b in zip(counts, found, strict=False)]
    return Load(counts, all(len(queues) <= QUEUES_LIMIT for queues in heads))


async def next_timers(store: Store, most: int, visible: Visible = None) -> list[Timer]:
    """The timers that are due first, over all queues. Raises Unavailable."""
    heads = await _heads(store, None, visible, most if visible is None else QUEUES_LIMIT)
    first = nsmallest(most, ((due, shard, prefix) for shard, queue in enumerate(heads) for due, prefix in queue))
    found: list[Timer] = []
    for _, shard, prefix in first:
        wanted: list[Argument] = ["due", prefix, "-inf", "+inf", "", "", most, PAGE_BYTES]
        listed, _ = await store.run("list", shard, wanted)
        raws = [(keys.text(listed[i]), listed[i + 2]) for i in range(0, len(listed), 3) if listed[i + 2]]
        timers = (codec.readable(prefix, timer_id, raw) for timer_id, raw in raws)
        found += [timer for timer in timers if timer is not None]
    return nsmallest(most, found, key=lambda timer: timer.due_ms)


async def _heads(
    store: Store, before_ms: int | None, visible: Visible, most: int = QUEUES_LIMIT
) -> list[list[tuple[float, str]]]:
    """The queues of each shard that are due first, with their due times; at most one more than are counted."""
    high = "+inf" if before_ms is None else f"({before_ms}"
    async with store.connections.commands.pipeline(transaction=False) as asked:
        for shard in range(store.shards):
            asked.zrangebyscore(f"{keys.root(shard)}heads", "-inf", high, 0, most + 1, withscores=True)
        answers = await read(asked, [])
    return [
        [(due, keys.text(name)) for name, due in heads if visible is None or visible(keys.text(name))]
        for heads in answers
    ]


def _batches(prefixes: Sequence[str]) -> Sequence[Sequence[str]]:
    return [prefixes[i : i + QUEUES_A_CALL] for i in range(0, len(prefixes), QUEUES_A_CALL)]
