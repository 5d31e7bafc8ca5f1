"""Owns testing what a server does not tell by itself: a user's rights, events, speed, clock, and the keys of others.

It writes only one key, which lives for 50 ms.
"""

import asyncio
import re
import secrets
import shlex
import statistics
import time
from collections.abc import Awaitable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from redis.exceptions import AskError, AuthenticationError, ResponseError, TryAgainError

from timers.core.fields import owner
from timers.core.shapes import RESERVED_PREFIX
from timers.doctor.checks import SHARDS_WAIT, Check, configured, judge, judged, on_nodes, server_facts
from timers.doctor.failover import check_failover
from timers.errors import ConfigurationError, RedisRights, Unavailable
from timers.store import keys
from timers.store.cooperative import set_within
from timers.store.notifications import (
    FLAGS,
    Part,
    canary_on,
    current_parts,
    ensure_notifications,
    missing_flags,
    set_canary,
    subscribe,
    touch_canary,
)
from timers.store.scripts import reachable, read
from timers.store.servers.slots import AWAY
from timers.store.store import Store

SCAN_LIMIT: Final = 100_000
"""How many keys are checked for those of other programs. In a large db that is a sample."""

PREFIXES_LIMIT: Final = 1000
"""For how many prefixes the user's rights to their keys are checked."""

_ROOTS: Final = 16_384
"""Among so many, each primary of a cluster has some."""

DELIVERY_SECONDS: Final = 3.0
CALLS: Final = 15
SLOW_MS: Final = 20
CANARY_MS: Final = 50
SKEW_WARN_MS: Final = 1_000

_ON_KEYS: Final = (
    *("get", "getdel", "set", "del", "exists", "pttl", "pexpire", "pexpiretime", "incrby"),
    *("hget", "hmget", "hgetall", "hset", "hsetnx", "hdel", "hincrby", "hkeys", "hlen", "hscan", "hexists"),
    *("sadd", "srem", "smembers", "sismember", "zadd", "zrem", "zremrangebyscore", "zscore", "zcount", "zcard"),
    *("zmscore", "zrange", "zrangebyscore", "zrevrangebyscore", "zscan", "xadd", "xdel", "xlen", "xrange"),
)
_ON_CLUSTERS: Final = (
    *("spublish timers:* -", "ssubscribe timers:*", "sunsubscribe", "asking", "cluster|slots", "cluster|info"),
)
"""What a pod sends besides on each node of a cluster."""

_TRIGGER: Final = re.compile(rb"[a-z0-9][a-z0-9_.-]{0,63}:\{\d+\}:.*", re.DOTALL)

_REPLAYED: Final = (
    *("set timers:x -", "pexpireat timers:x 1", "del timers:x", "incrby timers:x 1", "rename timers:x timers:y"),
    *("hset timers:x a 1", "hsetnx timers:x a 1", "hincrby timers:x a 1", "hdel timers:x a"),
    *("sadd timers:x a", "srem timers:x a", "xadd timers:x * a 1", "xdel timers:x 1-1"),
    *("zadd timers:x 1 a", "zrem timers:x a", "zremrangebyscore timers:x 0 1"),
)
"""What scripts write, as it stands in an append-only file."""

Refusal = ResponseError
"""The server refuses a command: the user may not use it, or another program's value of another type is in the way."""


async def check_server(store: Store, *, fix: bool, wait_seconds: float, prefixes: Iterable[str]) -> list[Check]:
    """Every check of the server, in order. `fix` turns missing notification flags on; `prefixes` are the declared ones.
    Raises Unavailable if the server does not answer at all."""
    if fix:
        for server in store.connections.nodes:
            with suppress(Unavailable):  # the checks say so
                await ensure_notifications(server.commands)
    config, wanted = await configured(store), list(prefixes)
    arrived = await deliveries(store, wait_seconds)
    heard = next((check for check in arrived.values() if check.level != "ok"), next(iter(arrived.values())))

    # Over connections to a cluster, each primary is one of several masters.
    is_whole = len(store.connections.nodes) > 1

    async def examined(node: Store) -> Sequence[Check]:
        given = await configured(node)
        besides = _ON_CLUSTERS if store.connections.is_spread else ()
        may = await _tried("rights", rights(node, wanted, _root_on(store, node), besides))
        current = None if given is None else given.get(FLAGS, "")
        arrives = arrived.get(node.connections.address, heard).level == "ok"
        return [
            *await _judged(node, given, is_whole=is_whole),
            may,
            await _tried("replay", replay(node, wanted)),
            flags(current, heard=arrives, allowed=may.level != "fail"),
            await _tried("latency", latency(node)),
            await _tried("clock", skew(node)),
        ]

    return [
        *await on_nodes(store, examined),
        heard,
        await _tried("foreign", foreign_keys(store, wanted)),
        *await _rights_there(store, wanted),
        *[check async for check in check_failover(store, config, fix=fix)],
    ]


