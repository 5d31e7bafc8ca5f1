"""Owns the outbox: which changes pods ask for, in the fleet and in each shard, and the entries that wait for a pod.

The functions raise Unavailable.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from timers.core.hooks import NAMES, Hook
from timers.core.model import Timer
from timers.store import codec, keys
from timers.store.membership import Membership
from timers.store.queries import added_up
from timers.store.scripts import reachable, read
from timers.store.store import Arming, Store

Asked = frozenset[str]
"""The hooks that pods ask for, each as the text of a `core.hooks.Hook`."""


async def armed(store: Store, prefixes: Sequence[str]) -> dict[str, int]:
    """How many calls wait, by the prefix of their target."""
    return dict(zip(prefixes, await added_up(store, [f"s {prefix}" for prefix in prefixes]), strict=True))


async def arm(store: Store, armings: Sequence[Arming]) -> None:
    """Arm calls. Raises RedisRights or NewerFormat if one was refused."""
    for reply in await store.arm(armings):
        if reply.refused is not None:
            raise reply.refused


class Entry(NamedTuple):
    """A posted change: the event, as a letter, and the timer as it was afterwards; None if the entry cannot be read."""

    id: bytes
    letter: str
    timer: Timer | None


async def ask(store: Store, mine: Collection[str], *, forget_ms: int) -> Asked:
    """Register what this pod asks for, and return what all pods ask for. Removes hooks that no pod has asked for in
    `forget_ms`, and with a target's last hook the declaration of its calls."""
    now_ms = round(store.clock.now_ms())
    redis, named = store.connections.commands, dict.fromkeys(mine, now_ms)
    *_, said = await read(
        redis, lambda asked: (asked.hset(keys.HOOKS, mapping=named) if mine else asked).hgetall(keys.HOOKS), {}
    )
    old = {line for line, at in said.items() if not keys.is_number(at) or now_ms - int(at) > forget_ms}
    lines = frozenset(map(keys.text, said.keys() - old)) | frozenset(mine)
    if old:
        with reachable():
            await store.connections.commands.hdel(keys.HOOKS, *old)
        for prefix in prefixes_of(map(keys.text, old)) - prefixes_of(lines):
            await Membership(store).forget(prefix)
    return lines


async def lengths(store: Store, shards: Iterable[int]) -> Sequence[tuple[Asked, int]]:
    """The hooks that each shard knows, and how many entries wait there."""
    shards = list(shards)
    with reachable():
        names = [f"{keys.root(shard)}{name}" for shard in shards for name in ("hooks", "outbox")]
        if not names or not await store.connections.commands.exists(*names):
            return [(frozenset(), 0)] * len(shards)
    answers = await store.of_shards(
        lambda asked, root: asked.hkeys(f"{root}hooks").xlen(f"{root}outbox"), [], 0, shards=shards
    )
    # What begins with @ is no hook: timers/store/following.py.
    hooks = ([line for line in lines if not line.startswith(b"@")] for lines, _ in answers)
    return [(frozenset(map(keys.text, asked)), length) for asked, (_, length) in zip(hooks, answers, strict=True)]


async def change_hooks(store: Store, shard: int, new: Collection[str], taken_back: Collection[str]) -> None:
    """Add hooks to those that a shard knows, and remove others."""
    name = f"{keys.root(shard)}hooks"
    with reachable():
        if new:
            await store.connections.commands.hset(name, mapping=dict.fromkeys(new, 1))
        if taken_back:
            await store.connections.commands.hdel(name, *taken_back)


async def first(store: Store, shard: int, most: int) -> Sequence[Entry]:
    """The oldest entries, at most `most`."""
    ((entries,),) = await store.of_shards(
        lambda asked, root: asked.xrange(f"{root}outbox", count=most), [], shards=[shard]
    )
    return [_entry(entry_id, fields) for entry_id, fields in entries]


async def drop(store: Store, shard: int, entries: Collection[Entry]) -> int:
    """Remove entries. Returns how many changes the outbox has refused since the last call, because it was full."""
    ids = [entry.id for entry in entries]
    ((_, unposted),) = await store.of_shards(
        lambda asked, root: asked.xdel(f"{root}outbox", *ids).getdel(f"{root}unposted"), 0, None, shards=[shard]
    )
    return keys.number(unposted)


def prefixes_of(lines: Iterable[str]) -> set[str]:
    """The prefixes of the calls that these hooks ask for."""
    return {hook.prefix for line in lines if (hook := Hook.parse(line)) is not None}


def _entry(entry_id: bytes, fields: Mapping[bytes, bytes]) -> Entry:
    prefix, timer_id = keys.identity_of(keys.text(fields.get(b"timer", b"")))
    letter, timer = keys.text(fields.get(b"event", b"")), codec.readable(prefix, timer_id, fields.get(b"record", b""))
    return Entry(entry_id, letter, timer if letter in NAMES else None)
