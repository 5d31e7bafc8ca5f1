"""Owns which db this is: its epoch, number of shards and format of records (`timers:meta`), how they are made and
compared, and what data was lost.

Every process reads them once and compares them from then on: an arm script in each call, a pod at each sign of life.
Reading never creates them.

A version reads its newest format of records and all older ones. It writes a newer one only once no pod works on the db
that cannot read it, because such a pod would be blind to these timers. PROTOCOL.md, section "Formats", tells how pods
agree.
"""

import re
import secrets
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final, NamedTuple

from redis.exceptions import ResponseError

from timers.core.answers import LossAnswer
from timers.core.clock import ServerClock
from timers.core.durations import format_time
from timers.errors import ConfigurationError, Moving, NewerFormat, RedisRights, TooNew, Unavailable, shown
from timers.store import keys, scripts
from timers.store.servers.connections import Connections

SILENT_SECONDS: Final = 7
"""A pod whose last sign of life is older than this counts as gone."""

COUNTED: Final = 1000
"""Counts (each of a prefix and status) of a shard that one check adds up. The next goes on there, so the number of
timers of a shard with many is older."""

READS: Final = 2
"""The newest format that this version reads; as in lua/common.lua."""

RAISE_AFTER_SECONDS: Final = 600.0
"""How long all live pods must have read a format before one raises the db to it: time to upgrade the programs that are
no pods, and to go back to the earlier version."""

GRACE_MS: Final = 10_000
"""How long after the db was raised records are still written as before. A pod that started meanwhile and cannot read
the new format notices at its next sign of life, and ends."""

SHARDS, CLUSTER_SHARDS = 1, 64
"""Those of a db for which nobody asks for another number. On a cluster they are enough to spread the timers evenly over
many primaries; a shard cannot be divided."""

LEAVING: Final = "leaving"
COPYING: Final = "copying"
MOVED: Final = "moved"
ARRIVING: Final = "arriving"
"""Phases of a move."""

NO_FORMAT: Final = 99
"""What `format` says while the service is moved: no version reads it."""

_RAISED: Final = re.compile(r"([0-9]{1,13}) ([0-9]{1,2})(?: (.*))?", re.DOTALL)
_FOREIGN: Final = re.compile(r"([0-9]{1,13}) (.*)", re.DOTALL)
_LOSS: Final = re.compile(r"loss:(?:shard:([0-9]{1,9})|db:\w+) ([0-9]{1,13}) ([0-9]{1,13}) ([0-9]{1,16})")
_MOVE: Final = re.compile(r"(\w+) ([0-9]{1,13}) ([0-9]{1,2}) (\S+) (\S+)")
_FORMAT: Final = re.compile(rb"(\d\d?) ")
_SHARDS: Final = re.compile(r"[1-9][0-9]{0,8}")


def format_of(raw: bytes) -> int:
    """The format of a record that may be newer than what this version reads; 0 if it says none."""
    found = _FORMAT.match(raw)
    return int(found[1]) if found else 0


def is_newer(raw: bytes) -> bool:
    """Whether the record has a format that only a later version reads."""
    return format_of(raw) > READS


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
            return f"the db was lost or replaced before {until}; at the last check it had {self.timers} timers"
        since = f"from {format_time(self.from_ms)} to {until}" if self.from_ms else f"before {until}"
        return f"shard {self.shard} lost everything written {since}; at the last check it had {self.timers} timers"

    def to_json(self) -> LossAnswer:
        """As the API shows it."""
        since = format_time(self.from_ms) if self.from_ms else None
        return {"shard": self.shard, "from": since, "to": format_time(self.to_ms), "timers": self.timers}


class Move(NamedTuple):
    """How far the service's move to or from another db is: `leaving` while runs end, then `copying`, and `moved`; in
    the new place `arriving`, until it goes on there. Since when (server ms), under which name, and where the other db
    is."""

    phase: str
    since_ms: int
    name: str
    place: str

    @property
    def error(self) -> Moving:
        """What callers are told."""
        return Moving.of(self.phase, self.place)

    @property
    def is_over(self) -> bool:
        """Whether the timers here are those of the past."""
        return self.phase == MOVED