async def _judged(store: Store, config: Mapping[str, str] | None, *, is_whole: bool) -> list[Check]:
    try:
        return judge(await server_facts(store), config, is_whole=is_whole)
    except (RedisRights, Refusal) as error:
        means = "whether it keeps or evicts timers, and has room for them, is not known"
        repair = f"{grant(store, ['info'])}; take a rename-command of INFO out of its configuration"
        return [Check("server", "warn", f"it denies INFO: {error}", means, repair)]


async def _tried(name: str, checking: Awaitable[Check]) -> Check:
    try:
        return await checking
    except (Unavailable, Refusal) as error:
        return unfinished(
            name, f"the server refuses: {error}", "nothing is armed or run", "see the other findings", error
        )


def unfinished(name: str, said: str, means: str, repair: str, error: Exception) -> Check:
    """What is found where an error ended a check. A server that is away may have only a part of a db, and a hash slot
    that is being moved is no fault."""
    if isinstance(error.__cause__, AskError | TryAgainError):
        again = "run the doctor again; redis-cli --cluster fix HOST:PORT finishes a move that was broken off"
        return Check(name, "warn", f"not checked: {error}", SHARDS_WAIT, again)
    if isinstance(error.__cause__, AWAY):
        return Check(name, "fail", f"not checked: {error}", SHARDS_WAIT, "see the other findings")
    return Check(name, "fail", said, means, repair)


def needed_rights(db: int, prefixes: Iterable[str]) -> list[str]:
    """The commands that a pod sends, with the keys and channels of this db and of these prefixes, as PROTOCOL.md lists
    them."""
    channels = (keys.expired_channel(db), keys.wake_channel(db), keys.events_channel(db))
    return [
        *("ping", "select", "time", "info", "unsubscribe", "scan 0", "eval - 1 timers:x", "evalsha - 1 timers:x"),
        *(f"{command} timers:x" for command in _ON_KEYS),
        "rename timers:x timers:y",
        *(f"subscribe {channel}" for channel in channels),
        *(f"publish {channel} -" for channel in channels[1:]),
        *(f"set {prefix}:x -" for prefix in prefixes),
    ]


def _root_on(store: Store, node: Store) -> str:
    """A root that lies on one of the db's servers, so that it runs a script on it."""
    roots = map(keys.root, range(_ROOTS))
    return next((root for root in roots if store.connections.node_of(root) is node.connections), keys.root(0))


async def rights(store: Store, prefixes: Iterable[str], root: str, besides: Iterable[str] = ()) -> Check:
    """Whether the user may do what a pod does, on the server that has this root, and other things `besides`."""
    wanted = [*needed_rights(store.connections.db, sorted(prefixes)[:PREFIXES_LIMIT]), *besides]
    try:
        (found,) = await store.run("rights", root, wanted)
    except RedisRights as error:
        repair = f"{grant(store, ['eval - 1 timers:x', 'evalsha', 'time'])}, then `timers doctor` names the rest"
        return Check(
            "rights", "fail", f"the Redis user may not run scripts ({error})", "nothing is armed or run", repair
        )
    denied = [command.decode() for command in found]
    means = "whatever needs them fails: timers are not armed, heard of, run or ended"
    lacks = f"the Redis user lacks permission for: {', '.join(denied)}"
    bare = "bare keys are not adopted: they fire with payload null"
    return judged(
        "rights",
        "the user has the rights that a pod needs",
        (denied == ["scan 0"], "warn", "the Redis user lacks permission for SCAN", bare, grant(store, denied)),
        (bool(denied), "fail", lacks, means, grant(store, denied)),
    )


async def _rights_there(store: Store, prefixes: Iterable[str]) -> list[Check]:
    """Whether the replicas let the user in, with the same rights. A replica in a cluster runs no script, so there only
    the password and the rights to EVALSHA and EVAL are seen."""
    lacks = list[str]()
    for replica in store.connections.replicas:
        try:
            found = await rights(Store(replica), prefixes, keys.root(0))
            lacks += [f"{replica.address}: {found.said}"] if found.level == "fail" else []
        except ConfigurationError:  # it names the primary
            continue
        except Unavailable as error:  # others that are away have a check of their own
            lacks += [f"{replica.address}: {error}"] if isinstance(error.__cause__, AuthenticationError) else []
    fine = "the replicas let the user in"
    means = "once it is the primary, it refuses pods and callers: users, passwords and rights are not replicated"
    repair = "`redis-cli ACL SETUSER` there too, as on the primary; put it into each server's ACL file"
    there = judged("replicas' rights", fine, (bool(lacks), "warn", "; ".join(lacks), means, repair))
    return [there] if store.connections.replicas else []


