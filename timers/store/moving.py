"""Owns a db's part in the move of a service: closing and opening its shards, reading records for an exact copy, putting
them there, and adding up what two copies must have in common.

A closed shard carries a stamp that nobody knows, so no script makes a timer there, and a mark that every change reads.
Both lie in the shard, so they hold for every pod and caller at once. The functions raise Unavailable.
"""

from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Final, NamedTuple

from timers.errors import Refused
from timers.store import keys
from timers.store.identity import NO_FORMAT
from timers.store.scripts import Argument, grouped, reachable, read
from timers.store.store import Store

PAGE: Final = 200
"""Records in one script call: some milliseconds of the server's time."""

PAGE_BYTES: Final = 500_000
"""Larger pages are followed by smaller ones."""

DIGESTED: Final = 500
"""Records that one call adds up."""

PART: Final = 64
"""Buckets of a shard that are copied one after the other."""

_BUCKETS: Final = 256

Part = tuple[int, int]
"""A shard, and the first of PART buckets."""

Digest = Mapping[str, tuple[int, int]]
"""By `<status letter> <prefix>`: how many records, and the sum of their hashes modulo 2^52."""


class Place(NamedTuple):
    """Where to go on in a part."""

    bucket: int
    cursor: str = "0"


class Copies(NamedTuple):
    """Records as members and what `put` takes, records that cannot be read (member, reason, record), and where to go
    on; None if that was all."""

    copies: Sequence[tuple[bytes, bytes]]
    unreadable: Sequence[tuple[bytes, bytes, bytes]]
    next: Place | None


def parts(store: Store) -> list[Part]:
    """All records of the db, in parts."""
    return [(shard, first) for first in range(0, _BUCKETS, PART) for shard in range(store.shards)]


async def close(store: Store, phase: str, place: str) -> int:
    """Let nothing be made or changed in any shard, nor claimed; what runs may end if the service is `leaving`. Returns
    about how many runs have a lease."""
    return sum(int(runs) for _, runs in await store.run_everywhere("move", [_closed(store), f"{phase} {place}"]))


async def reopen(store: Store) -> None:
    """Let the shards go on, at once."""
    await store.run_everywhere("move", [store.identity.stamp, ""])


def _closed(store: Store) -> str:
    return f"{store.identity.epoch} {NO_FORMAT}"


async def pages(store: Store, part: Part, place: Place | None = None) -> AsyncIterator[Copies]:
    """The records of a part. Each page is asked for when it is wanted."""
    shard, first = part
    at, most = place or Place(first), PAGE // 4
    while True:
        bucket, cursor, copies, bad = await store.run("page", shard, [at.bucket, first + PART - 1, at.cursor, most])
        at = Place(int(bucket), cursor.decode())
        size = sum(map(len, copies))
        most = min(2 * most, PAGE) if size < PAGE_BYTES else max(most // 4, 1)
        last = at.bucket >= first + PART
        yield Copies(list(grouped(copies, 2)), list(grouped(bad, 3)), None if last else at)
        if last:
            return


async def put(store: Store, copies: Mapping[int, Sequence[bytes]]) -> Counter[str]:
    """Put copies into closed shards, exactly as they were. Returns what became of how many, as `restore`. Raises
    Refused if the db is no longer closed for this copy."""
    head: list[Argument] = [_closed(store), store.identity.writes, "newer", "", "", 0]
    calls = [
        (keys.root(shard), [*head, *lines[start : start + PAGE]])
        for shard, lines in copies.items()
        for start in range(0, len(lines), PAGE)
    ]
    codes = Counter[str]()
    for _, *said in await store.run_all("restore", calls):
        codes.update(code.decode() for code in said)
    if codes["foreign"]:
        raise Refused("the target was emptied, or began, while it was being filled; see `timers doctor` there")
    if denied := next((code for code in codes if code.startswith("rights ")), None):
        raise store.refusals.denied(denied.partition(" ")[2])
    return codes


async def quarantine(store: Store, member: bytes, reason: bytes, record: bytes) -> None:
    """Keep a record that cannot be read, with the reason."""
    shard = store.shard_of(*keys.identity_of(keys.text(member)))
    kept = b"%d %s\n%s" % (round(store.clock.now_ms()), reason, record)
    with reachable():
        await store.connections.commands.hset(f"{keys.root(shard)}quarantine", keys.text(member), kept)


async def digest(store: Store, part: Part) -> Digest:
    """What the records of a part add up to, without those that cannot be read."""
    shard, first = part
    at, sums = Place(first), dict[str, tuple[int, int]]()
    while at.bucket < first + PART:
        last = first + PART - 1
        bucket, cursor, found = await store.run("digest", shard, [at.bucket, last, at.cursor, DIGESTED])
        at = Place(int(bucket), cursor.decode())
        sums = added(sums, {keys.text(name): (int(n), int(total)) for name, n, total in grouped(found, 3)})
    return sums


def added(one: Digest, other: Digest) -> dict[str, tuple[int, int]]:
    """Two digests as one."""
    sums = dict(one)
    for name, (n, total) in other.items():
        before = sums.get(name, (0, 0))
        sums[name] = before[0] + n, (before[1] + total) % 2**52
    return sums


async def counted(store: Store) -> Counter[str]:
    """How many timers there are by `<status letter> <prefix>`, as the db counts them."""
    numbers = Counter[str]()
    for (counts,) in await store.of_shards(lambda asked, root: asked.hgetall(f"{root}counts"), {}):
        numbers.update({keys.text(name): int(n) for name, n in counts.items() if n.isdigit()})
    return numbers


async def reached(store: Store) -> dict[Part, Place | None]:
    """How far the copy into this db has come in each part that was begun; None where it is done."""
    (kept,) = await read(store.connections.commands, lambda asked: asked.hgetall(keys.REACHED), {})
    places: dict[Part, Place | None] = {}
    for part, place in kept.items():
        shard, first = map(int, part.split(b"."))
        bucket, _, cursor = keys.text(place).partition(" ")
        places[shard, first] = Place(int(bucket), cursor) if cursor else None
    return places


async def reach(store: Store, part: Part, place: Place | None) -> None:
    """Remember how far a part is copied."""
    said = "done" if place is None else f"{place.bucket} {place.cursor}"
    with reachable():
        await store.connections.commands.hset(keys.REACHED, f"{part[0]}.{part[1]}", said)


async def forget_reached(store: Store) -> None:
    """Forget how far the copy came."""
    with reachable():
        await store.connections.commands.delete(keys.REACHED)
