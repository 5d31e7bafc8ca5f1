"""Owns reading a db as a whole: counts, the oldest overdue timer, and the stream of changes. Changes nothing."""

from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import cycle, islice
from typing import Any, Final, NamedTuple

from timers.core.causes import in_english
from timers.core.durations import MAX_TIME_MS
from timers.core.fields import OWN_PREFIXES
from timers.core.model import Status
from timers.store import codec, keys
from timers.store.filters import ALL, Filter
from timers.store.notifications import subscribe
from timers.store.scripts import read
from timers.store.store import Queue, Store
from timers.store.turns import in_turns

WANTING_LIMIT: Final = 1000
"""Queues, and runs to be rescued, that a shard names as wanting a pod: those that have waited longest."""

TOTALLED_AT_ONCE: Final = 1000
"""Counts added up before others get the loop: half a millisecond."""

OWN_QUEUES: Final = 100
"""More queues than the service has of its own in a shard: one for each target of a hook or an alarm."""

QUARANTINED_SHOWN: Final = 3
RETRYING_SHOWN: Final = 20

_Counts = Mapping[bytes, bytes | None]

_OWN: Final = OWN_PREFIXES.encode()


@dataclass(frozen=True, slots=True)
class Change:
    """A timer changed: what it is now, and why. `place` names the change, the same on every pod that hears it."""

    prefix: str
    id: str
    status: Status
    version: int
    attempt: int
    due_ms: int
    at_ms: int
    cause: str
    text: str = ""
    processor: str | None = None
    place: str = ""

    @property
    def note(self) -> str:
        """The cause in English, with the details of this change."""
        return in_english(self.cause, self.text)


class Retrying(NamedTuple):
    """How many timers of a prefix are retrying, and since when the first of them has failed."""

    prefix: str
    number: int
    since_ms: int


