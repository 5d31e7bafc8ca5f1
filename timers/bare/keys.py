"""Owns the calls about bare keys: looking at the keys themselves, and telling the shards of their timers."""

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from redis.exceptions import NoPermissionError

from timers.core.shapes import RESERVED_PREFIX
from timers.core.spec import encode_payload
from timers.errors import InvalidInput, NotPermitted
from timers.store import codec, keys, scripts
from timers.store.scripts import Argument, reachable
from timers.store.store import Identity, Store

SCAN_COUNT: Final = 1000
"""Keys one SCAN call looks at: about a millisecond of the server's time."""

SCAN_MATCH: Final = "*[^}]:[^{]*"
"""Names with a colon that is beside no brace: bare keys, and hardly any trigger, so that the server sends few."""

GONE, NO_TTL = -2, -1
"""The deadlines of a key that is not there, and of one that never expires."""

_T = TypeVar("_T")

Deadlines = Mapping[Identity, int]
"""Keys and when they expire, epoch ms."""


class Heard(NamedTuple):
    """How often a pod has heard a key expire within 5 s, and the server's time until which it has heard all that was
    announced."""

    times: int
    until_ms: int


class Found(NamedTuple):
    """What became of a known key: its deadline as the shard knows it; `there`, `expired`, `deleted` or `lost-ttl`; its
    value, None to keep the timer's payload."""

    known_ms: int
    what: str
    value: bytes | None = None


class Fresh(NamedTuple):
    """A key to adopt: its deadline as the shard knows it (None: not at all), its deadline now, its value."""

    known_ms: int | None
    deadline_ms: int
    value: bytes


def payload_of(value: bytes) -> Any:
    """A JSON value is given parsed, anything else as a string (undecodable bytes as U+FFFD); what passes the size of a
    payload is dropped, as if the key had expired unseen."""
    text = value.decode(errors="replace")
    try:
        payload = json.loads(text)
        encode_payload(payload)
    except (ValueError, RecursionError, InvalidInput):
        payload = text
    try:
        encode_payload(payload)
    except InvalidInput:
        return None
    return payload


def spec_of(value: bytes) -> str:
    """The spec of a timer that is adopted from a key with this value, as a record has it."""
    payload = payload_of(value)
    return codec.encode_spec({} if payload is None else {"payload": payload})


