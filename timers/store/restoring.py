"""Owns reading what a db has while it changes, and putting it back out of a copy, which is an export, or what the
ledger has of a db that was lost: its records page by page, its API keys, declarations and pauses.

A copy has a record as Redis had it. It replaces what is there only if it is newer, so whoever does not know how far an
earlier try came puts all records there again. The functions raise Unavailable.
"""

from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from typing import Any, Final, NamedTuple

from timers.core.model import IMPORTED, RESTORED
from timers.store import codec, keys
from timers.store.callers import REVOKED, Callers
from timers.store.codec import RecordParts, put_together
from timers.store.membership import Declaration, Membership
from timers.store.queries import paused
from timers.store.scripts import batched, read
from timers.store.store import Store

BUCKETS: Final = 16
"""How many buckets of records are read at a time."""

PAGE: Final = 32
"""About how many records of each at most: a round trip brings some 500, fewer if they are large."""

PAGE_BYTES: Final = 4 * 2**20
"""About the most that a round trip brings."""

Record = tuple[str, bytes]
"""A member, and its record."""

RESTORE_LIMIT: Final = 200
"""Records in one script call, so that it does not hold the server up."""


class Restored(NamedTuple):
    """A record to put there, and its score in the index of its status: when the timer ended, since when one has failed
    that is tried again; `-` for neither."""

    prefix: str
    id: str
    record: bytes
    since: int | str = "-"

    @classmethod
    def of(cls, prefix: str, timer_id: str, parts: RecordParts) -> "Restored":
        """The record of these parts. Raises ValueError for what a record cannot hold."""
        record = put_together(parts)
        return cls(prefix, timer_id, record, _since(parts, record))


