"""Owns checking what outlasts the loss of a server: which durabilities the service can give, and what a failover needs:
Sentinels that can decide, a replica that can take over, and its settings."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from redis.exceptions import AuthenticationError, RedisError, ResponseError

from timers.client.opening import LEVELS, SETTING, lacking, listed
from timers.core.shapes import Durability
from timers.doctor.checks import Check, Facts, judged, setting
from timers.errors import RedisRights, Unavailable
from timers.store.membership import Member
from timers.store.notifications import FLAGS, ensure_notifications, missing_flags
from timers.store.scripts import reachable
from timers.store.servers.connections import Connections
from timers.store.servers.durability import FSYNC, REPLICATED, WAITS
from timers.store.servers.sentinel import Address, SentinelConnections, Sentinels, is_up, shown
from timers.store.store import Store

FEWEST: Final = 3
"""Sentinels of which one may fail, and the others still are a majority."""

_REPAIR: Final[Mapping[Durability, str]] = {
    FSYNC: "`redis-cli CONFIG SET appendonly yes appendfsync always`, and the same in the server's configuration",
    REPLICATED: "attach replicas, or see what their logs say",
    "ledger": "set TIMERS_LEDGER_URL",
}


async def durability_check(store: Store, members: Sequence[Member], *, has_ledger: bool) -> Check:
    """Which durabilities the service can give, whether pods want others, and which replica a failover would take."""
    lacks = await lacking(store, has_ledger=has_ledger)
    wanted = {member.settings.get(SETTING, "") for member in members}
    missed = [level for level in LEVELS if level in wanted and level in lacks]
    known = [f"not {level}: {why}" for level, why in lacks.items() if level in WAITS]
    nodes = store.connections.nodes
    by_node = [await _priorities(node) for node in nodes]
    said = "; ".join([listed(lacks), *known, *_shown_priorities(by_node)])
    asked = " and ".join(missed)
    means = f"pods are configured for {asked}, but writes reach only `fast`; answers and metrics show this"
    never = any(some and {*some} == {0} for some in by_node)
    differ = any(len({*some} - {0, None}) > 1 for some in by_node)
    lost = "no failover happens when the server is lost"
    has_some = any(by_node) or (store.connections.is_spread and bool(store.connections.replicas))
    alone = [node.address for node, some in zip(nodes, by_node, strict=True) if not some and has_some]
    bare, start = f"{said}; without a replica: {', '.join(alone)}", "start it, see its log, or make another node one"
    late = "the one with the lowest number is promoted even if it lags behind; what was only `fast` is lost with that"
    return judged(
        "durability",
        said,
        (bool(missed), "fail", said, means, "; ".join(_REPAIR[level] for level in missed)),
        (bool(alone), "warn", bare, lost, f"{start}: `redis-cli CLUSTER REPLICATE ID` there"),
        (never, "warn", f"{said}: none may be promoted", lost, "`redis-cli CONFIG SET replica-priority 100` on one"),
        (differ, "warn", f"{said}: they differ", late, "`redis-cli CONFIG SET replica-priority 100` on each"),
    )


def _shown_priorities(by_node: Iterable[Sequence[int | None]]) -> list[str]:
    """The priorities of each server's replicas in words, if there are any."""
    shown = [", ".join("unknown" if each is None else str(each) for each in some) for some in by_node if some]
    return [f"replica-priority {' | '.join(shown)}"] if shown else []


async def _priorities(connections: Connections) -> list[int | None]:
    """The `replica-priority` of each replica of a server, as itself says; None if it cannot be asked from here."""

    async def asked(replica: Mapping[str, Any]) -> int | None:
        try:
            async with connections.other(replica["ip"], replica["port"]) as redis:
                info: dict[str, Any] = await redis.info("replication")
            return int(info["slave_priority"])
        except (RedisError, OSError, KeyError):
            return None

    try:
        with reachable():
            info: dict[str, Any] = await connections.commands.info("replication")
    except (RedisRights, ResponseError):
        return []
    replicas = (value for name, value in info.items() if name.startswith("slave") and isinstance(value, dict))
    return await asyncio.gather(*map(asked, replicas))


class _Word(NamedTuple):
    """What a Sentinel answers: its fields of the service, those of each replica, and what speaks against a failover."""

    facts: Mapping[str, str]
    replicas: Sequence[Mapping[str, str]]
    against: str


async def check_failover(store: Store, config: Mapping[str, str] | None, *, fix: bool) -> AsyncIterator[Check]:
    """The checks of the Sentinels, and of the replicas behind them or in a cluster. `config` is that of the primary;
    `fix` turns missing notification flags of the replicas on."""
    connections = store.connections
    if isinstance(connections, SentinelConnections):
        sentinels = connections.sentinels
        words = await asyncio.gather(*(_word(sentinels, place) for place in sentinels.places))
        yield _quorum(sentinels, words)
        heard = [word for word in words if isinstance(word, _Word)]
        yield _successors(heard[0].replicas if heard else [], config)
    if replicas := connections.replicas:
        yield await _flags(replicas, fix=fix)


