"""Owns reading a db as a whole: counts, the oldest overdue timer, and why timers fail. Changes nothing; raises
Unavailable."""

import re
from collections import Counter
from collections.abc import AsyncIterator, Container, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Final, NamedTuple

from timers.core.durations import format_time
from timers.core.fields import OWN_PREFIXES, decode, is_own
from timers.core.model import Status
from timers.store import codec, keys, scripts
from timers.store.cooperative import cooperatively
from timers.store.filters import ALL, Filter
from timers.store.notifications import is_time
from timers.store.store import Store

WAITING_LIMIT: Final = 1000
"""Queues, and runs to be rescued, that a shard names as waiting for a pod."""

_KINDS: Final = {"heads": "ready", "held": "blocked", "leases": "lost"}
"""By the index of a shard, what its entries are that are over."""

OWN_QUEUES: Final = 100
"""More queues than the service has of its own in a shard: one for each target of a hook or an alarm."""

PROGRESS_BYTES: Final = 256 * 1024
"""Bytes of errors read from one queue at a time."""

QUARANTINED_SHOWN: Final = 3
RETRYING_SHOWN: Final = 20
RETRYING_READ: Final = 1000
"""Of so many prefixes the first retrying timer is looked for: where there are several shards, of fewer, because each is
asked."""

_OWN: Final = OWN_PREFIXES.encode()


class DueQueue(NamedTuple):
    """A queue with something due, and since when (ms): timers that are `ready` or `blocked` (paused, at a limit), or
    `lost` runs, whose lease is over."""

    shard: int
    prefix: str
    since_ms: float
    kind: str


FAILING_MS: Final = 300_000
"""Timers that have failed and been tried again for so long will hardly recover by themselves."""

GROUPED: Final = 200
"""How many of the newest timers of a prefix and status are read to find the groups."""

NO_ERROR: Final = "no error recorded"
GROUP_LIMIT_CHARACTERS: Final = 160
LOOKED_AT_CHARACTERS: Final = 4 * GROUP_LIMIT_CHARACTERS

_VARYING: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f-]{27}|\b0[0-9a-z]{21}\b|\b(?=[a-f]*\d)[0-9a-f]++\b", re.IGNORECASE)
"""A UUID, an id that the service made, or a word of hex digits with a number in it. Callers choose the text, so it
takes linear time (`++`)."""


def error_group(error: Mapping[str, Any] | None) -> str:
    """What errors of one kind have in common: their type and reason, with `#` for each number or hash."""
    if not error:
        return NO_ERROR
    return _VARYING.sub("#", error_text(error)[:LOOKED_AT_CHARACTERS])[:GROUP_LIMIT_CHARACTERS]


def error_text(error: Mapping[str, Any]) -> str:
    """An error on one line: its type and reason."""
    return " ".join(f"{error.get('type', '')}: {error.get('reason', '')}".split()) if error else NO_ERROR


@dataclass(frozen=True, slots=True)
class Group:
    """Timers of a prefix and status with the same error: how many of those looked at, and the newest with its own
    text."""

    status: Status
    error: str
    example: str
    number: int
    newest_id: str
    newest_ms: int


@dataclass(frozen=True, slots=True)
class Ending:
    """Why a timer ended, or since when and why it is retrying, without its payload. `error` is its `last_error`."""

    id: str
    at_ms: int
    error: Mapping[str, Any]


async def counts(store: Store) -> dict[str, dict[Status, int]]:
    """How many timers of each prefix are in each status; zeros left out."""
    found: dict[str, dict[Status, int]] = {}
    async for _, prefix, status, n in counted(store):
        statuses = found.setdefault(prefix, {})
        statuses[status] = statuses.get(status, 0) + n
    return found


