"""Owns pages of timers: finds the indexes that hold what is wanted, reads them in one order over all shards, and makes
cursors."""

import base64
import json
from collections import Counter, deque
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from itertools import groupby, islice
from operator import gt, lt
from typing import Annotated, Any, Final, NamedTuple

from pydantic import ConfigDict, PlainValidator, StringConstraints, TypeAdapter, WithJsonSchema

from timers.core import shapes
from timers.core.fields import encode
from timers.core.model import Status, Timer
from timers.core.shapes import PAGE_LIMIT
from timers.errors import InvalidInput
from timers.store import codec, keys, queries
from timers.store.cooperative import cooperatively
from timers.store.filters import Filter
from timers.store.scripts import Argument, grouped
from timers.store.store import Store

LIST_LIMIT: Final = 100
"""Timers on a page if the caller gives no limit."""

PAGE_BYTES: Final = 2 * 1024 * 1024
"""A page ends at this many bytes of records, even if more timers were asked for."""

_ENTRY_BYTES: Final = 80
LARGEST_BYTES: Final = 64 * 1024
"""Roughly the largest size of a record. Until the real sizes are known, each record is assumed to have it."""

READS_PER_ITEM: Final = 10
"""Records that a filter may reject for each place on a page. After that the page ends early, and its cursor
continues."""

READS_AT_LEAST: Final = 2000
"""Records that a page reads before it may end early, however short the page."""

READ_AFTER_REJECTS: Final = 250
"""Records that are read at a time if a filter rejects most of them."""

ORDER: Final = (
    *(Status.RUNNING, Status.SCHEDULED, Status.FAILED, Status.UNHANDLED, Status.COMPLETED, Status.CANCELLED),
    Status.RETRYING,
)
"""The order of the statuses in every list. Cursors hold places in it, so new ones come last."""

_PLACES: Final = {status: place for place, status in enumerate(ORDER)}
_Score = Annotated[str, StringConstraints(pattern=r"^(-?(inf|[0-9]{1,17}(\.[0-9]{1,17})?(e[+-][0-9]{1,3})?))?$")]
_CURSOR: Final = TypeAdapter(tuple[int, str, str, int, _Score, str], config=ConfigDict(strict=True, defer_build=True))


class _Source(NamedTuple):
    """One index to read: the position of its status in the order, its prefix, name and shard, and how many timers it
    held when they were counted."""

    place: int
    prefix: str
    name: str
    shard: int
    holds: int = 0

    @property
    def listing(self) -> tuple[int, str, str]:
        """What it shares with the same index of the other shards."""
        return self[:3]


_RUNNING: Final = _Source(_PLACES[Status.RUNNING], "", "running", 0)
"""Stands for the running timers of all shards."""


class _Item(NamedTuple):
    """An entry of an index, and the timer and the size of its record; None if that cannot be read. It also says how far
    a listing has come."""

    source: _Source
    score: str
    member: str
    timer: Timer | None = None
    size: int = 0

    @property
    def order(self) -> tuple[float, str]:
        """Its position among the entries of its index, over all shards."""
        return float(self.score), self.member


_Read = tuple[list[_Item], bool]
"""Items from a source, and whether there are more after them."""


@dataclass(frozen=True, slots=True)
class Page:
    """Timers, and the cursor to continue with; None at the end."""

    items: list[Timer]
    next_cursor: str | None


class _Filling:
    """A page while it is being filled."""

    def __init__(self, wanted: Filter, limit: int, *, newest: bool) -> None:
        self.wanted, self._wants, self.newest = wanted, wanted.test(), newest
        self.items: list[Timer] = []
        self._limit, self._most_reads = limit, max(limit * READS_PER_ITEM, READS_AT_LEAST)
        self._read = self._read_bytes = self._bytes = 0

    def take(self, item: _Item) -> bool:
        """Take one more record. True if the page ends with it."""
        self._read += 1
        self._read_bytes += item.size
        if item.timer is not None and self._wants(item.timer):
            self.items.append(item.timer)
            self._bytes += item.size
        return len(self.items) == self._limit or self._bytes >= PAGE_BYTES or self._read == self._most_reads

    @property
    def wanting(self) -> int:
        """How many records are worth reading now."""
        return max(self._limit - len(self.items), min(self._read - len(self.items), READ_AFTER_REJECTS))

    @property
    def room(self) -> int:
        """How many records of average size make about a page."""
        average = self._read_bytes // self._read if self._read else LARGEST_BYTES
        return PAGE_BYTES // max(average, 1)


