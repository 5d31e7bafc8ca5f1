"""Conservation (fault property P11): once all is quiet, counts, indexes and records agree, and nothing is left over."""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from redis.asyncio.client import Pipeline

from timers.core.model import Status, Timer
from timers.store import codec, keys
from timers.store.store import Identity, Store

_SHARD_KEY: Final = re.compile(r"timers:\{(\d+)\}:(\w+)(?::(.+))?", re.DOTALL)
_UNCHECKED: Final = (
    *(
        "paused",
        "pauses",
        "answered",
        "expiry",
        "meanwhile",
        "displaced",
        "epoch",
        "mark",
        "hooks",
        "changed",
        "agreed",
        "outbox",
        "unposted",
        "inbox",
    ),
)
_TRIGGER_KEY: Final = re.compile(r"([a-z0-9][a-z0-9_.-]*):\{(\d+)\}:(.+)")
_DB_WIDE: Final = re.compile(
    r"timers:(meta|keys|canary:.+|\{limits:[a-z0-9_.-]+\}:\w+|\{(pods|fired|alarms)\}:\w+|\{access\}:\w+(:.+)?)"
)


@dataclass(slots=True)
class ShardState:
    """Everything in a shard, as Redis has it. Scores and times in epoch ms."""

    records: dict[Identity, Timer] = field(default_factory=dict)
    unreadable: dict[Identity, str] = field(default_factory=dict)
    due: dict[Identity, float] = field(default_factory=dict)
    heads: dict[str, float] = field(default_factory=dict)
    blocked_heads: dict[str, float] = field(default_factory=dict)
    blocked: set[str] = field(default_factory=set)
    triggers: set[Identity] = field(default_factory=set)
    leases: dict[Identity, float] = field(default_factory=dict)
    held: dict[Identity, str] = field(default_factory=dict)
    finished: dict[tuple[Status, Identity], float] = field(default_factory=dict)
    retrying: dict[Identity, float] = field(default_factory=dict)
    retrying_counts: dict[str, float] = field(default_factory=dict)
    waiting: set[Identity] = field(default_factory=set)
    bare: dict[Identity, float] = field(default_factory=dict)
    counts: dict[tuple[Status, str], int] = field(default_factory=dict)
    prefixes: dict[str, float] = field(default_factory=dict)
    quarantine: dict[Identity, str] = field(default_factory=dict)
    token: int = 0
    unknown: list[str] = field(default_factory=list)
    now_ms: int = 0


async def state_of(store: Store, shard: int = 0) -> ShardState:
    """Read a shard while nothing runs. `now_ms` is the server's time after the reading."""
    redis, state = store.connections.commands, ShardState()
    mine: list[tuple[str, str, str]] = []
    async for raw in redis.scan_iter(count=1000):
        key = raw.decode(errors="replace")
        if ours := _SHARD_KEY.fullmatch(key):
            if int(ours[1]) == shard:
                mine.append((key, ours[2], ours[3] or ""))
        elif trigger := _TRIGGER_KEY.fullmatch(key):
            if int(trigger[2]) == shard:
                state.triggers.add((trigger[1], trigger[3]))
        elif key.startswith("timers:") and not _DB_WIDE.fullmatch(key):
            state.unknown.append(key)
    async with redis.pipeline(transaction=False) as pipeline:
        readers = [_read_key(pipeline, state, key, kind, rest) for key, kind, rest in mine]
        for read, value in zip(filter(None, readers), await pipeline.execute(), strict=True):
            read(value)
    state.now_ms = await store.now_ms()
    return state


def _read_key(pipeline: Pipeline, state: ShardState, key: str, kind: str, rest: str) -> Callable[[Any], None] | None:
    """Ask for a key's value. Returns what takes it in, or None if nothing was asked."""
    if kind in ("rec", "counts", "quarantine"):
        pipeline.hgetall(key)
        return lambda found: _read_fields(state, kind, {name.decode(): value for name, value in found.items()})
    if kind in ("due", "heads", "held", "blocked", "leases", "bare", "finished", "retrying"):
        pipeline.zrange(key, 0, -1, withscores=True)
        return lambda found: _read_index(state, kind, rest, {name.decode(): score for name, score in found})
    if kind == "prefixes":
        pipeline.zrange(key, 0, -1, withscores=True)
        return lambda found: state.prefixes.update(
            {n.decode(): score for n, score in found if n.decode() != keys.WHOLE}
        )
    if kind in ("lease", "token"):
        pipeline.get(key)
        return lambda found: _read_value(state, kind, rest, found)
    if kind not in _UNCHECKED:
        state.unknown.append(key)
    return None


def _read_value(state: ShardState, kind: str, rest: str, value: bytes | None) -> None:
    if kind == "token":
        state.token = int(value or 0)
    elif value is not None:
        state.held[_identity(rest)] = value.decode()


def _read_record(state: ShardState, identity: Identity, record: bytes) -> None:
    if record[2:3] == b"w":
        state.waiting.add(identity)
    try:
        state.records[identity] = codec.decode(*identity, record)
    except codec.CorruptRecord as error:
        state.unreadable[identity] = str(error)


