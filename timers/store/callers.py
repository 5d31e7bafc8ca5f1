"""Owns what Redis remembers about API callers: keys and revocations, signed requests already seen, and rates."""

import hashlib
import secrets
from collections.abc import Mapping
from typing import Any, Final

from redis.exceptions import ResponseError

from timers.errors import Unavailable
from timers.processor import Rate
from timers.store import keys
from timers.store.scripts import reachable
from timers.store.store import Store

REVOKED: Final = "revoked"
"""Replaces an entry. It stays, so that a key from the settings can be revoked as well."""


class Callers:
    """The keys and calls of one db. Methods raise Unavailable while Redis is down."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._redis = store.connections.commands

    async def entries(self) -> Mapping[str, str]:
        """What is kept for each key id: its entry, or that it is revoked."""
        with reachable():
            kept: Any = await self._redis.hgetall(keys.API_KEYS)
        entries = {key_id.decode(): entry.decode() for key_id, entry in kept.items()}
        if any(entry != REVOKED for entry in entries.values()):
            self._store.identity.closed = True
        return entries

    async def closed(self) -> bool:
        """Whether a key was ever kept here, even if the keys themselves are gone. If that cannot be read, the API
        counts as closed until it can."""
        identity = self._store.identity
        if not identity.closed:
            with reachable():
                try:
                    identity.closed = bool(await self._redis.hexists(keys.META, "closed"))
                except ResponseError:
                    return True
        return identity.closed

    async def keep(self, key_id: str, entry: str) -> None:
        """Keep a new key. From now on the API refuses callers without a key."""
        self._store.identity.closed = True
        with reachable():
            await self._redis.hset(keys.META, "closed", 1)
            await self._redis.hset(keys.API_KEYS, key_id, entry)

    async def revoke(self, key_id: str) -> bool:
        """Revoke a key, wherever it is kept. False if Redis did not have it; an open API then stays open."""
        with reachable():
            return not await self._redis.hset(keys.API_KEYS, key_id, REVOKED)

    async def session_secret(self) -> bytes:
        """The secret that signs dashboard sessions, the same on every pod. Whoever asks first creates it."""
        name = f"{keys.ACCESS_ROOT}session"
        with reachable():
            kept: Any = await self._redis.get(name)
            if kept is None:
                await self._redis.set(name, secrets.token_hex(32), nx=True)
                kept = await self._redis.get(name)
        if not kept:
            raise Unavailable("Redis does not keep the session secret")
        return bytes(kept)

    async def first_time(self, request_id: str, remember_ms: int) -> bool:
        """Whether no pod has seen this signed request before. From now on it counts as seen."""
        name = f"{keys.ACCESS_ROOT}seen:{hashlib.sha256(request_id.encode()).hexdigest()}"
        with reachable():
            return bool(await self._redis.set(name, "1", nx=True, px=remember_ms))

    async def wait_ms(self, key_id: str, rate: Rate) -> int:
        """How long the key's next call must wait; 0 if this call may pass, which then counts."""
        (wait_ms,) = await self._store.run_at(keys.ACCESS_ROOT, "admit", [key_id, rate.interval_us, rate.burst])
        return int(wait_ms)
