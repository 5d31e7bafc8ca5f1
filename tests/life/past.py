"""Makes a timer older: its record and its place in the due index become as if it had been armed earlier.

So a test of an outage of hours needs no waiting.
"""

import json
from hashlib import sha1

from tests.engine.fleet import Fleet
from timers.store import keys

_DUE, _CREATED = 7, 8
"""Places of these times in the head of a record (PROTOCOL.md)."""


async def make_older(fleet: Fleet, prefix: str, timer_id: str, by_ms: int) -> None:
    """Move all times of a scheduled timer back. It must not become due meanwhile."""
    shard, member = fleet.store.shard_of(prefix, timer_id), f"{prefix}:{timer_id}"
    root = keys.root(shard)
    bucket = f"{root}rec:{sha1(member.encode(), usedforsecurity=False).hexdigest()[:2]}"
    raw, score = await fleet.redis.hget(bucket, member), await fleet.redis.zscore(f"{root}due:{prefix}", timer_id)
    assert isinstance(raw, bytes)
    assert score is not None
    async with fleet.redis.pipeline(transaction=True) as change:
        change.hset(bucket, member, _older(raw.decode(), by_ms))
        change.delete(f"{prefix}:{{{shard}}}:{timer_id}")
        change.zadd(f"{root}due:{prefix}", {timer_id: score - by_ms})
        change.zadd(f"{root}heads", {prefix: score - by_ms}, lt=True)
        await change.execute()


def _older(record: str, by_ms: int) -> str:
    head, spec, progress, *history = record.split("\n")
    words = head.split(" ")
    for place in (_DUE, _CREATED):
        words[place] = str(int(words[place]) - by_ms)
    plan = json.loads(progress or "{}")
    moved = {name: value - by_ms if name in ("slot", "anchor") else value for name, value in plan.items()}
    entries = [f"{int(at) - by_ms} {rest}" for at, _, rest in (line.partition(" ") for line in history)]
    return "\n".join([" ".join(words), spec, json.dumps(moved) if moved else "", *entries])