async def totals(store: Store) -> dict[Status, int]:
    """How many timers are in each status, without the service's own: half the work of `counts` where there are many
    prefixes."""
    total = Counter[bytes]()
    found = dict.fromkeys(Status, 0)
    for of_shard, failing in await _counted(store):
        found[Status.RETRYING] += sum(int(n) for prefix, n in failing if is_time(n) and not prefix.startswith(_OWN))
        async for field, n in cooperatively(of_shard.items()):
            if not field.startswith(_OWN, 2):
                total[field[:1]] += keys.number(n)
    for letter, status in codec.STATUSES.items():
        found[status] += total[letter.encode()]
    return found


async def counted(store: Store, only: str | None = None) -> AsyncIterator[tuple[int, str, Status, int]]:
    """Shard, prefix, status and number of timers, if above zero, for all prefixes or for one. Unreadable counts are
    left out. The retrying timers count beside the scheduled ones, and among them."""
    for shard, (of_shard, failing) in enumerate(await _counted(store, only)):
        async for field, n in cooperatively(of_shard.items()):
            status = codec.STATUSES.get(field[:1].decode(errors="replace"))
            if status is not None and (number := keys.number(n)):
                yield shard, keys.text(field[2:]), status, number
        for prefix, score in failing:
            if is_time(score) and int(score):
                yield shard, keys.text(prefix), Status.RETRYING, int(score)


async def _counted(store: Store, only: str | None = None) -> Sequence[Sequence[Any]]:
    """The counts of each shard, and the number of its retrying timers by prefix."""
    if only is None:
        return await store.of_shards(
            lambda asked, root: asked.hgetall(f"{root}counts").zrange(f"{root}retrying", 0, -1, withscores=True), {}, []
        )
    fields = [f"{letter} {only}".encode() for letter in codec.STATUSES]
    some = await store.of_shards(
        lambda asked, root: asked.hmget(f"{root}counts", fields).zscore(f"{root}retrying", only),
        *([None] * len(fields), None),
    )
    return [(dict(zip(fields, values, strict=True)), [] if n is None else [(only.encode(), n)]) for values, n in some]


async def added_up(store: Store, fields: Sequence[str]) -> list[int]:
    """How many timers the shards count together under each of these fields: `<status letter> <prefix>`."""
    answers = await store.of_shards(lambda asked, root: asked.hmget(f"{root}counts", fields), [None] * len(fields))
    return [sum(map(keys.number, counts)) for counts in zip(*(of_shard for (of_shard,) in answers), strict=True)]