async def replay(store: Store, prefixes: Iterable[str]) -> Check:
    """Whether the server's default user may do what scripts do. A server replays its append-only file as that user, and
    versions before the repair of redis issue 14541 throw away those transactions in it that the user may not do."""
    fine, look = "the default user may replay the append-only file", f"redis-cli ACL DRYRUN default {_REPLAYED[0]}"
    means = "at a restart the server may throw away every timer: it replays its append-only file as the default user"
    repair = "as a Redis admin: `redis-cli ACL SETUSER default off resetpass '~*' '&*' +@all`; put it into its ACL file"
    wanted = [*_REPLAYED, *(f"set {prefix}:x -" for prefix in sorted(prefixes)[:PREFIXES_LIMIT])]
    try:
        denied, refusal = await _denied_to_default(store, wanted), ""
    except (RedisRights, Refusal) as error:
        denied, refusal = [], str(error)
    with reachable():
        info: dict[str, Any] = await store.connections.commands.info("persistence") if denied or refusal else {}
    if not info.get("aof_enabled"):
        return Check("replay", "ok", fine)
    hidden = f"cannot tell whether the default user may write: {refusal}"
    return judged(
        "replay",
        fine,
        (bool(refusal), "warn", hidden, means, f"{grant(store, ['acl|dryrun'])}, or see that `{look}` says OK"),
        (bool(denied), "fail", f"the default user lacks permission for: {', '.join(denied)}", means, repair),
    )


async def _denied_to_default(store: Store, commands: Sequence[str]) -> list[str]:
    answers = await read(
        store.connections.commands,
        lambda asked: [asked.execute_command("ACL", "DRYRUN", "default", *command.split()) for command in commands],
        None,
    )
    return [command for command, answer in zip(commands, answers, strict=True) if answer != b"OK"]


def grant(store: Store, denied: Iterable[str]) -> str:
    """The command that gives the user these rights; they are among those that PROTOCOL.md lists."""
    words = dict.fromkeys(word for command in denied for word in _words(command))
    return f"as a Redis admin: `redis-cli ACL SETUSER {store.connections.user} {' '.join(map(shlex.quote, words))}`"


def _words(command: str) -> Iterator[str]:
    name, *arguments = command.split()
    yield f"+{name}"
    for argument in arguments:
        if name.endswith(("subscribe", "publish")):
            yield from (f"&{argument}" for _ in range(argument != "-"))
        elif ":" in argument:
            prefix = argument.partition(":")[0]
            yield f"~{prefix}:*" if prefix == RESERVED_PREFIX else f"~{prefix}*"


def flags(current: str | None, *, heard: bool, allowed: bool) -> Check:
    """Whether the server announces expired keys. `current` is None if it denies CONFIG; then only an event can prove
    it, for a user who is allowed to hear it."""
    missing, means = (
        missing_flags(current or ""),
        "pods hear of no due timer and are not ready; the sweep finds timers later",
    )
    said = f"{FLAGS} is {current!r}"
    command = f"`redis-cli CONFIG SET {FLAGS} {shlex.quote((current or '') + missing)}`"
    if current is not None:
        repair = f"`timers doctor --fix`, or {command}"
        return judged("flags", said, (bool(missing), "fail", f"{said} and lacks {missing!r}", means, repair))
    unseen = "cannot tell: the server denies CONFIG, and no event came"
    silent = "the server denies CONFIG, and no event of a key came"
    repair = f"as a Redis admin: {command}, with any flags that are on already"
    return judged(
        "flags",
        "the server denies CONFIG, but the event of a test key arrived",
        (not heard and not allowed, "warn", unseen, means, "see the check `rights` first"),
        (not heard, "fail", silent, means, repair),
    )


async def deliveries(store: Store, wait_seconds: float) -> Mapping[str, Check]:
    """Whether events arrive from each server, by its name."""
    found = await current_parts(store.connections, store.shards)
    checks = await asyncio.gather(*(_tried("delivery", _delivery_of(store, part, wait_seconds)) for part in found))
    return {part.node.address: check for part, check in zip(found, checks, strict=True)}


