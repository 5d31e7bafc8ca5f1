"""Owns which db this is: its epoch and number of shards (`timers:meta`), how they are made and compared, and what data
was lost.

Every process reads them once and compares them from then on: an arm script in each call, a pod at each sign of life.
Reading never creates them.
"""

import re
import secrets
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final

from redis.asyncio import Redis
from redis.exceptions import ResponseError

from timers.core.answers import LossAnswer
from timers.core.clock import ServerClock
from timers.core.durations import format_time
from timers.errors import ConfigurationError, RedisRights, Unavailable, shown
from timers.store import keys, scripts

RECORD_FORMAT: Final = "1"
DEFAULT_SHARDS: Final = 1

SILENT_SECONDS: Final = 7
"""A pod whose last sign of life is older than this counts as gone."""

COUNTED: Final = 1000
"""Counts (each of a prefix and status) of a shard that one look adds up. The next look goes on there, so the number of
timers of a shard with many is older."""

_LOSS: Final = re.compile(r"loss:(?:shard:(\d+)|db:\w+) (\d+) (\d+) (\d+)")


@dataclass(frozen=True, slots=True)
class Loss:
    """Lost data: of one shard, which went back in time, or of the whole db (None). The window is in server time and
    starts at 0 if nothing is left. `timers` is how many were known, not how many were lost."""

    shard: int | None
    from_ms: int
    to_ms: int
    timers: int

    def __str__(self) -> str:
        until = format_time(self.to_ms)
        if self.shard is None:
            return f"the db was lost or replaced before {until}; it had {self.timers} known timers"
        since = f"from {format_time(self.from_ms)} to {until}" if self.from_ms else f"before {until}"
        return f"shard {self.shard} lost everything written {since}; it had {self.timers} known timers"

    def to_json(self) -> LossAnswer:
        """As the API shows it."""
        since = format_time(self.from_ms) if self.from_ms else None
        return {"shard": self.shard, "from": since, "to": format_time(self.to_ms), "timers": self.timers}


@dataclass(frozen=True, slots=True)
class Meta:
    """The contents of `timers:meta`. `armed` is set once a shard was founded, which fixes the number of shards;
    `closed` once an API key was kept. `wrong` is set if a stranger has written another number of shards; `foreign`
    says what was there, until somebody acknowledges it."""

    epoch: str
    shards: int
    armed: bool
    closed: bool
    losses: Mapping[str, Loss]
    wrong: bool = False
    foreign: str = ""