async def retrying(store: Store, wanted: Filter = ALL, *, own: bool = False) -> list[tuple[str, int, int]]:
    """The prefixes with most retrying timers, and those of which one has failed longest, of those that the filter
    covers and with `own` the service's own: how many, and since when (ms) the first of them has failed."""
    numbers = Counter[bytes]()
    most = max(RETRYING_SHOWN, RETRYING_READ // store.shards)
    at_most = {"start": 0, "num": most + OWN_QUEUES} if wanted.is_of_all else {}

    numbered = await store.of_shards(
        lambda asked, root: asked.zrevrangebyscore(f"{root}retrying", "+inf", "-inf", withscores=True, **at_most), []
    )
    for (of_shard,) in numbered:
        known = [(keys.text(prefix), prefix, int(n)) for prefix, n in of_shard if is_time(n)]
        numbers.update({raw: n for prefix, raw, n in known if (own and is_own(prefix)) or wanted.covers(prefix)})
    found = numbers.most_common(most)

    names = [keys.text(prefix) for prefix, _ in found]
    firsts = await store.of_shards(
        lambda asked, root: [asked.zrange(f"{root}retrying:{name}", 0, 0, withscores=True) for name in names], []
    )
    failing: list[tuple[str, int, int]] = []
    for place, (name, (_, n)) in enumerate(zip(names, found, strict=True)):
        since = [int(ms) for of_shard in firsts for _, ms in of_shard[place] if is_time(ms)]
        failing += [(name, n, min(since))] if since else []  # without one, the last of them is being tried by now
    longest = sorted(failing, key=itemgetter(2))[:RETRYING_SHOWN]
    return list(dict.fromkeys([*failing[:RETRYING_SHOWN], *longest]))


async def running(store: Store, shards: Sequence[int]) -> list[str]:
    """`<prefix>:<id>` of the running timers of some shards, sorted."""
    members = await store.of_shards(lambda asked, root: asked.zrange(f"{root}leases", 0, -1), [], shards=shards)
    return sorted(keys.text(member) for (of_shard,) in members for member in of_shard)


async def due(store: Store) -> tuple[list[DueQueue], int]:
    """The queues with timers that are due or runs that are lost, those of each kind and shard that have waited longest,
    and the server's time."""
    now_ms = await store.now_ms()
    waiting = await store.of_shards(
        lambda asked, root: [
            asked.zrangebyscore(f"{root}{index}", "-inf", f"({now_ms + 1}", 0, WAITING_LIMIT, withscores=True)
            for index in _KINDS
        ],
        [],
    )
    found: dict[tuple[int, str, str], DueQueue] = {}
    for shard, of_shard in enumerate(waiting):
        for entries, kind in zip(of_shard, _KINDS.values(), strict=True):
            for name, since_ms in entries:
                prefix = keys.text(name.partition(b":")[0])
                found.setdefault((shard, prefix, kind), DueQueue(shard, prefix, since_ms, kind))
    return list(found.values()), now_ms


async def earliest_due(store: Store, *, blocked: bool = True) -> dict[str, int]:
    """The earliest due time of each prefix with scheduled timers; without `blocked`, of those that may run now."""
    found: dict[str, int] = {}
    indexes = ("heads", "held") if blocked else ("heads",)
    heads = await store.of_shards(
        lambda asked, root: [asked.zrange(f"{root}{index}", 0, -1, withscores=True) for index in indexes], []
    )
    async for member, score in cooperatively(head for of_shard in heads for index in of_shard for head in index):
        if is_time(score):
            prefix = keys.text(member)
            found[prefix] = min(int(score), found.get(prefix, int(score)))
    return found


async def paused(store: Store) -> list[str]:
    """The paused prefixes."""
    found = await store.of_shards(lambda asked, root: asked.smembers(f"{root}paused"), set())
    return sorted({keys.text(member) for (members,) in found for member in members})


async def blocked_until(store: Store, prefix: str, shard: int) -> tuple[float | None, Sequence[int]]:
    """Until when nothing of a queue may start (None, epoch ms, or `inf` while it is paused), and when it was last
    paused and resumed."""
    ((blocked, pause),) = await store.of_shards(
        lambda asked, root: asked.zscore(f"{root}blocked", prefix).hget(f"{root}pauses", prefix),
        *(None, None),
        shards=[shard],
    )
    return blocked, keys.times(pause or b"")


ENDED: Final = (Status.COMPLETED, Status.FAILED, Status.UNHANDLED, Status.RETRYING)
"""The statuses that `ended` counts."""


async def ended(
    store: Store, wanted: Mapping[str, Container[Status]], *, step_ms: int, steps: int
) -> dict[str, dict[Status, list[int]]]:
    """For each prefix and those statuses of ENDED that it has, how many of its timers ended that way, or began to fail,
    in each of the last steps of time, the current one last. What was tried again, purged or has left by its retention
    is not counted, nor a repeating timer before its last run."""
    indexes = [(prefix, status) for prefix, known in wanted.items() for status in ENDED if status in known]
    names = [
        f"retrying:{prefix}" if status is Status.RETRYING else f"finished:{codec.LETTERS[status]}:{prefix}"
        for prefix, status in indexes
    ]
    found: dict[str, dict[Status, list[int]]] = {prefix: {} for prefix in wanted}
    for _, counts in await store.run_everywhere("steps", ["past", step_ms, steps, *names]) if names else ():
        for place, (prefix, status) in enumerate(indexes):
            before = found[prefix].get(status, [0] * steps)
            found[prefix][status] = list(map(sum, zip(before, counts[place * steps :], strict=False)))
    return found


async def quarantined(store: Store) -> tuple[int, dict[str, str]]:
    """How many timers are set aside because they cannot be read, and a few of them (member → reason)."""
    kept = await store.of_shards(
        lambda asked, root: asked.hlen(f"{root}quarantine").hscan(f"{root}quarantine", count=QUARANTINED_SHOWN),
        0,
        (0, {}),
    )
    found = [(keys.text(member), _reason(raw)) for _, (_, members) in kept for member, raw in members.items()]
    return sum(number for number, _ in kept), dict(found[:QUARANTINED_SHOWN])


class Aside(NamedTuple):
    """What lies beside the timers of all shards: how many changes wait for a pod to arm the calls of hooks and alarms,
    for how many ms the oldest has, and how many timers are set aside because they cannot be read."""

    posted: int
    posted_ms: int
    quarantined: int


async def aside(store: Store) -> Aside:
    """What waits beside the timers now. Raises Unavailable."""
    answers = await store.of_shards(
        lambda asked, root: asked.xlen(f"{root}outbox").xrange(f"{root}outbox", count=1).hlen(f"{root}quarantine"),
        *(0, [], 0),
    )
    since_ms = [int(entry_id.partition(b"-")[0]) for _, oldest, _ in answers for entry_id, _ in oldest]
    now_ms = round(store.clock.now_ms())
    return Aside(
        sum(length for length, *_ in answers),
        max(0, now_ms - min(since_ms, default=now_ms)),
        sum(number for *_, number in answers),
    )


async def endings(store: Store, prefix: str, status: Status, most: int) -> list[Ending]:
    """The timers that ended this way, or began to fail, last: in a bounded number of bytes. Raises Unavailable."""
    asked: list[scripts.Argument] = [codec.LETTERS[status], prefix, "-inf", "+inf", "", "", most, PROGRESS_BYTES]
    found = [
        Ending(keys.text(timer_id), int(float(at)) if is_time(float(at)) else 0, _error(progress))
        for _, listed, _ in await store.run_everywhere("list", [*asked, "newest", "progress"])
        for timer_id, at, progress in scripts.grouped(listed, 3)
    ]
    return sorted(found, key=lambda ending: ending.at_ms, reverse=True)[:most]


async def groups(store: Store, prefix: str, status: Status) -> tuple[list[Group], int]:
    """The newest timers of a prefix and status by their errors, the largest group first, and how many were looked at.
    Raises Unavailable."""
    found = await endings(store, prefix, status, GROUPED)
    names = [error_group(ending.error) for ending in found]
    newest = dict(zip(reversed(names), reversed(found), strict=True))
    return [
        Group(status, name, error_text(newest[name].error), number, newest[name].id, newest[name].at_ms)
        for name, number in Counter(names).most_common()
    ], len(found)


async def long_failing(store: Store, *, for_ms: int = FAILING_MS) -> dict[str, str]:
    """For each prefix with a timer that has failed for this long and is tried again: how many do, since when, and the
    commonest error. Only the prefixes with most, and those that have failed longest. Raises Unavailable."""
    until_ms = store.clock.now_ms() - for_ms
    by_prefix: dict[str, str] = {}
    for prefix, number, since_ms in await retrying(store):
        if since_ms <= until_ms:
            found, _ = await groups(store, prefix, Status.RETRYING)
            by_prefix[prefix] = f"{number} of {prefix}, the first since {format_time(since_ms)}" + (
                f", most of them by {found[0].error!r}" if found else ""
            )
    return by_prefix


def _error(progress: bytes | None) -> Mapping[str, Any]:
    """The last error in a record's progress; empty if it cannot be read."""
    try:
        error = decode(progress or b"")["last_error"]
    except (ValueError, KeyError, TypeError):
        return {}
    return error if isinstance(error, dict) else {}


def _reason(kept: bytes) -> str:
    """Of `<ms> <reason>`, newline, the record as it was."""
    return keys.text(kept.partition(b"\n")[0].partition(b" ")[2])
