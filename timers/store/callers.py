"""Owns what Redis remembers about API callers: keys and revocations, signed requests already seen, and rates."""

import hashlib
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from redis.exceptions import ResponseError

from timers.errors import Unavailable
from timers.processor import Rate
from timers.store import keys
from timers.store.scripts import reachable
from timers.store.store import Store

REVOKED: Final = "revoked"
"""Replaces an entry. It stays, so that a key from the settings can be revoked as well."""


@contextmanager
def _readable() -> Iterator[None]:
    """As `reachable`. A stranger's value in the place of one of these keys makes them unavailable: nobody may get in
    because the list of keys is gone."""
    with reachable():
        try:
            yield
        except ResponseError as error:
            if not str(error).startswith("WRONGTYPE"):
                raise
            text = f"another program has written to {keys.API_KEYS} or a key beside it; `timers doctor` names it"
            raise Unavailable(text) from error


class Callers:
    """The keys and calls of one db. Methods raise Unavailable while Redis is down."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._redis = store.connections.commands

    async def entries(self) -> Mapping[str, str]:
        """What is kept for each key id: its entry, or that it is revoked."""
        with _readable():
            kept: Any = await self._redis.hgetall(keys.API_KEYS)
        entries = {key_id.decode(errors="replace"): entry.decode(errors="replace") for key_id, entry in kept.items()}
        if any(entry != REVOKED for entry in entries.values()):
            self._store.identity.closed = True
        return entries

    async def closed(self) -> bool:
        """Whether a key was ever kept here, even if the keys themselves are gone. If that cannot be read, the API
        counts as closed until it can."""
        identity = self._store.identity
        if not identity.closed:
            with _readable():
                try:
                    identity.closed = bool(await self._redis.hexists(keys.META, "closed"))
                except ResponseError:
                    return True
        return identity.closed

    async def keep(self, key_id: str, entry: str) -> None:
        """Keep a new key. From now on the API refuses callers without a key."""
        self._store.identity.closed = True
        with _readable():
            await self._redis.hset(keys.META, "closed", 1)
            await self._redis.hset(keys.API_KEYS, key_id, entry)

    async def revoke(self, key_id: str) -> bool:
        """Revoke a key, wherever it is kept. False if Redis did not have it; an open API then stays open."""
        with _readable():
            return not await self._redis.hset(keys.API_KEYS, key_id, REVOKED)

    async def session_secret(self) -> bytes:
        """The secret that signs dashboard sessions, the same on every pod. Whoever asks first creates it."""
        name = f"{keys.ACCESS_ROOT}session"
        with _readable():
            kept: Any = await self._redis.get(name)
            if kept is None:
                await self._redis.set(name, secrets.token_hex(32), nx=True)
                kept = await self._redis.get(name)
        if not kept:
            raise Unavailable("Redis does not keep the session secret")
        return bytes(kept)

    async def end_session(self, session: str, seconds: int) -> None:
        """Remember for this long that the session was ended."""
        with _readable():
            await self._redis.set(_ended(session), 1, ex=max(1, seconds))

    async def has_ended(self, session: str) -> bool:
        """Whether somebody ended the session before its time."""
        with _readable():
            return bool(await self._redis.exists(_ended(session)))

    async def first_time(self, request_id: str, remember_ms: int) -> bool:
        """Whether no pod has seen this signed request before. From now on it counts as seen."""
        name = f"{keys.ACCESS_ROOT}seen:{hashlib.sha256(request_id.encode()).hexdigest()}"
        with _readable():
            return bool(await self._redis.set(name, "1", nx=True, px=remember_ms))

    async def wait_ms(self, key_id: str, rate: Rate) -> int:
        """How long the key's next call must wait; 0 if this call may pass, which then counts."""
        (wait_ms,) = await self._store.run_at(keys.ACCESS_ROOT, "admit", [key_id, rate.interval_us, rate.burst])
        return int(wait_ms)


def _ended(session: str) -> str:
    return f"{keys.ACCESS_ROOT}ended:{hashlib.sha256(session.encode()).hexdigest()}"
