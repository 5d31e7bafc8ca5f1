"""Owns what a check is, judging from INFO and CONFIG GET whether timers are safe on a server, and putting together what
was found on each server of a db."""

import asyncio
import re
import shlex
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from redis.asyncio import Redis
from redis.exceptions import NoPermissionError, ResponseError

from timers.errors import RedisRights, Unavailable
from timers.store.notifications import FLAGS
from timers.store.scripts import FULL, reachable
from timers.store.servers.connections import Connections
from timers.store.store import Store

Level = Literal["ok", "warn", "fail"]

OLDEST_MAJOR: Final = 7
NEARLY: Final = 0.9
"""Share of a limit from which it is warned of."""

LAG_SECONDS: Final = 10
HARD_BYTES: Final = 32 * 2**20
SOFT_BYTES: Final = 8 * 2**20
"""The server's own limits for a subscriber's buffer: some 160,000 events."""

_STOPS: Final = "stop-writes-on-bgsave-error"
_COVERAGE: Final = "cluster-require-full-coverage"
_CONFIG: Final = (
    *("save", "appendfsync", "client-output-buffer-limit", "min-replicas-to-write", _STOPS, _COVERAGE, FLAGS),
)
_PUBSUB: Final = re.compile(r"pubsub (\d+) (\d+) \d+")

Facts = Mapping[str, Any]

Trouble = tuple[bool, Level, str, str, str]
"""Whether it is there; and of a finding the level, what is said, what that means, and what repairs it."""

_NOTHING: Final = "nothing is armed or run"
_NO_ENDS: Final = "nothing is armed, and no run ends"


@dataclass(frozen=True, slots=True)
class Check:
    """What was checked and how it is; if that is not fine, what it means for timers, and how to repair it. `repair` has
    commands between backticks, to be typed as they are."""

    name: str
    level: Level
    said: str
    means: str = ""
    repair: str = ""

    def to_json(self) -> dict[str, str | None]:
        said = {"check": self.name, "level": self.level, "said": self.said}
        return {**said, "means": self.means or None, "repair": self.repair or None}


async def server_facts(store: Store) -> Facts:
    """What INFO says, and CLUSTER INFO of a node of a cluster. Raises Unavailable, also while the server loads its
    data: it says then that it has no append-only file. Raises RedisRights if INFO is denied."""
    redis: Any = store.connections.commands
    with reachable():
        info: dict[str, Any] = await redis.info()
        if info.get("loading"):
            share = info.get("loading_loaded_perc", "?")
            raise Unavailable(f"Redis is loading the dataset in memory, {share} % so far")
        try:
            return {**info, **(await redis.execute_command("CLUSTER INFO"))} if info.get("cluster_enabled") else info
        except ResponseError:  # denied
            return info


def memory_used(info: Mapping[str, Any]) -> int:
    """Bytes that count against `maxmemory`."""
    return int(info.get("used_memory", 0)) - int(info.get("mem_not_counted_for_evict", 0))


async def is_full(redis: Redis) -> bool:
    """Whether the server has reached `maxmemory` and takes no new timers; False if it denies INFO."""
    try:
        with reachable():
            memory: dict[str, Any] = await redis.info("memory")
    except (ResponseError, RedisRights):
        return False
    return 0 < int(memory.get("maxmemory", 0)) < memory_used(memory)


async def configured(store: Store) -> Mapping[str, str] | None:
    """The settings of the server that matter to timers; None if it denies CONFIG. Raises Unavailable."""
    try:
        with reachable():
            answer = await store.connections.commands.config_get(*_CONFIG)
    except (ResponseError, RedisRights):
        return None
    return {str(name): value or "" for name, value in answer.items()}


def judged(name: str, fine: str, *troubles: Trouble) -> Check:
    """The first trouble that there is; without one, what is `fine`."""
    for is_there, level, said, means, repair in troubles:
        if is_there:
            return Check(name, level, said, means, repair)
    return Check(name, "ok", fine)


def setting(info: Facts, name: str, value: object) -> str:
    """The commands that give the server a setting for good."""
    given = f"{name} {shlex.quote(str(value))}"
    lasts = "`redis-cli CONFIG REWRITE`" if info.get("config_file") else f"start the server with --{given}"
    return f"`redis-cli CONFIG SET {given}`, then {lasts}"


def judge(info: Facts, config: Mapping[str, str] | None, *, is_whole: bool = False) -> list[Check]:
    """Every check of what the server says of itself, in order. `is_whole` if the other nodes of its cluster are reached
    too."""
    known = config or {}
    return [
        _version(info),
        _role(info, known, is_whole=is_whole),
        _persistence(info, config),
        _eviction(info),
        _memory(info),
        _replicas(info, known),
        _buffers(info, known),
        _clients(info),
    ]


