"""Owns what the service needs from the server itself: notification flags, its memory, and the canary key."""

from collections.abc import Mapping
from typing import Any, Final

from redis.asyncio import Redis
from redis.exceptions import ResponseError

from timers.store import keys
from timers.store.scripts import ScriptCall, reachable, run

NEEDED_FLAGS: Final = frozenset("Ex")
FLAGS: Final = "notify-keyspace-events"
_ALL_EVENTS: Final = frozenset("g$lshzxetd")
"""What the flag `A` stands for."""


def missing_flags(current: str) -> str:
    """The flags of `Ex` that are missing from CONFIG GET's answer (in any order; `A` stands for many)."""
    have = set(current) | (_ALL_EVENTS if "A" in current else set())
    return "".join(sorted(NEEDED_FLAGS - have))


async def ensure_notifications(redis: Redis) -> tuple[bool, str]:
    """Turn `expired` events on and keep all other flags. Returns whether they are on for sure, and a sentence. A server
    that denies CONFIG is no error: the canary tells whether events arrive, and the sweep works without them."""
    with reachable():
        try:
            answer = {_text(name): _text(value) for name, value in (await redis.config_get(FLAGS)).items()}
            current = answer.get(FLAGS, "")
            missing = missing_flags(current)
            if not missing:
                return True, f"notify-keyspace-events is {current!r}"
            await redis.config_set(FLAGS, current + missing)
        except ResponseError as error:
            return False, f"the server denies CONFIG ({error}); set notify-keyspace-events to at least Ex yourself"
    return True, f"added {missing!r} to notify-keyspace-events {current!r}"


def memory_used(info: Mapping[str, Any]) -> int:
    """Bytes that count against `maxmemory`."""
    return int(info.get("used_memory", 0)) - int(info.get("mem_not_counted_for_evict", 0))


async def is_full(redis: Redis) -> bool:
    """Whether the server has reached `maxmemory` and takes no new timers."""
    with reachable():
        memory: dict[str, Any] = await redis.info("memory")
    return 0 < int(memory.get("maxmemory", 0)) < memory_used(memory)


async def set_canary(redis: Redis, name: str, ttl_ms: int) -> int:
    """Arm a canary key. Returns the server's time (ms) at which it expires."""
    (now_ms,) = await run(redis, ScriptCall("canary", keys.canary_key(name), [ttl_ms]), "")
    return int(now_ms) + ttl_ms


async def touch_canary(redis: Redis, name: str) -> bool:
    """Touch the canary, so that Redis announces it if it is due. True while it is still there."""
    with reachable():
        return bool(await redis.exists(keys.canary_key(name)))


def _text(value: bytes | str | None) -> str:
    return value.decode() if isinstance(value, bytes) else value or ""
