"""Makes a timer older: its record and its place in the due index become as if it had been armed earlier.

So a test of an outage of hours needs no waiting.
"""

import json
from hashlib import sha1

from tests.engine.fleet import Fleet
from tests.records import HEAD, divided
from timers.store import keys


async def make_older(fleet: Fleet, prefix: str, timer_id: str, by_ms: int) -> None:
    """Move all times of a scheduled timer back and announce it. It must not become due meanwhile."""
    shard, member = fleet.store.shard_of(prefix, timer_id), f"{prefix}:{timer_id}"
    root = keys.root(shard)
    bucket = f"{root}rec:{sha1(member.encode(), usedforsecurity=False).hexdigest()[:2]}"
    raw, score = await fleet.redis.hget(bucket, member), await fleet.redis.zscore(f"{root}due:{prefix}", timer_id)
    assert score is not None
    async with fleet.store.connections.node_of(root).commands.pipeline(transaction=True) as change:
        change.hset(bucket, member, _older(raw, by_ms))
        change.delete(f"{prefix}:{{{shard}}}:{timer_id}")
        change.zadd(f"{root}due:{prefix}", {timer_id: score - by_ms})
        change.zadd(f"{root}heads", {prefix: score - by_ms}, lt=True)
        await change.execute()
    await fleet.announce(shard, round(score - by_ms))


def _older(record: object, by_ms: int) -> bytes:
    head, lines = divided(record)
    spec, progress, *history = (line.decode() for line in lines)
    *numbers, created_ms, due_ms = HEAD.unpack(head)
    plan = json.loads(progress or "{}")
    moved = {name: value - by_ms if name in ("slot", "anchor") else value for name, value in plan.items()}
    entries = [f"{int(at) - by_ms} {rest}" for at, _, rest in (line.partition(" ") for line in history)]
    body = "\n".join([spec, json.dumps(moved) if moved else "", *entries]).encode()
    return HEAD.pack(*numbers, created_ms - by_ms, due_ms - by_ms) + body