async def read_page(
    store: Store, wanted: Filter, *, limit: int = 100, cursor: str | None = None, newest: bool = False
) -> Page:
    """The next timers that pass: by status (running first), then prefix, then due time or end time, with `newest` the
    last due or ended first. Every page costs the same however many timers there are. Raises InvalidInput for a cursor
    that this function did not return."""
    filling = _Filling(wanted.at(store.clock.now_ms()), limit, newest=newest)
    async with aclosing(_items(store, filling, None if cursor is None else _read_cursor(cursor))) as parts:
        async for part in parts:
            for item in part:
                if filling.take(item):
                    return Page(filling.items, _write_cursor(item))
    return Page(filling.items, None)


async def read_pages(store: Store, wanted: Filter, *, limit: int = PAGE_LIMIT) -> AsyncIterator[list[Timer]]:
    """All timers that pass, a page at a time, in the order of `read_page`."""
    page = await read_page(store, wanted, limit=limit)
    yield page.items
    while page.next_cursor is not None:
        page = await read_page(store, wanted, limit=limit, cursor=page.next_cursor)
        yield page.items


async def _items(store: Store, filling: _Filling, after: _Item | None) -> AsyncGenerator[Sequence[_Item]]:
    """All records after a place, index by index, in parts. The place's own index needs no counts, so most pages of a
    long list take one round trip."""
    begun = [] if after is None else _begun(store, filling.wanted, after)
    async for part in _merged(store, await _read(store, dict.fromkeys(begun, after), filling), filling):
        yield part
    sources = await _sources(store, filling.wanted, after)
    running = [source.shard for source in sources if source.listing == _RUNNING.listing]
    async for part in _running(store, running, filling, after):
        yield part
    indexes = deque(list(index) for _, index in groupby(sources[len(running) :], key=lambda source: source.listing))
    while indexes:
        together = _take_first(indexes, filling.wanting, filling.room)
        read = await _read(store, dict.fromkeys(source for index in together for source in index), filling)
        for index in together:
            async for part in _merged(store, {source: read[source] for source in index}, filling):
                yield part


def _begun(store: Store, wanted: Filter, after: _Item) -> list[_Source]:
    """The index of the place on every shard, if it may hold wanted timers; none for running timers."""
    prefix = after.source.prefix
    statuses = [status for status in ORDER if status is not Status.RUNNING and wanted.covers(prefix, status)]
    sources = [_source(prefix, status, shard) for status in statuses for shard in range(store.shards)]
    return [source for source in sources if source.listing == after.source.listing]


async def _sources(store: Store, wanted: Filter, after: _Item | None) -> list[_Source]:
    """The indexes that may hold wanted timers, in listing order, after that of the place. Running timers are in one
    index, which may continue."""
    found: set[_Source] = set()
    covers, statuses = wanted.covering(), wanted.statuses
    async for shard, prefix, status, n in queries.counted(store, wanted.only_prefix):
        if status in statuses and covers(prefix):
            found.add(_source(prefix, status, shard, n))
    if after is None or after.source.listing == _RUNNING.listing:
        return sorted(found)
    return sorted(source for source in found if source.listing > after.source.listing)


def _source(prefix: str, status: Status, shard: int, holds: int = 0) -> _Source:
    """The index of a prefix and a status on a shard."""
    if status is Status.RUNNING:
        return _RUNNING._replace(shard=shard)
    return _Source(
        _PLACES[status], prefix, "due" if status is Status.SCHEDULED else codec.LETTERS[status], shard, holds
    )


async def _merged(store: Store, read: dict[_Source, _Read], filling: _Filling) -> AsyncGenerator[Sequence[_Item]]:
    """The records of one index over all shards in one order, beginning with those in `read`."""
    held: list[_Item] = []
    read_to: dict[_Source, _Item] = {}
    first, passed = (max, lt) if filling.newest else (min, gt)
    while read:
        for source, (items, more) in read.items():
            held += items
            if more:
                read_to[source] = items[-1]
        held.sort(key=lambda item: item.order, reverse=filling.newest)
        # Records after the end of another shard's part must wait for the rest of that part.
        reached = first((item.order for item in read_to.values()), default=None)
        ready = len(held) if reached is None else sum(not passed(item.order, reached) for item in held)
        yield held[:ready]
        del held[:ready]
        behind = {source: read_to.pop(source) for source in [*read_to] if read_to[source].order == reached}
        read = await _read(store, behind, filling) if behind else {}


