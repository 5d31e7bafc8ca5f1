"""Every key name that Python builds or reads; the scripts build the rest from the shard's root (lua/common.lua)."""

import re
import zlib
from typing import Final

META: Final = "timers:meta"
"""Hash: what was fixed when the db was first used (`format`, `shards`)."""

PODS_ROOT: Final = "timers:{pods}:"
"""Root of the registry of live pods."""

HOOKS: Final = f"{PODS_ROOT}hooks"
"""Hash: what pods ask to hear of → when one last said so, ms."""

ALARMS_ROOT: Final = "timers:{alarms}:"
"""Root of the alarms of the fleet: a hash for each kind."""

API_KEYS: Final = "timers:keys"
"""Hash: id of an API key → its entry, or `revoked`."""

ACCESS_ROOT: Final = "timers:{access}:"
"""Root of what is remembered of callers: `seen:<hash>` of signed requests, `rate:<id>` of keys."""

FIRED_ROOT: Final = "timers:{fired}:"
"""Root of the rings of what was fired in the last hour and day."""

BARE: Final = re.compile(rb"([a-z0-9][a-z0-9_.-]{0,63}):([A-Za-z0-9][A-Za-z0-9_.:@~+=-]{0,199})")
"""A key that a client may have set by itself: `<prefix>:<id>`. A trigger key is none, because of its braces."""


def text(name: bytes) -> str:
    """A name as it lies in Redis; of what a stranger has put there, which may be no text, as much as can be shown."""
    return name.decode(errors="replace")


def identity_of(member: str) -> tuple[str, str]:
    """Prefix and id of `<prefix>:<id>`; a prefix has no colon."""
    prefix, _, timer_id = member.partition(":")
    return prefix, timer_id


def root(shard: int) -> str:
    """Root of a shard's keys; the braces make it one hash slot of a cluster."""
    return f"timers:{{{shard}}}:"


def limits_root(prefix: str) -> str:
    """Root of what a limited prefix may start: `permits` and `rate`, in a hash slot of their own."""
    return f"timers:{{limits:{prefix}}}:"


def shard_of(prefix: str, timer_id: str, shards: int) -> int:
    """The shard of a timer: CRC-32 of `prefix:id` modulo the number of shards."""
    return zlib.crc32(f"{prefix}:{timer_id}".encode()) % shards if shards > 1 else 0


def expired_channel(db: int) -> str:
    """Where Redis publishes the names of expired keys of a db."""
    return f"__keyevent@{db}__:expired"


def wake_channel(db: int) -> str:
    """Where a timer that is due within a sweep interval is announced. Channels know no db, so the name does."""
    return f"timers:wake:{db}"


def events_channel(db: int) -> str:
    """Where every change of a timer is published while somebody listens."""
    return f"timers:events:{db}"


def canary_key(pod: str) -> str:
    """The small key whose expiry proves that notifications arrive."""
    return f"timers:canary:{pod}"
