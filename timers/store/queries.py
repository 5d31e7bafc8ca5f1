"""Owns reading many timers: pages of an index, counts, the oldest overdue, the stream of changes. Changes nothing."""

import base64
import json
import re
from bisect import bisect_right
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final

from timers.core.causes import in_english
from timers.core.model import Status, Timer
from timers.errors import InvalidInput
from timers.store import codec, keys
from timers.store.filters import Filter
from timers.store.scripts import Argument, reachable
from timers.store.store import Store
from timers.store.subscription import Subscription

PAGE_LIMIT: Final = 1000
LOOKS_PER_ITEM: Final = 10
"""Records that a filter may reject for each place on a page; then the page ends early and its cursor goes on."""

LOOKS_AT_LEAST: Final = 2000
"""Records that a page looks at before it ends early, however short it is to be."""

READ_AFTER_REJECTS: Final = 250
"""Records that are read at a time where a filter rejects most of them."""

Queue = tuple[int, str]
"""A shard and a prefix."""

WANTING_LIMIT: Final = 1000
"""Queues, and runs to be rescued, that a shard names as wanting a pod: those that have waited longest."""

QUARANTINED_SHOWN: Final = 3

_ORDER: Final = (
    Status.RUNNING,
    Status.SCHEDULED,
    Status.FAILED,
    Status.UNHANDLED,
    Status.COMPLETED,
    Status.CANCELLED,
)
_ADOPTED: Final = "adopted"
_SCORE: Final = re.compile(r"[0-9]{1,17}(\.[0-9]{1,17})?")


@dataclass(frozen=True, slots=True, order=True)
class _Source:
    """One index to read: by the place of its status in the order, its prefix, its name, its shard."""

    place: int
    prefix: str
    index: str
    shard: int

    @property
    def by_due(self) -> bool:
        """Whether its scores are due times."""
        return self.index in ("due", _ADOPTED)

    @property
    def listing(self) -> tuple[int, str, str]:
        """What it has in common with the same index of the other shards."""
        return self.place, self.prefix, self.index


@dataclass(frozen=True, slots=True)
class _Place:
    """How far a listing has come: the last item read of a source."""

    source: _Source
    score: str
    member: str

    @property
    def order(self) -> tuple[float, str]:
        """Where it stands among those of its index, over all shards."""
        return float(self.score or 0), self.member


_Item = tuple[Timer | None, _Place]
"""What stands at a place; None where no record can be read."""


def _order(item: _Item) -> tuple[float, str]:
    return item[1].order


@dataclass(frozen=True, slots=True)
class Page:
    """Timers, and the cursor to go on with; None at the end."""

    items: list[Timer]
    next_cursor: str | None


@dataclass(frozen=True, slots=True)
class Change:
    """A timer changed: what it is now, and why."""

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

    @property
    def note(self) -> str:
        """The cause in English, with what only this change knows."""
        return in_english(self.cause, self.text)