@dataclass(frozen=True, slots=True)
class Meta:
    """The contents of `timers:meta`. `armed` is set once a shard was founded, which fixes the number of shards;
    `closed` once an API key was kept. `wrong` is set if another program has written another number of shards; `foreign`
    says what was there, until somebody acknowledges it. `form` is the newest format that records may have; it was
    `before` until `raised_ms`."""

    epoch: str
    shards: int
    form: int
    before: int
    raised_ms: int
    armed: bool
    closed: bool
    losses: Mapping[str, Loss]
    wrong: bool = False
    foreign: str = ""
    moving: Move | None = None


class DbIdentity:
    """The db as this process knows it. `epoch` is empty until somebody has made one; until then the number of shards is
    what was asked for, or the `default`. `pinned` is the number that this process insists on; None accepts any."""

    def __init__(self, connections: Connections, clock: ServerClock, shards: int | None) -> None:
        self._redis, self._wake, self._clock = connections.commands, connections.wake, clock
        self.pinned = shards
        self.default = CLUSTER_SHARDS if connections.is_spread else SHARDS
        self.shards = shards or self.default
        self.epoch = ""
        self.form = self._before = 1
        self._raised_ms = 0
        self.newest = READS
        """The newest format that this process lets be written (TIMERS_FORMAT)."""
        self.armed = self.closed = False
        self.losses: Mapping[str, Loss] = {}
        """Losses that nobody has acknowledged, as last seen."""
        self.foreign = ""
        """A sentence about a number of shards that another program has written and nobody has acknowledged."""
        self.moving: Move | None = None
        """Set while the service is moved, as last seen, and ever after where it has left."""
        self.checkpoints: dict[int, int] = {}
        """By shard: the newest known checkpoint."""
        self.timers: dict[int, int] = {}
        """By shard: about how many timers it had when last counted."""
        self._seen_ms = 0
        self._counted: dict[int, tuple[int, int]] = {}
        """Where the next check goes on counting a shard, and how many timers it has so far."""
        self._is_stamped = True

    @property
    def writes(self) -> int:
        """The format in which records are to be written now. It only grows; whoever learns of it late writes an older
        one, which all read."""
        return self.form if self._clock.now_ms() >= self._raised_ms + GRACE_MS else self._before

    @property
    def stamp(self) -> str:
        """What each shard carries: the epoch, and the newest format if that is not 1. Whoever knows an older format is
        refused by the scripts that make timers, and looks at the db again."""
        return self.epoch if self.form == 1 else f"{self.epoch} {self.form}"

    def expect(self, shards: int) -> None:
        """If the db has no number of shards and none is asked for, it is to get this one."""
        if not self.epoch and self.pinned is None:
            self.default = self.shards = shards

    async def refresh(self) -> None:
        """Read the db's identity, if it has one, and its losses. Changes nothing in the db. An epoch other than the one
        under which timers were armed is left to `check`. Raises ConfigurationError if the db cannot be used: it has
        another number of shards or a newer format, or cannot be read; RedisRights if the Redis user may not."""
        meta = await self._change("look")
        if meta is not None:
            self.losses, self.foreign = meta.losses, meta.foreign
        self.moving = None if meta is None else meta.moving
        if self.armed and (meta is None or meta.epoch != self.epoch):
            return
        if meta is not None and (meta.armed or self.pinned in (None, meta.shards)):
            self._take(meta)

    async def make(self) -> None:
        """Take the db's identity, making one if there is none: one atomic step, so that all processes get the same. A
        pinned number of shards replaces another as long as no timer was ever armed and no pod is alive. Raises as
        `refresh`."""
        if self.pinned is not None and (there := await self._change("look")) and there.shards != self.pinned:
            await self._refuse_beside_pods(there.shards)
        wanted = "" if self.pinned is None else str(self.pinned)
        self._take(await self._change("make", str(self.newest), wanted, str(self.default), _fresh()))

    async def _refuse_beside_pods(self, there: int) -> None:
        """Live pods would have to stop if the db got another number of shards. Raises ConfigurationError."""
        with scripts.reachable():
            seconds, _ = await self._redis.time()
            alive = await self._redis.zcount(f"{keys.PODS_ROOT}seen", (seconds - SILENT_SECONDS) * 1000, "+inf")
        if alive:
            raise ConfigurationError(
                f"TIMERS_SHARDS is {self.pinned}, but the live pods of this db use {_shards(there)}; use {there}, or "
                "stop these pods first"
            )

    async def join(self) -> None:
        """As `make`, for a pod: from now on it accepts only this number of shards."""
        await self.make()
        self.pinned = self.shards

    async def found(self, shards: Iterable[int]) -> None:
        """Found the shards that do not carry our epoch. If the db has another epoch by now, adopt that first; the
        number of shards may then differ too. Raises Unavailable if this process cannot work with that, NewerFormat if
        it cannot read it, and Moving if nothing may be made here now."""
        epoch, meta = self.epoch, None
        try:
            with suppress(ConfigurationError):  # nobody can read the meta, which `renew` repairs
                meta = await self._change("arm", epoch)
            await self._accept(meta)
        except TooNew as error:
            raise NewerFormat(str(error)) from error
        except ConfigurationError as error:
            raise Unavailable(str(error)) from error
        if self.moving is not None:
            raise self.moving.error
        with scripts.reachable():
            for shard in shards if epoch == self.epoch else ():
                await self._redis.set(f"{keys.root(shard)}epoch", self.stamp)

    async def check_stays(self) -> None:
        """Raise Moving if the service is being moved or has moved. For what no script refuses."""
        if (meta := await self._change("look")) is not None and meta.moving is not None:
            raise meta.moving.error

    async def move(self, phase: str, name: str, place: str) -> None:
        """Say how far the move is."""
        self._take(await self._change("move", self.epoch, phase, name, place))

    async def stay(self, *, armed: bool) -> None:
        """Say that the service is here, and goes on; `armed` if it has timers."""
        self._take(await self._change("stay", self.epoch, "1" if armed else ""))

    async def raise_format(self, form: int, version: str) -> None:
        """Let records be written in a newer format, which all live pods read, after the grace. `version` is given to
        those that cannot read it."""
        self._take(await self._change("raise", str(form), version))
        await self._stamp()

    async def _stamp(self) -> None:
        """See to it once that founded shards carry the db's format, so that no caller with an older version arms there.
        Shards that are founded later get it then."""
        if self._is_stamped or self.moving is not None:
            return
        names = [f"{keys.root(shard)}epoch" for shard in range(self.shards)]
        carried = await scripts.read(self._redis, lambda asked: list(map(asked.get, names)), None)
        with scripts.reachable():
            for name, there in zip(names, carried, strict=True):
                if there is not None and there.decode(errors="replace").partition(" ")[0] == self.epoch:
                    await self._redis.set(name, self.stamp)
        self._is_stamped = True

    async def _accept(self, meta: Meta | None) -> None:
        """Use what was found as the db from now on, or renew the epoch."""
        if self.epoch and (meta is None or meta.epoch != self.epoch):
            await self.renew()
        elif meta is not None:
            self._take(meta)

    async def renew(self) -> None:
        """Unless our epoch is in the db, adopt the epoch that another pod has made, or make one with the same number of
        shards. The losses that nobody had acknowledged went with the db, so the new one covers them. Raises
        ConfigurationError if the db now has another number of shards and ours is pinned."""
        armed, closed = ("1" if flag else "" for flag in (self.armed, self.closed))
        losses = self.losses.values()
        since_ms = min([self._seen_ms, *(loss.from_ms for loss in losses)])
        timers = max([sum(self.timers.values()), *(loss.timers for loss in losses)])
        known = (self.epoch, _fresh(), str(self.form), str(self.shards), armed, closed, str(since_ms), str(timers))
        meta = await self._change("renew", *known)
        if meta is None or meta.epoch != self.epoch:
            self.checkpoints.clear()
            self.timers.clear()
            self._counted.clear()
        self._take(meta)

    async def check(self, mine: Sequence[int], others: Sequence[int] = ()) -> None:
        """Check whether it is still the same db, and renew the epoch if it is gone. Mark the progress of the shards
        that are `mine`, read the checkpoints of `others`, and find those that went back in time. Raises as `renew`."""
        epoch, acts = self.epoch, dict.fromkeys(mine, "mark") | dict.fromkeys(others, "look")
        calls = [(keys.root(shard), [str(self.checkpoints.get(shard, 0)), act]) for shard, act in acts.items()]
        try:
            written = await scripts.run_all(self._redis, "mark", calls, self._wake) if calls else []
            answers = [answer for answer, _ in written]
            failed = [answer for answer in answers if isinstance(answer, BaseException)]
            # Some shards may be on a node that is away.
            if error := next((e for e in failed if len(failed) == len(calls) or not isinstance(e, Unavailable)), None):
                raise error
            replies = {s: reply[1:] for s, reply in zip(acts, answers, strict=True) if isinstance(reply, list)}
            self.checkpoints |= {shard: int(newest) for shard, (newest, _) in replies.items() if newest}
            meta = await self._look()
        except (ResponseError, RedisRights, ConfigurationError):
            # Nobody can read the meta, which `renew` repairs, or a shard has no checkpoint.
            await (self.renew() if epoch else self.refresh())
            if epoch == self.epoch:
                raise
            return
        await self._accept(meta)
        if meta is not None and meta.wrong and epoch == self.epoch:
            self._take(await self._change("repair"))
        await self._stamp()
        if epoch == self.epoch:  # an emptied db has no checkpoints either, but that is another kind of loss
            await self._report_lost({shard: behind for shard, (newest, behind) in replies.items() if not newest})
        if failed:
            raise failed[0]

    async def _report_lost(self, behind: Mapping[int, bytes]) -> None:
        """Report the shards in which the newest known checkpoint is missing, with the one they went back to."""
        lost: list[str] = []
        for shard, at in behind.items():
            lost += (str(shard), at.decode(), str(self.checkpoints[shard]), str(self.timers.get(shard, 0)))
            self.checkpoints[shard] = 0
        if lost:
            self._take(await self._change("lose", self.epoch, *lost))

    async def count(self, shards: Collection[int]) -> None:
        """Count the timers of these shards, a part of each."""
        places = [(f"{keys.root(shard)}counts", self._counted.get(shard, (0, 0))[0]) for shard in shards]
        found = await scripts.read(
            self._redis, lambda asked: [asked.hscan(name, cursor, count=COUNTED) for name, cursor in places], (0, {})
        )
        for shard, (cursor, counts) in zip(shards, found, strict=True):
            alive = (keys.number(n) for name, n in counts.items() if name[:2] in (b"s ", b"r "))
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

    async def _look(self) -> Meta | None:
        """What the db is, for one command. The script `look` takes three, and tells the server's time besides."""
        with _readable(), scripts.reachable():
            fields: dict[Any, Any] = await self._redis.hgetall(keys.META)
        return _meta(list(chain.from_iterable(fields.items())))

    async def _change(self, act: str, *arguments: str) -> Meta | None:
        script, sent = "look" if act == "look" else "meta", time.monotonic()
        with _readable():
            reply = await scripts.run(self._redis, script, keys.META, [act, *arguments], self._wake)
        self._clock.observe(int(reply[0]), sent, time.monotonic())
        return _meta(reply[1])

    def _take(self, meta: Meta | None) -> None:
        """Use this as the db from now on."""
        if meta is None:
            raise ConfigurationError(f"{keys.META} has no epoch and an unknown format; use another db")
        if self.pinned not in (None, meta.shards):
            there = meta.shards
            raise ConfigurationError(f"TIMERS_SHARDS is {self.pinned}, but this db has {_shards(there)}; use {there}")
        if (self.epoch, self.form) != (meta.epoch, meta.form):
            self._is_stamped = meta.form == 1
        self.form, self._before, self._raised_ms = meta.form, meta.before, meta.raised_ms
        self.epoch, self.shards, self.armed, self.moving = meta.epoch, meta.shards, meta.armed, meta.moving
        self.closed, self.losses, self.foreign = self.closed or meta.closed, meta.losses, meta.foreign
        self._seen_ms = round(self._clock.now_ms())