def _version(info: Facts) -> Check:
    family = next((name for name in ("valkey", "dragonfly") if f"{name}_version" in info), "redis")
    version = str(info.get(f"{family}_version", "unknown"))
    said, major = f"{family} {version}", version.lstrip("dfv-").partition(".")[0]
    is_old = not (major.isdigit() and int(major) >= OLDEST_MAJOR)
    means = "it lacks features that the scripts need, so nothing is armed or run"
    return judged(
        "server",
        said,
        (family == "dragonfly", "warn", said, "this service is not tested on it", "use Redis or Valkey"),
        (is_old, "fail", said, means, f"upgrade to version {OLDEST_MAJOR} or newer"),
    )


def _role(info: Facts, config: Mapping[str, str], *, is_whole: bool) -> Check:
    master, state = f"{info.get('master_host')}:{info.get('master_port')}", info.get("cluster_state", "ok")
    nodes, is_replica = int(info.get("cluster_size", 1)), info.get("role") == "slave"
    takes_none = "it accepts no timers and announces no expired keys"
    slots = f"a node of a cluster whose state is {state}"
    reach, form = "pods reach only the shards of this node", "put redis+cluster://HOST:PORT into TIMERS_REDIS_URL"
    covers, all_stop = f"{_COVERAGE} is yes", "while a primary without a replica is down, every node refuses all calls"
    return judged(
        "role",
        "a master",
        (is_replica, "fail", f"a replica of {master}", takes_none, f"put the master, {master}, into TIMERS_REDIS_URL"),
        (state != "ok", "fail", slots, _NOTHING, "give every hash slot a node, with redis-cli --cluster fix HOST:PORT"),
        (nodes > 1 and not is_whole, "fail", f"one of {nodes} masters of a cluster", reach, form),
        (is_whole and config.get(_COVERAGE) == "yes", "warn", covers, all_stop, setting(info, _COVERAGE, "no")),
    )


def _persistence(info: Facts, config: Mapping[str, str] | None) -> Check:
    known, is_on = config or {}, bool(int(info.get("aof_enabled", 0)))
    save = known.get("save", "")
    stops = known.get("save") != "" and known.get(_STOPS) != "no" and info.get("rdb_last_bgsave_status", "ok") != "ok"
    writes, rewrites = (info.get(f"aof_last_{what}_status", "ok") for what in ("write", "bgrewrite"))
    off = "no snapshots are taken" if config is not None else "CONFIG is denied, so snapshots are not seen"
    append, room = setting(info, "appendonly", "yes"), "give its folder rights and its disk room, then"
    stopped = "the last snapshot failed, so the server refuses to write"
    kept, last = f"appendonly is off; snapshots are taken ({save})", "a crash loses what came since the last snapshot"
    wrote, rewrote = (f"the last {what} of the append-only file" for what in ("write", "rewrite"))
    grows, late = "the file grows until the disk is full", "a crash of the machine loses about the last half minute"
    never, flush = "appendonly is on, but appendfsync is no", setting(info, "appendfsync", "everysec")
    return judged(
        "persistence",
        "appendonly is on",
        (stops, "fail", stopped, _NO_ENDS, f"{room} `redis-cli BGSAVE`"),
        (not is_on and bool(save), "warn", kept, last, append),
        (not is_on, "fail", f"appendonly is off, and {off}", "a restart loses every timer", append),
        (writes != "ok", "fail", f"{wrote}: {writes}", _NO_ENDS, "free space on its disk"),
        (rewrites != "ok", "warn", f"{rewrote}: {rewrites}", grows, f"{room} `redis-cli BGREWRITEAOF`"),
        (known.get("appendfsync") == "no", "warn", never, late, flush),
    )


def _eviction(info: Facts) -> Check:
    policy, repair = info.get("maxmemory_policy", "unknown"), setting(info, "maxmemory-policy", "noeviction")
    evicted, evicts = int(info.get("evicted_keys", 0)), policy != "noeviction"
    said = f"maxmemory-policy is {policy}" + (f"; keys evicted since the server's start: {evicted}" if evicted else "")
    gone = "timers may be among them: such a timer does not run"
    find = f"{repair}; then `timers doctor --fix` finds the timers that have no record any more"
    later = "the server deletes timers as soon as somebody sets maxmemory"
    return judged(
        "eviction",
        said,
        (evicts and evicted > 0, "fail", said, gone, find),
        (evicts and not int(info.get("maxmemory", 0)), "warn", said, later, repair),
        (evicts, "fail", said, "the server deletes timers when memory runs short", repair),
    )


def _memory(info: Facts) -> Check:
    limit, used = int(info.get("maxmemory", 0)), memory_used(info)
    said = f"{used / 2**20:.0f} MiB used of {limit / 2**20:.0f}" if limit else f"{used / 2**20:.0f} MiB used, no limit"
    repair = (
        f"if the machine has room: {setting(info, 'maxmemory', 2 * max(limit, used))}; "
        "else shorten TIMERS_RETENTION, or `timers purge --status completed --yes`"
    )
    return judged(
        "memory",
        said,
        (0 < limit < used, "fail", said, FULL, repair),
        (0 < limit * NEARLY < used, "warn", said, "at the limit new timers are refused", repair),
    )