class DbIdentity:
    """The db as this process knows it. `epoch` is empty until somebody has made one; until then the number of shards is
    what was asked for, or the default. `pinned` is the number that this process insists on; None accepts any."""

    def __init__(self, redis: Redis, wake: str, clock: ServerClock, shards: int | None) -> None:
        self._redis, self._wake, self._clock = redis, wake, clock
        self.pinned = shards
        self.shards = shards or DEFAULT_SHARDS
        self.epoch = ""
        self.armed = self.closed = False
        self.losses: Mapping[str, Loss] = {}
        """Losses that nobody has acknowledged, as last seen."""
        self.foreign = ""
        """A sentence about a number of shards that a stranger has written and nobody has acknowledged."""
        self.marks: dict[int, int] = {}
        """By shard: the newest known mark of progress."""
        self.timers: dict[int, int] = {}
        """By shard: about how many timers it had when last counted."""
        self._seen_ms = 0
        self._counted: dict[int, tuple[int, int]] = {}
        """Where the next look goes on counting a shard, and how many timers it has so far."""

    async def look(self) -> None:
        """Read the db's identity, if it has one, and its losses. Changes nothing in the db. An epoch other than the one
        under which timers were armed is left to `mark`. Raises ConfigurationError if the db cannot be used: it has
        another number of shards or another format, or cannot be read."""
        meta = await self._change("look")
        self.losses, self.foreign = ({}, "") if meta is None else (meta.losses, meta.foreign)
        if self.armed and (meta is None or meta.epoch != self.epoch):
            return
        if meta is not None and (meta.armed or self.pinned in (None, meta.shards)):
            self._take(meta)

    async def make(self) -> None:
        """Take the db's identity, making one if there is none: one atomic step, so that all processes get the same. A
        pinned number of shards replaces another as long as no timer was ever armed and no pod is alive. Raises as
        `look`."""
        if self.pinned is not None and (there := await self._change("look")) and there.shards != self.pinned:
            await self._refuse_beside_pods(there.shards)
        wanted = "" if self.pinned is None else str(self.pinned)
        self._take(await self._change("make", RECORD_FORMAT, wanted, str(DEFAULT_SHARDS), _fresh()))

    async def _refuse_beside_pods(self, there: int) -> None:
        """Live pods would have to stop if the db got another number of shards. Raises ConfigurationError."""
        with scripts.reachable():
            seconds, _ = await self._redis.time()
            alive = await self._redis.zcount(f"{keys.PODS_ROOT}seen", (seconds - SILENT_SECONDS) * 1000, "+inf")
        if alive:
            raise ConfigurationError(
                f"TIMERS_SHARDS is {self.pinned}, but the live pods of this db use {there} shards; use {there}, or "
                "stop these pods first"
            )

    async def join(self) -> None:
        """As `make`, for a pod: from now on it accepts only this number of shards."""
        await self.make()
        self.pinned = self.shards

    async def found(self, shards: Iterable[int]) -> None:
        """Found the shards that do not carry our epoch. If the db has another epoch by now, adopt that first; the
        number of shards may then differ too. Raises Unavailable if this process cannot work with that."""
        epoch, meta = self.epoch, None
        try:
            with suppress(ConfigurationError):  # nobody can read the meta, which `renew` mends
                meta = await self._change("arm", epoch)
            await self._accept(meta)
        except ConfigurationError as error:
            raise Unavailable(str(error)) from error
        with scripts.reachable():
            for shard in shards if epoch == self.epoch else ():
                await self._redis.set(f"{keys.root(shard)}epoch", epoch)

    async def _accept(self, meta: Meta | None) -> None:
        """Use what was found as the db from now on, or renew the epoch."""
        if self.epoch and (meta is None or meta.epoch != self.epoch):
            await self.renew()
        elif meta is not None:
            self._take(meta)

    async def renew(self) -> None:
        """Unless our epoch is in the db, adopt the epoch that another pod has made, or make one with the same number of
        shards. Raises ConfigurationError if the db now has another number of shards and ours is pinned."""
        armed, closed = ("1" if flag else "" for flag in (self.armed, self.closed))
        known = (self.epoch, _fresh(), RECORD_FORMAT, str(self.shards), armed, closed, str(self._seen_ms))
        meta = await self._change("renew", *known, str(sum(self.timers.values())))
        if meta is None or meta.epoch != self.epoch:
            self.marks.clear()
            self.timers.clear()
            self._counted.clear()
        self._take(meta)

    async def check(self, mine: Sequence[int], others: Sequence[int] = ()) -> None:
        """Check whether it is still the same db, and renew the epoch if it is gone. Mark the progress of the shards
        that are `mine`, look at the marks of `others`, and find those that went back in time. Raises as `renew`."""
        epoch, known = self.epoch, [(shard, str(self.marks.get(shard, 0))) for shard in (*mine, *others)]
        acts = ["mark"] * len(mine) + ["look"] * len(others)
        calls = [
            scripts.ScriptCall("mark", keys.root(shard), [self._wake, mark, act])
            for (shard, mark), act in zip(known, acts, strict=True)
        ]
        try:
            marked = await scripts.run_all(self._redis, calls) if calls else []
            with scripts.reachable():
                fields: dict[Any, Any] = await self._redis.hgetall(keys.META)
            meta = _meta([*chain(*fields.items())])
        except (ResponseError, RedisRights, ConfigurationError):
            # Nobody can read the meta, which `renew` mends, or a shard could not be marked.
            await (self.renew() if epoch else self.look())
            if epoch == self.epoch:
                raise
            return
        await self._accept(meta)
        if meta is not None and meta.wrong and epoch == self.epoch:
            self._take(await self._change("mend"))
        if epoch == self.epoch:  # an emptied db has no marks either, but that is another kind of loss
            await self._take_marks({shard: reply[1:] for (shard, _), reply in zip(known, marked, strict=True)})

    async def _take_marks(self, marked: Mapping[int, Sequence[bytes]]) -> None:
        """Remember the newest marks; report the shards in which the newest known one is missing."""
        lost: list[str] = []
        for shard, (newest, behind) in marked.items():
            if not newest:
                lost += (str(shard), behind.decode(), str(self.marks[shard]), str(self.timers.get(shard, 0)))
            self.marks[shard] = int(newest or 0)
        if lost:
            self._take(await self._change("lose", self.epoch, *lost))

    async def count(self) -> None:
        """Count the timers of all shards, a part of each."""
        async with self._redis.pipeline(transaction=False) as asked:
            for shard in range(self.shards):
                asked.hscan(f"{keys.root(shard)}counts", self._counted.get(shard, (0, 0))[0], count=COUNTED)
            found = await scripts.read(asked, (0, {}))
        for shard, (cursor, counts) in enumerate(found):
            alive = (int(n) for name, n in counts.items() if name[:2] in (b"s ", b"r ") and n.isdigit())
            total = self._counted.pop(shard, (0, 0))[1] + sum(alive)
            if cursor:
                self._counted[shard] = (cursor, total)
            else:
                self.timers[shard] = total

    async def acknowledge(self) -> Sequence[Loss]:
        """Stop reporting the losses: somebody knows of them now. Returns them."""
        meta = await self._change("acknowledge")
        self.losses, self.foreign = {}, ""
        return [] if meta is None else list(meta.losses.values())

    async def _change(self, act: str, *arguments: str) -> Meta | None:
        sent = time.monotonic()
        try:
            reply = await scripts.run(self._redis, self._to_do(act, *arguments))
        except (ResponseError, RedisRights) as error:
            raise ConfigurationError(f"TIMERS_REDIS_URL cannot be used: {error}") from error
        self._clock.observe(int(reply[0]), sent, time.monotonic())
        return _meta(reply[1])

    def _to_do(self, act: str, *arguments: str) -> scripts.ScriptCall:
        if act == "look":
            return scripts.ScriptCall("look", keys.META, [self._wake])
        return scripts.ScriptCall("meta", keys.META, [self._wake, act, *arguments])

    def _take(self, meta: Meta | None) -> None:
        """Use this as the db from now on."""
        if meta is None:
            raise ConfigurationError(f"{keys.META} has no epoch and an unknown format; use another db")
        if self.pinned not in (None, meta.shards):
            there = meta.shards
            raise ConfigurationError(f"TIMERS_SHARDS is {self.pinned}, but this db has {there} shards; use {there}")
        self.epoch, self.shards, self.armed = meta.epoch, meta.shards, meta.armed
        self.closed, self.losses, self.foreign = self.closed or meta.closed, meta.losses, meta.foreign
        self._seen_ms = round(self._clock.now_ms())