async def read_records(
    store: Store, pattern: str = "*", *, shards: Iterable[int] | None = None, buckets: Iterable[int] = range(256)
) -> AsyncIterator[Sequence[Record]]:
    """The records of all shards or of some, or of some buckets there, whose members match a glob pattern, in pages. A
    timer that is there from the beginning to the end comes once, as it is in one moment of its life. Remembers the
    names of 16 of the 256 buckets of a shard, because a server may show an entry twice while a bucket grows. Writes
    nothing."""
    roots = list(map(keys.root, range(store.shards) if shards is None else shards))
    names = [f"{root}rec:{bucket:02x}" for root in roots for bucket in buckets]
    most = 1
    for some in batched(names, BUCKETS):
        cursors, known = dict.fromkeys(some, 0), set[bytes]()
        while cursors:
            scanned = await read(store.connections.commands, _scan(cursors, pattern, most), (0, {}))
            cursors = {name: cursor for name, (cursor, _) in zip(cursors, scanned, strict=True) if cursor}
            found = dict(chain.from_iterable(page.items() for _, page in scanned))
            yield [(keys.text(member), record) for member, record in found.items() if member not in known]
            known.update(found)
            has_room = sum(map(len, found.values())) < PAGE_BYTES / 2
            most = min(2 * most, PAGE) if has_room else max(most // 2, 1)


def _scan(cursors: Mapping[str, int], pattern: str, most: int) -> Callable[[Any], object]:
    return lambda asked: [asked.hscan(name, cursor, pattern, most) for name, cursor in cursors.items()]


async def restore(
    store: Store,
    records: Sequence[Restored],
    *,
    if_exists: str = "newer",
    cause: str = "",
    jump: int = 0,
    life: str = "",
    dry_run: bool = False,
) -> list[str]:
    """Make Redis hold each of these records, in any shards, in one round trip. Codes in order:

    - `restored`: the record is there as given, in the db's format. A scheduled timer whose due time is past fires at
      once. A running one counts as lost until its pod extends the lease. One that waited for a bare key no longer does.
    - `kept`: what is there is as new or newer, by its creation and then its version; with `if_exists` `keep` whatever
      is there; with `replace` what has an entry with this `cause`, whatever it has been through since.
    - `running`: what is there is older, but it runs, and its pod is alive.
    - `newer`, `unreadable`: what is there, or what was given, has a format that this version cannot read.
    - `rights`: the Redis user may not touch the timer's trigger.

    With a `cause` (and details after a space) each record that was put there gets a history entry, and so a version
    more; and `jump` versions more, so that none that was lost with the db comes again. With `replace` an older record
    gets the creation, and a version and token above those, of the newer one it replaces. Hooks hear nothing of it. A
    `dry_run` changes nothing. With the `life` that the shards had before the records were read, it puts none into one
    that has lost data since. Raises Unavailable: repeat the call, some records may be there."""
    if dry_run and not store.identity.epoch:
        return ["restored"] * len(records)
    mode = "look" if dry_run else ""
    return [code for code, _ in await _restore(store, records, (if_exists, cause, mode, jump), life)]


async def restore_and_read(
    store: Store, records: Sequence[Restored], *, cause: str, jump: int, life: str
) -> list[tuple[str, bytes | None]]:
    """As `restore`, and the record that is there then, as far as there is one. Nothing is noted for the ledger: the
    caller writes it there."""
    return await _restore(store, records, ("newer", cause, "tell", jump), life)


async def _restore(
    store: Store, records: Sequence[Restored], head: Sequence[str | int], life: str
) -> list[tuple[str, bytes | None]]:
    answers, _ = await store.run_lines(
        "restore",
        [each[:2] for each in records],
        [f"{prefix} {timer_id} {since}\n".encode() + record for prefix, timer_id, record, since in records],
        head=lambda _places: head,
        most=RESTORE_LIMIT,
        expected=life,
    )
    found = []
    for (said,) in answers:
        words, has_record, record = said.partition(b"\n")
        code, _, command = words.decode().partition(" ")
        if command:
            store.refusals.denied(command)
        found.append((code, record if has_record else None))
    return found


def _since(parts: RecordParts, record: bytes) -> int | str:
    with suppress(ValueError):  # somebody has written into the record what nobody can read
        if parts.status in "cfux":
            return ended_ms(parts)
        if parts.failures and (timer := codec.readable("", "", record)) is not None:
            return codec.encode_since(timer.progress) or "-"
    return "-"


def ended_ms(parts: RecordParts) -> int:
    """When a finished timer ended, which an import does not change."""
    for entry in reversed(parts.history):
        at, *_, said = entry.split(b" ", 6)
        if said.partition(b" ")[0].decode() not in (IMPORTED, RESTORED) and keys.is_number(at, keys.TIME_DIGITS):
            return min(int(at), codec.LATEST_MS - 1)
    return parts.created_ms


def cancelled(created_ms: int, version: int) -> RecordParts:
    """A record of this age without anything in it."""
    return RecordParts("x", version, 0, 0, 1, 0, created_ms, created_ms, b"{}", b"", ())


async def read_declarations(store: Store) -> Mapping[str, Declaration]:
    """Who declared each prefix last."""
    return (await Membership(store).read()).declared


async def read_pauses(store: Store) -> Mapping[str, int | None]:
    """The paused prefixes, with since when (epoch ms, if that is known)."""
    pauses = await _last_pauses(store)
    return {prefix: pauses.get(prefix, (None,))[0] for prefix in await paused(store)}


async def _last_pauses(store: Store) -> Mapping[str, tuple[int, ...]]:
    """When prefixes were last paused and, unless they still are, resumed: the newest of what the shards know."""
    found = await store.of_shards(lambda asked, root: asked.hgetall(f"{root}pauses"), {})
    last: dict[str, tuple[int, ...]] = {}
    for prefix, text in chain.from_iterable(pauses.items() for (pauses,) in found):
        times = keys.times(text)
        last[keys.text(prefix)] = max(last.get(keys.text(prefix), ()), times)
    return {prefix: times for prefix, times in last.items() if times}


async def put_declaration(store: Store, prefix: str, said: Declaration, *, dry_run: bool) -> bool:
    """Declare a prefix that is not declared. False if it is."""
    if dry_run:
        return prefix not in await read_declarations(store)
    return await Membership(store).declare(prefix, said)


async def put_pause(store: Store, prefix: str, since_ms: int | None, *, if_exists: str, dry_run: bool) -> bool:
    """Pause a prefix. False if it is paused, or if it was resumed here once that pause had begun and `if_exists` does
    not say to replace that."""
    if prefix in await paused(store):
        return False
    known = (await _last_pauses(store)).get(prefix, ())
    if known and if_exists != "replace" and (if_exists == "keep" or since_ms is None or known[-1] >= since_ms):
        return False
    return dry_run or await store.pause(prefix, paused=True)


async def put_key(store: Store, key_id: str, entry: str, *, if_exists: str, dry_run: bool) -> bool:
    """Keep an API key, or that it was revoked. False if what is there stays; a revoked key stays revoked."""
    callers = Callers(store)
    there = (await callers.entries()).get(key_id)
    if there in (entry, REVOKED) or (there is not None and entry != REVOKED and if_exists != "replace"):
        return False
    if not dry_run:
        await (callers.revoke(key_id) if entry == REVOKED else callers.keep(key_id, entry))
    return True