@contextmanager
def _readable() -> Iterator[None]:
    """Raises ConfigurationError if the meta is no hash."""
    try:
        yield
    except ResponseError as error:
        overwritten = f"{keys.META} is not a hash: another program has written it"
        why = overwritten if str(error).startswith("WRONGTYPE") else error
        raise ConfigurationError(f"TIMERS_REDIS_URL cannot be used: {why}") from error


def _meta(flat: Sequence[bytes]) -> Meta | None:
    """Fields and values in turn as a meta; None if the db has no identity yet. Raises ConfigurationError for an
    unusable meta, and TooNew for a format that only a later version reads."""
    fields = dict(scripts.grouped([field.decode(errors="replace") for field in flat], 2))
    moving = None
    if found := _MOVE.fullmatch(fields.get("moving", "")):
        moving, fields["format"] = Move(found[1], int(found[2]), found[4], found[5]), found[3]
    form = _form(fields)
    if not fields.get("epoch"):
        return None
    made_with, written = fields.get("founded", "").split(" "), fields.get("shards", "")
    shards = made_with[1] if len(made_with) == 2 and made_with[0] == fields["epoch"] else written
    if not _SHARDS.fullmatch(shards):
        raise ConfigurationError(
            f"{keys.META} has {shown(shards)} as its number of shards; write the original number there"
        )
    before, raised_ms = form, 0
    if (raised := _RAISED.fullmatch(fields.get("raised", ""))) and 0 < int(raised[2]) < form:
        before, raised_ms = int(raised[2]), int(raised[1])
    foreign = ""
    if kept := _FOREIGN.fullmatch(fields.get("foreign", "")):
        there = f"{keys.META} had {shown(kept[2])} as its number of shards at {format_time(int(kept[1]))}"
        foreign = f"{there}, which no pod wrote; it is {shards} again"
    lost = {name: _LOSS.fullmatch(f"{name} {text}") for name, text in fields.items()}
    return Meta(
        fields["epoch"],
        int(shards),
        form,
        before,
        raised_ms,
        "armed" in fields,
        "closed" in fields,
        {name: Loss(int(m[1]) if m[1] else None, int(m[2]), int(m[3]), int(m[4])) for name, m in lost.items() if m},
        wrong=written != shards,
        foreign=foreign,
        moving=moving,
    )


def _form(fields: Mapping[str, str]) -> int:
    """The newest format that records may have."""
    written = fields.get("format", "1")
    if not re.fullmatch(r"[1-9][0-9]?", written):
        raise ConfigurationError(f"{keys.META} has {shown(written)} as its record format; write the original there")
    if int(written) > READS:
        raised = _RAISED.fullmatch(fields.get("raised", ""))
        by = raised[3] if raised else None
        since = f" since {format_time(int(raised[1]))}, by version {by}" if raised and by else ""
        raise TooNew(
            f"the db has records of format {written}{since}; this version reads formats up to {READS}. "
            f"Use {f'version {by}' if by else 'the version that wrote them'}, or a later one"
        )
    return int(written)


def _shards(number: int) -> str:
    return f"{number} shard{'s' * (number != 1)}"


def _fresh() -> str:
    """An unused epoch."""
    return secrets.token_hex(8)