def _meta(flat: Sequence[bytes]) -> Meta | None:
    """Fields and values in turn as a meta; None if the db has no identity yet. Raises ConfigurationError for another
    format or an unusable meta."""
    texts = [field.decode(errors="replace") for field in flat]
    fields = dict(zip(texts[::2], texts[1::2], strict=True))
    if (form := fields.get("format", RECORD_FORMAT)) != RECORD_FORMAT:
        raise ConfigurationError(f"the db holds records of format {form}; this version knows {RECORD_FORMAT}")
    if not fields.get("epoch"):
        return None
    made_with, written = fields.get("founded", "").split(" "), fields.get("shards", "")
    shards = made_with[1] if len(made_with) == 2 and made_with[0] == fields["epoch"] else written
    if not (shards.isascii() and shards.isdigit() and int(shards) > 0):
        raise ConfigurationError(f"{keys.META} has {shards!r} as its number of shards; write the original number there")
    losses = {name: loss for name, text in fields.items() if (loss := _loss(name, text))}
    return Meta(
        fields["epoch"],
        int(shards),
        "armed" in fields,
        "closed" in fields,
        losses,
        wrong=written != shards,
        foreign=_foreign(fields.get("foreign", ""), shards),
    )


def _foreign(text: str, shards: str) -> str:
    at_ms, _, written = text.partition(" ")
    if not at_ms.isascii() or not at_ms.isdigit() or len(at_ms) > 15:
        return ""
    return (
        f"{keys.META} had {shown(written)} as its number of shards at {format_time(int(at_ms))}, which no pod wrote; "
        f"it is {shards} again"
    )


def _loss(name: str, text: str) -> Loss | None:
    found = _LOSS.fullmatch(f"{name} {text}")
    if found is None:
        return None
    return Loss(None if found[1] is None else int(found[1]), int(found[2]), int(found[3]), int(found[4]))


def _fresh() -> str:
    """An unused epoch."""
    return secrets.token_hex(8)
