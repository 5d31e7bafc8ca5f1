"""Everything in a db, as the server has it and as the oracle expects it: records, indexes, counters and keys."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Self

from redis.asyncio import Redis
from redis.asyncio.client import Pipeline

from tests.property.oracle import Life, Line, Oracle
from timers.core.fields import encode
from timers.core.model import Progress, Status, Timer
from timers.store import keys
from timers.store.codec import LETTERS, decode
from timers.store.store import Identity, Store

FAR_MS: Final = 60_000
"""A trigger key that is to last longer is there for sure; a shorter one may have expired already."""

_PASSING: Final = re.compile(r"timers:meta|timers:\{\d+\}:(token|epoch|(answered|expiry):.*)")
_TRIGGER: Final = re.compile(r"[^:]*:\{\d+\}:.*")


class Record(NamedTuple):
    """A record's content, with the spec as JSON."""

    status: Status
    due_ms: int
    version: int
    token: int
    attempt: int
    failures: int
    occurrence: int
    spec: str
    progress: Progress
    history: list[Line]

    @classmethod
    def of(cls, timer: Timer | Life) -> Self:
        """Made from the server's timer or from the oracle's."""
        history = (
            timer.shown
            if isinstance(timer, Life)
            else [(e.status, e.attempt, e.pod, e.note) for e in reversed(timer.history)]
        )
        return cls(
            timer.status,
            timer.due_ms,
            timer.version,
            timer.token,
            timer.attempt,
            timer.failures,
            timer.occurrence,
            encode(timer.spec),
            timer.progress,
            history,
        )


@dataclass
class Content:
    """By key name. The members of a due index are in order, all others sorted. `strange` are unknown keys."""

    records: dict[str, Record] = field(default_factory=dict)
    queues: dict[str, list[str]] = field(default_factory=dict)
    heads: dict[str, int] = field(default_factory=dict)
    members: dict[str, list[str]] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    holders: dict[str, str] = field(default_factory=dict)
    triggers: set[str] = field(default_factory=set)
    bare: set[str] = field(default_factory=set)
    strange: list[str] = field(default_factory=list)

    def add(self, name: str, member: str) -> None:
        """Add a member of an index other than a queue."""
        _take_members(self, name, [member.encode()])


async def stored_content(redis: Redis) -> Content:
    """Everything in the db, read in two round trips."""
    found_keys: Any = await redis.keys("*")
    names = sorted(key.decode() for key in found_keys)
    readers = [(name, reader) for name in names if (reader := _reader(name)) is not None]
    async with redis.pipeline(transaction=False) as pipeline:
        for name, reader in readers:
            reader.ask(pipeline, name)
        answers = await pipeline.execute()
    found = Content()
    for (name, reader), answer in zip(readers, answers, strict=True):
        reader.take(found, name, answer)
    return found


@dataclass(frozen=True)
class _Reader:
    """How to read a kind of key, and what to add from the answer."""

    ask: Callable[[Any, str], object]
    take: Callable[[Content, str, Any], None]


def _take_trigger(found: Content, name: str, left_ms: int) -> None:
    if left_ms > FAR_MS:
        found.triggers.add(name)


def _take_heads(found: Content, name: str, scored: list[tuple[bytes, float]]) -> None:
    """Heads of blocked queues are elsewhere; tests/conservation.py checks which queues are blocked."""
    name = name.replace(":held", ":heads")
    found.heads.update({f"{name} {member.decode()}": int(score) for member, score in scored})


def _take_counts(found: Content, name: str, counts: dict[bytes, bytes]) -> None:
    found.counts.update({f"{name} {kind.decode()}": int(n) for kind, n in counts.items() if int(n)})


def _take_members(found: Content, name: str, members: Iterable[bytes]) -> None:
    found.members[name] = sorted([*found.members.get(name, []), *[member.decode() for member in members]])


def _take_records(found: Content, name: str, records: dict[bytes, bytes]) -> None:
    root = name.partition("rec:")[0]
    for member, raw in records.items():
        prefix, _, timer_id = member.decode().partition(":")
        found.records[f"{root}{prefix}:{timer_id}"] = Record.of(decode(prefix, timer_id, raw))


def _take_retrying(found: Content, name: str, scored: list[tuple[bytes, float]]) -> None:
    """The index of a prefix, or the number of members in each."""
    if name.endswith(":retrying"):
        found.counts.update({f"{name} {prefix.decode()}": int(n) for prefix, n in scored})
    else:
        _take_members(found, name, [member for member, _ in scored])


def _take_lease(found: Content, name: str, held: bytes) -> None:
    found.holders[name] = held.decode().partition(" ")[0]