class BareKeys:
    """The bare keys of one db. Methods that change something have one shard a call; those that look have any."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._redis = store.connections.commands

    def by_shard(self, given: Mapping[Identity, _T]) -> dict[int, dict[Identity, _T]]:
        """The same, by the shard of the timer that each key stands for."""
        shards: dict[int, dict[Identity, _T]] = {}
        for identity, item in given.items():
            shards.setdefault(self.store.shard_of(*identity), {})[identity] = item
        return shards

    async def scan(self, cursor: int) -> tuple[int, list[Identity]]:
        """The next keys of the form `<prefix>:<id>`, and the cursor to go on with; 0 begins and ends. Raises
        NotPermitted where the Redis user is not to see the names of all keys."""
        with reachable():
            try:
                cursor, found = await self._redis.scan(cursor, match=SCAN_MATCH, count=SCAN_COUNT)
            except NoPermissionError as error:
                raise NotPermitted(str(error)) from None
        matches = [match for key in found if isinstance(key, bytes) and (match := keys.BARE.fullmatch(key))]
        identities = [(match[1].decode(), match[2].decode()) for match in matches]
        return cursor, [identity for identity in identities if identity[0] != RESERVED_PREFIX]

    async def known(self, identities: Collection[Identity]) -> dict[Identity, int | None]:
        """The deadlines of keys as their shards know them; None for those they do not know."""
        scores = await self._each(
            identities, lambda asked, i: asked.zscore(_index(self.store.shard_of(*i)), ":".join(i))
        )
        return {i: None if score is None else int(score) for i, score in zip(identities, scores, strict=True)}

    async def first_known(self, until_ms: float, most: int) -> tuple[dict[Identity, int], int | None]:
        """Known keys whose deadline is no later, some of each shard; and the next deadline after that time."""
        shards = range(self.store.shards)
        with reachable():
            async with self._redis.pipeline(transaction=False) as asked:
                for shard in shards:
                    asked.zrangebyscore(_index(shard), "-inf", until_ms, start=0, num=most, withscores=True)
                    asked.zrangebyscore(_index(shard), f"({until_ms}", "+inf", start=0, num=1, withscores=True)
                answers: list[list[tuple[bytes, float]]] = await asked.execute()
        later = [int(score) for answer in answers[1::2] for _, score in answer]
        return _deadlines(pair for answer in answers[::2] for pair in answer), min(later, default=None)

    async def page_of_known(self, shard: int, start: int, most: int) -> dict[Identity, int]:
        """The known keys of a shard in the order of their deadlines, from a rank on."""
        with reachable():
            found: Any = await self._redis.zrange(_index(shard), start, start + most - 1, withscores=True)
        return _deadlines(found)

    async def deadlines(self, identities: Collection[Identity]) -> tuple[dict[Identity, int], int]:
        """When the keys expire (-1: never, -2: not there), and a time by the server's clock before which all were
        looked at. A key that is due is deleted and announced by this."""
        *found, (seconds, micros) = await self._each(
            identities, lambda asked, i: asked.pexpiretime(":".join(i)), last=lambda asked: asked.time()
        )
        return dict(zip(identities, found, strict=True)), seconds * 1000 + micros // 1000

    async def values(self, identities: Collection[Identity]) -> dict[Identity, bytes]:
        """The values of those that are strings and still there."""
        values = await self._each(identities, lambda asked, i: asked.get(":".join(i)), raise_on_error=False)
        return {i: value for i, value in zip(identities, values, strict=True) if isinstance(value, bytes)}

    async def adopt(self, shard: int, fresh: Mapping[Identity, Fresh]) -> list[str]:
        """Copy into records. Codes in order: adopted, moved, running, stale."""
        arguments: list[Argument] = []
        for identity, key in fresh.items():
            known = "" if key.known_ms is None else key.known_ms
            arguments += (*identity, known, key.deadline_ms, spec_of(key.value))
        return await self._armed("adopt", shard, arguments, again=["stale"] * len(fresh))

    async def resolve(self, shard: int, found: Mapping[Identity, Found], *, lead_ms: int) -> list[str]:
        """Say what became of known keys. Codes in order: waits, due, cancelled, spare, forgotten, stale."""
        arguments: list[Argument] = [lead_ms]
        for identity, key in found.items():
            spec = "" if key.value is None else spec_of(key.value)
            arguments += (*identity, key.known_ms, key.what, spec)
        return await self._codes("resolve", shard, arguments)

    async def announce(self, shard: int, heard: Mapping[Identity, Heard]) -> list[str]:
        """Make expired keys' timers due. Codes in order: due, known, running, look."""
        arguments: list[Argument] = [
            f"{prefix}\n{timer_id}\n{h.times}\n{h.until_ms}" for (prefix, timer_id), h in heard.items()
        ]
        return await self._armed("announce", shard, arguments, again=["running"] * len(heard))

    async def take(self, deadlines: Deadlines) -> list[Identity]:
        """Delete keys that still have these deadlines; answers those that it has deleted."""
        calls: list[scripts.Call] = [(":".join(identity), ["", deadline]) for identity, deadline in deadlines.items()]
        replies = await scripts.run_all(self._redis, "bare/take", calls) if calls else []
        return [identity for identity, (_, deleted) in zip(deadlines, replies, strict=True) if deleted]

    async def _armed(self, name: str, shard: int, arguments: Sequence[Argument], *, again: list[str]) -> list[str]:
        """What a script says that makes new timers. A shard that does not carry the db's epoch is founded first;
        `again` is the answer for a db that is given other ones all the time."""
        identity = self.store.identity
        if not identity.epoch:
            await identity.make()
        for _ in range(2):
            codes = await self._codes(name, shard, [identity.epoch, *arguments])
            if codes != ["foreign"]:
                return codes
            await identity.found([shard])
        return again

    async def _codes(self, name: str, shard: int, arguments: Sequence[Argument]) -> list[str]:
        return [code.decode() for code in await self.store.run(f"bare/{name}", shard, arguments)]

    async def _each(
        self, identities: Collection[Identity], ask: Any, *, last: Any = None, raise_on_error: bool = True
    ) -> list[Any]:
        """What one command a key answers, all in one round trip."""
        with reachable():
            async with self._redis.pipeline(transaction=False) as asked:
                for identity in identities:
                    ask(asked, identity)
                if last is not None:
                    last(asked)
                answers: list[Any] = await asked.execute(raise_on_error=raise_on_error)
        return answers


def _index(shard: int) -> str:
    return f"{keys.root(shard)}bare"


def _deadlines(pairs: Any) -> dict[Identity, int]:
    found = ((member.decode().partition(":"), score) for member, score in pairs)
    return {(prefix, timer_id): int(score) for (prefix, _, timer_id), score in found}
