"""Owns which db this is: its epoch and number of shards (`timers:meta`), made, compared, and what it has lost.

Every process takes them from the db once and compares them from then on: an arm script in each call, a pod at each sign
of life. Reading never makes them.
"""

import secrets
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from redis.asyncio import Redis
from redis.exceptions import ResponseError

from timers.core.clock import ServerClock
from timers.errors import ConfigurationError, Unavailable
from timers.store import keys, scripts

RECORD_FORMAT: Final = "1"
DEFAULT_SHARDS: Final = 1


@dataclass(frozen=True, slots=True)
class Meta:
    """What `timers:meta` says. `armed` once a shard was founded, which fixes the number of shards; `closed` once an API
    key was kept."""

    epoch: str
    shards: int
    armed: bool
    closed: bool


class DbIdentity:
    """The db as this process knows it. `epoch` is empty as long as nobody has made one; the number of shards is then
    what was asked for, or the default. `pinned` is the number that this process insists on, None for any."""

    def __init__(self, redis: Redis, wake: str, clock: ServerClock, shards: int | None) -> None:
        self._redis, self._wake, self._clock = redis, wake, clock
        self.pinned = shards
        self.shards = shards or DEFAULT_SHARDS
        self.epoch = ""
        self.armed = self.closed = False
        self._seen_ms = 0

    async def look(self) -> None:
        """Take the db's identity if it has one. Changes nothing there. Raises ConfigurationError for a db that cannot
        be used: with another number of shards, in another format, or not to be read."""
        meta = await self._change("look")
        if meta is not None and (meta.armed or self.pinned in (None, meta.shards)):
            self._take(meta)

    async def make(self) -> None:
        """Take the db's identity, and make one where there is none: one atomic step, so that all get the same. A number
        of shards that is insisted on replaces another as long as no timer was ever armed. Raises as `look`."""
        wanted = "" if self.pinned is None else str(self.pinned)
        self._take(await self._change("make", RECORD_FORMAT, wanted, str(DEFAULT_SHARDS), _fresh()))

    async def join(self) -> None:
        """As `make`, for a pod: from now on it works with this number of shards and no other."""
        await self.make()
        self.pinned = self.shards

    async def found(self, shards: Iterable[int]) -> None:
        """Found shards that do not carry our epoch. If the db has another by now, ours becomes that one first; the
        number of shards may then be another too. Raises Unavailable where this process cannot work with that."""
        meta = await self._change("arm", self.epoch)
        if meta is None or meta.epoch != self.epoch:
            try:
                await self.renew()
            except ConfigurationError as error:
                raise Unavailable(str(error)) from error
            return
        self._take(meta)
        with scripts.reachable():
            for shard in shards:
                await self._redis.set(f"{keys.root(shard)}epoch", self.epoch)

    async def renew(self) -> None:
        """Our epoch is gone from the db. Go on under the one that another pod has made, or make it, with as many shards
        as before. Raises ConfigurationError where it has another number now, and ours is pinned."""
        armed, closed = ("1" if flag else "" for flag in (self.armed, self.closed))
        known = (self.epoch, _fresh(), RECORD_FORMAT, str(self.shards), armed, closed, str(self._seen_ms), "0")
        self._take(await self._change("renew", *known))

    async def _change(self, act: str, *arguments: str) -> Meta | None:
        sent = time.monotonic()
        try:
            now_ms, fields = await scripts.run(self._redis, "meta", keys.META, [self._wake, act, *arguments])
        except ResponseError as error:
            raise ConfigurationError(f"TIMERS_REDIS_URL cannot be used: {error}") from error
        self._clock.observe(int(now_ms), sent, time.monotonic())
        texts = [field.decode(errors="replace") for field in fields]
        return _meta(dict(zip(texts[::2], texts[1::2], strict=True)))

    def _take(self, meta: Meta | None) -> None:
        """From now on this is the db."""
        if meta is None:
            raise ConfigurationError(f"{keys.META} has no epoch, and its format is not known; use another db")
        if self.pinned not in (None, meta.shards):
            there = meta.shards
            raise ConfigurationError(f"TIMERS_SHARDS is {self.pinned}, but this db has {there} shards; use {there}")
        self.epoch, self.shards, self.armed = meta.epoch, meta.shards, meta.armed
        self.closed = self.closed or meta.closed
        self._seen_ms = round(self._clock.now_ms())


def _meta(fields: dict[str, str]) -> Meta | None:
    """None where no db was made yet. Raises ConfigurationError for another format, and for what is no meta."""
    if (form := fields.get("format", RECORD_FORMAT)) != RECORD_FORMAT:
        raise ConfigurationError(f"the db holds records of format {form}; this version knows {RECORD_FORMAT}")
    if not fields.get("epoch"):
        return None
    shards = fields.get("shards", "")
    if not (shards.isascii() and shards.isdigit() and int(shards) > 0):
        raise ConfigurationError(f"{keys.META} has {shards!r} shards; write the number the db was made with there")
    return Meta(fields["epoch"], int(shards), "armed" in fields, "closed" in fields)


def _fresh() -> str:
    """An epoch that was never used."""
    return secrets.token_hex(8)