class Queries:
    """Reads of one db."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._redis = store.connections.commands

    async def page(self, wanted: Filter, *, limit: int = 100, cursor: str | None = None) -> Page:
        """The next timers that pass: by status (running first), then prefix, then due time or time of the end. Pages
        cost the same however many timers there are. Raises InvalidInput for a cursor that this did not make."""
        place = _read_cursor(cursor)
        items: list[Timer] = []
        looked, most_looks = 0, max(limit * LOOKS_PER_ITEM, LOOKS_AT_LEAST)

        def wanting() -> int:
            """How many records are worth reading now."""
            return max(limit - len(items), min(looked - len(items), READ_AFTER_REJECTS))

        for index, sources in groupby(await self._sources(wanted), key=lambda source: source.listing):
            if place is not None and index < place.source.listing:
                continue
            after = place if place is not None and index == place.source.listing else None
            async with aclosing(self._merged(list(sources), wanted, after, wanting)) as batches:
                async for batch in batches:
                    for timer, at in batch:
                        looked += 1
                        if timer is not None and wanted.wants(timer):
                            items.append(timer)
                        if len(items) == limit or looked == most_looks:
                            return Page(items, _write_cursor(at))
        return Page(items, None)

    async def pages(self, wanted: Filter, *, limit: int = PAGE_LIMIT) -> AsyncIterator[list[Timer]]:
        """All timers that pass, so many at a time, in the order of `page`."""
        page = await self.page(wanted, limit=limit)
        yield page.items
        while page.next_cursor is not None:
            page = await self.page(wanted, limit=limit, cursor=page.next_cursor)
            yield page.items

    async def counts(self) -> dict[str, dict[Status, int]]:
        """How many timers of each prefix are in each status; zeros left out."""
        found: dict[str, dict[Status, int]] = {}
        async for _, prefix, status, n in self._counted():
            statuses = found.setdefault(prefix, {})
            statuses[status] = statuses.get(status, 0) + n
        return found

    async def waiting_queues(self) -> list[Queue]:
        """The queues with timers that are scheduled, those of bare keys too."""
        return [(shard, prefix) async for shard, prefix, status, _ in self._counted() if status is Status.SCHEDULED]

    async def _counted(self) -> AsyncIterator[tuple[int, str, Status, int]]:
        for shard in range(self._store.shards):
            with reachable():
                counted: Any = await self._redis.hgetall(f"{keys.root(shard)}counts")
            for field, n in counted.items():
                letter, _, prefix = field.decode().partition(" ")
                if int(n):
                    yield shard, prefix, codec.STATUSES[letter], int(n)

    async def due_queues(self) -> list[Queue]:
        """The queues with timers that are due or to be rescued, asked of all shards together."""
        now_ms, shards = await self._store.now_ms(), range(self._store.shards)
        with reachable():
            async with self._redis.pipeline(transaction=False) as asked:
                for shard in shards:
                    root = keys.root(shard)
                    asked.zrangebyscore(f"{root}heads", "-inf", f"({now_ms + 1}", start=0, num=WANTING_LIMIT)
                    asked.zrangebyscore(f"{root}leases", "-inf", now_ms, start=0, num=WANTING_LIMIT)
                answers: list[list[bytes]] = await asked.execute()
        members = zip(shards, answers[::2], answers[1::2], strict=True)
        found = {(shard, m.partition(b":")[0].decode()) for shard, due, orphans in members for m in (*due, *orphans)}
        return sorted(found)

    async def oldest_due_ms(self) -> int | None:
        """The earliest due time of all that is scheduled; None where nothing is."""
        heads: list[float] = []
        for shard in range(self._store.shards):
            with reachable():
                for name in ("heads", _ADOPTED):
                    first: Any = await self._redis.zrange(f"{keys.root(shard)}{name}", 0, 0, withscores=True)
                    heads += [score for _, score in first]
        return int(min(heads)) if heads else None

    async def heads(self) -> dict[str, int]:
        """The earliest due time of each prefix that has any scheduled; adopted bare keys not counted."""
        found: dict[str, int] = {}
        for shard in range(self._store.shards):
            with reachable():
                heads: Any = await self._redis.zrange(f"{keys.root(shard)}heads", 0, -1, withscores=True)
            for member, score in heads:
                prefix = member.decode()
                found[prefix] = min(int(score), found.get(prefix, int(score)))
        return found

    async def paused(self) -> list[str]:
        """The paused prefixes."""
        names: set[str] = set()
        for shard in range(self._store.shards):
            with reachable():
                members: Any = await self._redis.smembers(f"{keys.root(shard)}paused")
            names.update(member.decode() for member in members)
        return sorted(names)

    async def quarantined(self) -> tuple[int, dict[str, str]]:
        """How many timers are kept aside because they cannot be read, and a few of them (member → reason)."""
        number, some = 0, dict[str, str]()
        for shard in range(self._store.shards):
            key = f"{keys.root(shard)}quarantine"
            with reachable():
                number += int(await self._redis.hlen(key))
                if len(some) < QUARANTINED_SHOWN:
                    found: Any = (await self._redis.hscan(key, count=QUARANTINED_SHOWN))[1]
                    some.update((member.decode(), _reason(kept)) for member, kept in found.items())
        return number, dict(list(some.items())[:QUARANTINED_SHOWN])

    async def changes(self, sink: Callable[[Change | None], None]) -> None:
        """Pass on every change from now on, None at the subscription. Raises Unavailable when the connection breaks."""
        channel = keys.events_channel(self._store.connections.db).encode()
        await Subscription(self._store.connections, (channel,)).stream(lambda _, data: sink(_change(data)))

    async def _sources(self, wanted: Filter) -> list[_Source]:
        """The indexes that may hold what is wanted, in listing order."""
        known = [wanted.prefix] if wanted.prefix is not None else await self.counts()
        prefixes = [prefix for prefix in known if wanted.sees(prefix)]
        statuses = [status for status in _ORDER if wanted.status in (None, status)]
        return sorted({source for status in statuses for source in self._of_status(status, prefixes)})

    def _of_status(self, status: Status, prefixes: Sequence[str]) -> Iterator[_Source]:
        place = _ORDER.index(status)
        for shard in range(self._store.shards):
            if status is Status.RUNNING:
                yield _Source(place, "", "running", shard)
                continue
            if status is Status.SCHEDULED:
                yield _Source(place, "", _ADOPTED, shard)
            for prefix in prefixes:
                yield _Source(place, prefix, "due" if status is Status.SCHEDULED else codec.LETTERS[status], shard)

    async def _merged(
        self, sources: Sequence[_Source], wanted: Filter, after: _Place | None, wanting: Callable[[], int]
    ) -> AsyncGenerator[Sequence[_Item]]:
        """The records of one index behind a place, those of all shards in one order, some at a time."""
        read_to: dict[_Source, _Place] = {}
        held: list[_Item] = []
        reading = list(sources)
        while reading:
            most = min(-(-wanting() // len(reading)), PAGE_LIMIT)
            for source in reading:
                batch, last = await self._batch(source, wanted, read_to.pop(source, after), most)
                held += batch
                if last is not None:
                    read_to[source] = last
            if len(sources) > 1:
                held.sort(key=_order)
            # What stands behind the end of what was read of another shard waits for the rest of it.
            reached = min((place.order for place in read_to.values()), default=None)
            ready = len(held) if reached is None else bisect_right(held, reached, key=_order)
            yield held[:ready]
            del held[:ready]
            reading = [source for source, place in read_to.items() if place.order == reached]

    async def _batch(
        self, source: _Source, wanted: Filter, after: _Place | None, most: int
    ) -> tuple[list[_Item], _Place | None]:
        """The next records of a source with their places, and the last place; None where the source is at its end."""
        if source.index == "running":
            return await self._running(source, after, most)
        low, high = "-inf", "+inf"
        if source.by_due:
            low = "-inf" if wanted.due_after_ms is None else str(wanted.due_after_ms)
            high = "+inf" if wanted.due_before_ms is None else str(wanted.due_before_ms)
        score, member = (after.score, after.member) if after else ("", "")
        arguments: list[Argument] = [source.index, source.prefix, low, high, score, member, most]
        (found,) = await self._store.run("list", source.shard, arguments)
        batch = [self._item(source, *found[i : i + 3]) for i in range(0, len(found), 3)]
        return batch, batch[-1][1] if len(batch) == most else None

    def _item(self, source: _Source, member: bytes, score: bytes, raw: bytes | None) -> _Item:
        name = member.decode()
        prefix, timer_id = name.split(":", 1) if source.index == _ADOPTED else (source.prefix, name)
        timer = None if raw is None else codec.readable(prefix, timer_id, raw)
        return timer, _Place(source, score.decode(), name)

    async def _running(self, source: _Source, after: _Place | None, most: int) -> tuple[list[_Item], _Place | None]:
        """Running timers by name: there are no more of them than the pods' concurrency, and their leases move."""
        with reachable():
            members: Any = await self._redis.zrange(f"{keys.root(source.shard)}leases", 0, -1)
        names = sorted(member.decode() for member in members)
        chosen = [name for name in names if after is None or name > after.member][:most]
        found = await self._store.get([(n.split(":", 1)[0], n.split(":", 1)[1]) for n in chosen])
        batch = [(timer, _Place(source, "", name)) for timer, name in zip(found, chosen, strict=True)]
        return batch, batch[-1][1] if len(batch) == most else None