async def _read(store: Store, asked: Mapping[_Source, _Item | None], filling: _Filling) -> dict[_Source, _Read]:
    """The next records of each source after its place, in one round trip; together about a page."""
    sharing = Counter(source.listing for source in asked)
    calls = [
        (
            keys.root(source.shard),
            [
                *_bounds(source, filling.wanted, after),
                -(-filling.wanting // sharing[source.listing]),
                PAGE_BYTES // len(asked),
                "newest" if filling.newest else "",
            ],
        )
        for source, after in asked.items()
    ]
    replies = await store.run_all("list", calls)
    return {
        source: ([item async for item in cooperatively(_items_of(source, found))], more > 0)
        for source, (_, found, more) in zip(asked, replies, strict=True)
    }


async def _running(
    store: Store, shards: Sequence[int], filling: _Filling, after: _Item | None
) -> AsyncGenerator[Sequence[_Item]]:
    """Running timers by name: there are no more of them than the pods' concurrency, and their leases move."""
    at = after.member if after and after.source.listing == _RUNNING.listing else ""
    names = iter([name for name in await queries.running(store, shards) if name > at])
    while some := list(islice(names, min(filling.wanting, filling.room))):
        timers = await store.get([keys.identity_of(name) for name in some])
        yield [
            _Item(_RUNNING, "", name, timer, 0 if timer is None else _size_of(timer))
            for name, timer in zip(some, timers, strict=True)
        ]


def _take_first(indexes: deque[list[_Source]], most: int, most_sources: int) -> list[list[_Source]]:
    """The indexes to read together: the first, and following ones that hold no more than is worth reading."""
    taken = [indexes.popleft()]
    held, sources = sum(source.holds for source in taken[0]), len(taken[0])
    while indexes and held < most and sources < most_sources:
        taken.append(indexes.popleft())
        held += sum(source.holds for source in taken[-1])
        sources += len(taken[-1])
    return taken


def _bounds(source: _Source, wanted: Filter, after: _Item | None) -> list[Argument]:
    """The index, the scores and the place to read from, as `list` takes them."""
    low, high = "-inf", "+inf"
    if source.place == _PLACES[Status.SCHEDULED]:
        low = low if wanted.due_after is None else str(wanted.due_after)
        high = high if wanted.due_before is None else str(wanted.due_before)
    return [source.name, source.prefix, low, high, *((after.score, after.member) if after else ("", ""))]


def _items_of(source: _Source, found: Sequence[Any]) -> Iterator[_Item]:
    """The answer of `list`."""
    for member, score, raw in grouped(found, 3):
        name = keys.text(member)
        timer = codec.readable(source.prefix, name, raw) if raw else None
        yield _Item(source, score.decode(), name, timer, len(raw or b""))


def _size_of(timer: Timer) -> int:
    """The approximate size of the timer's record."""
    body = len(encode(timer.spec)) + len(codec.encode_progress(timer.progress))
    return body + sum(_ENTRY_BYTES + len(entry.text) for entry in timer.history)


def check_cursor(value: object) -> str:
    """Read the cursor. Raises InvalidInput for one that no list has returned."""
    _read_cursor(value)
    return str(value)


def _write_cursor(place: _Item) -> str:
    parts = [*place.source[:4], place.score, place.member]
    return base64.urlsafe_b64encode(json.dumps(parts, separators=(",", ":")).encode()).decode().rstrip("=")


def _read_cursor(cursor: object) -> _Item:
    try:
        text = str(cursor)
        raw = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
        place, prefix, name, shard, score, member = _CURSOR.validate_json(raw)
    except ValueError:
        raise InvalidInput.of("", cursor, "a next_cursor from an earlier page") from None
    return _Item(_Source(place, prefix, name, shard), score, member)


def _checked_limit(value: object) -> int:
    number = (
        int(value) if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) < 9 else value
    )
    if isinstance(number, int) and not isinstance(number, bool) and 1 <= number <= PAGE_LIMIT:
        return number
    raise InvalidInput.of("", value, f"a whole number from 1 to {PAGE_LIMIT}")


class PageRequest(Filter):
    """A page of a list: which timers, how many, and where to continue."""

    limit: Annotated[int, PlainValidator(_checked_limit), WithJsonSchema(shapes.LIMIT)] = LIST_LIMIT
    cursor: Annotated[str, PlainValidator(check_cursor), WithJsonSchema(shapes.CURSOR)] | None = None
