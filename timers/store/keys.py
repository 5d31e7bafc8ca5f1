"""Every key name that Python builds or reads. The scripts build the rest from the shard's root (lua/common.lua)."""

import re
from functools import cache
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
"""Root of what is remembered about callers: `seen:<hash>` for signed requests, `rate:<id>` for keys."""

FIRED_ROOT: Final = "timers:{fired}:"
"""Root of the rings of past starts in the last hour and day."""

FAILED_ROOT: Final = f"{FIRED_ROOT}failed_"
"""Root of the rings of failed attempts, in the same hash slot."""

REACHED: Final = "timers:{moving}:reached"
"""Hash: how far a copy into this db has come, in each part of the other db's records."""

WHOLE: Final = "~"
"""What the index of a shard's prefixes holds once it is whole; it stands behind every prefix."""

BARE: Final = re.compile(rb"([a-z0-9][a-z0-9_.-]{0,63}):([A-Za-z0-9][A-Za-z0-9_.:@~+=-]{0,199})")
"""A key that a client may have set itself: `<prefix>:<id>`. Braces keep a trigger key from matching."""

BARE_MATCH: Final = "*[^}]:[^{]*"
"""Names with a colon not next to a brace: bare keys and hardly any trigger keys, so that the server sends few names."""


def text(name: bytes) -> str:
    """A name from Redis as text. A foreign name may not be text; then as much as can be shown."""
    return name.decode(errors="replace")


NUMBER_DIGITS: Final = 16
TIME_DIGITS: Final = 13
"""Our numbers stay below 2^53, and our times before 2201. What has more digits may be too long for `int`, a float or
the calendar."""


def is_number(kept: bytes, most_digits: int = NUMBER_DIGITS) -> bool:
    """Whether this can be a number of ours, or with TIME_DIGITS a time."""
    return kept.isdigit() and len(kept) <= most_digits


def number(kept: bytes | None) -> int:
    """A count as it is kept. None, and what another program has made of one, is 0."""
    return int(kept) if kept and is_number(kept) else 0


def times(kept: bytes) -> tuple[int, ...]:
    """The times in a text, epoch ms, without words that can be none."""
    return tuple(int(word) for word in kept.split() if is_number(word, TIME_DIGITS))


def identity_of(member: str) -> tuple[str, str]:
    """Prefix and id of `<prefix>:<id>`; a prefix has no colon."""
    prefix, _, timer_id = member.partition(":")
    return prefix, timer_id


@cache
def root(shard: int) -> str:
    """Root of a shard's keys; the braces make it one hash slot of a cluster."""
    return f"timers:{{{shard}}}:"


def limits_root(prefix: str) -> str:
    """Root of what limits a prefix: `permits` and `rate`, in their own hash slot."""
    return f"timers:{{limits:{prefix}}}:"


def expired_channel(db: int) -> str:
    """Where Redis publishes the names of expired keys of a db."""
    return f"__keyevent@{db}__:expired"


def wake_channel(db: int) -> str:
    """The channel that announces timers due within a sweep interval. Channels do not belong to a db, so the name
    contains it."""
    return f"timers:wake:{db}"


OWN_WAKE, OWN_EVENTS = "wake", "events"
"""On a cluster each shard has its own two channels, `<root>wake` and `<root>events`. Scripts are told the ends."""


def events_channel(db: int) -> str:
    """The channel that publishes every change of a timer while somebody listens."""
    return f"timers:events:{db}"


def canary_key(name: str) -> str:
    """The small key whose expiry proves that notifications arrive."""
    return f"timers:canary:{name}"
