"""Owns copying what a db has besides its timers: API keys, declarations and pauses, each read for a copy and put back;
and in the move of a service all of that, with what shards keep beside the records, what callers, limits and alarms
left, and bare keys. Repeated, that changes nothing more.

The functions raise Unavailable.
"""

from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from itertools import chain
from typing import Any, Final

from timers.store import keys
from timers.store.callers import REVOKED, Callers
from timers.store.following import LEDGER
from timers.store.membership import Declaration, Membership
from timers.store.queries import paused
from timers.store.scripts import reachable, read
from timers.store.store import Store

PAGE: Final = 500

_STRINGS: Final = (f"{keys.ACCESS_ROOT}*", "timers:{limits:*:rate")
"""Patterns of strings; what else begins like them is of another type, and too short-lived to matter."""

_HASHES: Final = ("timers:{alarms}:*", "timers:{fired}:*")
_ALARMS_COUNTED: Final = f"{keys.ALARMS_ROOT}counted"

_Command = Sequence[Any]


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
        times = tuple(int(ms) for ms in text.split() if ms.isdigit())
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
            asked = (command, f"{root}{name}", max(cursor, 0), "COUNT", PAGE)
            cursor, found = await _ask(source, *asked, empty=(0, nothing))
            yield found


async def _outbox(source: Store, target: Store) -> int:
    """Changes that nobody was told of yet, in order."""
    await _clear(target, "outbox")
    count = 0
    for root in _roots(source):
        after = "-"
        while entries := await _ask(source, "XRANGE", f"{root}outbox", after, "+", "COUNT", PAGE, empty=[]):
            after = f"({keys.text(entries[-1][0])}"
            await _tell(target, [_posting(target, fields) for _, fields in entries])
            count += len(entries)
    return count


def _posting(target: Store, fields: Mapping[bytes, bytes]) -> _Command:
    return ("XADD", f"{_root_of(target, fields.get(b'timer', b''))}outbox", "*", *chain(*fields.items()))


async def _tokens(source: Store, target: Store) -> None:
    """Tokens only rise, whichever shard a timer lies in now."""
    found = [
        token
        for store in (source, target)
        for (token,) in await store.of_shards(lambda asked, root: asked.get(f"{root}token"), None)
    ]
    newest = max((int(token) for token in found if token and token.isdigit()), default=0)
    if newest:
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
        async for name, fields in _found(source, pattern, "HGETALL", {}):
            if keys.text(name) != _ALARMS_COUNTED:
                await _tell(target, [("DEL", name), _hset(keys.text(name), fields)])


async def _strings(source: Store, target: Store, pattern: str) -> int:
    """Carry strings over, each until its own end. Returns how many there are. Of clients' keys only those that end are
    timers."""
    count, is_bare = 0, pattern == keys.BARE_MATCH
    async for name, value in _found(source, pattern, "GET", None):
        if is_bare and not keys.BARE.fullmatch(name):
            continue
        ends_ms = await _ask(source, "PEXPIRETIME", name)
        if ends_ms == -2 or (is_bare and ends_ms < 0):
            continue
        await _tell(target, [("SET", name, value, *(() if ends_ms < 0 else ("PXAT", ends_ms)))])
        count += 1
    return count


async def _found(source: Store, pattern: str, command: str, empty: Any) -> AsyncIterator[tuple[bytes, Any]]:
    """The keys of the db that match and hold something, with what a command answers of each."""
    redis: Any = source.connections.commands
    cursor = -1
    while cursor:
        with reachable():
            cursor, names = await redis.scan(max(cursor, 0), pattern, 2 * PAGE)
        for name, answer in zip(names, await _tell(source, [(command, name) for name in names], empty), strict=True):
            if answer:
                yield name, answer