def _reason(kept: bytes) -> str:
    """Of `<ms> <reason>`, newline, the record as it was."""
    return kept.partition(b"\n")[0].partition(b" ")[2].decode(errors="replace")


def check_limit(value: object) -> None:
    """Raises InvalidInput for what is no length of a page."""
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= PAGE_LIMIT:
        raise InvalidInput.of("limit", value, f"a whole number from 1 to {PAGE_LIMIT}")


def check_cursor(value: str | None) -> None:
    """Raises InvalidInput for a cursor that no list has answered."""
    _read_cursor(value)


def _change(data: bytes | None) -> Change | None:
    if data is None:
        return None
    member, letter, version, attempt, due, at, processor, said = data.decode().split("\n", 7)
    prefix, _, timer_id = member.partition(":")
    cause, _, text = said.partition(" ")
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
    )


def _write_cursor(place: _Place) -> str:
    source = place.source
    parts = [source.place, source.prefix, source.index, source.shard, place.score, place.member]
    return base64.urlsafe_b64encode(json.dumps(parts, separators=(",", ":")).encode()).decode().rstrip("=")


def _read_cursor(cursor: str | None) -> _Place | None:
    if cursor is None:
        return None
    try:
        parts: Any = json.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
    except (ValueError, RecursionError):
        parts = None
    if not isinstance(parts, list) or [type(part) for part in parts] != [int, str, str, int, str, str]:
        raise InvalidInput.of("cursor", cursor, "a next_cursor that a list has answered")
    place, prefix, index, shard, score, member = parts
    if score and not _SCORE.fullmatch(score):
        raise InvalidInput.of("cursor", cursor, "a next_cursor that a list has answered")
    return _Place(_Source(place, prefix, index, shard), score, member)