class Queries:
    """Reads one db."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._redis = store.connections.commands

    async def counts(self) -> dict[str, dict[Status, int]]:
        """How many timers of each prefix are in each status; zeros left out."""
        found: dict[str, dict[Status, int]] = {}
        async for _, prefix, status, n in self.counted():
            statuses = found.setdefault(prefix, {})
            statuses[status] = statuses.get(status, 0) + n
        return found

    async def totals(self, *, at_once: int = TOTALLED_AT_ONCE) -> dict[Status, int]:
        """How many timers are in each status, without the service's own: a fifth of the work of `counts` where there
        are many prefixes."""
        total = Counter[bytes]()
        found = dict.fromkeys(Status, 0)
        for counted, retrying in await self._counted():
            found[Status.RETRYING] += sum(
                int(n) for prefix, n in retrying if _is_time(n) and not prefix.startswith(_OWN)
            )
            fields: Iterator[tuple[bytes, bytes | None]] = iter(counted.items())
            async for _ in in_turns(range(0, len(counted), at_once)):
                for field, n in islice(fields, at_once):
                    if n is not None and n.isdigit() and not field.startswith(_OWN, 2):
                        total[field[:1]] += int(n)
        for letter, status in codec.STATUSES.items():
            found[status] += total[letter.encode()]
        return found

    async def waiting_queues(self) -> list[Queue]:
        """The queues with timers that are scheduled."""
        return [(shard, prefix) async for shard, prefix, status, _ in self.counted() if status is Status.SCHEDULED]

    async def counted(self, only: str | None = None) -> AsyncIterator[tuple[int, str, Status, int]]:
        """Shard, prefix, status and number of timers, if above zero, for all prefixes or for one. Unreadable counts are
        left out. The retrying timers count beside the scheduled ones, and among them."""
        for shard, (counted, retrying) in enumerate(await self._counted(only)):
            async for field, n in in_turns(counted.items()):
                status = codec.STATUSES.get(field[:1].decode(errors="replace"))
                if status is not None and n is not None and n.isdigit() and int(n):
                    yield shard, keys.text(field[2:]), status, int(n)
            for prefix, number in retrying:
                if _is_time(number) and int(number):
                    yield shard, keys.text(prefix), Status.RETRYING, int(number)

    async def _counted(self, only: str | None = None) -> list[tuple[_Counts, Sequence[tuple[bytes, float]]]]:
        """The counts of each shard, and the number of its retrying timers by prefix."""
        if only is None:

            def ask(asked: Any, root: str) -> object:
                return asked.hgetall(f"{root}counts").zrange(f"{root}retrying", 0, -1, withscores=True)

            whole = await self._of_shards(ask, {}, [])
            return list(zip(whole[::2], whole[1::2], strict=True))
        fields = [f"{letter} {only}".encode() for letter in codec.STATUSES]

        def ask_one(asked: Any, root: str) -> object:
            return asked.hmget(f"{root}counts", fields).zscore(f"{root}retrying", only)

        some = await self._of_shards(ask_one, [None] * len(fields), None)
        return [
            (dict(zip(fields, values, strict=True)), [] if n is None else [(only.encode(), n)])
            for values, n in zip(some[::2], some[1::2], strict=True)
        ]

    async def retrying(self, wanted: Filter = ALL) -> list[Retrying]:
        """The prefixes with most retrying timers, of those that the filter covers."""
        numbers = Counter[bytes]()
        at_most = {"start": 0, "num": RETRYING_SHOWN + OWN_QUEUES} if wanted.is_of_all else {}

        def ask_numbers(asked: Any, root: str) -> None:
            asked.zrevrangebyscore(f"{root}retrying", "+inf", "-inf", withscores=True, **at_most)

        for of_shard in await self._of_shards(ask_numbers, []):
            numbers.update({p: int(n) for p, n in of_shard if _is_time(n) and wanted.covers(keys.text(p))})
        found = numbers.most_common(RETRYING_SHOWN)

        def ask(asked: Any, root: str) -> None:
            for prefix, _ in found:
                asked.zrange(f"{root}retrying:{keys.text(prefix)}", 0, 0, withscores=True)

        firsts = await self._of_shards(ask, []) if found else []
        since = [
            min((int(ms) for of_shard in firsts[place :: len(found)] for _, ms in of_shard if _is_time(ms)), default=0)
            for place in range(len(found))
        ]
        return [Retrying(keys.text(prefix), n, ms) for (prefix, n), ms in zip(found, since, strict=True)]

    async def running(self, shards: Sequence[int]) -> list[str]:
        """`<prefix>:<id>` of the running timers of some shards, sorted."""
        members = await self._of_shards(lambda asked, root: asked.zrange(f"{root}leases", 0, -1), [], shards=shards)
        return sorted(keys.text(member) for members_of_shard in members for member in members_of_shard)

    async def due_queues(self, *, for_ms: int = 0, held: bool = True) -> list[Queue]:
        """The queues with timers that have been due, or waiting for rescue, for this long. Without `held`, leave out
        queues that may not run now: paused or at a limit."""
        until_ms = await self._store.now_ms() - for_ms
        indexes = ("heads", "leases", *(["held"] if held else []))

        def ask(asked: Any, root: str) -> None:
            for index in indexes:
                asked.zrangebyscore(f"{root}{index}", "-inf", f"({until_ms + 1}", start=0, num=WANTING_LIMIT)

        wanting = await self._of_shards(ask, [])
        found = {
            (n // len(indexes), keys.text(m.partition(b":")[0])) for n, members in enumerate(wanting) for m in members
        }
        return sorted(found)

    async def oldest_due_ms(self, *, held: bool = True) -> int | None:
        """The earliest due time of all scheduled timers but the service's own; None if there are none. Without `held`,
        only of prefixes that may run now: neither paused nor at a limit."""
        indexes = ("heads", "held") if held else ("heads",)
        firsts: list[Any] = []
        for last in (0, OWN_QUEUES):  # looks behind the service's own queues only if one of them is due first

            def first_of(asked: Any, root: str, last: int = last) -> None:
                for index in indexes:
                    asked.zrange(f"{root}{index}", 0, last, withscores=True)

            firsts = await self._of_shards(first_of, [])
            if not any(queue.startswith(_OWN) for first in firsts for queue, _ in first[:1]):
                break
        return min(
            (int(at) for first in firsts for queue, at in first if _is_time(at) and not queue.startswith(_OWN)),
            default=None,
        )

    async def heads(self, *, held: bool = True) -> dict[str, int]:
        """The earliest due time of each prefix with scheduled timers; `held` as above."""
        found: dict[str, int] = {}

        def ask(asked: Any, root: str) -> None:
            for index in ("heads", "held") if held else ("heads",):
                asked.zrange(f"{root}{index}", 0, -1, withscores=True)

        for heads in await self._of_shards(ask, []):
            async for member, score in in_turns(heads):
                if _is_time(score):
                    prefix = keys.text(member)
                    found[prefix] = min(int(score), found.get(prefix, int(score)))
        return found

    async def paused(self) -> list[str]:
        """The paused prefixes."""
        paused = await self._of_shards(lambda asked, root: asked.smembers(f"{root}paused"), set())
        return sorted({keys.text(member) for members in paused for member in members})

    async def holds(self, prefix: str, shard: int) -> tuple[float | None, Sequence[int]]:
        """Until when nothing of a queue may start (None, epoch ms, or `inf` while it is paused), and when it was last
        paused and resumed."""

        def ask(asked: Any, root: str) -> Any:
            return asked.zscore(f"{root}blocked", prefix).hget(f"{root}pauses", prefix)

        blocked, pause = await self._of_shards(ask, None, None, shards=[shard])
        return blocked, [int(ms) for ms in (pause or b"").split() if ms.isdigit()]

    async def ended(self, prefixes: Sequence[str], since_ms: int) -> Counter[str]:
        """How many timers of each prefix have completed, failed or become unhandled since then."""
        indexes = [(prefix, letter) for prefix in prefixes for letter in "cfu"]

        def ask(asked: Any, root: str) -> None:
            for prefix, letter in indexes:
                asked.zcount(f"{root}finished:{letter}:{prefix}", since_ms, "+inf")

        counted = Counter[str]()
        for (prefix, _), n in zip(cycle(indexes), await self._of_shards(ask, 0), strict=False):
            counted[prefix] += n
        return counted

    async def quarantined(self) -> tuple[int, dict[str, str]]:
        """How many timers are set aside because they cannot be read, and a few of them (member → reason)."""
        kept = await self._of_shards(
            lambda asked, root: asked.hlen(f"{root}quarantine").hscan(f"{root}quarantine", count=QUARANTINED_SHOWN),
            0,
            (0, {}),
        )
        found = [(keys.text(member), _reason(raw)) for _, members in kept[1::2] for member, raw in members.items()]
        return sum(kept[::2]), dict(found[:QUARANTINED_SHOWN])

    async def _of_shards(
        self, ask: Callable[[Any, str], object], *empty: object, shards: Sequence[int] | None = None
    ) -> list[Any]:
        """The answers of all shards, or some of them, in one round trip. `ask` gets a pipeline and a shard's root;
        `empty` is what its commands answer for missing keys."""
        async with self._redis.pipeline(transaction=False) as asked:
            for shard in range(self._store.shards) if shards is None else shards:
                ask(asked, keys.root(shard))
            return await read(asked, *empty)

    async def changes(self, sink: Callable[[Change | None], None]) -> None:
        """Pass on every change from now on, and None when the subscription is confirmed. Raises Unavailable when the
        connection breaks."""
        channel = keys.events_channel(self._store.connections.db).encode()

        def take(_channel: bytes, data: bytes | None) -> None:
            change = None if data is None else _change(data)
            if data is None or change is not None:
                sink(change)

        await subscribe(self._store.connections, (channel,), take)


def _is_time(score: float) -> bool:
    """Whether a score can be one of ours."""
    return 0 <= score <= MAX_TIME_MS + 1


def _reason(kept: bytes) -> str:
    """Of `<ms> <reason>`, newline, the record as it was."""
    return keys.text(kept.partition(b"\n")[0].partition(b" ")[2])


def _change(data: bytes) -> Change | None:
    """The change, or None if no script published this."""
    try:
        member, letter, version, attempt, due, at, processor, said = data.decode().split("\n", 7)
        prefix, _, timer_id = member.partition(":")
        cause, _, text = said.partition(" ")
        if not (_is_time(int(due)) and _is_time(int(at))):
            return None
        return Change(
            prefix,
            timer_id,
            codec.STATUSES[letter],
            version=int(version),
            attempt=int(attempt),
            due_ms=int(due),
            at_ms=int(at),
            cause=cause,
            text=text,
            processor=None if processor == "-" else processor,
            place=blake2b(data, digest_size=8).hexdigest(),
        )
    except (ValueError, KeyError):
        return None