def _replicas(info: Facts, config: Mapping[str, str]) -> Check:
    wanted = int(config.get("min-replicas-to-write", 1))
    good = int(info.get("min_slaves_good_slaves", wanted))
    replicas = [info.get(f"slave{n}", {}) for n in range(int(info.get("connected_slaves", 0)))]
    behind = [r for r in replicas if r.get("state") != "online" or int(r.get("lag", 0)) > LAG_SECONDS]
    asked = f"{good} of the {wanted} replicas that min-replicas-to-write requires"
    late = ", ".join(f"{r.get('ip')}:{r.get('port')} is {r.get('state')}, {r.get('lag')} s behind" for r in behind[:3])
    lost = "a failover to it loses timers armed or settled in that time"
    alone = f"bring the replicas back, or {setting(info, 'min-replicas-to-write', 0)}"
    return judged(
        "replicas",
        f"{len(replicas)} replicas are in sync" if replicas else "none",
        (good < wanted, "fail", asked, _NO_ENDS, alone),
        (bool(behind), "warn", late, lost, "check its log, and the network between the two"),
    )


def _buffers(info: Facts, config: Mapping[str, str]) -> Check:
    found = _PUBSUB.search(config.get("client-output-buffer-limit", ""))
    if found is None:
        return Check("buffers", "ok", "unknown, because CONFIG is denied")
    hard, soft = int(found[1]), int(found[2])
    said = f"the server disconnects a subscriber at {hard} bytes, or {soft} for a while (0: never)"
    means = "a burst of due timers disconnects pods; until they reconnect, timers wait for the sweep"
    repair = setting(info, "client-output-buffer-limit", "pubsub 32mb 8mb 60")
    return judged("buffers", said, (0 < hard < HARD_BYTES or 0 < soft < SOFT_BYTES, "warn", said, means, repair))


def _clients(info: Facts) -> Check:
    clients, most = int(info.get("connected_clients", 0)), int(info.get("maxclients", 0))
    said = f"{clients} connections of at most {most or 'an unknown number'}"
    means = "at the limit pods cannot connect or reconnect"
    return judged(
        "clients", said, (0 < most * NEARLY <= clients, "warn", said, means, setting(info, "maxclients", most * 2))
    )


SHARDS_WAIT: Final = "the timers of its shards wait, and lists, totals and quotas with them"

Examine = Callable[[Store], Awaitable[Sequence[Check]]]
"""Checks one server, given as a store that reaches no other."""


async def on_nodes(store: Store, examine: Examine) -> list[Check]:
    """The checks of all servers: what is fine everywhere as one, any other with its server's address. On a single
    server as they are."""
    nodes = store.connections.nodes
    if len(nodes) == 1:
        return [*await examine(store if nodes[0] is store.connections else Store(nodes[0]))]
    found = await asyncio.gather(*(_examined(node, examine) for node in nodes))
    by_name: dict[str, list[Check]] = {}
    for node, checks in zip(nodes, found, strict=True):
        for check in checks:
            by_name.setdefault(check.name, []).append(replace(check, said=f"{node.address}: {check.said}"))
    return [check for checks in by_name.values() for check in _together(checks)]


async def _examined(node: Connections, examine: Examine) -> Sequence[Check]:
    try:
        return await examine(Store(node))
    except Unavailable as error:
        gone = "if it is gone for good and no replica takes over by itself: `redis-cli CLUSTER FAILOVER FORCE` on one"
        repair = f"start it; {gone}; docs/runbook.md"
        return [Check("server", "fail", str(error), SHARDS_WAIT, repair)]


def _together(checks: Sequence[Check]) -> Sequence[Check]:
    wrong = [check for check in checks if check.level != "ok"]
    return wrong or [replace(checks[0], said="; ".join(check.said for check in checks))]


async def any_full(connections: Connections) -> bool:
    """Whether a server of the db has reached `maxmemory` and takes no new timers."""
    return any(await asyncio.gather(*(is_full(node.commands) for node in connections.nodes)))


async def away_from(connections: Connections, seconds: float) -> Sequence[str]:
    """The addresses of a cluster's primaries that do not answer in time, or refuse everything. One that only refuses
    the question is there. A single server is not asked."""
    nodes = connections.nodes
    if len(nodes) == 1:
        return ()
    clients: list[Any] = [node.commands for node in nodes]
    asked = (asyncio.wait_for(client.execute_command("CLUSTER INFO"), seconds) for client in clients)
    said: Sequence[Any] = await asyncio.gather(*asked, return_exceptions=True)
    fine = [
        info["cluster_state"] == "ok" if isinstance(info, dict) else isinstance(info, NoPermissionError)
        for info in said
    ]
    return [node.address for node, is_fine in zip(nodes, fine, strict=True) if not is_fine]


def partly_away(connections: Connections, away: Sequence[str]) -> str:
    """A sentence if some servers are away while others are not, which are named behind its colon."""
    if not 0 < len(away) < len(connections.nodes):
        return ""
    who = "a primary of the cluster is" if len(away) == 1 else f"{len(away)} primaries of the cluster are"
    return f"{who} away, and the timers of the others run: {', '.join(away)}"
