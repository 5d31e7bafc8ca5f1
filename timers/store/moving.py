"""Owns a db's part in the move of a service: closing and opening its shards, reading records for an exact copy, putting
them there, and adding up what two copies must have in common; and carrying over all that is no record: API keys,
declarations, pauses, what shards keep beside the records, what callers, limits and alarms left, and bare keys.

A closed shard carries a stamp that nobody knows, so no script makes a timer there, and a mark that every change reads.
Both lie in the shard, so they hold for every pod and caller at once. The functions raise Unavailable.
"""

import hashlib
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from itertools import chain
from typing import Any, Final, NamedTuple

from timers.errors import Refused
from timers.store import keys
from timers.store.callers import Callers
from timers.store.following import LEDGER, stages
from timers.store.identity import NO_FORMAT
from timers.store.queries import paused
from timers.store.restoring import put_declaration, read_declarations
from timers.store.scripts import Argument, batched, grouped, reachable, read
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

_SERVERS: Final = b"servers"
"""In REACHED, beside the parts: the `servers` of the copy."""

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
    calls = [(keys.root(shard), [*head, *some]) for shard, lines in copies.items() for some in batched(lines, PAGE)]
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
        numbers.update({keys.text(name): keys.number(n) for name, n in counts.items()})
    return numbers


async def servers(*stores: Store) -> str:
    """Tells the processes that serve the shards of these dbs from any others, such as after a restart or a failover."""
    found = [[stage.server for stage in (await stages(each, range(each.shards))).values()] for each in stores]
    return hashlib.sha1(repr(found).encode(), usedforsecurity=False).hexdigest()


async def reached(store: Store, by: str) -> dict[Part, Place | None]:
    """How far the copy into this db has come in each part that was begun; None where it is done. Nothing if other
    `servers` took part: the places are only good for one process, and another may have lost what was copied."""
    (kept,) = await read(store.connections.commands, lambda asked: asked.hgetall(keys.REACHED), {})
    if kept.pop(_SERVERS, b"") != by.encode():
        await forget_reached(store)
        with reachable():
            await store.connections.commands.hset(keys.REACHED, _SERVERS, by)
        return {}
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


CARRIED: Final = 500
"""Entries of a key, or keys, in one round trip."""

_STRINGS: Final = (f"{keys.ACCESS_ROOT}*", "timers:{limits:*:rate")
"""Patterns of strings; what else begins like them is of another type, and too short-lived to matter."""

_HASHES: Final = ("timers:{alarms}:*", "timers:{fired}:*")
_ALARMS_COUNTED: Final = f"{keys.ALARMS_ROOT}counted"

_Command = Sequence[Any]


async def carry(source: Store, target: Store) -> Counter[str]:
    """Carry everything over. Returns how many of what."""
    carried = Counter[str]()
    carried["keys"] = await _api_keys(source, target)
    declared = await read_declarations(source)
    for prefix, said in declared.items():
        await put_declaration(target, prefix, said, dry_run=False)
    carried["declarations"] = len(declared)
    carried["pauses"] = await _pauses(source, target)
    await _hooks(source, target)
    carried["quarantined"] = await _members(source, target, "quarantine")
    await _clear(target, "changed")
    await _members(source, target, "changed")
    await _bare_index(source, target)
    # Which rows of the ledger's inbox were carried out. Only the row's timer would say in which shard.
    await _in_each(target, "inbox", await _of_all(source, "inbox"))
    carried["outbox"] = await _outbox(source, target)
    await _tokens(source, target)
    await _ledger(source, target)
    await _hashes(source, target)
    for pattern in _STRINGS:
        await _strings(source, target, pattern)
    carried["bare keys"] = await _strings(source, target, keys.BARE_MATCH)
    return carried


async def _ask(store: Store, *command: Any, empty: Any = None) -> Any:
    """The answer to one command; `empty` if another program's value is in the place of its key."""
    (answer,) = await _tell(store, [command], empty)
    return answer


async def _tell(store: Store, commands: Sequence[_Command], empty: Any = None) -> list[Any]:
    """Send commands in one round trip. Their answers; `empty` where another program's value is in the place of the
    key."""
    if not commands:
        return []
    redis = store.connections.commands
    return await read(redis, lambda asked: [asked.execute_command(*each) for each in commands], empty)


def _roots(store: Store) -> list[str]:
    return list(map(keys.root, range(store.shards)))


def _root_of(store: Store, member: bytes) -> str:
    return keys.root(store.shard_of_member(member))


def _hset(name: str, fields: Mapping[Any, Any]) -> _Command:
    return ("HSET", name, *chain(*fields.items()))


async def _in_each(target: Store, name: str, fields: Mapping[bytes, bytes]) -> None:
    """Keep these fields in a hash of each shard."""
    if fields:
        await _tell(target, [_hset(f"{root}{name}", fields) for root in _roots(target)])


async def _of_all(source: Store, name: str) -> dict[bytes, bytes]:
    """The fields of a hash of all shards together."""
    found = await source.of_shards(lambda asked, root: asked.hgetall(f"{root}{name}"), {})
    return {field: value for (fields,) in found for field, value in fields.items()}


async def _clear(target: Store, name: str) -> None:
    await _tell(target, [("DEL", f"{root}{name}") for root in _roots(target)])