async def _delivery_of(store: Store, part: Part, wait_seconds: float) -> Check:
    """Set a key that expires soon, and wait for its event."""
    name = canary_on(store.connections, part, f"doctor-{secrets.token_hex(4)}")
    where = f" from {part.node.address}" if store.connections.is_spread else ""
    heard, ready = asyncio.Event(), asyncio.Event()

    def take(_channel: bytes, data: bytes | None) -> None:
        if data is None:
            ready.set()
        elif data.startswith(f"{keys.canary_key(name)}:".encode()):
            heard.set()

    channel = keys.expired_channel(store.connections.db).encode()
    listening = asyncio.create_task(subscribe(part.node, (channel,), take))
    means = "only sweeps find timers, up to a second late, and workers are not ready"
    try:
        async with asyncio.timeout(wait_seconds):
            await ready.wait()
            began = time.monotonic()
            key = await set_canary(store.connections.commands, name, CANARY_MS)
            while not heard.is_set():
                await touch_canary(store.connections.commands, key)
                await set_within(heard, CANARY_MS / 1000 / 5)
    except TimeoutError:
        if listening.done():
            listening.result()  # raises why the server cannot be heard
        said = f"no `expired` event of a test key arrived{where} within {wait_seconds:g} s"
        return Check("delivery", "fail", said, means, "see the checks `rights` and `flags`")
    finally:
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)
    late_ms = (time.monotonic() - began) * 1000 - CANARY_MS
    return Check("delivery", "ok", f"the event of a test key arrived{where} {max(0, late_ms):.0f} ms after it was due")


async def foreign_keys(store: Store, prefixes: Collection[str]) -> Check:
    """Whether the db has keys of other programs. One that begins with a declared prefix may be a client's timer."""
    found, seen = list[str](), 0
    try:
        with reachable():
            async for key in store.connections.commands.scan_iter(count=1000):
                seen += 1
                if _is_foreign(key, prefixes):
                    found.append(key.decode(errors="replace"))
                if seen >= SCAN_LIMIT:
                    break
    except (RedisRights, Refusal) as error:
        return Check("foreign", "ok", f"unknown, because the server denies SCAN ({error})")
    if moved := [key for key in found if ":displaced:" in key]:
        first = shlex.quote(moved[0])
        said = f"another program had put a value in the place of a key of the service; it is {first} now"
        means = "what the key held is lost, though records and indexes are repaired"
        repair = f"find out who writes into this db; when you have seen it: `redis-cli DEL {first}`"
        return Check("foreign", "warn", said, means, repair)
    shown = ", ".join(repr(key[:60]) for key in found[:3])
    said = f"{len(found)} of {seen} keys do not belong to the service, such as {shown}"
    means = "whoever flushes, evicts or overwrites them reaches the timers too"
    repair = "give the service its own db number at the end of TIMERS_REDIS_URL"
    return judged("foreign", f"the db has no foreign keys ({seen} checked)", (bool(found), "warn", said, means, repair))


def _is_foreign(key: bytes, prefixes: Collection[str]) -> bool:
    if key.startswith(b"timers:") or _TRIGGER.fullmatch(key):
        return b":displaced:" in key
    bare = keys.BARE.fullmatch(key)
    return bare is None or owner(bare[1].decode(), prefixes) is None


async def round_trips_ms(store: Store, number: int) -> Sequence[float]:
    """How long calls take that cost the server nothing, one after the other."""
    rounds_ms: list[float] = []
    for _ in range(number):
        began = time.monotonic()
        await store.now_ms()
        rounds_ms.append((time.monotonic() - began) * 1000)
    return rounds_ms


async def latency(store: Store) -> Check:
    median_ms = statistics.median(await round_trips_ms(store, CALLS))
    said = f"a call takes {median_ms:.1f} ms"
    means = "a timer starts after three or four calls, so it is late by that much"
    repair = "run the pods near the server; `redis-cli SLOWLOG GET` shows what keeps it busy"
    return judged("latency", said, (median_ms >= SLOW_MS, "warn", said, means, repair))


async def skew(store: Store) -> Check:
    skew_ms = abs(await store.now_ms() - time.time() * 1000)
    said = f"the server's clock and this machine's differ by {skew_ms:.0f} ms"
    means = "timers follow the server's: an absolute due time is met by its clock"
    repair = "run chrony or another NTP client on both; timedatectl shows the state"
    return judged("clock", said, (skew_ms > SKEW_WARN_MS, "warn", said, means, repair))