def _read_fields(state: ShardState, kind: str, fields: Mapping[str, bytes]) -> None:
    for name, value in fields.items():
        if kind == "rec":
            _read_record(state, _identity(name), value)
        elif kind == "quarantine":
            state.quarantine[_identity(name)] = value.decode(errors="replace")
        else:
            letter, _, prefix = name.partition(" ")
            state.counts[codec.STATUSES[letter], prefix] = int(value)


def _read_index(state: ShardState, kind: str, rest: str, scores: Mapping[str, float]) -> None:
    if kind == "retrying":
        state.retrying |= {(rest, name): score for name, score in scores.items() if rest}
        state.retrying_counts |= {} if rest else scores
    for name, score in scores.items():
        match kind:
            case "due":
                state.due[rest, name] = score
            case "heads":
                state.heads[name] = score
            case "held":
                state.blocked_heads[name] = score
            case "blocked":
                state.blocked.add(name)
            case "leases":
                state.leases[_identity(name)] = score
            case "bare":
                state.bare[_identity(name)] = score
            case "finished":
                letter, _, prefix = rest.partition(":")
                state.finished[codec.STATUSES[letter], (prefix, name)] = score


def _identity(member: str) -> Identity:
    prefix, _, timer_id = member.partition(":")
    return prefix, timer_id


def disorder(state: ShardState) -> list[str]:
    """Contradictions and leftovers, as sentences; empty if everything is conserved."""
    return [
        *(f"{name} has a record that cannot be read: {why}" for name, why in state.unreadable.items()),
        *(f"{key} is no key of the protocol" for key in state.unknown),
        *_wrong_counts(state),
        *_wrong_due(state),
        *_wrong_running(state),
        *_wrong_finished(state),
        *_wrong_retrying(state),
    ]


def _wrong_counts(state: ShardState) -> Iterator[str]:
    there = Counter((timer.status, timer.prefix) for timer in state.records.values())
    for kind in sorted({*there, *state.counts}):
        if there[kind] != state.counts.get(kind, 0):
            yield f"{kind[1]} counts {state.counts.get(kind, 0)} {kind[0]}, there are {there[kind]}"
        elif not there[kind]:
            yield f"{kind[1]} still has a count of {kind[0]}, and it is 0"
    yield from _differences("prefixes", state.prefixes, dict.fromkeys((prefix for _, prefix in state.counts), 0))


def _wrong_due(state: ShardState) -> Iterator[str]:
    scheduled = {name: timer.due_ms for name, timer in state.records.items() if timer.status is Status.SCHEDULED}
    yield from _differences("due index", {n: int(score) for n, score in state.due.items()}, scheduled)
    earliest: dict[str, float] = {}
    for (prefix, _), score in state.due.items():
        earliest[prefix] = min(score, earliest.get(prefix, score))
    yield from _differences("heads", state.heads, {p: score for p, score in earliest.items() if p not in state.blocked})
    yield from _differences(
        "held", state.blocked_heads, {p: score for p, score in earliest.items() if p in state.blocked}
    )
    for name in sorted(state.triggers - set(state.due)):
        yield f"{name} has a trigger key and is not in the due index"
    for name, score in state.due.items():
        if score - 1 > state.now_ms and name not in state.triggers:  # a trigger ends a millisecond before
            yield f"{name} is due later and has no trigger key"
    for name in sorted(state.waiting):
        if state.bare.get(name) != scheduled[name]:
            yield f"{name} waits for a bare key of which nothing is known"


def _wrong_running(state: ShardState) -> Iterator[str]:
    running = {name: timer.token for name, timer in state.records.items() if timer.status is Status.RUNNING}
    yield from _differences("leases", dict.fromkeys(state.leases), dict.fromkeys(running))
    for name, held in state.held.items():
        if held.rpartition(" ")[2] != str(running.get(name)):
            yield f"{name} has a lease {held!r}, its running token is {running.get(name)}"
    for name, timer in state.records.items():
        if timer.token > state.token:
            yield f"{name} has token {timer.token}, the shard gave only {state.token}"


def _wrong_finished(state: ShardState) -> Iterator[str]:
    finished = {(timer.status, name) for name, timer in state.records.items() if timer.status.finished}
    yield from _differences("finished index", dict.fromkeys(state.finished), dict.fromkeys(finished))


def _wrong_retrying(state: ShardState) -> Iterator[str]:
    retrying = [name for name, timer in state.records.items() if timer.is_retrying]
    yield from _differences("retrying index", dict.fromkeys(state.retrying), dict.fromkeys(retrying))
    yield from _differences("retrying counts", state.retrying_counts, Counter(prefix for prefix, _ in retrying))


def _differences(what: str, index: Mapping[Any, object], wanted: Mapping[Any, object]) -> Iterator[str]:
    for name in sorted({*index, *wanted}, key=str):
        if name not in wanted:
            yield f"{what}: {name} is left over"
        elif name not in index:
            yield f"{what}: {name} is missing"
        elif index[name] != wanted[name]:
            yield f"{what}: {name} has {index[name]}, its record says {wanted[name]}"


async def conserved(store: Store) -> None:
    """Raises AssertionError with every contradiction in all shards of the store. Call it while nothing runs."""
    found = [f"shard {n}: {said}" for n in range(store.shards) for said in disorder(await state_of(store, n))]
    assert not found, "\n".join(["not conserved:", *found])