async def _api_keys(source: Store, target: Store) -> int:
    callers = Callers(source)
    entries = await callers.entries()
    if entries:
        await _tell(target, [_hset(keys.API_KEYS, entries)])
    if await callers.closed():
        await _tell(target, [_hset(keys.META, {"closed": 1})])
    return len(entries)


async def _pauses(source: Store, target: Store) -> int:
    """Pause what is paused, in all shards, and keep why timers were late."""
    prefixes = await paused(source)
    for prefix in prefixes:
        await target.run_everywhere("pause", [prefix, "pause", "copied"])
    await _in_each(target, "pauses", await _of_all(source, "pauses"))
    return len(prefixes)


async def _hooks(source: Store, target: Store) -> None:
    """What hooks ask for, so that changes are posted before pods have said it again."""
    if said := await _ask(source, "HGETALL", keys.HOOKS, empty={}):
        await _tell(target, [_hset(keys.HOOKS, said)])
    lines = await _of_all(source, "hooks")
    await _in_each(target, "hooks", {line: value for line, value in lines.items() if not line.startswith(b"@")})


async def _members(source: Store, target: Store, name: str) -> int:
    """Carry a hash of each shard over whose fields are members. Returns how many there are."""
    count = 0
    async for found in _scanned(source, "HSCAN", name, {}):
        await _tell(target, [_hset(f"{_root_of(target, each)}{name}", {each: found[each]}) for each in found])
        count += len(found)
    return count


async def _bare_index(source: Store, target: Store) -> None:
    """The deadlines of bare keys that the shards know."""
    async for found in _scanned(source, "ZSCAN", "bare", []):
        await _tell(target, [("ZADD", f"{_root_of(target, member)}bare", at, member) for member, at in found])


async def _scanned(source: Store, command: str, name: str, nothing: Any) -> AsyncIterator[Any]:
    """What a key of each shard has, in pages."""
    for root in _roots(source):
        cursor = -1
        while cursor:
            asked = (command, f"{root}{name}", max(cursor, 0), "COUNT", CARRIED)
            cursor, found = await _ask(source, *asked, empty=(0, nothing))
            yield found


async def _outbox(source: Store, target: Store) -> int:
    """Changes that nobody was told of yet, in order."""
    await _clear(target, "outbox")
    count = 0
    for root in _roots(source):
        after = "-"
        while entries := await _ask(source, "XRANGE", f"{root}outbox", after, "+", "COUNT", CARRIED, empty=[]):
            after = f"({keys.text(entries[-1][0])}"
            await _tell(target, [_posting(target, fields) for _, fields in entries])
            count += len(entries)
    return count


def _posting(target: Store, fields: Mapping[bytes, bytes]) -> _Command:
    return ("XADD", f"{_root_of(target, fields.get(b'timer', b''))}outbox", "*", *chain(*fields.items()))


async def _tokens(source: Store, target: Store) -> None:
    """Tokens only rise, whichever shard a timer lies in now."""
    both = [await store.of_shards(lambda asked, root: asked.get(f"{root}token"), None) for store in (source, target)]
    found = [token for of_shards in both for (token,) in of_shards]
    if newest := max(map(keys.number, found), default=0):
        await _tell(target, [("SET", f"{root}token", newest) for root in _roots(target)])


async def _ledger(source: Store, target: Store) -> None:
    """A ledger that agreed with all shards has only to check the new place; any other is gone through anew."""
    found = await source.of_shards(lambda asked, root: asked.hget(f"{root}hooks", LEDGER), None)
    stages = [keys.text(stage or b"").split(" ") for (stage,) in found]
    if all(len(stage) == 3 and stage[0] == "whole" for stage in stages):
        oldest = min(stages, key=lambda each: int(each[1]))
        await _in_each(target, "hooks", {LEDGER.encode(): " ".join(oldest).encode()})
    elif any(stage != [""] for stage in stages):
        await _tell(target, [("HDEL", f"{root}hooks", LEDGER) for root in _roots(target)])


async def _hashes(source: Store, target: Store) -> None:
    """Alarms and charts as they are; but what was counted of an outbox, whose entries have other numbers now."""
    for pattern in _HASHES:
        async for name, fields in _found(source, pattern, "HGETALL"):
            if keys.text(name) != _ALARMS_COUNTED:
                await _tell(target, [("DEL", name), _hset(keys.text(name), fields)])


async def _strings(source: Store, target: Store, pattern: str) -> int:
    """Carry strings over, each until its own end. Returns how many there are. Of clients' keys only those that end are
    timers."""
    count, is_bare = 0, pattern == keys.BARE_MATCH
    async for name, value, ends_ms in _found(source, pattern, "GET", "PEXPIRETIME"):
        if ends_ms == -2 or (is_bare and (ends_ms < 0 or not keys.BARE.fullmatch(name))):
            continue
        await _tell(target, [("SET", name, value, *(() if ends_ms < 0 else ("PXAT", ends_ms)))])
        count += 1
    return count


async def _found(source: Store, pattern: str, *commands: str) -> AsyncIterator[tuple[Any, ...]]:
    """The keys of the db that match and hold something, with what each of the commands answers of them."""
    redis: Any = source.connections.commands
    cursor = -1
    while cursor:
        with reachable():
            cursor, names = await redis.scan(max(cursor, 0), pattern, 2 * CARRIED)
        answers = await _tell(source, [(command, name) for name in names for command in commands])
        for name, said in zip(names, grouped(answers, len(commands)), strict=True):
            if said[0]:
                yield name, *said
