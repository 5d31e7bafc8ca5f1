"""Owns the calls about bare keys: plain `SET <prefix>:<id> <payload> PX <ms>` of any client in any language."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from redis.exceptions import NoPermissionError

from timers.core.shapes import RESERVED_PREFIX
from timers.core.spec import encode_payload
from timers.errors import InvalidInput, NotPermitted
from timers.store import codec, keys
from timers.store.scripts import Argument, reachable
from timers.store.store import Identity, Store

SCAN_COUNT: Final = 500
"""Keys one SCAN call looks at."""

ANNOUNCE_BATCH: Final = 250


class Heard(NamedTuple):
    """How often a pod has heard a key expire within 5 s, and the server's time until which each of its expiries, as the
    pod knows, has been answered."""

    times: int
    since_ms: int


@dataclass(frozen=True, slots=True)
class Gone:
    """An adopted timer whose key is gone: deleted, or expired and not yet announced."""

    prefix: str
    id: str
    due_ms: int


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


def spec_of(value: bytes) -> Mapping[str, Any]:
    """The spec of a timer that is adopted from a key with this value."""
    payload = payload_of(value)
    return {} if payload is None else {"payload": payload}


class BareKeys:
    """The bare keys of one db."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._redis = store.connections.commands

    def shard_of(self, identity: Identity) -> int:
        """The shard of the timer that the key stands for."""
        return self._store.shard_of(*identity)

    async def scan(self, cursor: int) -> tuple[int, list[Identity]]:
        """The next keys of the form `<prefix>:<id>`, and the cursor to go on with; 0 begins and ends. Raises
        NotPermitted where the Redis user is not to see the names of all keys."""
        with reachable():
            try:
                cursor, found = await self._redis.scan(cursor, count=SCAN_COUNT)
            except NoPermissionError as error:
                raise NotPermitted(str(error)) from None
        matches = [match for key in found if isinstance(key, bytes) and (match := keys.BARE.fullmatch(key))]
        identities = [(match[1].decode(), match[2].decode()) for match in matches]
        return cursor, [identity for identity in identities if identity[0] != RESERVED_PREFIX]

    async def values(self, identities: Sequence[Identity]) -> dict[Identity, bytes]:
        """The values of those that are strings and still there."""
        with reachable():
            async with self._redis.pipeline(transaction=False) as asked:  # one GET each: MGET takes keys of one slot
                for prefix, timer_id in identities:
                    asked.get(f"{prefix}:{timer_id}")
                values = await asked.execute(raise_on_error=False)
        return {i: value for i, value in zip(identities, values, strict=True) if isinstance(value, bytes)}

    async def adopt(self, shard: int, values: Mapping[Identity, bytes]) -> list[str]:
        """Copy into records. Codes in order: adopted, moved, same, gone, running."""
        arguments: list[Argument] = []
        for (prefix, timer_id), value in values.items():
            arguments += (prefix, timer_id, value, codec.encode_spec(spec_of(value)))
        return [code.decode() for code in await self._store.run("adopt", shard, arguments)]

    async def announce(self, shard: int, heard: Mapping[Identity, Heard]) -> list[str]:
        """Make expired keys' timers due. Codes: due, known, running."""
        arguments = [f"{prefix}\n{timer_id}\n{h.times}\n{h.since_ms}" for (prefix, timer_id), h in heard.items()]
        return [code.decode() for code in await self._store.run("announce", shard, arguments)]

    async def look(self, shard: int, start: int, most: int) -> tuple[list[Gone], int]:
        """Look at adopted timers in order of due time. Answers those whose key is gone, and how many were looked at."""
        gone, looked = await self._store.run("review", shard, ["look", start, most])
        pairs = [(gone[i].decode().partition(":"), float(gone[i + 1])) for i in range(0, len(gone), 2)]
        return [Gone(prefix, timer_id, int(due)) for (prefix, _, timer_id), due in pairs], int(looked)

    async def conclude(self, shard: int, timers: Sequence[Gone], *, deleted: bool) -> None:
        """End the doubt about timers whose keys are gone: cancel them, or make them due. One that has another due time
        since is left alone."""
        if timers:
            parts: list[Argument] = [part for timer in timers for part in (timer.prefix, timer.id, timer.due_ms)]
            await self._store.run("review", shard, ["deleted" if deleted else "expired", *parts])