async def _word(sentinels: Sentinels, place: Address) -> _Word | Exception:
    redis = sentinels.client(place)
    try:
        facts, replicas = await sentinels.facts(redis, place), await sentinels.known_replicas(redis)
        return _Word(facts, replicas, await sentinels.against(redis))
    except (RedisError, OSError) as error:
        return error
    finally:
        await redis.aclose(close_connection_pool=True)


def _quorum(sentinels: Sentinels, words: Sequence[_Word | Exception]) -> Check:
    heard = [word for word in words if isinstance(word, _Word)]
    silent = [
        f"{shown(place)} ({word})" if isinstance(word, AuthenticationError | ResponseError) else shown(place)
        for place, word in zip(sentinels.places, words, strict=True)
        if isinstance(word, Exception)
    ]
    there = max((int(word.facts["num-other-sentinels"]) + 1 for word in heard), default=0)
    primaries = sorted({f"{word.facts['ip']}:{word.facts['port']}" for word in heard})
    against = next((word.against for word in heard if word.against), "")
    said = f"{len(heard)} of {len(words)} Sentinels answer, quorum {heard[0].facts['quorum'] if heard else 'unknown'}"
    stands = "nothing replaces the primary when it dies, and then no timer runs"
    away = f"{said}; without an answer: {', '.join(silent)}"
    alone, few = f"TIMERS_REDIS_URL names {len(words)} of {there} Sentinels", f"there are {there} Sentinels"
    differ, lost = f"{said}; they name {' and '.join(primaries)}", "when one fails, the rest are no majority"
    start = "start the missing Sentinels, or remove those that are gone for good"
    answers = "start the others, or correct the URL; `SENTINEL CKQUORUM` on one says more"
    return judged(
        "sentinels",
        f"{said}; {sentinels.service!r} has the primary {', '.join(primaries)}",
        (2 * len(heard) <= len(words), "fail", away, stands, answers),
        (bool(against), "fail", against, stands, start),
        (bool(silent), "warn", away, "a failover needs a majority of them", "start it, or correct the URL"),
        (len(primaries) > 1, "warn", differ, "a failover is in progress", "run the doctor again"),
        (there < FEWEST, "warn", few, lost, f"run {FEWEST} on machines of their own"),
        (2 * len(words) <= there, "warn", alone, "if these are away, no pod can start", "name all of them"),
    )


def _successors(replicas: Sequence[Mapping[str, str]], config: Mapping[str, str] | None) -> Check:
    able = [f"{each['ip']}:{each['port']}" for each in replicas if not _away(each) and each["slave-priority"] != "0"]
    unable = [f"{each['ip']}:{each['port']} ({why})" for each in replicas if (why := _away(each))]
    wanted = (config or {}).get("min-replicas-to-write", "")
    none, stands = "no replica can take over", "nothing replaces the primary when it dies, and then no timer runs"
    cut_off = "a primary that is cut off goes on taking timers and starting runs, and the failover loses them"
    asks_none, write = "min-replicas-to-write is 0", setting(_KEPT, "min-replicas-to-write", 1)
    missing, fewer = f"replicas are away: {', '.join(unable)}", "fewer can take over"
    said, see = "; ".join([none, *([missing] if unable else [])]), "start them, or see what their logs say"
    return judged(
        "failover",
        f"these can take over: {', '.join(able)}",
        (not able, "fail", said, stands, f"{see}; one needs a replica-priority above 0"),
        (bool(unable), "warn", missing, fewer, f"{see}; `SENTINEL RESET` forgets those that are gone for good"),
        (wanted == "0", "warn", asks_none, cut_off, f"with two replicas: {write}"),
    )


def _away(replica: Mapping[str, str]) -> str:
    """Why a replica cannot take over, whatever its priority; empty if it can. A primary that refuses its password is
    one that it does not follow."""
    if not is_up(replica):
        return replica["flags"]
    return "" if replica.get("master-link-status", "ok") == "ok" else "it does not follow the primary"


_KEPT: Final[Facts] = {"config_file": "there"}
"""Sentinels write the configuration files of their servers, so these have one."""


async def _flags(replicas: Sequence[Connections], *, fix: bool) -> Check:
    lacking, unseen = list[str](), list[str]()
    for replica in replicas:
        try:
            with reachable():
                if fix:
                    await ensure_notifications(replica.commands)
                current = (await replica.commands.config_get(FLAGS)).get(FLAGS) or ""
        except (ResponseError, RedisRights, Unavailable) as error:
            unseen.append(f"{replica.address} ({error})")
            continue
        if missing := missing_flags(current):
            lacking.append(f"{replica.address} lacks {missing!r}")
    fine = f"{FLAGS} cannot be read on {', '.join(unseen)}" if unseen else f"{FLAGS} is set on all replicas"
    means = "as the primary it announces nothing until a pod has set it"
    return judged("replicas' flags", fine, (bool(lacking), "warn", "; ".join(lacking), means, "`timers doctor --fix`"))
