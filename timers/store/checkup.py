"""Owns judging from INFO and CONFIG GET whether timers are safe on a server."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from redis.exceptions import ResponseError

from timers.store.scripts import FULL, reachable
from timers.store.server import FLAGS, memory_used
from timers.store.store import Store

Level = Literal["ok", "warn", "fail"]

OLDEST_MAJOR: Final = 7
NEARLY: Final = 0.9
"""Share of a limit from which it is warned of."""

LAG_SECONDS: Final = 10
HARD_BYTES: Final = 32 * 2**20
SOFT_BYTES: Final = 8 * 2**20
"""The server's own limits for a subscriber's buffer: some 160,000 events."""

_CONFIG: Final = ("save", "appendfsync", "client-output-buffer-limit", "min-replicas-to-write", FLAGS)
_PUBSUB: Final = re.compile(r"pubsub (\d+) (\d+) \d+")

Facts = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Check:
    """What was looked at and how it is; where that is not fine, what it means for timers, and what mends it."""

    name: str
    level: Level
    said: str
    means: str = ""
    mend: str = ""

    def to_json(self) -> dict[str, str | None]:
        """As it is shown."""
        said = {"check": self.name, "level": self.level, "said": self.said}
        return {**said, "means": self.means or None, "mend": self.mend or None}


async def server_facts(store: Store) -> Facts:
    """What INFO says, and CLUSTER INFO of a node of a cluster. Raises Unavailable."""
    redis: Any = store.connections.commands
    with reachable():
        info: dict[str, Any] = await redis.info()
        try:
            return {**info, **(await redis.execute_command("CLUSTER INFO"))} if info.get("cluster_enabled") else info
        except ResponseError:  # denied
            return info


async def configured(store: Store) -> Mapping[str, str] | None:
    """The settings of the server that matter to timers; None where it denies CONFIG. Raises Unavailable."""
    try:
        with reachable():
            answer: dict[Any, Any] = await store.connections.commands.config_get(*_CONFIG)
    except ResponseError:
        return None
    return {_text(name): _text(value) for name, value in answer.items()}


def judge(info: Facts, config: Mapping[str, str] | None) -> list[Check]:
    """Every check of what the server says of itself, in order."""
    known = config or {}
    return [
        _version(info),
        _role(info),
        _persistence(info, config),
        _eviction(info),
        _memory(info),
        _replicas(info, known),
        _buffers(known),
        _clients(info),
    ]


def _version(info: Facts) -> Check:
    family = next((name for name in ("valkey", "dragonfly") if f"{name}_version" in info), "redis")
    version = str(info.get(f"{family}_version", "unknown"))
    said, major = f"{family} {version}", version.lstrip("dfv-").partition(".")[0]
    if family == "dragonfly":
        return Check("server", "warn", said, "nobody has tested timers on it", "use Redis or Valkey")
    if major.isdigit() and int(major) >= OLDEST_MAJOR:
        return Check("server", "ok", said)
    means = "the scripts need what it lacks: nothing is armed or run"
    return Check("server", "fail", said, means, f"upgrade to version {OLDEST_MAJOR} or newer")


def _role(info: Facts) -> Check:
    if info.get("role") == "slave":
        master = f"{info.get('master_host')}:{info.get('master_port')}"
        means = "it takes no timers and announces none that expire"
        mend = f"give TIMERS_REDIS_URL the address of the master, {master}"
        return Check("role", "fail", f"a replica of {master}", means, mend)
    if (state := info.get("cluster_state", "ok")) != "ok":
        mend = "give every hash slot a node: redis-cli --cluster fix HOST:PORT"
        return Check("role", "fail", f"a node of a cluster whose state is {state}", "nothing is armed or run", mend)
    if (nodes := int(info.get("cluster_size", 1))) > 1:
        means = "a pod reaches only the shards of this node"
        mend = "use a single node: this version does not spread over a cluster"
        return Check("role", "fail", f"one of {nodes} masters of a cluster", means, mend)
    return Check("role", "ok", "a master")


def _persistence(info: Facts, config: Mapping[str, str] | None) -> Check:
    mend = "redis-cli CONFIG SET appendonly yes, then redis-cli CONFIG REWRITE"
    if not int(info.get("aof_enabled", 0)):
        if save := (config or {}).get("save"):
            means = "a crash loses what was armed or ended since the last snapshot"
            return Check("persistence", "warn", f"appendonly is off; snapshots are taken ({save})", means, mend)
        seen = " and no snapshots are taken" if config is not None else "; CONFIG is denied, so snapshots are not seen"
        return Check("persistence", "fail", f"appendonly is off{seen}", "a restart loses every timer", mend)
    if (status := info.get("aof_last_write_status", "ok")) != "ok":
        means = "new timers are refused, and what ended is not kept"
        return Check("persistence", "fail", f"the last write of the append-only file: {status}", means, "free its disk")
    if (config or {}).get("appendfsync") == "no":
        means = "a crash of the machine loses the last half minute or so"
        mend = "redis-cli CONFIG SET appendfsync everysec, then redis-cli CONFIG REWRITE"
        return Check("persistence", "warn", "appendonly is on, but appendfsync is no", means, mend)
    return Check("persistence", "ok", "appendonly is on")


def _eviction(info: Facts) -> Check:
    policy, limit = info.get("maxmemory_policy", "unknown"), int(info.get("maxmemory", 0))
    said = f"maxmemory-policy is {policy}"
    if policy == "noeviction":
        return Check("eviction", "ok", said)
    mend = "redis-cli CONFIG SET maxmemory-policy noeviction, then redis-cli CONFIG REWRITE"
    if limit == 0:
        means = "it deletes timers as soon as somebody sets maxmemory"
        return Check("eviction", "warn", said, means, mend)
    return Check("eviction", "fail", said, "the server deletes timers when memory runs short", mend)


def _memory(info: Facts) -> Check:
    limit, used = int(info.get("maxmemory", 0)), memory_used(info)
    said = f"{used / 2**20:.0f} MiB used of {limit / 2**20:.0f}" if limit else f"{used / 2**20:.0f} MiB used, no limit"
    mend = "raise maxmemory, shorten TIMERS_RETENTION, or purge finished timers: timers purge --status completed"
    if 0 < limit < used:
        return Check("memory", "fail", said, FULL, mend)
    if 0 < limit * NEARLY < used:
        return Check("memory", "warn", said, "at the limit new timers are refused", mend)
    return Check("memory", "ok", said)


def _replicas(info: Facts, config: Mapping[str, str]) -> Check:
    wanted, good = int(config.get("min-replicas-to-write", 1)), info.get("min_slaves_good_slaves")
    if good is not None and int(good) < wanted:
        means = "the server refuses to write: nothing is armed, no run ends"
        mend = "bring the replicas back, or redis-cli CONFIG SET min-replicas-to-write 0"
        return Check("replicas", "fail", f"{good} of {wanted} that min-replicas-to-write asks for", means, mend)
    replicas = [info.get(f"slave{n}", {}) for n in range(int(info.get("connected_slaves", 0)))]
    for each in replicas:
        if each.get("state") != "online" or int(each.get("lag", 0)) > LAG_SECONDS:
            said = f"{each.get('ip')}:{each.get('port')} is {each.get('state')}, {each.get('lag')} s behind"
            means = "a failover to it loses what was armed or ended in that time"
            return Check("replicas", "warn", said, means, "see its log, and the network between the two")
    return Check("replicas", "ok", f"{len(replicas)} in step" if replicas else "none")


def _buffers(config: Mapping[str, str]) -> Check:
    found = _PUBSUB.search(config.get("client-output-buffer-limit", ""))
    if found is None:
        return Check("buffers", "ok", "not to be seen without CONFIG")
    hard, soft = int(found[1]), int(found[2])
    said = f"a subscriber is cut off at {hard} bytes, or {soft} for a while (0: never)"
    if 0 < hard < HARD_BYTES or 0 < soft < SOFT_BYTES:
        means = "a burst of due timers cuts pods off; until they hear again, timers wait for the sweep"
        mend = 'redis-cli CONFIG SET client-output-buffer-limit "pubsub 32mb 8mb 60"'
        return Check("buffers", "warn", said, means, mend)
    return Check("buffers", "ok", said)


def _clients(info: Facts) -> Check:
    clients, most = int(info.get("connected_clients", 0)), int(info.get("maxclients", 0))
    said = f"{clients} connections of at most {most or 'an unknown number'}"
    if 0 < most * NEARLY <= clients:
        means = "at the limit pods cannot connect, and one that was cut off stays away"
        return Check("clients", "warn", said, means, f"redis-cli CONFIG SET maxclients {most * 2}")
    return Check("clients", "ok", said)


def _text(value: bytes | str | None) -> str:
    return value.decode() if isinstance(value, bytes) else value or ""
