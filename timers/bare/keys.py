"""Owns the calls about bare keys: looking at the keys themselves and telling the shards about them."""

import contextlib
import json
from collections.abc import Collection, Mapping, Sequence
from itertools import chain
from typing import Any, Final, NamedTuple

from redis.exceptions import NoPermissionError

from timers.core.shapes import RESERVED_PREFIX
from timers.core.spec import encode_payload
from timers.errors import InvalidInput, NotPermitted
from timers.store import codec, keys, scripts
from timers.store.store import Identity, Store

SCAN_COUNT: Final = 1000
"""Keys that one SCAN call examines: about a millisecond of the server's time."""

SCAN_MATCH: Final = "*[^}]:[^{]*"
"""Names with a colon not next to a brace: bare keys and hardly any trigger keys, so that the server sends few names."""

PAGE: Final = 500

GONE, NO_TTL = -2, -1
"""The deadlines of a missing key and of a key that never expires."""


class Heard(NamedTuple):
    """How often a pod has heard a key expire within 5 s, and the server time until which it has heard everything."""

    times: int
    until_ms: int


class Look(NamedTuple):
    """What a look saw: the deadline that the shard knew just before (None: the key is not known), the deadline now, and
    the value if it matters and is a string."""

    known_ms: int | None
    deadline_ms: int
    value: bytes | None = None


def payload_of(value: bytes) -> Any:
    """JSON values are parsed, anything else becomes a string (undecodable bytes as U+FFFD). A value above the size
    limit of a payload is dropped, as if the key had expired unseen."""
    for read in (json.loads, str):
        with contextlib.suppress(ValueError, RecursionError, InvalidInput):
            payload = read(value.decode(errors="replace"))
            encode_payload(payload)
            return payload
    return None


class BareKeys:
    """The bare keys of one db. Methods raise Unavailable while Redis is away."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._redis = store.connections.commands

    async def scan(self, cursor: int) -> tuple[int, list[Identity]]:
        """The next keys of the form `<prefix>:<id>`, and the cursor to continue with; 0 begins and ends. Raises
        NotPermitted if the Redis user may not see all key names."""
        with scripts.reachable():
            try:
                cursor, names = await self._redis.scan(cursor, match=SCAN_MATCH, count=SCAN_COUNT)
            except NoPermissionError as error:
                raise NotPermitted(str(error)) from None
        found = [
            keys.identity_of(name.decode()) for name in names if isinstance(name, bytes) and keys.BARE.fullmatch(name)
        ]
        return cursor, [identity for identity in found if identity[0] != RESERVED_PREFIX]

    async def scan_known(self, shard: int, cursor: int) -> tuple[int, list[Identity]]:
        """The next keys that a shard knows, and the cursor to continue with; 0 begins and ends."""
        with scripts.reachable():
            cursor, found = await self._redis.zscan(_index(shard), cursor, count=PAGE)
        return cursor, [keys.identity_of(keys.text(member)) for member, _ in found if isinstance(member, bytes)]

    async def first_known(self, until_ms: int) -> dict[Identity, int]:
        """Known keys with a deadline up to `until_ms`, with their deadlines: the first PAGE of each shard."""
        with scripts.reachable():
            async with self._redis.pipeline(transaction=False) as asked:
                for shard in range(self.store.shards):
                    asked.zrangebyscore(_index(shard), "-inf", until_ms, start=0, num=PAGE, withscores=True)
                answers = await asked.execute()
        return {keys.identity_of(keys.text(member)): int(score) for found in answers for member, score in found}

    async def look(self, identities: Collection[Identity], lead_ms: int) -> tuple[dict[Identity, Look], int]:
        """Look at keys, which makes Redis delete and announce those that are due. Reads the values of keys whose
        deadline is new to the shard or within `lead_ms`. Also returns the server's time after the look."""
        if not identities:
            return {}, 0
        by_shard = self.store.by_shard(identities)
        names = [":".join(identity) for identity in identities]
        with scripts.reachable():
            async with self._redis.pipeline(transaction=False) as asked:
                for shard, places in by_shard.items():
                    asked.zmscore(_index(shard), [names[place] for place in places])
                for name in names:
                    asked.pexpiretime(name)
                asked.time()
                *answers, (seconds, micros) = await asked.execute()
        known = dict(zip(chain(*by_shard.values()), chain(*answers[: len(by_shard)]), strict=True))
        now_ms = seconds * 1000 + micros // 1000
        looks = {
            identity: Look(None if known[place] is None else int(known[place]), deadline_ms)
            for place, (identity, deadline_ms) in enumerate(zip(identities, answers[len(by_shard) :], strict=True))
        }
        return await self._with_values(looks, now_ms + lead_ms), now_ms

    async def _with_values(self, looks: dict[Identity, Look], until_ms: int) -> dict[Identity, Look]:
        wanted = [i for i, (known_ms, ms, _) in looks.items() if ms >= 0 and (ms != known_ms or ms <= until_ms)]
        async with self._redis.pipeline(transaction=False) as asked:
            for identity in wanted:
                asked.get(":".join(identity))
            values = await scripts.read(asked, None)
        return looks | {i: looks[i]._replace(value=value) for i, value in zip(wanted, values, strict=True)}

    async def adopt(self, looks: Mapping[Identity, Look]) -> dict[Identity, str]:
        """Copy keys into records. Codes: adopted, moved, running, stale."""
        told = {i: (look.known_ms or "", look.deadline_ms, _spec(look)) for i, look in looks.items()}
        return await self._tell("adopt", told)

    async def resolve(self, what: str, looks: Mapping[Identity, Look]) -> dict[Identity, str]:
        """Tell the shards what became of known keys: `there`, `ending` (there until its deadline), `expired`, `deleted`
        or `lost-ttl`. Codes: waits, due, cancelled, spare, forgotten, stale."""
        return await self._tell("resolve", {i: (look.known_ms, what, _spec(look)) for i, look in looks.items()})

    async def announce(self, heard: Mapping[Identity, Heard]) -> dict[Identity, str]:
        """Make the timers of expired keys due. Codes: due, known, running, look."""
        return await self._tell("announce", heard)

    async def take(self, deadlines: Mapping[Identity, int]) -> list[Identity]:
        """Delete keys that still have these deadlines. Returns the deleted keys."""
        calls: list[scripts.Call] = [(":".join(identity), [ms]) for identity, ms in deadlines.items()]
        replies = await self.store.run_all("bare/take", calls)
        return [identity for identity, (_, deleted) in zip(deadlines, replies, strict=True) if deleted]

    async def _tell(self, script: str, told: Mapping[Identity, Sequence[object]]) -> dict[Identity, str]:
        """Run a script with a line for each key. Returns the code for each."""
        lines = ["\n".join(map(str, (*identity, *what))) for identity, what in told.items()]
        codes = await self.store.tell(f"bare/{script}", list(told), lines)
        return {identity: code.decode() for identity, (_, code) in zip(told, codes, strict=True)}


def _index(shard: int) -> str:
    return f"{keys.root(shard)}bare"


def _spec(look: Look) -> str:
    """A record's spec for a key with this value; empty if the value was not read."""
    payload = None if look.value is None else payload_of(look.value)
    return "" if look.value is None else codec.encode_spec({} if payload is None else {"payload": payload})