def _take_queue(found: Content, name: str, members: list[bytes]) -> None:
    found.queues[name] = [member.decode() for member in members]


_SORTED: Final = _Reader(lambda pipeline, name: pipeline.zrange(name, 0, -1), _take_members)
_READERS: Final = {
    "due": _Reader(lambda pipeline, name: pipeline.zrange(name, 0, -1), _take_queue),
    "heads": _Reader(lambda pipeline, name: pipeline.zrange(name, 0, -1, withscores=True), _take_heads),
    "counts": _Reader(lambda pipeline, name: pipeline.hgetall(name), _take_counts),
    "rec": _Reader(lambda pipeline, name: pipeline.hgetall(name), _take_records),
    "held": _Reader(lambda pipeline, name: pipeline.zrange(name, 0, -1, withscores=True), _take_heads),
    **dict.fromkeys(("blocked", "pauses"), _Reader(Pipeline.exists, lambda found, name, _: None)),
    "paused": _Reader(lambda pipeline, name: pipeline.smembers(name), _take_members),
    "prefixes": _SORTED,
    "leases": _SORTED,
    "bare": _SORTED,
    "meanwhile": _Reader(lambda pipeline, name: pipeline.hkeys(name), _take_members),
    "finished": _SORTED,
    "retrying": _Reader(lambda pipeline, name: pipeline.zrange(name, 0, -1, withscores=True), _take_retrying),
    "lease": _Reader(lambda pipeline, name: pipeline.get(name), _take_lease),
}
_TRIGGERS: Final = _Reader(lambda pipeline, name: pipeline.pttl(name), _take_trigger)
_OF_CLIENTS: Final = _Reader(Pipeline.exists, lambda found, name, there: found.bare.update([name] * there))
_STRANGE: Final = _Reader(Pipeline.exists, lambda found, name, _: found.strange.append(name))


def _reader(name: str) -> _Reader | None:
    if _PASSING.fullmatch(name):
        return None
    if not name.startswith("timers:"):
        return _TRIGGERS if _TRIGGER.fullmatch(name) else _OF_CLIENTS
    return _READERS.get(name.partition("}:")[2].partition(":")[0], _STRANGE)


def expected_content(oracle: Oracle, store: Store, now_ms: int) -> Content:
    """The same content, as the oracle's timers require it."""
    wanted = Content(bare={":".join(identity) for identity in oracle.bare})
    for prefix in oracle.paused:
        for shard in range(store.shards):
            wanted.add(f"{keys.root(shard)}paused", prefix)
    for identity, life in oracle.lives.items():
        _expect(wanted, keys.root(store.shard_of(*identity)), identity, life, now_ms)
    for root, prefix in {(keys.root(store.shard_of(*identity)), identity[0]) for identity in oracle.lives}:
        wanted.add(f"{root}prefixes", prefix)
    for identity in oracle.known:
        wanted.add(f"{keys.root(store.shard_of(*identity))}bare", ":".join(identity))
    for identity in oracle.meanwhile:
        wanted.add(f"{keys.root(store.shard_of(*identity))}meanwhile", ":".join(identity))
    _expect_queues(wanted, oracle.lives, store)
    return wanted


def _expect(wanted: Content, root: str, identity: Identity, life: Life, now_ms: int) -> None:
    member, prefix = ":".join(identity), identity[0]
    letter = LETTERS[life.status]
    wanted.records[f"{root}{member}"] = Record.of(life)
    wanted.counts[f"{root}counts {letter} {prefix}"] += 1
    if life.status is Status.RUNNING:
        wanted.add(f"{root}leases", member)
        if life.leased and life.holder is not None:
            wanted.holders[f"{root}lease:{member}"] = life.holder
    elif life.status.finished:
        wanted.add(f"{root}finished:{letter}:{prefix}", identity[1])
    elif life.due_ms > now_ms + FAR_MS:
        wanted.triggers.add(f"{prefix}:{root[7:-1]}:{identity[1]}")
    if life.status is Status.SCHEDULED and life.failures:
        wanted.counts[f"{root}retrying {prefix}"] += 1
        wanted.add(f"{root}retrying:{prefix}", identity[1])


def _expect_queues(wanted: Content, lives: Mapping[Identity, Life], store: Store) -> None:
    queued = [i for i, life in lives.items() if life.status is Status.SCHEDULED]
    for identity in sorted(queued, key=lambda i: (lives[i].due_ms, lives[i].place)):
        root, due_ms = keys.root(store.shard_of(*identity)), lives[identity].due_ms
        wanted.queues.setdefault(f"{root}due:{identity[0]}", []).append(identity[1])
        wanted.heads.setdefault(f"{root}heads {identity[0]}", due_ms)
